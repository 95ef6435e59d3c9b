"""Operations on registered memory: shared files are used where they lie, staged memory goes through its buffer."""

import contextlib
import mmap
import os
import signal
import threading

import numpy as np
import pytest
from faultlib import Job

import strata
from strata._core import heap

N = 300_000


def shared(n, dtype="f8", offset=0):
    """An array in a file without a name, which begins somewhere in a page."""
    nbytes = n * np.dtype(dtype).itemsize
    fd = os.memfd_create("test")
    os.ftruncate(fd, nbytes + offset)
    mapped = mmap.mmap(fd, nbytes + offset)
    os.close(fd)
    return np.frombuffer(mapped, dtype, n, offset)


def private(n, dtype="f8"):
    return np.zeros(n, dtype)


MAKERS = {"shared": shared, "staged": private, "fabric": strata.zeros}


class Watch:
    """What a block of operations staged and allocated."""

    def __enter__(self):
        self.before = self.now()
        return self

    def __exit__(self, *_):
        self.staged, self.allocations = (b - a for a, b in zip(self.before, self.now(), strict=True))

    @staticmethod
    def now():
        stats = strata.stats()
        return stats["staged_bytes"], stats["memory"]["allocation.all.allocated"]


def operations(group, arrays, turn):
    """All operations, on arrays of (n, size n * n, n) elements of float64; right or an AssertionError."""
    x, whole, out = arrays
    n, me, size = x.size, group.rank, group.size
    x[:] = me + turn
    group.all_reduce(x)
    assert (x == sum(range(size)) + size * turn).all()
    x[:] = me + turn
    group.all_reduce(x, out)
    assert (out == sum(range(size)) + size * turn).all() and (x == me + turn).all()
    group.all_gather(x, whole)
    assert (whole.reshape(size, -1) == np.arange(size)[:, None] + turn).all()
    whole[:] = np.arange(size).repeat(n) * 10 + me
    group.reduce_scatter(whole, out)
    assert (out == me * 10 * size + sum(range(size))).all()
    target = np.empty_like(whole)
    group.all_to_all(whole, target)
    assert (target.reshape(size, -1) == me * 10 + np.arange(size)[:, None]).all()
    group.all_to_all_v(whole, [n] * size, target)
    assert (target.reshape(size, -1) == me * 10 + np.arange(size)[:, None]).all()
    x[:] = me
    group.broadcast(x, root=size - 1)
    assert (x == size - 1).all()
    x[:] = me
    group.reduce(x, out, root=0, op="max")
    assert me or (out == size - 1).all()
    group.gather(x, whole if me == 0 else None, root=0)
    assert me or (whole.reshape(size, -1) == np.arange(size)[:, None]).all()
    group.scatter(whole if me == 0 else None, out, root=0)
    assert (out == me).all()
    work = group.send(x, (me + 1) % size, tag=turn, async_op=True)
    group.recv(out, (me - 1) % size, tag=turn)
    work.wait()
    assert (out == (me - 1) % size).all()
    group.barrier()


def all_of_a_kind(group, kind, n):
    arrays = [MAKERS[kind](count) for count in (n, group.size * n, n)]
    held = [strata.register(x) for x in arrays]
    assert [r.kind for r in held] == [kind] * 3
    operations(group, arrays, 0)
    with Watch() as watch:
        for turn in range(1, 4):
            operations(group, arrays, turn)
    for x in arrays:
        strata.deregister(x)
    operations(group, arrays, 4)
    return watch.staged, watch.allocations


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("n", [700, 100_000])
def test_operations(dies, kind, n):
    for staged, allocations in dies.run(all_of_a_kind, kind, n):
        assert allocations == 0
        assert (staged > 0) == (kind == "staged" and dies.n > 1)


def mixed(group):
    """Each die has another kind, and one has not registered at all."""
    kinds = ["shared", "staged", "fabric", None]
    kind = kinds[group.rank % 4]
    arrays = [(private if kind is None else MAKERS[kind])(count) for count in (5000, group.size * 5000, 5000)]
    held = [strata.register(x) for x in arrays] if kind else []
    for turn in range(3):
        operations(group, arrays, turn)
    for turn in range(3):
        if held:
            strata.deregister(held.pop())
        operations(group, arrays, turn)


