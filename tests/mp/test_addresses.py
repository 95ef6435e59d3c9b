"""One address space: a raw address of one die is read on another; counters; what explain() says."""

import ctypes

import numpy as np
import pytest
from collectives_play import in_step
from collectives_reference import data

import strata


def bytes_at(address, size):
    return ctypes.string_at(address, size)


def pass_addresses(group, count):
    """Every die reads every die's array through its address, which went from hand to hand."""
    n, me = group.size, group.rank
    mine = strata.array(data((count,), "u1", me))
    assert strata.owner(mine) == me and strata.is_fabric(mine)
    addresses = group.all_gather(np.array([strata.address(mine)], np.uint64)).ravel().tolist()
    assert addresses[me] == mine.ctypes.data
    assert len(set(addresses)) == n
    group.barrier()  # what was allocated before it can be read after it
    for peer, address in enumerate(addresses):
        assert bytes_at(address, count) == data((count,), "u1", peer).tobytes()
        view = np.frombuffer((ctypes.c_ubyte * count).from_address(address), "u1")
        assert strata.owner(view) == peer
    group.barrier()
    right = (me + 1) % n
    ctypes.memset(addresses[right], me, count)  # and written
    group.barrier()
    assert (mine == (me - 1) % n).all()


@pytest.mark.parametrize("count", [64, 5000, (2 << 20) + 4097])
def test_an_address_means_the_same_on_every_die(dies, count):
    dies.run(pass_addresses, count)


def fence_again_and_again(group):
    """Arrays that come and go; the address of each is good after the next barrier."""
    n, me = group.size, group.rank
    right = (me + 1) % n
    kept = []
    for turn in range(12):
        mine = strata.full((1 << 19) + turn * 100_000, turn * n + me)
        kept.append(mine)
        if turn % 3 == 2:
            kept = kept[2:]
        table = group.all_gather(np.array([mine.ctypes.data, mine.nbytes], np.int64))
        group.barrier()
        address, size = table[right].tolist()
        theirs = np.frombuffer((ctypes.c_ubyte * size).from_address(address), "i8")
        assert (theirs == turn * n + right).all()
        del theirs
        group.barrier()


def test_barrier_is_a_registration_fence(peers):
    peers.run(fence_again_and_again)


def fence_of_a_subgroup(world):
    """The barrier of a group is a fence for its members."""
    if world.rank == 0:
        return
    group = world.subgroup([2, 1])
    mine = strata.full(1 << 20, world.rank, "u1")
    table = group.all_gather(np.array([mine.ctypes.data]))
    group.barrier()
    assert bytes_at(int(table[1 - group.rank, 0]), 1 << 20) == bytes([group.ranks[1 - group.rank]]) * (1 << 20)
    group.barrier()


def test_barrier_of_a_subgroup(trio):
    trio.run(fence_of_a_subgroup)


def reuse(group):
    """Memory that is freed and comes back as another array holds the new bytes for all."""
    n, me = group.size, group.rank
    for turn in range(15):
        x = strata.full(300_000 + 7 * turn, me + turn * n)
        got = group.all_gather(x)
        assert (got == (np.arange(n) + turn * n)[:, None]).all()
        del x, got


def test_freed_memory_is_never_seen_again(peers):
    peers.run(reuse)


def staged_bytes(group):
    n, count = group.size, 4000  # 16 000 bytes: above the mailbox
    small = np.ones(8, "f4")
    made, flat = strata.ones((n, count), "f4"), np.ones((n, count), "f4")

    def staged(call):
        before = strata.stats()["staged_bytes"]
        call()
        return strata.stats()["staged_bytes"] - before

    for call in (
        lambda: group.all_reduce(made), lambda: group.all_gather(made), lambda: group.all_to_all(made),
        lambda: group.reduce_scatter(made), lambda: group.broadcast(made), lambda: group.reduce(made),
        lambda: group.gather(made), lambda: group.scatter(made), lambda: group.all_to_all_v(made, [1] * n),
        lambda: group.all_reduce(made[:, ::1]), lambda: group.all_reduce(made[0]), group.barrier,
        lambda: group.all_reduce(small), lambda: group.all_gather(small),
        lambda: group.all_gather(made[0], np.empty((n, count), "f4")),  # outputs that nobody else writes
    ):  # fmt: skip
        assert staged(call) == 0
    if n == 1:
        assert staged(lambda: group.all_gather(flat)) == 0
        return
    whole, part = 4 * n * count, 4 * count
    root = group.rank == 0
    assert staged(lambda: group.all_gather(flat[0])) == part
    assert staged(lambda: group.all_to_all(flat)) == whole
    assert staged(lambda: group.reduce_scatter(flat)) == whole
    assert staged(lambda: group.broadcast(flat)) == (whole if root else 0)
    assert staged(lambda: group.scatter(flat)) == (whole if root else 0)
    assert staged(lambda: group.all_to_all_v(flat, [1] * n)) == whole
    wide = strata.ones((2, 2 * count), "f4")
    assert staged(lambda: group.all_gather(wide[0, ::2])) == part
    in_step(group)


def test_staged_bytes_are_counted(dies):
    dies.run(staged_bytes)


def counters(group):
    before = strata.stats()
    for _ in range(5):
        group.all_reduce(strata.ones(3))
        group.all_reduce(strata.ones(7777))
    group.barrier()
    after = strata.stats()
    grown = {key: after[key] - before[key] for key in before if isinstance(before[key], int)}
    assert grown["operations"] == 11
    if group.size > 1:
        assert grown["mailbox_operations"] == 5
        assert grown["plan_misses"] <= 2 and grown["plan_hits"] >= 8
    assert after["registration_lag"] >= 0
    assert after["memory"]["allocation.all.current"] >= 0


def test_counters(dies):
    dies.run(counters)


def explanations(group):
    for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter"):
        small = strata.explain(op, nbytes=4096 if group.size < 8 else 512 * 8)
        large = strata.explain(op, nbytes=1 << 20 if group.size != 3 else 3 << 20, ranks=group.size)
        assert small["ranks"] == large["ranks"] == group.size
        assert large["algorithm"] and large["path"] == "mte" and large["why"]
        text = str(large)
        assert "algorithm" in text and large["why"][0] in text
    far = strata.explain("all_gather", nbytes=1 << 20, ranks=32)
    assert far["ranks"] == 32 and sum(far["units"]) > 0
    with pytest.raises(ValueError):
        strata.explain("all_gather", nbytes=10, dtype="f8")
    with pytest.raises(ValueError):
        strata.explain("all_to_all", nbytes=10, ranks=4)
    with pytest.raises(ValueError):
        strata.explain("all_gathers", nbytes=8)


def test_explain():
    for n in (1, 2, 4):
        strata.testing.pool(n).run(explanations)


def no_room(group):
    """A die without memory says so; the others are told, and all go on."""
    if group.rank == 0:
        with pytest.raises(strata.FabricMemoryError):
            strata.empty(1 << 40, "u1")
    in_step(group)
    big = strata.ones(200 << 20, "u1")  # more than a quarter of the HBM
    text = ""
    try:
        group.all_gather(big)
    except strata.FabricMemoryError as error:
        text = str(error)
    assert "HBM" in text
    in_step(group)


def test_no_room_for_an_output():
    with strata.testing.Pool(2, hbm="512M") as pool:
        pool.run(no_room)
