"""Chains that fail: which error, which descriptor it names, what follows, and what gates and flags tell others."""

import threading

import numpy as np
import pytest

import strata
from strata import errors, sdma
from strata._core import descriptors as d

BOUND = 30.0
HUGE = (64 << 20) + 8


@pytest.fixture
def ring():
    ring = sdma.open_ring(16)
    yield ring
    ring.close()


def made(n=1, **fields):
    found = np.zeros(n, sdma.DESCRIPTOR)
    for name, value in fields.items():
        found[name] = value
    return found


def hole():
    """An address of this die's segment where no memory is."""
    x = strata.empty(4 << 20, "u1")
    at = strata.address(x)
    del x
    strata.empty_cache()
    return at


AT, GONE = 1 << 60, 1 << 61  # in the table below: an address of memory, and one where there is none
INVALID, MISSING = errors.InvalidArgument, errors.RegistrationError

# Descriptors that fail: kind of error, what the text says, fields.
CASES = {
    "zeroed": (INVALID, "nothing: there is no such type", {}),
    "unknown": (INVALID, "type 77: there is no such type", {"type": 77}),
    "copy-from-nowhere": (MISSING, "copy of 8 bytes from 0x0", {"type": d.COPY, "dst": AT, "bytes": 8}),
    "copy-to-nowhere": (MISSING, "to 0x10", {"type": d.COPY, "src": AT, "dst": 0x10, "bytes": 8}),
    "copy-from-a-hole": (MISSING, "copy of 8 bytes", {"type": d.COPY, "src": GONE, "dst": AT, "bytes": 8}),
    "copy-out-of-bounds": (MISSING, "copy", {"type": d.COPY, "src": AT, "dst": AT, "bytes": 60 << 20}),
    "copy-too-long": (INVALID, "copy", {"type": d.COPY, "src": AT, "dst": AT, "bytes": HUGE}),
    "copy-overlapping": (INVALID, "copy", {"type": d.COPY, "src": AT, "dst": AT + 8, "bytes": 16}),
    "copy-endless": (INVALID, "copy", {"type": d.COPY, "src": AT, "dst": AT, "bytes": 2**64 - 1}),
    "copy-wrong-generation": (MISSING, "copy", {"type": d.COPY, "src": AT, "dst": AT + 64, "bytes": 8, "src_gen": 77}),
    "fill-a-hole": (MISSING, "fill of 16 bytes", {"type": d.FILL, "dst": GONE, "bytes": 16}),
    "reduce-no-dtype": (INVALID, "reduce", {"type": d.REDUCE, "src": AT, "dst": AT, "bytes": 8, "op": 1}),
    "reduce-bad-dtype": (INVALID, "reduce", {"type": d.REDUCE, "src": AT, "dst": AT, "bytes": 8, "op": 1, "dtype": 99}),
    "reduce-bad-op": (INVALID, "op 99", {"type": d.REDUCE, "src": AT, "dst": AT, "bytes": 8, "op": 99, "dtype": 6}),
    "reduce-part": (INVALID, "reduce (sum)", {"type": d.REDUCE, "src": AT, "dst": AT, "bytes": 6, "op": 1, "dtype": 6}),
    "reduce-or-float": (
        TypeError,
        "reduce (bor)",
        {"type": d.REDUCE, "src": AT, "dst": AT, "bytes": 8, "op": 7, "dtype": 12},
    ),
    "accumulate-misaligned": (
        INVALID,
        "accumulate",
        {"type": d.ACCUMULATE, "src": AT, "dst": AT + 1, "bytes": 4, "op": 1, "dtype": 6},
    ),
    "list-of-none": (
        INVALID,
        "reduce",
        {"type": d.REDUCE, "flags": d.LIST, "src": AT, "bytes": 8, "op": 1, "dtype": 6},
    ),
    "list-nowhere": (
        MISSING,
        "reduce",
        {"type": d.REDUCE, "flags": d.LIST, "src": GONE, "bytes": 8, "op": 1, "dtype": 6, "value": 1 | 1 << 16},
    ),
    "list-of-65535": (
        INVALID,
        "reduce",
        {"type": d.REDUCE, "flags": d.LIST, "src": AT, "bytes": 8, "op": 1, "dtype": 6, "value": 0xFFFFFFFF},
    ),
    "write-misaligned": (INVALID, "write of flag", {"type": d.WRITE, "dst": AT + 4, "value": 1}),
    "write-a-hole": (MISSING, "write of flag", {"type": d.WRITE, "dst": GONE, "value": 1}),
    "write-beyond-the-world": (MISSING, "write", {"type": d.WRITE, "flags": d.WORLD, "dst": 1 << 40, "value": 1}),
    "add-a-hole": (MISSING, "add of flag", {"type": d.ADD, "dst": GONE, "value": 1}),
    "count-a-hole": (MISSING, "count", {"type": d.COUNT, "src": GONE, "dst": AT, "bytes": 1, "value": 1}),
    "gate-a-hole": (MISSING, "gate on flag", {"type": d.GATE, "src": GONE, "value": 1}),
    "gate-misaligned": (INVALID, "gate", {"type": d.GATE, "src": AT + 1, "value": 1}),
    "gate-too-long": (
        errors.CollectiveTimeout,
        "the flag did not come to it in time, 1e-09 s by",
        {"type": d.GATE, "src": AT, "value": 2**62, "bytes": 1},
    ),
    "wake-before-memory": (INVALID, "write", {"type": d.WRITE, "dst": AT, "value": 1, "wake": 1}),
    "call-nowhere": (MISSING, "call of 2 descriptors", {"type": d.CALL, "src": GONE, "bytes": 2}),
    "call-endless": (INVALID, "call", {"type": d.CALL, "src": AT, "bytes": 2**63}),
    "call-misaligned": (INVALID, "call", {"type": d.CALL, "src": AT + 4, "bytes": 1}),
}


