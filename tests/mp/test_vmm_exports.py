"""Physical memory that goes from die to die: exports, imports, and what comes back, whoever dies."""

import random
import time

import faultlib
import numpy as np
import pytest
from vmmplay import Level, M, everywhere, raw, until

import strata
from strata import bootstrap, errors, vmm

# ---- export and import ------------------------------------------------------------------------------


def share(group, handle, root=0):
    """The root's token, on all."""
    token = np.frombuffer(handle.export(), "u1").copy() if group.rank == root else np.zeros(vmm.TOKEN_BYTES, "u1")
    return group.broadcast(token, root).tobytes()


def imports(group):
    level = Level(group)
    n, me = group.size, group.rank
    own = vmm.create_handle(4 * M) if me == 0 else None
    token = share(group, own)
    handle = vmm.import_handle(token)
    assert handle.nbytes == 4 * M and handle.rank == 0 and handle.imported
    assert handle.export() == token
    span = vmm.reserve_address(8 * M)
    span.map(handle)
    span.set_access("read_write")
    x = span.array(4 * M, "u1")
    assert strata.owner(x) == me and vmm.query(x).rank == 0
    part = slice(me * 1000, (me + 1) * 1000)
    x[part] = me + 1
    group.barrier()
    assert (x[: 1000 * n].reshape(n, 1000) == np.arange(1, n + 1)[:, None]).all()
    where = {vmm.query(x).physical}
    assert set(everywhere(group, where.pop())) == {vmm.query(x).physical}
    staged = strata.stats()["staged_bytes"]
    got = group.all_gather(x[:M])  # of one memory under n addresses
    assert (got == x[:M]).all() and strata.stats()["staged_bytes"] == staged
    group.barrier()
    # The exporter lets go first; the others go on.
    if me == 0:
        del x
        span.unmap()
        own.release()
        handle.release()
        with pytest.raises(errors.RegistrationError):
            vmm.import_handle(token)
    group.barrier()
    if me:
        with pytest.raises(errors.RegistrationError, match="rank 0 has released"):
            vmm.import_handle(token)
        assert x[0] == 1
        handle.release()  # the mapping stays
        x[part] = 50 + me
        assert vmm.stats()["imported_bytes"] == 4 * M
    elif n > 1:
        assert vmm.stats()["exports_closing"] == 1
        assert level.context.frames_left <= level.frames - 4
    group.barrier()
    if me:
        assert (x[1000 : 1000 * n].reshape(n - 1, 1000) == 50 + np.arange(1, n)[:, None]).all()
        del x
    group.barrier()
    del span, handle, own, got
    level.check()


def test_export_and_import(dies):
    dies.run(imports)


def many_exports(group):
    """All slots, several imports of one, in any order; all come back."""
    level = Level(group)
    n, me = group.size, group.rank
    handles = [vmm.create_handle(M) for _ in range(64)]
    tokens = np.stack([np.frombuffer(h.export(), "u1") for h in handles])
    everyone = group.all_gather(tokens)
    rng = random.Random(me)
    kept = []
    for peer in range(n):
        for k in rng.sample(range(64), 20):
            token = everyone[peer, k].tobytes()
            kept += [vmm.import_handle(token), vmm.import_handle(token)]
    assert vmm.stats()["imports"] == 40 * (n - 1)
    rng.shuffle(kept)
    while kept:
        kept.pop()
        if len(kept) == 20:
            group.barrier()
            handles.clear()
    group.barrier()
    until(lambda: vmm.stats()["exports_closing"] == 0, "exports")
    again = vmm.create_handle(M)
    assert again.export() not in [t.tobytes() for t in tokens]
    del again
    level.check()


def test_all_slots_at_once(trio):
    trio.run(many_exports)


def import_again(group, rounds):
    """An import follows another's end at once; the frames hold what the exporter wrote, each time."""
    level = Level(group)
    me = group.rank
    span = vmm.reserve_address(2 * M)
    for turn in range(rounds):
        own = vmm.create_handle(M) if me == 0 else None
        if me == 0:
            span.map(own)
            span.set_access("read_write")
            span.array(4, "i8")[:] = turn
        token = share(group, own)
        if me:
            for _ in range(1 + turn % 3):
                with vmm.import_handle(token) as handle:
                    span.map(handle)
                span.set_access("read")
                assert (span.array(4, "i8") == turn).all()
                span.unmap()
        else:
            span.unmap()
        group.barrier()
        del own
    del span
    level.check()


def test_imports_again_and_again(trio):
    trio.run(import_again, 40)


