"""strata.simulate: what it takes and refuses, what its figures mean, how it chooses, what it keeps."""

import random

import numpy as np
import pytest

import strata
from strata import machine, prediction
from strata.errors import InvalidArgument
from strata.exec.timed import Effects
from strata.plan import Spec, build
from strata.prediction import bandwidths, predict_plans, simulate

CM384 = machine.load("cm384")


def test_the_public_name_and_what_it_says():
    made = strata.simulate("all_gather", nbytes=1 << 16, ranks=8, machine="cm384", algorithm="ring", path="mte",
                           cores=4, partition="naive")  # fmt: skip
    assert isinstance(made, strata.Prediction)
    assert (made.algorithm, made.path, made.cores, made.partition, made.ranks) == ("ring", "mte", 4, "naive", 8)
    assert made.machine is CM384 and made.nbytes == 1 << 16 and made.enlarged == 1
    assert made.core_times_us.shape == (8, 4) and (made.core_times_us >= 0).all()
    assert made.start_us.shape == made.finish_us.shape == (8,) and not made.start_us.any()
    assert made.time_us == made.finish_us.max() == pytest.approx(made.timeline.end_us)
    assert made.core_times_us.max() < made.time_us
    for figure in ("ring", "naive", f"{made.time_us:.3f} us", made.digest, "busbw"):
        assert figure in str(made)
    assert "all_gather ring mte, 8 ranks" in repr(made)
    parts = made.breakdown["critical"]
    assert sum(parts.values()) == pytest.approx(made.time_us, rel=1e-6) and min(parts.values()) > -1e-9


@pytest.mark.parametrize(
    "operation, largest, factor",
    [
        ("all_gather", 8, 7 / 8),
        ("all_reduce", 1, 14 / 8),
        ("reduce_scatter", 1, 7 / 8),
        ("all_to_all", 1, 7 / 8),
        ("broadcast", 1, 1),
        ("reduce", 1, 1),
        ("gather", 8, 7 / 8),
        ("scatter", 1, 7 / 8),
    ],
)
def test_bandwidths_are_those_of_nccl_tests(operation, largest, factor):
    made = simulate(operation, 1 << 16, 8, dtype="f4", op="max", root=0 if operation.startswith("all") else 3)
    algbw = largest * (1 << 16) / made.time_us / 1e3
    assert made.algbw_GBps == pytest.approx(algbw) and made.busbw_GBps == pytest.approx(algbw * factor)
    assert bandwidths(made.spec, 0.0) == (0.0, 0.0)


def test_nothing_to_move_takes_synchronisation_alone():
    barrier, empty = simulate("barrier", 0, 8), simulate("all_gather", 0, 8)
    assert barrier.time_us > 0 and barrier.busbw_GBps == 0 and barrier.time_us == empty.time_us
    assert simulate("all_gather", 64, 1).busbw_GBps == 0


def test_the_same_again_and_another_machine():
    first, again = (simulate("all_gather", 1 << 16, 8, cores=8, algorithm="full_mesh", path="mte") for _ in range(2))
    assert first.digest == again.digest and (first.finish_us == again.finish_us).all()
    slower = CM384.replace(**{"tier.sio.alpha_us": 5.0, "tier.l1.alpha_us": 5.0})
    other = simulate("all_gather", 1 << 16, 8, slower, cores=8, algorithm="full_mesh", path="mte")
    assert other.time_us > first.time_us + 4 and other.digest != first.digest
    assert other.machine is slower


def test_half_the_rates_take_twice_as_long():
    """Of what is long, so that start-up is nothing."""
    names = ["die.ub_gbps", "die.sio_gbps", "die.hbm_gbps"]
    names += [f"tier.{t}.{k}_gbps" for t in ("local", "sio", "l1", "l2") for k in ("read", "write", "core")]
    constants = CM384.constants()
    half = CM384.replace(**{name: constants[name] / 2 for name in names})
    how = {"cores": 24, "algorithm": "full_mesh", "path": "mte"}
    a, b = simulate("all_gather", 64 << 20, 8, **how), simulate("all_gather", 64 << 20, 8, half, **how)
    assert b.time_us / a.time_us == pytest.approx(2, rel=0.01)


