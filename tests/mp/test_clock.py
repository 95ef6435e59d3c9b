"""The emulated clock on real dies: what operations take, who waits for whom, and that it is always the same."""

import contextlib

import numpy as np
import pytest

import strata
from strata import clock, selection, testing
from strata.exec.timed import Program
from strata.plan import Spec, build
from strata.plan.records import DTYPE_NAMES
from strata.plan.select import Ask, choose
from strata.plan.spec import PARTED

pytestmark = pytest.mark.unchecked("a job is checked or timed, not both")

MACHINE = "cm384"
PS = 1.5e-6  # microseconds: a rounding at both ends


@pytest.fixture(scope="module")
def pools():
    """Pools of dies with a clock, by their number."""
    with contextlib.ExitStack() as stack:
        made = {}

        def get(n, **options):
            key = n, *sorted(options.items())
            if key not in made:
                made[key] = stack.enter_context(testing.Pool(n, clock=MACHINE, **options))
            return made[key]

        yield get


def expected(name, nbytes, n, *, dtype="u1", mode="zero_copy", dies=None, **ask):
    """Each member's end, microseconds, by the simulator of the machine: where ``strata.simulate`` has no dies' places
    and no mailboxes."""
    settings, machine = selection.machine(MACHINE), strata.machine.load(MACHINE)
    count = nbytes // np.dtype(dtype).itemsize // (n if name in PARTED else 1)
    code, op = (DTYPE_NAMES.index("f32"), 1) if dtype == "f4" else (0, 0)
    spec = Spec(name, count, np.dtype(dtype).itemsize, code, op, nranks=n, mode=mode)
    way = choose(spec, Ask(**ask), settings)
    plans = [build(spec, m, way.cores, algorithm=way.algorithm.name, path=way.path, policy=way.partition,
                   cost=settings.cost, topology=settings.topology) for m in range(n)]  # fmt: skip
    program = Program(machine, n if dies is None else max(dies) + 1)
    stage = program.operation(plans, dies=dies)
    return program.run().finish_us(stage)


def level(g):
    """All dies' clocks at one time."""
    times = g.all_gather(np.array([clock.now()]))
    latest = float(times.max()) + 100
    later = round(latest * 1e6) - round(clock.now() * 1e6)
    clock.advance(later / 1e6)
    assert round(clock.now() * 1e6) == round(latest * 1e6)
    return clock.now()


def took(g, call, skew=0.0):
    """Microseconds from the common begin to this die's end of a call; the die comes ``skew`` later."""
    begin = level(g)
    clock.advance(skew)
    call()
    return clock.now() - begin