def _importer_dies(die):
    group, context = strata.world(), bootstrap.context()
    g = group.split(0 if die.rank != 1 else 1)
    frames = context.frames_left
    own = vmm.create_handle(4 * M) if die.rank == 0 else None
    token = share(group, own)
    span = vmm.reserve_address(8 * M)
    if die.rank == 1:
        span.map(vmm.import_handle(token))
        span.set_access("read_write")
        span.array(4 * M, "u1")[:] = 7
    at = everywhere(group, span.address)
    group.barrier()
    context.ensure(at[1], 4 * M)
    assert raw(at[1], 1)[0] == 7
    die.say("ready")
    if die.rank == 1:
        time.sleep(60)
    die.hear()
    if die.rank == 0:
        assert own is not None
        own.release()
        until(lambda: vmm.stats()["exports_closing"] == 0, "the export of which the importer died")
        until(lambda: not context.counters()["quarantined_bytes"], "quarantine")
        assert context.frames_left == frames and vmm.stats()["created_bytes"] == 0
        again = [vmm.create_handle(4 * M), vmm.create_handle(8 * M)]  # what has come back is zero
        for handle in again:
            with vmm.reserve_address(8 * M) as other:
                other.map(handle)
                other.set_access("read")
                assert not other.array(handle.nbytes, "u1").any()
    g.barrier()
    with pytest.raises(errors.RegistrationError):
        context.ensure(at[1], 1)  # nobody reads through the dead die's mapping
    assert not context.ready(at[1], 1)
    g.barrier()


def test_importer_dies():
    with faultlib.Job(_importer_dies, 3) as job:
        job.all("ready")
        job.kill(1)
        job.gone(1)
        job.tell(0, 2)
        assert [job.reap(r) for r in (0, 2)] == [0, 0]


def _exporter_dies(die):
    group = strata.world()
    g = group.split(int(die.rank == 0))
    own = vmm.create_handle(4 * M) if die.rank == 0 else None
    token = share(group, own)
    span = vmm.reserve_address(8 * M)
    with own or vmm.import_handle(token) as handle:
        span.map(handle)
        span.set_access("read_write")
        x = span.array(M // 2, "i8")
        if die.rank == 0:
            x[:] = np.arange(x.size)
        group.barrier()
        die.say("ready")
        if die.rank == 0:
            time.sleep(60)
        die.hear()
        assert (x == np.arange(x.size)).all()
        g.barrier()
        if die.rank == 1:
            x += 1
        g.barrier()
        assert (x == np.arange(1, x.size + 1)).all()
        y = g.all_reduce(x, strata.empty_like(x))
        assert (y == 2 * x).all()
        g.barrier()
        del x
    span.unmap()
    span.free()
    assert {key: n for key, n in vmm.stats().items() if n} == {}
    g.barrier()


def test_exporter_dies():
    """Its memory stays with those who have it."""
    with faultlib.Job(_exporter_dies, 3) as job:
        job.all("ready")
        job.kill(0)
        assert job.reap(0) == -9
        job.tell(1, 2)
        assert [job.reap(r) for r in (1, 2)] == [0, 0]


def _stopped_peer(die):
    """A die that does not read holds frames back no longer than it may."""
    group, context = strata.world(), bootstrap.context()
    frames = context.frames_left
    handle = vmm.create_handle(2 * M) if die.rank == 0 else None
    token = share(group, handle)
    other = vmm.import_handle(token) if die.rank == 1 else None
    group.barrier()
    die.say("ready")
    die.hear()
    if die.rank == 1:
        span = vmm.reserve_address(2 * M)
        span.map(other)
        span.set_access("read_write")
        other.release()
        span.unmap()
        die.say("unmapped")
        die.hear()
    elif die.rank == 0:
        handle.release()
        until(lambda: vmm.stats()["exports_closing"] == 0, "an export of whose importer a peer is stopped")
        until(lambda: context.frames_left >= frames, "its frames")
        die.say("free")
    else:
        die.hear()


def test_a_stopped_die_holds_imports_up_only_for_a_while():
    with faultlib.Job(_stopped_peer, 3, env={"STRATA_QUARANTINE": "0.2"}) as job:
        job.all("ready")
        job.kill(2, 19)  # SIGSTOP
        job.tell(1)
        job.all("unmapped", [1])
        job.tell(0)
        job.all("free", [0])
        job.kill(2, 18)
        job.tell(1, 2)
        job.tell(2)
        assert [job.reap(r) for r in range(3)] == [0, 0, 0]


def _full_shm(die):
    """Handles until /dev/shm is full: an error, and all that was given is there."""
    group, spans = strata.world(), []
    if die.rank == 0:
        with pytest.raises(errors.FabricMemoryError, match="/dev/shm"):
            while True:
                span = vmm.reserve_address(2 * M)
                with vmm.create_handle(2 * M) as handle:
                    span.map(handle)
                spans.append(span)
        for span in spans:
            span.set_access("read_write")
            span.array(2 * M, "u1")[:] = 7
        with vmm.retain_handle(spans[0].address) as handle:
            handle.export()  # takes addresses, whose table may need memory, too
    group.barrier()
    at = int(group.broadcast(np.array([spans[0].address if spans else 0]))[0])  # there is no room for an output
    bootstrap.context().ensure(at, 2 * M)
    assert (raw(at, 2 * M) == 7).all()
    group.barrier()
    spans.clear()
    if die.rank == 0:
        del span
        until(lambda: not strata.stats()["quarantined_bytes"], "quarantine")
        assert vmm.stats()["created_bytes"] == 0
        vmm.create_handle(2 * M).release()
    faultlib.check_group(group, [0, 1])


def test_full_shm():
    def inside():
        assert faultlib.LIBC.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=48m") == 0
        with faultlib.Job(_full_shm, 2) as job:
            assert [job.reap(r) for r in range(2)] == [0, 0]
        assert faultlib.shm_bytes() == 0

    faultlib.in_namespace(faultlib.CLONE_NEWNS, inside)
