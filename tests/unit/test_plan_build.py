"""Plans of every operation: proved, cut where they should be, 64-bit, immutable, saved and read back."""

import dataclasses
import io
import json
import pickle
import threading

import numpy as np
import plan_cases as cases
import pytest
from hypothesis import given
from hypothesis import strategies as st

import strata.plan.frontends as frontends
from strata.errors import InvalidArgument, StrataError
from strata.plan import OPERATIONS, Plan, PlanCache, PlanError, Spec, build, verify
from strata.plan.cost import HOST, Cost
from strata.plan.frontends._common import grain, share
from strata.plan.records import COPY, OUT, REDUCE, SRC
from strata.plan.schedule import MAX_UNITS
from strata.plan.spec import REDUCTIONS, ROOTED, normal


@pytest.mark.parametrize("nranks", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("which", ["0", "1", "3", "n-1", "n", "n+1", "1000003"])
def test_every_operation_is_proved(nranks, which):
    count = nranks + int(which[1:] or 0) if which[0] == "n" else int(which)
    sizes = (1, 2, 4, 8, 16, 3) if nranks in (2, 5) else (16, 3)
    everyone, some = (1 << nranks) - 1, 0b1010_0110_1
    for spec in cases.every_operation(nranks, count, sizes):
        verify(cases.plans(spec))
        if spec.operation in cases.PARTLY_IN_PLACE and spec.itemsize in (3, 16):
            verify(cases.plans(spec, everyone))
            verify(cases.plans(spec, some, cores=3))


@pytest.mark.parametrize("nranks", [16, 64])
def test_every_operation_is_proved_at_more_ranks(nranks):
    for count in (1, 100003) if nranks == 64 else (1, nranks + 1, 100003):
        for spec in cases.every_operation(nranks, count, itemsizes=(4,)):
            verify(cases.plans(spec, in_place=0x5A5A_5A5A_5A5A_5A5A, cores=1 + count % 2))


@pytest.mark.parametrize("operation", [o for o in OPERATIONS if o != "all_to_all_v"])
def test_512_ranks_are_proved(operation):
    made = cases.plans(cases.spec(operation, 100_003, 512, root=17))
    proved = verify(made)
    if operation != "barrier":
        assert proved["bytes"] > 0
    assert all(p.needs_done == (operation != "barrier") for p in made)


def test_512_ranks_all_to_all_v_is_proved():
    counts = np.zeros((512, 512), np.int64)
    chance = np.random.default_rng(5)
    counts[chance.integers(0, 512, 3000), chance.integers(0, 512, 3000)] = chance.integers(0, 9999, 3000)
    verify(cases.plans(Spec("all_to_all_v", itemsize=3, nranks=512, counts=counts)))


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("nranks", [3])  # test_large has 2
def test_counts_beyond_32_bits(operation, nranks):
    """Nothing of this size is allocated; the offsets must simply be right."""
    count = (1 << 33) + 12345
    spec = cases.spec(operation, 3, nranks, "f32")
    if operation == "all_to_all_v":
        spec = spec._replace(counts=np.full((nranks, nranks), count) + np.arange(nranks))
    elif operation != "barrier":
        spec = spec._replace(count=count)
    made = cases.plans(spec)
    proved = verify(made)
    if operation != "barrier":
        assert proved["bytes"] >= count * 4
        assert max(int(p.buffer_bytes.max()) for p in made) >= count * 4
        assert max(int(p.operands["offset"].max(initial=0)) for p in made) > 1 << 33
    assert all(len(p.units) <= MAX_UNITS + nranks for p in made)


@given(st.data())
def test_any_operation_is_proved(data):
    nranks = data.draw(st.integers(1, 12))
    operation = data.draw(st.sampled_from(OPERATIONS))
    more = {"mode": data.draw(st.sampled_from(["zero_copy", "mailbox"]))}
    if operation in ROOTED:
        more["root"] = data.draw(st.integers(0, nranks - 1))
    if operation == "all_to_all_v":
        row = st.lists(st.one_of(st.just(0), st.integers(0, 5000)), min_size=nranks, max_size=nranks)
        more["counts"] = np.array(data.draw(st.lists(row, min_size=nranks, max_size=nranks)))
    dtype = data.draw(st.sampled_from(["bool", "i16", "f8e5m2", "f32", "f64", "c128"]))
    count = data.draw(st.one_of(st.integers(0, 300), st.integers(0, 5_000_000)))
    unit = data.draw(st.sampled_from([1, 64, 1000, 4096, 1 << 19]))
    if unit < 4096:
        count %= 3000
    spec = cases.spec(operation, count, nranks, dtype, **more)
    if operation not in REDUCTIONS:
        spec = spec._replace(itemsize=data.draw(st.integers(0, 24)), dtype=0)
    made = cases.plans(
        spec,
        in_place=data.draw(st.integers(0, (1 << nranks) - 1)),
        cores=data.draw(st.integers(1, 5)),
        policy=data.draw(st.sampled_from(["balanced", "naive"])),
        cost=Cost(HOST.alpha_us, HOST.gbps, (unit,) * 4, (data.draw(st.integers(1, 4)),) * 4),
        local_first=data.draw(st.booleans()),
    )
    verify(made)


@given(st.integers(0, 1 << 40), st.sampled_from([1, 2, 3, 4, 8, 12, 16]), st.integers(1, 600))
def test_shares_tile_the_buffer(count, itemsize, nranks):
    nbytes, at, lengths = count * itemsize, 0, []
    for rank in range(nranks):
        start, length = share(nbytes, itemsize, nranks, rank)
        if length:
            assert start == at and start % 64 == 0 and start % itemsize == 0 and length % itemsize == 0
        at += length
        lengths.append(length)
    assert at == nbytes
    assert max(lengths) - min(lengths) <= 2 * grain(itemsize)  # one, and the short tail
    full = [n for n in lengths if n % grain(itemsize) == 0]
    assert not full or max(full) - min(full) <= grain(itemsize)


@pytest.mark.parametrize("operation", ["all_gather", "all_to_all", "all_to_all_v"])
@pytest.mark.parametrize("local_first", [False, True])
def test_dies_start_on_different_peers(operation, local_first):
    n = 6
    spec = cases.spec(operation, 300_000, n, itemsize=4)
    if operation == "all_to_all_v":
        spec = spec._replace(counts=np.full((n, n), 300_000))
    for rank in range(n):
        plan = build(spec, rank, local_first=local_first)
        order = plan.operands["member"][plan.units["src_first"]]
        peers = order[np.r_[True, order[1:] != order[:-1]]].tolist()
        remote = [(rank + 1 + k) % n for k in range(n - 1)]
        assert peers == ([rank, *remote] if local_first else [*remote, rank])


def test_cuts_are_at_lines_of_the_destination():
    """No two units of one slice write one cache line, whatever the slice's own alignment."""
    for plan in cases.plans(cases.spec("all_gather", 3_000_001, 3, itemsize=1)):
        dst = plan.operands[plan.units["dst_first"]]["offset"].astype(np.int64)
        ends = dst + plan.units["bytes"].astype(np.int64)
        inner = ~np.isin(dst, np.arange(3) * 3_000_001)
        assert inner.any() and (dst[inner] % 64 == 0).all()
        assert plan.units["bytes"].max() <= HOST.unit_bytes[0]
        assert (np.sort(ends)[:-1] == np.sort(dst)[1:]).all()


def test_reduction_is_one_fused_unit_with_all_operands():
    plan = build(cases.spec("all_reduce", 4096, 4), 2)
    unit = plan.units[0]
    assert len(plan.units) == 1 and unit["kind"] == REDUCE and (unit["nsrc"], unit["ndst"]) == (4, 4)
    assert plan.operands["member"][:4].tolist() == [0, 1, 2, 3]  # rank order
    assert plan.operands["member"][4:].tolist() == [2, 3, 0, 1]  # own first, then in turn
    assert plan.operands["buf"].tolist() == [SRC] * 4 + [OUT] * 4
    assert set(plan.operands["offset"].tolist()) == {8192} and unit["bytes"] == 4096
    sent = build(cases.spec("reduce", 4096, 4, root=1), 2)
    assert sent.operands["member"][4:].tolist() == [1] and not sent.buffer_bytes[:, 2].any()


def test_small_reductions_leave_some_without_work():
    made = cases.plans(cases.spec("all_reduce", 3, 8))
    assert sorted(len(p.units) for p in made) == [0] * 7 + [1]
    assert all(p.needs_done for p in made)


def test_mailboxes_need_one_synchronisation_only():
    for spec in cases.every_operation(5, 7, itemsizes=(4,)):
        for plan in cases.plans(spec):
            assert plan.needs_done == (spec.mode == "zero_copy" and spec.operation != "barrier")
            if spec.mode == "mailbox":
                written = plan.operands[plan.operands["buf"] == OUT]
                assert (written["member"] == plan.rank).all()


def test_one_member_only_copies():
    for spec in cases.every_operation(1, 5, itemsizes=(4,)):
        (plan,) = cases.plans(spec)
        assert (plan.units["kind"] == COPY).all() and not plan.needs_done
        if spec.operation in cases.PARTLY_IN_PLACE:
            assert len(cases.plans(spec, in_place=1)[0].units) == 0


def test_plans_are_immutable():
    plan = build(cases.spec("all_gather", 5, 3), 0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.cores = 2
    for name in ("slices", "units", "operands", "core_begin", "buffer_bytes"):
        with pytest.raises(ValueError):
            getattr(plan, name)[:1] = 0
    counts = np.ones((2, 2), np.int64)
    kept = build(Spec("all_to_all_v", itemsize=1, nranks=2, counts=counts), 0)
    counts[:] = 7
    assert kept.spec.counts.max() == 1


WRONG = {
    "operation": Spec("all_reduces"),
    "nranks": Spec("barrier", nranks=0),
    "root": Spec("broadcast", 1, root=2, nranks=2),
    "mode": Spec("all_gather", 1, mode="magic"),
    "negative": Spec("all_gather", -1),
    "redop": cases.spec("all_reduce", 1, 2)._replace(redop=0),
    "does not reduce": cases.spec("all_gather", 1, 2)._replace(redop=1),
    "itemsize": cases.spec("all_reduce", 1, 2)._replace(itemsize=8),
    "raw": Spec("all_reduce", 1, 0, 0, 1, nranks=2),
    "dtype": Spec("all_gather", 1, 1, 99),
    "matrix": Spec("all_to_all_v", nranks=2),
    "shape": Spec("all_to_all_v", nranks=2, counts=np.ones((2, 3), int)),
    "floats": Spec("all_to_all_v", nranks=2, counts=np.ones((2, 2))),
    "negative count": Spec("all_to_all_v", nranks=1, counts=np.array([[-1]])),
    "only all_to_all_v": Spec("all_to_all", 1, counts=np.ones((1, 1), int)),
    "take the place": Spec("all_to_all_v", 1, counts=np.ones((1, 1), int)),
    "in place": Spec("all_to_all", 1, nranks=2, in_place=True),
    "too many": Spec("all_gather", 1 << 58, 8, nranks=2),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_specs_raise(what):
    with pytest.raises(InvalidArgument) as raised:
        build(WRONG[what], 0)
    assert isinstance(raised.value, (ValueError, StrataError))


def test_wrong_options_raise_and_name_what_there_is():
    spec = cases.spec("all_gather", 1, 2)
    with pytest.raises(ValueError, match="full_mesh"):
        build(spec, 0, algorithm="no_such")
    with pytest.raises(ValueError, match="mte, sdma"):
        build(spec, 0, path="dma")
    with pytest.raises(ValueError, match="balanced"):
        build(spec, 0, policy="fair")
    for rank, cores in ((2, 1), (-1, 1), (0, 0), (0, 1 << 20)):
        with pytest.raises(ValueError):
            build(spec, rank, cores)
    assert build(spec, 0, algorithm="full_mesh", path="mte").hash() == build(spec, 0).hash()
    for wrong in ({"gbps": (0,) * 4}, {"alpha_us": (1,)}, {"cap": (0,) * 4}, {"unit_bytes": (0,) * 4}):
        with pytest.raises(ValueError):
            dataclasses.replace(HOST, **wrong)


@pytest.mark.parametrize("operation", ["all_reduce", "all_to_all"])
def test_the_path_is_a_members_own_affair(operation):
    """The same units, flags and fingerprint whoever moves the bytes; only the plan's own record differs."""
    mte, sdma = (build(cases.spec(operation, 1 << 20, 4), 1, 3, path=path) for path in ("mte", "sdma"))
    assert (mte.path, sdma.path) == ("mte", "sdma") and mte.hash() != sdma.hash()
    assert dataclasses.replace(sdma, path="mte").hash() == mte.hash()
    assert mte.digest == sdma.digest


def test_slices_that_no_executor_knows_are_refused(monkeypatch):
    spec = cases.spec("all_reduce", 100, 2)
    made = frontends.frontend(normal(spec), 0)

    def refused(what, **fields):
        wrong = made.copy()
        for name, value in fields.items():
            wrong[name][:] = value
        monkeypatch.setitem(frontends.FULL_MESH, "all_reduce", lambda spec, rank: wrong)
        with pytest.raises(InvalidArgument, match=what):
            build(spec, 0)

    refused("neither", kind=7)
    refused("atomic", op=1)
    refused("without the other", wait_flag=0)
    refused("steps fall", step=[2, 1, 0])
    refused("different operators", op=[1, 2, 0])
    refused("pushed nowhere", flags=1, src=999)


def equal(one: Plan, other: Plan) -> bool:
    return one.hash() == other.hash() and one.header() == other.header()


@pytest.mark.parametrize("operation", OPERATIONS)
def test_save_and_load(operation, tmp_path):
    plan = build(cases.spec(operation, 1001, 4, root=0), 3, cores=2)
    plan.save(tmp_path / "plan.bin")
    again = Plan.load(tmp_path / "plan.bin")
    assert equal(again, plan) and again.spec._replace(counts=None) == plan.spec._replace(counts=None)
    assert not again.units.flags.writeable
    memory = io.BytesIO()
    plan.save(memory)
    memory.seek(0)
    assert equal(Plan.load(memory), plan)
    pickled = pickle.loads(pickle.dumps(plan))
    assert equal(pickled, plan) and not pickled.operands.flags.writeable


def test_load_refuses_what_is_no_plan(tmp_path):
    plan = build(cases.spec("all_gather", 100, 3), 0)
    path = tmp_path / "plan"

    def refused(what, change=None, header=None):
        plan.save(path)
        with np.load(path) as archive:
            found = dict(archive)
        values = json.loads(found["header"].tobytes())
        values.update(header or {})
        found["header"] = np.frombuffer(json.dumps(values).encode(), np.uint8)
        if change:
            change(found)
        with open(path, "wb") as out:
            np.savez(out, **found)
        with pytest.raises(PlanError, match=what):
            Plan.load(path)

    refused("version 99", header={"version": 99})
    refused("well-formed", header={"cores": "many"})
    refused("well-formed", header={"spec": {"operation": "nothing"}})
    refused("well-formed", lambda found: found.pop("units"))
    refused("another layout", lambda found: found.update(units=found["units"].view("u1")))
    refused("not a plan", lambda found: found.pop("header"))
    refused("beyond buffer_bytes", lambda found: found["operands"]["offset"].__setitem__(0, 1 << 50))
    refused("no place", lambda found: found["operands"]["member"].__setitem__(0, 3))
    refused("core_begin", lambda found: found["core_begin"].__setitem__(1, 2))
    path.write_bytes(b"not an archive")
    with pytest.raises(PlanError):
        Plan.load(path)
    with pytest.raises(FileNotFoundError):
        Plan.load(tmp_path / "absent")


def test_hash_tells_plans_apart():
    base = cases.spec("all_gather", 1000, 3)
    specs = [base, base._replace(count=1001), base._replace(mode="mailbox"), base._replace(in_place=True)]
    hashes = [build(spec, rank).hash() for spec in specs for rank in range(3)]
    assert len(set(hashes)) == len(hashes)
    assert build(base, 0).hash() == build(base._replace(count=np.int64(1000)), 0).hash()


def test_pretty_says_what_moves():
    plan = build(cases.spec("all_reduce", 1 << 20, 4), 1, cores=2)
    text = plan.pretty(limit=4)
    assert "all_reduce zero_copy die 1 of 4" in text and "f32 sum" in text
    assert "... 3 more" in text  # of 7 slices
    assert "reduce sum 524288 B" in text and "core 1: 1 units" in text
    assert "push 1048576 B, 0.OUT+1048576 <- own OUT+1048576" in plan.pretty()
    assert "copy" in build(cases.spec("gather", 10, 2), 0).pretty()
    assert "4 units" in repr(build(cases.spec("all_gather", 10, 4), 0))


def test_cache_returns_the_same_plan_and_forgets_the_oldest():
    cache = PlanCache(max_plans=3)
    spec = cases.spec("all_gather", 100, 4)
    first = cache.get(spec, 1)
    assert cache.get(spec._replace(count=np.int64(100)), 1) is first
    assert cache.get(spec, 1, 2) is not first and cache.get(spec, 2) is not first
    assert cache.get(spec, 1) is first and (cache.hits, cache.misses) == (2, 3)
    cache.get(spec, 3)
    assert len(cache) == 3 and cache.get(spec, 1) is first
    assert cache.get(spec, 1, policy="naive").policy == "naive"
    counts = np.ones((4, 4), np.int64)
    moved = Spec("all_to_all_v", itemsize=4, nranks=4, counts=counts)
    kept = cache.get(moved, 0)
    assert cache.get(moved._replace(counts=counts.astype("i4")), 0) is kept
    counts[0, 1] = 2
    assert cache.get(moved, 0) is not kept
    cache.clear()
    assert len(cache) == cache.nbytes == 0


def test_cache_is_bounded_in_bytes():
    cache = PlanCache(max_bytes=100_000)
    for count in range(1, 400):
        cache.get(cases.spec("all_gather", count, 8), 0)
    assert cache.nbytes <= 100_000 and 10 < len(cache) < 399
    assert cache.nbytes == sum(plan.nbytes for plan in cache._plans.values())
    big = cache.get(cases.spec("all_gather", 1 << 33, 8), 0)  # larger than the cache: kept alone
    assert big.nbytes > 100_000 and len(cache) == 1


def test_cache_serves_threads():
    cache, seen = PlanCache(max_plans=4), []

    def work(seed):
        chance = np.random.default_rng(seed)
        for count in chance.integers(1, 9, 200).tolist():
            seen.append(cache.get(cases.spec("all_gather", count, 3), 0).spec.count == count)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 800 and all(seen)
    assert cache.nbytes == sum(plan.nbytes for plan in cache._plans.values()) and len(cache) <= 4
