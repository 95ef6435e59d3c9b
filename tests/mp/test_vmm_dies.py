"""strata.vmm between dies: aliases, remaps and access as peers see them, and what comes back."""

import random
import re
from pathlib import Path

import numpy as np
import pytest
from collectives_play import in_step
from vmmplay import Level, M, everywhere, made, raw

import strata
from strata import bootstrap, errors, testing, vmm

README = Path(__file__).parents[2] / "README.md"


def run_example(group, code):
    level = Level(group)
    exec(compile(code, "README.md", "exec"), {"strata": strata, "np": np})
    group.barrier()
    level.check()


def test_example_of_the_readme(dies):
    example = next(x for x in re.findall(r"```python\n(.*?)```", README.read_text(), re.S) if "vmm" in x)
    dies.run(run_example, example)


# ---- aliases, several handles, remaps ----------------------------------------------------


def see_aliases(group):
    level = Level(group)
    n, me = group.size, group.rank
    span = vmm.reserve_address(16 * M)
    with vmm.create_handle(2 * M) as handle:
        span.map(handle, 0)
        span.map(handle, 4 * M)
        span.map(handle, 8 * M, M, M)
    span.set_access("read_write")
    span.set_access("read", 4 * M, 2 * M)
    mine = span.array(2 * M, "u1")
    mine[:] = 10 + me
    at = everywhere(group, span.address)
    group.barrier()
    right = at[(me + 1) % n]
    for offset in (0, 4 * M, 8 * M):
        assert (raw(right + offset, M) == 10 + (me + 1) % n).all()
    group.barrier()
    raw(right + 8 * M, 1)[0] = 99  # the second page, by its other address
    group.barrier()
    assert mine[M] == 99 and span.array(M, "u1", 5 * M)[0] == 99 and mine[M + 1] == 10 + me
    got = group.all_gather(span.array(2 * M, "u1", 4 * M))
    assert (got[:, 1] == 10 + np.arange(n)).all() and (got[:, M] == 99).all()
    assert strata.stats()["vmm"]["alias_bytes"] == 3 * M
    group.barrier()
    del mine, got, span
    level.check()


def test_aliases_are_the_same_bytes_on_all_dies(dies):
    dies.run(see_aliases)


def calls_between(group, a, b):
    """Operations by name, from a to b."""
    me = group.rank
    return {
        "all_reduce": lambda: group.all_reduce(a, b), "all_to_all": lambda: group.all_to_all(a, b),
        "all_gather": lambda: group.all_gather(a[0], b), "reduce_scatter": lambda: group.reduce_scatter(a, b[0]),
        "reduce": lambda: group.reduce(a, b, root=me), "gather": lambda: group.gather(a[0], b, root=me),
        "scatter": lambda: group.scatter(a, b[0], root=me),
        "all_to_all_v": lambda: group.all_to_all_v(a, [1] * group.size, b),
    }  # fmt: skip


def refuse_aliases(group):
    level = Level(group)
    span = vmm.reserve_address(8 * M)
    with vmm.create_handle(2 * M) as handle:
        span.map(handle)
        span.map(handle, 4 * M)
    span.set_access("read_write")
    a, b = span.array((group.size, 64), "f8"), span.array((group.size, 64), "f8", 4 * M)
    a[:] = 1
    for name, call in calls_between(group, a, b).items():
        with pytest.raises(ValueError, match=f"{name}: input and output are the same physical memory"):
            call()
    assert (b == 1).all()
    in_step(group)
    group.all_reduce(a)  # in place is well
    assert (b == group.size).all()
    group.barrier()
    del a, b, call, span
    level.check()


def test_aliases_as_input_and_output_are_refused(dies):
    dies.run(refuse_aliases)