def resolved(fields, at, gone):
    """Fields with the real addresses."""
    found = {}
    for name, value in fields.items():
        place = name in ("src", "dst") and value >= AT
        found[name] = value - AT + at if place and value < GONE else gone if place else value
    return found


@pytest.mark.parametrize("case", CASES)
def test_failing_descriptor(ring, case):
    """The error names it; what stood before it is done, what follows is not; flags are poisoned, and the next chain
    is executed."""
    kind, text, fields = CASES[case]
    keep = strata.zeros(64, "u8")
    fields = resolved(fields, strata.address(keep), hole())
    out = strata.zeros(4, "u1")
    raised, added, free = sdma.flag(), sdma.flag(), sdma.flag()
    chain = np.concatenate(
        [
            sdma.Batch().fill(out[:1], 1).nop().build(),
            made(1, **fields),
            sdma.Batch().fill(out[1:2], 1).gate(free, 1).write(raised, 5).add(added, 5).build(),
        ]
    )
    failed = sdma.stats()["failed"]
    work = ring.submit(chain)
    after = ring.submit(sdma.Batch().fill(out[2:3], 1).write(free, 1))
    with pytest.raises(kind) as caught:
        work.wait(BOUND)
    assert f"descriptor {work.first + 2} of ring {ring.index} of rank 0, " in str(caught.value)
    assert text in str(caught.value) and caught.value.ranks == (0,) and caught.value.operation == "sdma"
    assert work.exception() is caught.value and "failed" in repr(work)
    after.wait(BOUND)
    assert (out == [1, 0, 1, 0]).all() and not keep.any()
    for flag in (raised, added):
        assert sdma.read(flag) >= sdma.POISON
        with pytest.raises(kind):
            sdma.wait(flag, 1)
        with pytest.raises(kind):
            sdma.poll(flag, 1)
        assert sdma.poll(flag, 0)  # it had come to that
    assert sdma.stats()["failed"] == failed + 1


def test_poison_goes_from_ring_to_ring(ring):
    """A gate on a poisoned flag fails as what poisoned it, and so on, whichever ring comes first."""
    for order in (1, -1):
        others = [sdma.open_ring(4) for _ in range(3)]
        flags = [sdma.flag() for _ in range(4)]
        out = strata.zeros(3, "u1")
        steps = [
            lambda k=k, o=others, f=flags, out=out: (
                k,
                o[k].submit(sdma.Batch().gate(f[k], 1).fill(out[k : k + 1], 1).write(f[k + 1], 1)),
            )
            for k in range(3)
        ]
        works = dict(step() for step in steps[::order])
        bad = ring.submit(np.concatenate([made(1, type=d.COPY, bytes=8), sdma.Batch().write(flags[0], 1).build()]))
        for k in range(3):
            text = f"ring {others[k].index} of rank 0, gate on flag .*: it is poisoned, .* failed: memory that it"
            with pytest.raises(errors.RegistrationError, match=text):
                works[k].wait(BOUND)
        with pytest.raises(errors.RegistrationError, match="copy of 8 bytes from 0x0"):
            bad.wait(BOUND)
        assert not out.any()
        with pytest.raises(errors.RegistrationError, match="is poisoned"):
            sdma.wait(flags[3], 1)
        for other in others:
            other.close()


@pytest.mark.parametrize("status, kind", [(s, e.error) for s, e in enumerate(errors.STATUS)])
def test_every_poison(ring, status, kind):
    """Whatever a flag is poisoned with, a wait and a gate raise an error of its class; what makes no sense is
    CorruptSpace."""
    flag = sdma.flag()
    flag[0] = sdma.POISON | status
    if kind is None or not 0 < status < len(errors.STATUS):
        kind = errors.CorruptSpace
    with pytest.raises(kind, match="is poisoned"):
        sdma.wait(flag, 1)
    with pytest.raises(kind):
        ring.submit(sdma.Batch().gate(flag, 1)).wait(BOUND)