def test_arrivals_launch_and_what_is_wrong():
    how = {"operation": "all_gather", "nbytes": 1 << 18, "ranks": 8, "cores": 8, "algorithm": "full_mesh",
           "path": "mte"}  # fmt: skip
    plain = simulate(**how)
    late = simulate(**how, arrivals_us=[100.0, *[100.0] * 6, 150.0])
    assert late.start_us.tolist() == [100.0] * 7 + [150.0]
    assert late.time_us == pytest.approx(plain.time_us + 50, abs=1)
    eager = simulate(**how, launch="eager")
    assert eager.time_us == pytest.approx(plain.time_us + CM384.launch.eager_us)
    for effects in (Effects({3: 2.0}), Effects(slow_links={(0, 5): 8.0}), Effects(dead_planes={2: 6}),
                    Effects(jitter=1.0, seed=1)):  # fmt: skip
        assert simulate(**how, effects=effects).time_us > plain.time_us, effects
    jitter = [simulate(**how, effects=Effects(jitter=1.0, seed=seed)).digest for seed in (1, 1, 2)]
    assert jitter[0] == jitter[1] != jitter[2]
    window = simulate(**how, window_us=0.5)
    assert window.window_us == 0.5 and window.time_us == pytest.approx(plain.time_us, rel=0.2)
    assert simulate(**how, check=True).timeline.residual < 1e-9


def test_counts_say_who_sends_what():
    counts = np.full((4, 4), 1000)
    even = simulate("all_to_all_v", ranks=4, counts=counts, dtype="f4")
    assert even.nbytes == 16000 and even.algbw_GBps == pytest.approx(16000 / even.time_us / 1e3)
    counts[:, 0] = 100_000
    assert simulate("all_to_all_v", counts=counts, dtype="f4").time_us > even.time_us


@pytest.mark.parametrize(
    "given, what",
    [
        ({"operation": "all_sum"}, "'all_sum' cannot be simulated"),
        ({"operation": "all_to_all_v"}, "counts, a matrix"),
        ({"counts": [[1]]}, "counts, a matrix"),
        ({"nbytes": -1}, "nbytes=-1"),
        ({"nbytes": None}, "nbytes, the size"),
        ({"nbytes": 3, "dtype": "f4"}, "not a whole number of float32"),
        ({"machine": "abacus"}, "'abacus' is not known; there are .*cm384"),
        ({"ranks": 1000}, "has 768 dies"),
        ({"ranks": 0}, "0"),
        ({"ranks": 1.5}, "ranks=1.5"),
        ({"ranks": "8"}, "ranks='8'"),
        ({"nbytes": "1K"}, "nbytes='1K'"),
        ({"root": 0.5}, "root=0.5"),
        ({"algorithm": "nonsense"}, "no algorithm 'nonsense'"),
        ({"path": "cable"}, "mte, sdma"),
        ({"cores": 49}, "48"),
        ({"partition": "fair"}, "balanced, naive"),
        ({"operation": "all_reduce", "dtype": "f4", "path": "sdma"}, "does not reduce"),
        ({"operation": "all_reduce", "dtype": "f4", "op": "mean"}, "op='mean'"),
        ({"operation": "broadcast", "root": 8}, "root"),
        ({"arrivals_us": [1.0, 2.0]}, "arrivals_us"),
        ({"arrivals_us": [-1.0] * 8}, "arrivals_us"),
        ({"effects": Effects({8: 2.0})}, "die 8"),
        ({"window_us": -1.0}, "window_us"),
        ({"window_us": 1e300}, "window_us"),
        ({"launch": "rocket"}, "graph, eager"),
        ({"select": "dice"}, "model, simulation"),
    ],
)
def test_what_there_is_not_is_refused(given, what):
    with pytest.raises(InvalidArgument, match=what):
        simulate(**{"operation": "all_gather", "nbytes": 1 << 10, "ranks": 8, **given})


def test_by_sdma_there_are_no_more_cores_than_queues():
    on = machine.load("dgx_b200")
    made = simulate("all_gather", 1 << 24, 8, on, path="sdma")
    assert made.path == "sdma" and 1 <= made.cores <= on.sdma.queues == 4
    with pytest.raises(InvalidArgument, match="16 cores, .* 4 SDMA queues"):
        simulate("all_gather", 1 << 24, 8, on, path="sdma", cores=16)
    made = simulate("broadcast", 1 << 26, 2, on, cores=8)  # a budget, of which the path that is chosen takes so many
    assert made.path == "sdma" and made.cores == on.sdma.queues