def all_collectives(group):
    """Arrays over several handles are used as they lie, by every operation."""
    level = Level(group)
    n, me = group.size, group.rank
    count = 3 * M // 8 // n * n  # int64 in nearly three pages, over four handles
    src_span, out_span = made(1, 1, 1, 1), made(2, 1, 3, 1)
    src, out = src_span.array(count, "i8", M // 2), out_span.array(count, "i8", M // 4)
    part, first = count // n, np.arange(count)
    staged = strata.stats()["staged_bytes"]
    src[:] = first + me
    group.all_reduce(src, out)
    assert (out == first * n + n * (n - 1) // 2).all()
    group.all_gather(src[:part], out.reshape(n, part))
    assert (out.reshape(n, part) == first[:part] + np.arange(n)[:, None]).all()
    group.reduce_scatter(src, out[:part])
    assert (out[:part] == first[me * part : (me + 1) * part] * n + n * (n - 1) // 2).all()
    group.all_to_all(src, out)
    assert (out.reshape(n, part) == first[me * part : (me + 1) * part] + np.arange(n)[:, None]).all()
    group.all_to_all_v(src, [part] * n, out)
    assert (out.reshape(n, part) == first[me * part : (me + 1) * part] + np.arange(n)[:, None]).all()
    root = n - 1
    group.reduce(src, out, root=root)
    assert me != root or (out == first * n + n * (n - 1) // 2).all()
    group.gather(src[:part], out.reshape(n, part), root=root)
    group.scatter(src if me == root else None, out[:part], root=root)
    assert (out[:part] == first[me * part : (me + 1) * part] + root).all()
    group.broadcast(out, root=0)
    right, left = (me + 1) % n, (me - 1) % n
    work = group.send(src, right, async_op=True)
    group.recv(out, left)
    work.wait()
    assert (out == first + left).all()
    group.all_reduce(src, async_op=True).wait()
    assert (src == first * n + n * (n - 1) // 2).all()
    assert strata.stats()["staged_bytes"] == staged
    group.barrier()
    del src, out, src_span, out_span, work
    level.check()


def test_collectives_use_such_memory_as_it_lies(dies):
    dies.run(all_collectives)


def remap(group, seed):
    """One address, one handle after another: nobody ever sees the bytes of an earlier one."""
    level = Level(group)
    n, me = group.size, group.rank
    rng = random.Random(seed * n + me)
    span = vmm.reserve_address(4 * M)
    at = everywhere(group, span.address)
    handles = [vmm.create_handle(2 * M) for _ in range(3)]
    for number, handle in enumerate(handles):
        span.map(handle)
        span.set_access("read_write")
        span.array(2 * M, "u1")[:] = 3 * me + number
        span.unmap()
    for turn in range(25):
        chosen = rng.randrange(3)
        span.map(handles[chosen], 0, 0, M)
        if turn % 3:
            span.map(handles[(chosen + 1) % 3], M, 0, M)
        else:
            span.map(handles[chosen], M, M, M)
        span.set_access("read" if turn % 2 else "read_write")
        second = chosen if turn % 3 == 0 else (chosen + 1) % 3
        picks = group.all_gather(np.array([chosen, second]))
        if turn % 4 == 0:
            got = group.all_gather(span.array(2 * M, "u1"))
        else:
            group.barrier()
            got = np.stack([raw(address, 2 * M) for address in at])
        for peer in range(n):
            assert (got[peer, :M] == 3 * peer + picks[peer, 0]).all()
            assert (got[peer, M:] == 3 * peer + picks[peer, 1]).all()
        group.barrier()
        span.unmap(0, 2 * M)
    del handles, handle, span, got, picks
    level.check()


@pytest.mark.parametrize("mode", ["on_allocation", "just_in_time"])
def test_a_remapped_address_never_shows_stale_bytes(mode):
    seed = random.SystemRandom().randrange(1 << 30)
    print(f"seed {seed}")
    if mode == "on_allocation":
        for n in (1, 2, 4):
            testing.pool(n).run(remap, seed)
    else:
        with testing.Pool(3, registration=mode) as pool:
            pool.run(remap, seed)


# ---- access -----------------------------------------------------------------------------------


def change_access(group):
    level = Level(group)
    n, me = group.size, group.rank
    span = made(2)
    at = everywhere(group, span.address)
    group.barrier()
    left, context = at[me - 1], bootstrap.context()
    context.ensure(left, 2 * M, True)
    group.barrier()
    span.set_access("read", M, M)
    group.barrier()
    context.ensure(left, 2 * M)
    context.ensure(left, M, True)
    for offset, nbytes in ((M, 1), (0, 2 * M), (M - 1, 2)):
        with pytest.raises(errors.RegistrationError, match="written"):
            context.ensure(left + offset, nbytes, True)
    group.barrier()
    span.set_access("none", 0, M)
    group.barrier()
    for writes in (False, True):
        with pytest.raises(errors.RegistrationError):
            context.ensure(left, M, writes)
    assert not context.ready(left, 1)
    assert (raw(left + M, M) == 0).all()
    group.barrier()
    span.set_access("read_write")
    group.barrier()
    raw(left + M - 8, 16)[:] = me
    group.barrier()
    assert (span.array(16, "u1", M - 8) == (me + 1) % n).all()
    span.unmap()
    group.barrier()
    with pytest.raises(errors.RegistrationError):
        context.ensure(left, 1)
    group.barrier()
    del span
    level.check()


@pytest.mark.parametrize("mode", ["on_allocation", "just_in_time"])
def test_changes_of_access_reach_peers(mode):
    if mode == "on_allocation":
        for n in (2, 3, 8):
            testing.pool(n).run(change_access)
    else:
        with testing.Pool(3, registration=mode) as pool:
            pool.run(change_access)


def refused(call, me, victim, words):
    """The victim learns what is wrong with its memory, the others that it is not with them."""
    if me == victim:
        with pytest.raises(errors.RegistrationError, match=words) as info:
            call()
        assert info.value.ranks == (victim,) or not info.value.ranks
    else:
        with pytest.raises(errors.CollectiveMismatch, match=f"rank {victim}: nothing"):
            call()


def calls_on(group, mine, ok, victim, writable):
    """Operations that this member takes part in with ``mine``; each wants to write there, or to read."""
    n, part, bad = group.size, ok.size // group.size, group.rank == victim
    other = strata.ones(ok.size, "u1")
    calls = [lambda: group.all_reduce(mine), lambda: group.all_to_all(mine, mine)]
    if writable:
        calls += [
            lambda: group.all_gather(mine), lambda: group.reduce_scatter(mine), lambda: group.broadcast(mine, victim),
            lambda: group.reduce(mine, root=0), lambda: group.gather(mine, root=0),
        ]  # fmt: skip
    else:
        calls += [
            lambda: group.all_reduce(ok, mine if bad else other),
            lambda: group.all_gather(other[:part], mine.reshape(n, part)),
            lambda: group.reduce_scatter(other, mine[:part]), lambda: group.broadcast(mine, root=0),
            lambda: group.reduce(other, mine, root=victim),
            lambda: group.gather(other[:part], mine.reshape(n, part), root=victim),
        ]  # fmt: skip
    return calls


def one_without_access(group, x, ok, victim, writable):
    me = group.rank
    mine = x if me == victim else ok
    for call in calls_on(group, mine, ok, victim, writable):
        refused(call, me, victim, "may (not )?be")
    refused(lambda: group.all_reduce(mine[::2]), me, victim, "may be")
    refused(group.all_reduce(mine, async_op=True).wait, me, victim, "may (not )?be")


def without_access(group):
    """One member's own memory cannot be used: an error on all dies, never a signal, and the group goes on."""
    level = Level(group)
    n, me = group.size, group.rank
    span = made(2)
    span.set_access("read", M, M)
    victim = n - 1
    read_only, nothing, good = raw(span.address + M, M), raw(span.address + 3 * M, M), strata.ones(M, "u1")
    for size in (8 * n, M // n * n):
        one_without_access(group, read_only[:size], good[:size], victim, False)
        one_without_access(group, nothing[:size], good[:size], victim, True)
        group.all_reduce(read_only[:size] if me == victim else good[:size], strata.zeros(size, "u1"))  # to read is well
    in_step(group)
    if me == victim:
        for x in (read_only, nothing):
            with pytest.raises(errors.RegistrationError, match="may not be written"):
                group.recv(x, 0)
        with pytest.raises(errors.RegistrationError, match="may not be read"):
            group.send(nothing, 0)
        group.send(read_only[:5], 0)
    elif me == 0:
        assert (group.recv(good[:5], victim) == 0).all()
    group.barrier()
    del span, read_only, nothing, good
    level.check()


def test_memory_without_access_is_an_error_on_all_dies(peers):
    peers.run(without_access)


# ---- no room ------------------------------------------------------------


def full_hbm(group):
    """Room that a handle does not find is found when quarantine ends; else the error names who holds what."""
    level = Level(group)
    context = level.context
    most = level.frames
    for _ in range(6):
        span = vmm.reserve_address(most * M)
        with vmm.create_handle(most * M) as handle:  # waits for peers to let go of the last round's
            span.map(handle)
        span.set_access("read_write")
        span.array(8, "u1", (most - 1) * M)[:] = 1
        with pytest.raises(errors.FabricMemoryError, match="HBM"):
            vmm.create_handle(M)
        group.barrier()
        context.ensure(everywhere(group, span.address)[group.rank - 1], most * M)
        group.barrier()
        span.close()
        del span
    level.check()


def test_full_hbm():
    with testing.Pool(2, hbm="64M") as pool:
        pool.run(full_hbm)