def operation(g, name, count, **how):
    """Calls an operation on fabric arrays of ``count`` 4-byte elements a die."""
    x = strata.ones((count,), "f4")
    n = g.size
    if name == "all_gather":
        out = strata.empty((n, count), "f4")
        return lambda: g.all_gather(x, out, **how)
    if name == "reduce_scatter":
        out = strata.empty((count // n,), "f4")
        return lambda: g.reduce_scatter(x, out, **how)
    if name == "all_to_all":
        out = strata.empty((count,), "f4")
        return lambda: g.all_to_all(x.reshape(n, -1), out.reshape(n, -1), **how)
    if name in ("gather", "reduce"):
        out = strata.empty((n, count) if name == "gather" else (count,), "f4") if g.rank == 0 else None
        return lambda: getattr(g, name)(x, out, root=0, **how)
    if name == "broadcast":
        return lambda: g.broadcast(x, root=0, **how)
    y = strata.empty((count,), "f4")
    return lambda: g.all_reduce(x, y, **how)


def play_operation(g, name, count, how, skew):
    return took(g, operation(g, name, count, **how), skew[g.rank])


OPERATIONS = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all", "gather", "reduce", "broadcast")


@pytest.mark.parametrize("n", (2, 3, 4))
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_takes_what_simulate_says(pools, name, n):
    for count in (12_000, 600_000):
        got = pools(n).run(play_operation, name, count, {}, [0.0] * n)
        reduces = name in ("all_reduce", "reduce_scatter", "reduce")
        kind = {"dtype": "f4"} if reduces else {"dtype": "u1"}
        found = strata.simulate(name, 4 * count, n, MACHINE, **kind)
        assert got == pytest.approx(found.finish_us, abs=PS), (name, count)
        assert max(got) == pytest.approx(found.time_us, abs=PS)


ASKS = {"algorithm": "ring"}, {"cores": 3}, {"path": "sdma"}, {"partition": "naive", "cores": 5}


@pytest.mark.parametrize("how", ASKS, ids=lambda how: "-".join(how))
def test_what_a_call_asks_for_is_what_is_timed(pools, how):
    got = pools(4).run(play_operation, "all_gather", 300_000, how, [0.0] * 4)
    assert got == pytest.approx(expected("all_gather", 1_200_000, 4, **how), abs=PS)
    assert got != pytest.approx(expected("all_gather", 1_200_000, 4), abs=PS)


@pytest.mark.parametrize("n", (2, 3, 4))
def test_members_that_come_late_are_waited_for(pools, n):
    skew = [7.25 * (n - r) ** 2 for r in range(n)]
    for name in ("all_reduce", "all_gather", "broadcast"):
        got = pools(n).run(play_operation, name, 50_000, {}, skew)
        kind = "f4" if name == "all_reduce" else "u1"
        found = strata.simulate(name, 200_000, n, MACHINE, dtype=kind, arrivals_us=skew)
        assert got == pytest.approx(found.finish_us, abs=PS), name
        assert all(end >= begin for end, begin in zip(got, skew, strict=True))


def play_small(g):
    """What goes by mailboxes, and what moves no bytes."""
    x = strata.ones(2, "f4")
    own = level(g)
    g.barrier()
    fence = clock.now() - own
    small = took(g, lambda: g.all_reduce(x))
    again = took(g, lambda: g.all_reduce(x))
    return fence, small, again


@pytest.mark.parametrize("n", (2, 3, 4))
def test_small_operations_take_one_synchronisation(pools, n):
    got = pools(n).run(play_small)
    found = expected("all_reduce", 8, n, dtype="f4", mode="mailbox")
    for at in (1, 2):  # differences of clocks: not the same to the last bit
        assert [g[at] for g in got] == pytest.approx(found, abs=PS)
    assert all(0 < fence <= small + PS for fence, small, _ in got)


def play_groups(g):
    """Halves do different things; a subgroup in another order."""
    half = g.split(g.rank // 2)
    x = strata.ones(100_000, "f4")
    begin = level(g)
    for _ in range(1 + 2 * (g.rank // 2)):
        half.all_reduce(x)
    own = clock.now() - begin
    begin = level(g)
    if g.rank in (1, 3):
        g.subgroup([3, 1]).all_gather(x[:50_000])
    return own, clock.now() - begin


def test_groups_have_their_own_time(pools):
    got = pools(4).run(play_groups)
    one, three, sub = got[0][0], got[2][0], [g[1] for g in got]
    assert got[0][0] == pytest.approx(got[1][0], abs=1) and three == pytest.approx(3 * one, rel=1e-3)
    assert sub[0] == sub[2] == 0.0 and sub[1] > 0 and sub[3] > 0
    assert [g[0] for g in got[:2]] == pytest.approx(expected("all_reduce", 400_000, 2, dtype="f4"), abs=PS)


def play_far(g):
    """Two dies of a package, and two of a node."""
    pairs = g.subgroup([0, 1]) if g.rank < 2 else None, g.subgroup([0, 3]) if g.rank in (0, 3) else None
    x = strata.ones(25_000, "f4")
    found = []
    for pair in pairs:
        begin = level(g)
        if pair is not None:
            pair.all_gather(x)
        found.append(clock.now() - begin)
    return found


def test_members_are_where_their_ranks_are(pools):
    got = pools(4).run(play_far)
    near, far = expected("all_gather", 100_000, 2), expected("all_gather", 100_000, 2, dies=[0, 3])
    assert [got[0][0], got[1][0]] == pytest.approx(near, abs=PS)
    assert [got[0][1], got[3][1]] == pytest.approx(far, abs=PS) and (near < far).all()  # by SIO, and through ports


def play_messages(g):
    x, y = strata.ones(40_000, "f4"), strata.empty(40_000, "f4")
    found = []
    for nbytes, early in ((160_000, 0), (160_000, 1), (4, 0), (4, 1)):
        begin = level(g)
        if g.rank == early:
            clock.advance(50.0)
        if g.rank == 0:
            g.send(x[: nbytes // 4], 1, tag=nbytes)
        elif g.rank == 1:
            g.recv(y[: nbytes // 4], 0, tag=nbytes)
        found.append(clock.now() - begin)
    return found


@pytest.mark.parametrize("n", (2, 3))
def test_messages(pools, n):
    got = pools(n).run(play_messages)
    (large_s, large_r, small_s, small_r), (to_s, to_r, few_s, few_r) = got[0], got[1]
    assert large_s > 50 and large_r > 50 and abs(large_s - to_s) < 5 and abs(large_r - to_r) < 5  # both wait
    assert 50 < small_s < 55 and 50 < few_s < 60  # the receiver waits for what is late
    assert small_r < 5 < 50 < few_r  # the sender does not
    assert got[2:] == [[0.0] * 4] * (n - 2)


def play_tags(g):
    """Received in another order than sent, by tag."""
    x, y = strata.ones(4, "f4"), strata.empty(4, "f4")
    begin = level(g)
    ends = []
    for tag in (1, 2, 3) if g.rank == 0 else (3, 1, 2):
        if g.rank == 0:
            clock.advance(20.0)
            g.send(x, 1, tag=tag)
        else:
            g.recv(y, 0, tag=tag)
            ends.append(clock.now() - begin)
    return ends


def test_messages_are_told_apart_by_tags(pools):
    first, second, third = pools(2).run(play_tags)[1]
    assert 60 < first < 75 and first < second < third < 75  # the one that was sent last came last


def play_async(g, us):
    x = strata.ones(200_000, "f4")
    alone = took(g, lambda: g.all_reduce(x, async_op=True).wait())
    begin = level(g)
    work = g.all_reduce(x, async_op=True)
    clock.compute(us=us)
    before = clock.now() - begin
    work.wait()
    end = clock.now() - begin
    begin = level(g)
    works = [g.all_reduce(x, async_op=True) for _ in range(3)]
    works[2].wait()
    chain = clock.now() - begin
    for work in works:
        work.wait()
    begin = level(g)
    work = g.all_reduce(x, async_op=True)
    g.all_reduce(x)  # begins when the one before has ended
    both = clock.now() - begin
    work.wait()
    return alone, before, end, chain, clock.now() - begin, both


@pytest.mark.parametrize("n", (2, 3, 4))
def test_what_overlaps_is_not_waited_for(pools, n):
    for alone, before, end, chain, after, both in pools(n).run(play_async, 3.0):
        assert before == pytest.approx(3.0, abs=PS) and end == pytest.approx(alone, abs=PS)
        assert chain == pytest.approx(3 * alone, rel=0.1)
        assert after == both and both > 1.5 * alone
    for _, before, end, *_ in pools(n).run(play_async, 500.0):
        assert end == before == pytest.approx(500.0, abs=PS)


def play_streams(g):
    x, out = strata.ones(100_000, "f4"), strata.empty((g.size, 100_000), "f4")
    a, b = strata.Stream(), strata.Stream()
    other = g.split(0)
    alone = took(g, lambda: g.all_gather(x, out, async_op=True).wait())
    begin = level(g)
    with strata.stream(a):
        g.all_gather(x, out)
        mark = a.record_event()
        g.all_gather(x, out)
    with strata.stream(b):
        b.wait_event(mark)
        other.all_gather(x, strata.empty_like(out))
    issued = clock.now() - begin
    mark.synchronize()
    marked = clock.now() - begin
    b.synchronize()
    second = clock.now() - begin
    a.synchronize()
    third = clock.now() - begin
    begin = level(g)
    with strata.stream(a):
        a.copy(out[0], x)
        a.fill(out, 0.0)
    a.synchronize()
    moved = clock.now() - begin
    a.close(), b.close()
    return alone, issued, marked, second, third, moved


@pytest.mark.parametrize("n", (2, 4))
def test_streams_have_their_own_time(pools, n):
    for alone, issued, marked, second, third, moved in pools(n).run(play_streams):
        assert issued == 0.0 and marked == pytest.approx(alone, rel=0.1)
        assert second == pytest.approx(2 * alone, rel=0.1) and third == pytest.approx(2 * alone, rel=0.1)
        assert third < 2.5 * alone and moved > 1.0


def play_capture(g):
    half = g.split(g.rank % 2)
    x, y = strata.ones(100_000, "f4"), strata.empty((g.size, 100_000), "f4")
    begin = level(g)
    g.all_gather(x, y)
    half.all_reduce(x)
    g.barrier()
    called = clock.now() - begin
    with strata.capture() as graph:
        g.all_gather(x, y)
        half.all_reduce(x)
        g.barrier()
    one = took(g, graph.replay)
    begin = level(g)
    replays = [graph.replay(async_op=True) for _ in range(3)]
    clock.compute(us=1.0)
    for replay in replays:
        replay.wait()
    three = clock.now() - begin
    graph.close()
    return called, one, three


@pytest.mark.parametrize("n", (2, 3, 4))
def test_a_replay_takes_what_its_operations_take(pools, n):
    for called, one, three in pools(n).run(play_capture):
        assert one == pytest.approx(called, rel=0.1)
        assert three == pytest.approx(3 * one, rel=0.1)


def play_failures(g):
    fence = took(g, g.barrier)
    level(g)
    x = strata.ones(10_000 + g.rank, "f4")
    before = clock.now(), clock.report()["failed"]
    with pytest.raises(strata.CollectiveMismatch):
        g.all_reduce(x)
    with pytest.raises(strata.CollectiveMismatch):
        g.all_reduce(x, async_op=True).wait()
    if g.rank == 0:
        with pytest.raises(strata.CollectiveTimeout):
            g.recv(x, 1, timeout=0.01)
    g.barrier()
    after = clock.now(), clock.report()["failed"]
    assert after[0] - before[0] == pytest.approx(fence)
    if g.rank == 0:
        g.recv(x[:9], 1)
    if g.rank == 1:
        g.send(x[:9], 0)
    took(g, lambda: g.all_reduce(x[:10_000]))
    return before, after, clock.now()


def test_what_fails_takes_no_time(pools):
    for rank, (before, after, later) in enumerate(pools(2).run(play_failures)):
        assert before[0] < after[0] < later and after[1] == before[1] + 2 + (rank == 0)


def play_counts(g):
    row = np.arange(6.0).reshape(-1, 1)
    g.all_to_all_v(row, [1] * g.size)
    g.scatter(np.ones((g.size, 3)) if g.rank == 0 else None)
    return clock.report()["operations"]


def test_what_is_counted(pools):
    for rows in pools(3).run(play_counts):
        assert rows["all_to_all_v"]["bytes"] == 24 and rows["all_to_all_v"]["calls"] == 1
        assert rows["all_to_all_v (sizes)"]["calls"] == rows["scatter (sizes)"]["calls"] == 1
        assert all(row["time_us"] >= 0 and row["exposed_us"] >= 0 for row in rows.values())


def play_alone(g):
    x = strata.ones(1_000_000, "f4")
    g.all_reduce(x)
    same = clock.now()
    g.all_reduce(x, strata.empty_like(x))
    copied = clock.now()
    g.send(x[:9], 0)  # to itself
    g.recv(x[9:18], 0)
    assert clock.now() > copied
    peak, die = strata.machine.load(MACHINE).compute, strata.machine.load(MACHINE).die
    work = clock.compute(flops=peak.bf16_tflops * peak.efficiency * 1e6)
    return same, copied, work, clock.compute(bytes=die.hbm_gbps * die.hbm_efficiency * 1e3)


def test_one_die(pools):
    ((same, copied, work, memory),) = pools(1).run(play_alone)
    assert same == 0.0 and copied > 1.0 and work == pytest.approx(1.0) and memory == pytest.approx(1.0)