def test_memory_that_was_given_back_after_it_was_named(ring):
    """By addresses: nothing keeps the memory, and what is there by the time it is executed is something else."""
    gate = sdma.flag()
    x = strata.ones(4 << 20, "u1")
    out = strata.zeros(100, "u1")
    batch = sdma.Batch().gate(gate, 1).copy(strata.address(out), strata.address(x), 100)
    work = ring.submit(batch)
    del x
    strata.empty_cache()
    again = strata.ones(4 << 20, "u1")
    sdma.write(gate, 1)
    with pytest.raises(errors.RegistrationError, match="copy of 100 bytes"):
        work.wait(BOUND)
    assert not out.any() and again.all()
    with pytest.raises(errors.RegistrationError):
        ring.submit(batch).wait(BOUND)  # a batch means what it meant when it was built


def test_gates_open_from_host_and_from_rings(ring):
    other = sdma.open_ring(4)
    first, second = sdma.flag(2)[1:], sdma.flag()
    out = strata.zeros(2, "u1")
    a = ring.submit(sdma.Batch().gate(first, 2).fill(out[:1], 1).add(second).add(second, 2))
    b = other.submit(sdma.Batch().gate(second, 3).fill(out[1:], 2).write(second, 9))
    sdma.write(first, 1)
    with pytest.raises(errors.CollectiveTimeout, match="did not come to 1 in time: it holds 0"):
        sdma.wait(second, 1, timeout=0.05)
    assert not a.done() and not b.done() and not sdma.poll(second, 1)
    sdma.write(first, 2)
    a.wait(BOUND)
    b.wait(BOUND)
    sdma.wait(second, 9)
    assert (out == [1, 2]).all()
    other.close()


def test_counters_and_calls(ring):
    """COUNT raises its flag when it is the last of so many; a call adds its base to what is relative."""
    counter, flag, values = sdma.flag(), sdma.flag(), sdma.flag(3)
    for k in range(3):
        assert not sdma.poll(flag, 1)
        ring.submit(
            made(1, type=d.COUNT, src=strata.address(counter), dst=strata.address(flag), bytes=3, value=7)
        ).wait(BOUND)
        assert sdma.read(counter) == k + 1
    assert sdma.read(flag) == 7
    kept = strata.zeros(4, sdma.DESCRIPTOR)
    kept["type"] = (d.WRITE, d.ADD, d.WRITE, d.NOP)
    kept["flags"] = (d.RELATIVE, d.RELATIVE, 0, 0)
    kept["dst"][:3] = strata.address(values) + 8 * np.arange(3)
    kept["value"][:3] = (10, 20, 30)
    ring.submit(sdma.Batch().call(kept, 100).call(kept[:0]).call(kept[1:2])).wait(BOUND)
    assert values.tolist() == [110, 140, 30]


@pytest.mark.parametrize("kind", [d.CALL, d.NOTIFY, 0])
def test_calls_that_hold_what_they_must_not(ring, kind):
    kept = strata.zeros(2, sdma.DESCRIPTOR)
    flag = sdma.flag()
    kept["type"] = (kind, d.WRITE)
    kept["dst"], kept["value"] = (0, strata.address(flag)), 1
    work = ring.submit(sdma.Batch().call(kept))
    with pytest.raises(errors.InvalidArgument, match=f"descriptor {work.first} of"):
        work.wait(BOUND)
    assert sdma.read(flag) == sdma.POISON | 1


def test_a_call_with_a_gate_in_it(ring):
    kept, gate, out = strata.zeros(3, sdma.DESCRIPTOR), sdma.flag(), strata.zeros(4, "u1")
    kept["type"] = (d.FILL, d.GATE, d.FILL)
    kept["src"] = strata.address(gate)
    kept["dst"], kept["bytes"] = strata.address(out) + np.arange(3), (1, 0, 1)
    kept["value"] = (5, 1, 6)
    work = ring.submit(sdma.Batch().call(kept))
    threading.Timer(0.05, sdma.write, (gate, 1)).start()
    work.wait(BOUND)
    assert (out == [5, 0, 6, 0]).all()
    assert not ring.submit(sdma.Batch().nop()).wait(BOUND)


def test_silent_flags_stay_as_they_are(ring):
    flags = sdma.flag(2)
    chain = made(3, type=(d.COPY, d.WRITE, d.WRITE), bytes=(8, 0, 0), flags=(0, d.SILENT, 0), value=1)
    chain["dst"] = (0, strata.address(flags), strata.address(flags) + 8)
    with pytest.raises(errors.RegistrationError):
        ring.submit(chain).wait(BOUND)
    assert flags[0] == 0 and flags[1] == sdma.POISON | 9


def test_a_gate_that_a_host_raises_is_on_no_cycle(ring):
    """Two gates before what would raise them: the one whose flag a host may raise waits, the other is a Deadlock."""
    flags, other = sdma.flag(2), sdma.open_ring(16)
    held = ring.submit(sdma.Batch().gate(flags[:1], 1, host=True).write(flags[:1], 2))
    with pytest.raises(errors.Deadlock):
        other.submit(sdma.Batch().gate(flags[1:], 1).write(flags[1:], 2)).wait(BOUND)
    assert not held.done()
    sdma.write(flags[:1], 1)
    held.wait(BOUND)
    assert sdma.read(flags[:1]) == 2
    other.close()
