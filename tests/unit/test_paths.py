"""Cores or the engine: what each path costs by the model, and which is chosen."""

import dataclasses
import itertools

import numpy as np
import pytest

import strata
from strata import config, selection
from strata.errors import InvalidArgument
from strata.plan import OPERATIONS, algorithms, build, paths, select
from strata.plan.records import DTYPE_NAMES, OP_NAMES
from strata.plan.select import Ask, Settings, choose
from strata.plan.spec import REDUCTIONS, Spec

CM384 = selection.machine("cm384")
HOST = Settings()
MESH = algorithms.find("full_mesh")
PAPER = Spec("all_gather", 128 << 20, nranks=32, in_place=True)
SIZES = [1 << k for k in range(6, 29)]


def spec(operation, nbytes, n):
    """float32, ``nbytes`` as a spec counts them."""
    reduces = operation in REDUCTIONS
    counts = np.full((n, n), nbytes // 4) if operation == "all_to_all_v" else None
    count = 0 if operation in ("all_to_all_v", "barrier") else nbytes // 4
    return Spec(operation, count, 4, DTYPE_NAMES.index("f32") if reduces else 0,
                OP_NAMES.index("sum") if reduces else 0, nranks=n, counts=counts)  # fmt: skip


def ways(asked, cores, settings, overlap=False, of=48, algorithm=MESH):
    return paths.ways(algorithm, asked, cores, of, overlap, settings.topology, settings.cost, settings.model)


@pytest.mark.parametrize("in_place", [True, False])
def test_the_published_operation(in_place):
    """32 ranks on two nodes, 128 MiB each: published are +9 %, about 90 us until the slowest core has submitted, and
    95 % less of the cores' time.  By the estimate the engine's share costs 3 %, and a mean core submits in 77 us."""
    found = ways(PAPER._replace(in_place=in_place), 48, CM384)
    mte, sdma = found["mte"], found["sdma"]
    assert sdma.time_us / mte.time_us == pytest.approx(1.03, abs=0.01)
    assert sdma.core_us / 48 == pytest.approx(77, rel=0.07)
    assert sdma.core_us < 0.05 * mte.core_us
    assert mte.core_us == 48 * mte.time_us


def test_descriptors_of_a_plan():
    """One for each block, of a reduction whatever its operands; one for a flag waited for or raised."""
    assert paths.descriptors(build(PAPER, 3, 48, cost=CM384.cost, topology=CM384.topology), 1 << 20) == 31 * 128
    asked = spec("all_gather", (3 << 20) + 4, 4)._replace(in_place=True)
    whole = dataclasses.replace(HOST.cost, unit_bytes=(1 << 30,) * 4)
    assert paths.descriptors(build(asked, 0, cost=whole), 1 << 20) == 3 * 4
    assert paths.descriptors(build(asked, 0, cost=whole), 1 << 30) == 3
    pushed = build(spec("all_reduce", 4 << 20, 4), 0, cost=whole)  # its share, of all operands, to all members
    assert [len(pushed.units), paths.descriptors(pushed, 1 << 18)] == [1, 4]
    ring = build(spec("all_gather", 64, 4), 1, algorithm="zerocopy_ring")
    flags = sum(int((ring.units[name] >= 0).sum()) for name in ("wait_flag", "post_flag"))
    assert flags and paths.descriptors(ring, 1 << 20) == flags + sum(unit["bytes"] > 0 for unit in ring.units)


def test_it_ends_no_sooner_than_all_is_submitted():
    """512 tiny parts are 511 descriptors; one core submits them for longer than they move."""
    asked = spec("all_to_all", 64, 512)
    found = ways(asked, 1, CM384)["sdma"]
    assert found.descriptors >= 511 and found.time_us > found.core_us
    assert found.core_us == found.descriptors * CM384.model.engine.descriptor_us
    assert ways(asked, 48, CM384)["sdma"].time_us < found.time_us / 4


def test_a_dies_own_part_goes_by_the_engine_too():
    """It is copied between the same memories, at the engine's share of their rate."""
    local = [ways(PAPER._replace(in_place=False), 48, CM384)[path].time_us - ways(PAPER, 48, CM384)[path].time_us
             for path in ("mte", "sdma")]  # fmt: skip
    alone = 2 * PAPER.part / (CM384.model.memory_gbps * 1e3)
    assert local == pytest.approx([alone, alone / CM384.model.engine.share])


def total(way, work, of):
    """Microseconds until the operation and work of so long on ``of`` cores are both done."""
    return max(way.time_us, work + way.core_us / of)


@pytest.mark.parametrize("settings, cores, of", [(CM384, 2, 48), (CM384, 24, 48), (CM384, 48, 48), (HOST, 1, 1)])
def test_beside_other_work_what_can_be_lost_is_least(settings, cores, of):
    """Over works of any length, the chosen path's worst loss against the other is the lesser one."""
    for operation, nbytes in itertools.product(("all_gather", "all_to_all", "broadcast"), SIZES):
        found = ways(spec(operation, nbytes, 8), cores, settings, True, of)
        longest = 2 * max(way.time_us for way in found.values())
        works = np.linspace(0, longest, 101)
        lost = {
            path: max(total(found[path], w, of) - total(found[other], w, of) for w in works)
            for path, other in (("mte", "sdma"), ("sdma", "mte"))
        }
        chosen, why = paths.least(found, cores, of, True)
        other = "sdma" if chosen == "mte" else "mte"
        assert lost[chosen] <= lost[other] + 1e-6, (operation, nbytes, found, lost)
        assert f"{found['mte'].time_us:.1f} us" in why and chosen in why


def test_from_when_on_sdma_is_ahead():
    found = ways(PAPER, 24, CM384, True)
    alone = found["sdma"].time_us - found["mte"].core_us / 48
    assert f"takes {alone:.1f} us or more" in paths.least(found, 24, 48, True)[1]
    for work, ahead in ((0.99 * alone, "mte"), (1.01 * alone, "sdma")):
        assert min(found, key=lambda path: total(found[path], work, 48)) == ahead


def test_alone_the_faster_one():
    assert choose(PAPER, settings=CM384).path == "mte"
    chosen = choose(PAPER, Ask(cores=8), CM384)
    assert chosen.path == "sdma" and "8 cores move less than the engine" in chosen.why
    for asked, cores in itertools.product((spec("all_to_all", n, 32) for n in SIZES), (1, 4, 16, 48)):
        found = ways(asked, cores, CM384)
        chosen = choose(asked, Ask("full_mesh", cores=cores), CM384)
        faster = "sdma" if found["sdma"].time_us < found["mte"].time_us else "mte"
        assert chosen.path == faster and f"{found[faster].time_us:.1f} us" in chosen.why


def test_beside_other_work_large_ones_go_by_sdma():
    """Once sdma is chosen, it is for all larger sizes."""
    for operation, settings in itertools.product(("all_gather", "all_to_all", "broadcast"), (CM384, HOST)):
        chosen = [choose(spec(operation, n, 8), Ask("full_mesh"), settings, True).path for n in SIZES]
        assert chosen[0] == "mte" and chosen[-1] == "sdma" and chosen == sorted(chosen)


@pytest.mark.parametrize("operation", [o for o in OPERATIONS if o != "barrier"])
def test_on_a_host(operation):
    """Alone never sdma, whose copies are no faster; beside other work from some tens of KiB that a die moves."""
    for n, nbytes in itertools.product((2, 4, 8), SIZES[:20]):
        asked = spec(operation, nbytes, n)
        assert choose(asked, settings=HOST).path == "mte" and "30 us later" in choose(asked, settings=HOST).why
        for algorithm in algorithms.available(asked, HOST.topology):
            found = ways(asked, 1, HOST, False, 1, algorithm)
            assert paths.least(found, 1, 1, False)[0] == "mte"
    begins = next(n for n in SIZES if choose(spec(operation, n, 2), settings=HOST, overlap=True).path == "sdma")
    assert 32 << 10 <= begins <= 512 << 10
    for n in (4, 8):
        assert choose(spec(operation, 1 << 20, n), settings=HOST, overlap=True).path == "sdma"


def test_an_engine_that_only_moves_does_not_reduce():
    for operation in REDUCTIONS:
        asked = spec(operation, 1 << 20, 8)
        chosen = choose(asked, settings=CM384, overlap=True)
        assert chosen.path == "mte" and "does not reduce" in chosen.path_why
        assert list(ways(asked, 8, CM384)) == ["mte"]
        with pytest.raises(InvalidArgument, match="does not reduce; there is mte"):
            choose(asked, Ask(path="sdma"), CM384)
        assert choose(asked, Ask(path="sdma"), HOST).path == "sdma"


def test_where_there_is_nothing_to_choose():
    """Mailboxes, whatever is asked for; a die by itself; a machine without an engine."""
    mailbox = Spec("all_gather", 64, nranks=4, mode="mailbox")
    for asked in (mailbox, Spec("all_gather", 1 << 30), Spec("barrier", nranks=4)):
        for settings, wish in itertools.product((HOST, CM384), (Ask(), Ask(path="sdma"))):
            chosen = choose(asked, wish, settings, True)
            assert chosen.path == "mte" and ("mailboxes" in chosen.why or "leaves the die" in chosen.why)
    without = dataclasses.replace(HOST, model=dataclasses.replace(HOST.model, engine=None))
    assert choose(PAPER, settings=without, overlap=True).path == "mte"
    with pytest.raises(InvalidArgument, match="the host has no SDMA engine"):
        choose(PAPER, Ask(path="sdma"), without)


def test_the_call_then_the_option_then_the_model():
    option = Settings(options={"": Ask(path="sdma")})
    chosen = choose(PAPER, settings=option)
    assert chosen.path == "sdma" and "sdma: STRATA_PATH names it" in chosen.why
    chosen = choose(PAPER, Ask(path="mte"), option, True)
    assert chosen.path == "mte" and "mte: the call names it" in chosen.why
    reducing = dataclasses.replace(CM384, options=option.options)
    assert choose(spec("all_reduce", 1 << 20, 8), settings=reducing).path == "mte"  # holds where it can be
    found = selection._read(config.load({"STRATA_PATH": "sdma", "STRATA_ALGORITHM": "all_reduce=ring"}))
    assert found.options == {"": Ask(path="sdma", partition="balanced"),
                             "all_reduce": Ask("ring", "sdma", None, "balanced")}  # fmt: skip
    assert selection._read(config.load({"STRATA_PATH": "auto"})).options[""].path is None
    with pytest.raises(strata.ConfigError, match="one of auto, mte, sdma"):
        config.load({"STRATA_PATH": "dma"})


def test_the_cores_of_a_die_are_those_that_it_has():
    """An operation may be asked for fewer of them, or more."""
    assert "mte holds 12 of 48 cores" in choose(PAPER, Ask(cores=12), CM384, True).why
    assert "mte holds 24 of 48 cores" in choose(PAPER, settings=CM384, overlap=True).why
    assert "mte holds 4 of 4 cores" in choose(PAPER, Ask(cores=4), HOST, True).why
    other = dataclasses.replace(CM384, _known={})
    assert [choose(PAPER, settings=other, overlap=overlap).path for overlap in (False, True, False)] == [
        "mte", "sdma", "mte"]  # fmt: skip


def test_groups_say_whether_there_is_other_work():
    selector = selection.Selector(4)
    large = Spec("all_gather", 1 << 20, nranks=4)
    assert selector.choose(large, 0).path == "mte" and selector.choose(large, 0, overlap=True).path == "sdma"
    number = selector.number("all_gather", None, "mte", None, None)
    assert selector.choose(large, number, True).path == "mte"


def test_sizes_that_are_alike_are_looked_at_once(monkeypatch):
    calls = []
    monkeypatch.setattr(paths, "estimate", lambda *given: calls.append(given) or float(len(calls)))
    settings = Settings()
    for _ in range(3):
        choose(PAPER, Ask("full_mesh"), settings, True)
        choose(PAPER._replace(count=PAPER.count + 1), Ask("full_mesh"), settings, True)
    assert len(calls) == 2
    choose(PAPER, Ask("full_mesh"), settings)  # on a host, alone: no look
    assert len(calls) == 2
    for nbytes in (1 << 10, 1 << 20):
        choose(spec("all_to_all_v", nbytes, 4), Ask(), settings, True)
    assert len(calls) == 6
    assert select.choose(spec("all_to_all_v", 1 << 20, 4), Ask(), settings, True).algorithm is MESH


def test_explains_both():
    found = strata.explain("all_gather", 128 << 20, 32, machine="cm384", overlap=True)
    assert found["path"] == "sdma" and found["overlap"] is True and set(found["paths"]) == {"mte", "sdma"}
    mte, sdma = found["paths"]["mte"], found["paths"]["sdma"]
    assert sdma["exposed_us"] < mte["exposed_us"] and sdma["core_us"] < 0.05 * mte["core_us"]
    assert sdma["submission_us"] * found["cores"] == pytest.approx(sdma["core_us"]) and sdma["descriptors"] >= 32 * 128
    text = str(found)
    assert f"sdma: {sdma['time_us']:.1f} us" in text and f"{sdma['descriptors']} descriptors" in text
    assert found["why"][-1].startswith("sdma: mte holds") and found["why"][-1] in text
    alone = strata.explain("all_gather", 128 << 20, 32, machine="cm384")
    assert alone["path"] == "mte" and alone["paths"]["mte"]["exposed_us"] == alone["paths"]["mte"]["time_us"]
    asked = strata.explain("all_gather", 1 << 20, 4, path="sdma")
    assert asked["path"] == "sdma" and asked["why"][-1] == "sdma: the call names it" and len(asked["paths"]) == 2
    small = strata.explain("all_gather", 64, 4, path="sdma")
    assert small["path"] == "mte" and list(small["paths"]) == ["mte"] and "mailboxes" in small["why"][-1]