def test_the_choice_by_simulation_is_never_behind():
    """Of what was not left out, whatever the sizes."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    for n in (8, 12, 16):
        nbytes = int(2 ** chance.uniform(10, 20)) // n * n
        for operation in ("all_gather", "all_to_all"):
            made = simulate(operation, nbytes, n, select="simulation")
            named = {name: simulate(operation, nbytes, n, algorithm=name).time_us
                     for name in ("full_mesh", "ring", "pairwise") if name in made.candidates}  # fmt: skip
            assert "full_mesh" in named, made.why
            # Fewer cores are taken where they are as good, within half a per cent.
            assert made.time_us <= min(named.values()) * prediction.SAME, (operation, n, nbytes, named)
            assert made.time_us == made.candidates[made.algorithm] <= min(made.candidates.values()) * prediction.SAME
            assert "that were simulated on cm384" in made.why[0]


def test_what_is_much_slower_is_not_simulated_and_said():
    made = simulate("all_gather", 1 << 10, 32, select="simulation")
    assert "ring" not in made.candidates and "ring" in made.why[0] and "closed model" in made.why[0]
    one = simulate("all_reduce", 1 << 10, 32, dtype="f4", select="simulation")
    assert set(one.candidates) <= {"full_mesh", "hierarchical"}  # which add up in rank order
    assert simulate("all_gather", 1 << 10, 32, select="simulation", path="sdma").path == "sdma"


def test_units_are_made_larger_if_there_are_too_many(monkeypatch):
    exact = simulate("all_gather", 1 << 30, 16, algorithm="full_mesh", cores=24, path="mte")
    monkeypatch.setattr(prediction, "MAX_UNITS", 20_000)
    made = simulate("all_gather", 1 << 30, 16, algorithm="full_mesh", cores=24, path="mte")
    assert made.enlarged == 4 and "4 times larger" in made.why[-1]
    assert made.time_us == pytest.approx(exact.time_us, rel=0.01)
    monkeypatch.setattr(prediction, "MAX_UNITS", 100)
    monkeypatch.setattr(prediction, "MOST_UNITS", 1_000)
    with pytest.raises(InvalidArgument, match="transfer units, and 1,000 can be simulated"):
        simulate("all_gather", 1 << 20, 64, algorithm="full_mesh")


def plans_of(n, nbytes, **how):
    return [build(Spec("all_gather", nbytes, nranks=n), r, 4, cost=CM384.cost, topology=CM384.place, **how)
            for r in range(n)]  # fmt: skip


def test_plans_are_timed_once(monkeypatch):
    looks = []
    real = prediction._timed
    monkeypatch.setattr(prediction, "_timed", lambda *args: looks.append(1) or real(*args))
    plans = plans_of(4, 4096)
    first = predict_plans(plans, "cm384")
    assert first.digest == predict_plans(plans_of(4, 4096), "cm384").digest and len(looks) == 1  # equal, not the same
    made = simulate("all_gather", 4096, 4, algorithm="full_mesh", cores=4, path="mte")
    assert (first.finish_us == made.finish_us).all()
    looks.clear()
    late = predict_plans(plans, "cm384", [10.0, 10.0, 10.0, 10.0])
    assert not looks and late.finish_us == pytest.approx(first.finish_us + 10)
    skewed = predict_plans(plans, "cm384", [10.0, 10.0, 10.0, 12.5])
    assert len(looks) == 1 and skewed.start_us.tolist() == [10.0, 10.0, 10.0, 12.5]
    assert (skewed.finish_us >= 12.5).all()
    again = predict_plans(plans, "cm384", [7.0, 7.0, 7.0, 9.5])
    assert len(looks) == 1 and again.finish_us == pytest.approx(skewed.finish_us - 3)
    spread = predict_plans(plans, "cm384", dies=[0, 16, 32, 48])
    slow = predict_plans(plans, "cm384", effects=Effects({1: 3.0}))
    assert len(looks) == 3 and spread.finish_us.min() > first.finish_us.max() and slow.digest != first.digest
    for wrong in ([1.0], [0.0, 0.0, 0.0, -1.0], [0.0, 0.0, 0.0, np.nan]):
        with pytest.raises(InvalidArgument, match="arrivals_us: 4 times"):
            predict_plans(plans, "cm384", wrong)


def test_what_is_kept_is_bounded(monkeypatch):
    memo = prediction._Memo(2)
    monkeypatch.setattr(prediction, "_times", memo)
    plans = plans_of(2, 64)
    for late in (1.0, 2.0, 3.0):
        predict_plans(plans, "cm384", [0.0, late])
    assert len(memo._found) == 2


@pytest.mark.parametrize("ranks, nbytes", [(8, 1 << 10), (8, 1 << 20), (32, 1 << 16), (32, 1 << 18)])
def test_what_simulation_selects_is_never_behind_all_cores(ranks, nbytes):
    """Of full mesh and ring on every core a die has; fewer cores are taken only where they are as good."""
    found = simulate("all_gather", nbytes, ranks, "cm384", select="simulation")
    for algorithm in ("full_mesh", "zerocopy_ring"):
        other = simulate("all_gather", nbytes, ranks, "cm384", algorithm=algorithm, path="mte", cores=48)
        assert found.time_us <= 1.006 * other.time_us


def test_a_closed_estimate_knows_that_small_reductions_take_few_cores():
    """512 operands of 2 KiB are one unit, on one core, whatever there are."""
    explained = strata.explain("all_reduce", nbytes=1 << 20, ranks=512, machine="cm384", dtype="f4")
    estimate = explained["candidates"]["full_mesh"]
    found = simulate("all_reduce", 1 << 20, 512, "cm384", algorithm="full_mesh", path="mte", cores=48, dtype="f4")
    assert estimate == pytest.approx(found.time_us, rel=0.05)