def test_kinds_may_differ_from_die_to_die(peers):
    peers.run(mixed)


def views(group):
    """Parts of registered arrays, in place, across pages, at odd places; strided ones are staged."""
    n, me = group.size, group.rank
    for make in (lambda: shared(N, "i4", 68), lambda: private(N, "i4")):
        x = make()
        with strata.register(x) as r:
            for begin, end in ((0, N), (1, N), (511, 90_003), (N - 5000, N)):
                x[:] = -1
                part = x[begin:end]
                part[:] = me + begin
                with Watch() as watch:
                    group.all_reduce(part, op="max")
                assert (part == n - 1 + begin).all() and (x[:begin] == -1).all() and (x[end:] == -1).all()
                assert watch.allocations == 0 and (watch.staged > 0) == (r.kind == "staged")
            x[:] = me
            group.all_reduce(x[::3])
            assert (x[::3] == sum(range(n))).all() and (x[1::3] == me).all()
            rows = x[: N // n * n].reshape(n, -1)
            x[:] = -1
            rows[me] = me
            group.all_gather(rows[me], rows)  # in place, in the file
            assert (rows == np.arange(n)[:, None]).all()


def test_views_of_registered_arrays(peers):
    peers.run(views)


def read_only(group, folder):
    path = f"{folder}/{group.rank}"
    np.full(N, group.rank, "f8").tofile(path)
    x = np.memmap(path, "f8", mode="r")
    with strata.register(x) as r, Watch() as watch:
        assert r.kind == "shared"
        got = group.all_gather(x)
        assert (got == np.arange(group.size)[:, None]).all()
        with pytest.raises(ValueError, match="read-only"):
            group.all_reduce(x)
        assert (group.all_reduce(x, strata.empty(N))[-1]) == sum(range(group.size))
    return watch.staged


def test_a_read_only_file_is_a_source(pair, tmp_path):
    assert pair.run(read_only, str(tmp_path)) == [0, 0]


def asynchronous(group):
    """Operations in progress whose memory is deregistered, and several on one buffer."""
    n, me = group.size, group.rank
    for make in (shared, private):
        for turn in range(20):
            x = make(20_000)
            r = strata.register(x)
            x[:] = me
            works = [group.all_reduce(x[:10_000], async_op=True), group.all_reduce(x[10_000:], async_op=True)]
            if turn % 3 == 0:
                strata.deregister(r)
            for work in works:
                work.wait()
            assert (x == sum(range(n))).all()
            x[:] = me + turn
            works = [group.all_gather(x, async_op=True) for _ in range(4)]  # one source, one buffer
            if r.count:
                strata.deregister(r)
            copies = [work.wait() for work in works]
            assert all((copy == np.arange(n)[:, None] + turn).all() for copy in copies)
            x[:] = me
            work = group.all_reduce(x, async_op=True)
            del works, copies, work  # nobody waits: it ends all the same
            group.barrier()
    assert set(strata.stats()["registrations"].values()) == {0}


def test_deregistration_while_operations_are_in_progress(peers):
    peers.run(asynchronous)


def fresh_files(group, turns):
    """New files at old addresses and in old slots: peers never see one for another."""
    n, me = group.size, group.rank
    for turn in range(turns):
        x = shared(40_000 + 511 * (turn % 7), "i8", 8 * (turn % 5))
        x[:] = me * 1000 + turn
        with strata.register(x) as r:
            assert r.kind == "shared"
            y = group.all_gather(x[:40_000], async_op=turn % 2 == 1)
            y = y.wait() if turn % 2 else y
            assert (y == np.arange(n)[:, None] * 1000 + turn).all(), turn
        if turn % 11 == me:
            strata.zeros(3 << 20, "u1")  # something else at those addresses


def test_files_that_come_and_go(peers):
    peers.run(fresh_files, 150)


def registering_threads(group):
    """Threads that register and deregister while others run collectives: nobody waits for a peer."""
    stop, failures, rounds = threading.Event(), [], [0, 0]
    x = shared(30_000)
    strata.register(x)

    def busy(which):
        try:
            while not stop.is_set():
                for y in (private(5000), shared(300_000), x, x[100:], strata.zeros(10)):
                    with strata.register(y), strata.register(y):
                        pass
                rounds[which] += 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=busy, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    turn = 0
    while turn < 60 or group.all_reduce(np.array([min(rounds)]), op="min")[0] < 3:
        turn += 1
        x[:] = group.rank + turn
        group.all_reduce(x)
        assert (x == sum(range(group.size)) + turn * group.size).all()
    stop.set()
    for thread in threads:
        thread.join(60)
    strata.deregister(x)
    assert not failures and set(strata.stats()["registrations"].values()) == {0}


def test_threads_register_while_others_run_collectives(peers):
    peers.run(registering_threads)


def splits(group):
    """Two groups use one registered array at once, from two threads."""
    x, failures = private(40_000), []
    halves = [group.subgroup(range(group.size)), group.subgroup(range(group.size))]

    def work(which):
        try:
            part = x[which * 20_000 :][:20_000]
            for turn in range(30):
                part[:] = group.rank + turn
                halves[which].all_reduce(part)
                assert (part == sum(range(group.size)) + turn * group.size).all()
        except BaseException as error:
            failures.append(error)

    with strata.register(x):
        threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(90)
    assert not failures


def test_groups_share_a_buffer(pair):
    pair.run(splits)


def _a_die_that_shares_dies(die):
    g = strata.world()
    x = shared(N)
    r = strata.register(x)
    x[:] = die.rank
    g.all_reduce(x)
    assert r.kind == "shared" and (x == 3).all()
    strata.register(x)
    if die.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    caught = die.catch(lambda: g.all_reduce(x))
    assert caught.kind == "PeerDead" and caught.ranks == (1,), caught
    h = g.shrink()
    x[:] = die.rank
    h.all_reduce(x)
    assert (x == 2).all()
    for _ in range(2):
        strata.deregister(x)
    y = shared(N)  # the address and the slot again
    y[:] = die.rank
    with strata.register(y):
        h.all_reduce(y)
    assert (y == 2).all() and heap.heap_of(g.context).check() == 0


def test_a_die_that_shares_a_file_dies():
    with Job(_a_die_that_shares_dies, 3) as job:
        assert [job.reap(r) for r in range(3)] == [0, -signal.SIGKILL, 0]


def _peers_cannot_open(die):
    """A program closes descriptors that are not its own: peers get an error, not another file."""
    g = strata.world()
    x = shared(N)
    mapped = []
    if die.rank == 0:
        before = set(map(int, os.listdir("/proc/self/fd")))
        g.barrier()  # peers' registrars have nothing to do
        strata.register(x)
        for fd in set(map(int, os.listdir("/proc/self/fd"))) - before:
            with contextlib.suppress(OSError):
                if "memfd" in os.readlink(f"/proc/self/fd/{fd}"):
                    mapped.append(fd)
        other = os.memfd_create("other")
        os.ftruncate(other, 8 * N)
        for fd in mapped:
            os.dup2(other, fd)  # another file of the same size under the number
        assert mapped
    else:
        g.barrier()
    caught = die.catch(lambda: g.all_reduce(x if die.rank == 0 else np.ones(N)))
    die.say("caught", caught)


def test_a_file_that_peers_cannot_open_is_an_error():
    with Job(_peers_cannot_open, 2, env={"STRATA_REGISTRATION": "just_in_time"}) as job:
        caught = job.all("caught")
    print(*(c.data.text for c in caught.values()), sep="\n")
    kinds = {c.data.kind for c in caught.values()}
    assert all("cannot be opened here" in c.data.text for c in caught.values())
    assert kinds <= {"RegistrationError", "GroupBroken"} and "RegistrationError" in kinds
