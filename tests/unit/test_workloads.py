"""Workloads: descriptions, streams, what the timing plane is asked, and that what must be faster is."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from strata import machine as machines
from strata import workloads
from strata.cli.main import main
from strata.errors import InvalidArgument
from strata.exec.timed import Program
from strata.machine import GRADES
from strata.workloads import pricing, routing, schedule, switches
from strata.workloads.schedule import COLLECTIVE, KERNEL, Task
from strata.workloads.steps import Collective, Kernel, Routing

CM384 = machines.load("cm384")
ROOT = Path(__file__).resolve().parents[2]


def inference(**constants):
    """A few layers on few dies: seconds become milliseconds."""
    small = {"layers": 3, "ep_prefill": 8, "ep_decode": 16, "prompt_tokens": 512}
    return workloads.load("dsv4_flash").replace(**{**small, **constants})


def training(**constants):
    small = {"layers": 3, "dense_layers": 1, "dies": 32, "fsdp": 8, "tp": 4, "ep": 16, "tokens": 512,
             "experts": 32, "expert_width": 512, "hidden": 1024, "attention_params": 1e7}  # fmt: skip
    return workloads.load("dsv32_training").replace(**{**small, **constants})


def dlrm(**constants):
    return workloads.load("dlrm").replace(**{"dies": 16, "batch": 256, "top_params": 1e6, **constants})


SMALL = {"inference": inference, "training": training, "dlrm": dlrm}


@pytest.mark.parametrize("name", workloads.names())
def test_what_comes_along_loads(name):
    """Every constant has a grade and a source, and every published row can be asked."""
    workload = workloads.load(name)
    rows = workload.assumptions()
    assert len(rows) > 10 and all(r["grade"] in GRADES and r["source"].strip() for r in rows)
    for published in workload.description.published:
        chosen = switches.of(**published.switches)
        demand = workload.description.constants.demand(chosen)
        assert demand.units > 0 and all(part.steps.items for part in demand.parts)
        held = sum(demand.memory.values())
        assert 0 < held < machines.load(workload.description.machine).die.hbm_bytes, (name, held / 2**30)
    assert len(workload.description.published) >= 3


@pytest.mark.parametrize("kind", SMALL)
def test_reports_add_up(kind):
    report = SMALL[kind]().run("cm384")
    for part in report.parts:
        assert part.step_us == pytest.approx(part.exposed_us + (part.step_us - part.exposed_us))
        busy = part.step_us - part.exposed_us  # in which a kernel runs
        assert part.compute_us <= busy * (1 + 1e-9)
        assert part.overlapped_us <= busy * (1 + 1e-9)
        assert part.step_us <= (part.compute_us + part.communication_us + part.registration_us) * (1 + 1e-6)
        assert part.waiting_us <= part.exposed_us and part.waiting_us <= part.registration_us * (1 + 1e-9)
        assert max(part.layers.values()) <= part.step_us
    total = sum(p.times * p.step_us for p in report.parts)
    assert report.step_us == pytest.approx(total) and report.rate > 0


@pytest.mark.parametrize("kind", SMALL)
@pytest.mark.parametrize("asked", [{"library": "hccl"}, {"library": "zerocopy"}, {"path": "sdma"}], ids=str)
def test_overlap_is_never_slower(kind, asked):
    workload = SMALL[kind]()
    together, apart = workload.run("cm384", **asked), workload.run("cm384", overlap=False, **asked)
    assert together.step_us <= apart.step_us * (1 + 1e-9)
    assert apart.overlapped_us == 0 and together.compute_us == apart.compute_us
    assert apart.step_us == pytest.approx(apart.compute_us + apart.communication_us + apart.registration_us)


@pytest.mark.parametrize("kind", SMALL)
def test_faster_machines_are_never_slower(kind):
    workload = SMALL[kind]()
    before = workload.run("cm384").step_us
    wide = {"die.ub_gbps": 392.0, "die.sio_gbps": 540.0}
    wide |= {f"tier.{t}.{r}": 2 * CM384.constants()[f"tier.{t}.{r}"] for t in ("sio", "l1", "l2")
             for r in ("read_gbps", "write_gbps", "core_gbps")}  # fmt: skip
    assert workload.run(CM384.replace(**wide)).step_us <= before
    assert workload.run(CM384.replace(**{"compute.efficiency": 0.9})).step_us <= before
    assert workload.run(CM384.replace(**{"registration.map_us": 300.0}), registration="just_in_time").step_us >= before


def test_the_same_twice():
    first, second = inference().run(), inference().run()
    pricing._alone.cache_clear()
    pricing._together.cache_clear()
    third = inference().run()
    assert first == second == third
    assert inference(seed=7).run().step_us != first.step_us  # the routing is another


def test_what_must_be_faster_is():
    """Of the published ablation, what the model must show whatever the sizes: by streams one after the other, where
    nothing hides what a collective takes."""
    rows = {r.name: r.report for r in inference(prompt_tokens=4096, ep_prefill=32).ablation(overlap=False)}
    assert rows["+ registration on allocation"].rate > rows["+ registration just in time"].rate
    assert rows["+ balanced partition"].rate > rows["+ registration on allocation"].rate
    assert rows["zero-copy"].parts[0].step_us < rows["HCCL"].parts[0].step_us
    assert rows["HCCL"].registration_us == rows["zero-copy"].registration_us == 0
    before, after = rows["+ registration just in time"], rows["+ registration on allocation"]
    assert before.registration_us > 10 * after.registration_us > 0
    for library in ("hccl", "zerocopy"):
        assert training().run(library="strata").step_us < training().run(library=library).step_us


def test_just_in_time_grows_with_peers():
    """Linearly, as the timing plane's own mapping stage does."""
    prices = pricing.Prices(CM384, switches.of(registration="just_in_time"), inference().description.practice)
    us = {n: prices.registration_us(Collective("all_to_all_v", 0, n, dynamic=1 << 20)) for n in (2, 9, 17, 33)}
    announced = CM384.registration.announce_us
    assert (us[33] - announced) == pytest.approx(2 * (us[17] - announced)) == pytest.approx(32 * (us[2] - announced))
    program = Program(CM384, 9)
    stage = program.map(range(9), range(9), CM384.registration.page_bytes)
    assert us[9] - announced == pytest.approx(program.run().finish_us(stage).max(), rel=1e-6)
    jit = [inference(ep_prefill=n).run(registration="just_in_time").registration_us for n in (8, 16)]
    each = CM384.registration.map_us
    assert jit[1] == pytest.approx(jit[0] * (announced + 15 * each) / (announced + 7 * each), rel=0.02)


def test_a_kernel_alone_is_as_the_timing_plane_has_it():
    for kernel in (Kernel(1e11, 1e3, "i8"), Kernel(1e3, 1e9), Kernel(2e10, 1e8, "f32")):
        program = Program(CM384, 1)
        stage = program.compute([0], flops=kernel.flops, nbytes=int(kernel.nbytes), dtype=kernel.dtype)
        alone = float(program.run().finish_us(stage)[0])
        assert pricing.roofline(CM384, kernel)[0] == pytest.approx(alone, rel=0.02)


def test_collectives_slow_kernels_by_what_they_hold():
    practice = inference().description.practice
    collective = Collective("all_gather", 4 << 20, 16)
    rates = {}
    for name, asked in {"hccl": {"library": "hccl"}, "mte": {"algorithm": "full_mesh"},
                        "sdma": {"algorithm": "full_mesh", "path": "sdma"}}.items():  # fmt: skip
        rates[name] = pricing.Prices(CM384, switches.of(**asked), practice).beside(Kernel(1e12, 1e3), collective)
        assert 0 < rates[name][0] <= 1 and 0 < rates[name][1] <= 1
    assert rates["sdma"][0] > 0.97 > rates["mte"][0]
    assert rates["mte"][0] == pytest.approx(1 / 1.13, abs=0.02)  # StrataCL: zero-copy slows a kernel by 13 %


def test_exchanges_of_tokens_have_barriers_and_units_of_experts():
    there = Collective("all_to_all_v", 0, 16, routing=Routing("experts", 512, 64, 4096, topk=4, seed=2))
    rows = Collective("all_to_all_v", 0, 16, routing=Routing("tables", 512, 64, 4096))
    practice = inference().description.practice
    for collective, added in ((there, practice.exchange_us), (rows, 0.0)):
        with_them = pricing.Prices(CM384, switches.of(), practice).collective(collective).us
        none = pricing.Prices(CM384, switches.of(), dataclasses.replace(practice, exchange_us=0.0))
        assert with_them - none.collective(collective).us == pytest.approx(added)
    way = switches.of(algorithm="full_mesh").way("all_to_all_v")
    cut = [int(plan.units["bytes"].max()) for plan in pricing._plans(CM384, way, 24, there)]
    assert max(cut) == 512 * 4 // 64 * 4096  # what one die sends to one expert, in the mean


def test_all_queues_submit():
    for operation, mte, sdma in (("all_gather", 24, 47), ("all_reduce", 24, 24)):
        collective = Collective(operation, 1 << 22, 16, dtype="f32" if operation == "all_reduce" else "u1")
        for path, cores in (("mte", mte), ("sdma", sdma)):
            chosen = switches.of(algorithm="full_mesh", path=path)
            found = pricing.Prices(CM384, chosen, inference().description.practice).collective(collective)
            assert found.cores == cores and found.path == (path if operation == "all_gather" else "mte")


def test_shared_experts_compute_while_tokens_travel():
    report = inference().run(library="hccl")
    assert all(part.items["shared experts"][0] == 3 and part.overlapped_us > 0 for part in report.parts)
    none = inference(shared_experts=0).run(library="hccl")
    assert all("shared experts" not in part.items and part.overlapped_us == 0 for part in none.parts)
    again = inference(attention_start_us=0).run(library="hccl")
    saved = sum(p.times for p in report.parts) * 3 * inference().description.constants.attention_start_us
    assert report.compute_us - again.compute_us == pytest.approx(saved)


def test_long_rings_are_extended_exactly():
    way = switches.of("zerocopy").way("all_gather")
    whole = Collective("all_gather", 4000, 64)
    found = pricing._alone(CM384, way, 24, whole).us
    limits, pricing.RINGS = pricing.RINGS, (1 << 20, 1 << 20)
    try:
        pricing._alone.cache_clear()
        assert pricing._alone(CM384, way, 24, whole).us == pytest.approx(found, rel=1e-3)
    finally:
        pricing.RINGS = limits
        pricing._alone.cache_clear()


def test_groups_apart():
    assert pricing.placed(CM384, 1).topology == dataclasses.replace(CM384.topology, nodes=48)
    apart = pricing.placed(CM384, 4).topology
    assert (apart.dies_per_package, apart.packages_per_node) == (1, 4)
    assert pricing.placed(CM384, 64).topology.packages_per_node == 1
    with pytest.raises(InvalidArgument, match="evenly"):
        pricing.placed(CM384, 3)


def test_counts_of_routing():
    even = routing.counts(Routing("experts", 128, 64, 2, topk=4, seed=3), 16)
    assert even.shape == (16, 16) and (even.sum(axis=1) == 512).all()
    back = routing.counts(Routing("experts", 128, 64, 2, topk=4, seed=3, back=True), 16)
    assert np.array_equal(back, even.T)
    skewed = routing.counts(Routing("experts", 128, 64, 2, topk=4, skew=1.5, seed=3), 16)
    assert skewed.sum(axis=0).max() > 1.5 * even.sum(axis=0).max()
    tables = routing.counts(Routing("tables", 10, 24, 2), 16)
    assert tables[0].tolist() == [20] * 16 and tables[8].tolist() == [10] * 16
    with pytest.raises(InvalidArgument, match="at least one each"):
        routing.counts(Routing("experts", 1, 4, 2), 16)
    with pytest.raises(InvalidArgument, match="routing model"):
        routing.counts(Routing("nothing", 1, 4, 2), 4)


def test_streams():
    """Two streams, each with a task of 10, that halve each other; then one that waits for both."""
    tasks = [Task(KERNEL, 10, 0, "a", ()), Task(COLLECTIVE, 10, 1, "b", ()), Task(KERNEL, 5, 2, "b", (0,)),
             Task(KERNEL, 0, 3, "a", (2,))]  # fmt: skip
    found = schedule.run(tasks, lambda task, others: 1 / (1 + len(others)))
    assert found.finish == pytest.approx([20, 20, 25, 25]) and found.end == pytest.approx(25)
    assert (found.exposed, found.overlapped) == (0, pytest.approx(20))
    stopped = schedule.run(tasks, lambda task, others: float(task.kind == COLLECTIVE or not others))
    assert stopped.finish[:2] == pytest.approx([20, 10]) and stopped.exposed == 0
    one = schedule.run(tasks, lambda task, others: 1.0, overlap=False)
    assert one.finish == pytest.approx([10, 20, 25, 25]) and one.exposed == pytest.approx(10)
    with pytest.raises(InvalidArgument, match="earlier ones"):
        schedule.run([Task(KERNEL, 1, 0, "a", (0,))], lambda task, others: 1.0)


@pytest.mark.parametrize(("asked", "text"), [
    ({"library": "nccl"}, "library is 'nccl'; there are"),
    ({"registration": "eager"}, "registration is 'eager'"),
    ({"library": "hccl", "registration": "just_in_time"}, "buffer-centric"),
    ({"library": "zerocopy", "partition": "balanced"}, "not of library 'zerocopy'"),
    ({"library": "zerocopy", "path": "sdma"}, "not of library 'zerocopy'"),
    ({"library": "hccl", "algorithm": "ring"}, "has its own"),
    ({"algorithm": "best"}, "algorithm is 'best'"),
    ({"partition": "fair"}, "partition is 'fair'"),
    ({"path": "rdma"}, "path is 'rdma'"),
    ({"overlap": 1}, "overlap is 1"),
    ({"speed": 2}, "no switch speed"),
    ({"machine": "cm999"}, "machine 'cm999'"),
    ({"machine": CM384.replace(**{"topology.nodes": 1})}, "192 dies, and cm384 has 16"),
], ids=str)  # fmt: skip
def test_wrong_switches(asked, text):
    with pytest.raises(InvalidArgument, match=text):
        workloads.load("dsv4_flash").run(**asked)


@pytest.mark.parametrize(("change", "text"), [
    (lambda t: t.replace("hidden = ", "hiden = "), "unknown hiden"),
    (lambda t: t.replace('grade = "M2"', 'grade = "X"', 1), "grade 'X'"),
    (lambda t: t.replace("value = 43", "value = 0"), "layers is 0"),
    (lambda t: t.replace("value = 43", "value = 4.5"), "a whole number"),
    (lambda t: t.replace('kind = "inference"', 'kind = "magic"'), "kind 'magic'"),
    (lambda t: t.replace('against = "HCCL"', 'against = "MPI"', 1), "no row before it"),
    (lambda t: t.replace("[constants]", "[konstants]"), "has constants"),
    (lambda t: t + "[", "is no TOML"),
], ids=range(8))  # fmt: skip
def test_wrong_files(tmp_path, change, text):
    from strata.workloads import description

    path = tmp_path / "mine.toml"
    path.write_text(change(description._own("dsv4_flash.toml")))
    with pytest.raises(InvalidArgument, match=text):
        workloads.load(str(path))


def test_wrong_constants():
    with pytest.raises(InvalidArgument, match="no constant 'layer'"):
        inference(layer=3)
    with pytest.raises(InvalidArgument, match="expected"):
        inference(layers=-1)
    with pytest.raises(InvalidArgument, match="not the 500 dies"):
        workloads.load("dsv32_training").replace(dies=500)
    with pytest.raises(InvalidArgument, match="decode batch of"):
        inference(decode_batch=8, pool_gib=5.0).run(registration="pool")
    with pytest.raises(InvalidArgument, match="workload 'dsv5'"):
        workloads.load("dsv5")
    with pytest.raises(InvalidArgument, match="cannot be read"):
        workloads.load("/nowhere/x.toml")


def test_the_page_has_the_assumptions():
    done = subprocess.run([sys.executable, str(ROOT / "tools" / "workloads_page.py"), "--check"], capture_output=True,
                          text=True, timeout=100, check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_runs(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "workloads.md").read_text(), re.S)
    exec(compile(code, "docs/workloads.md", "exec"), {})
    assert capsys.readouterr().out.startswith("HCCL 1.0 1.0\n")


def test_command(capsys, tmp_path):
    assert main(["workload"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in workloads.names())
    small = ["--set", "dies=16", "--set", "batch=256", "--set", "top_params=1e6"]
    out = tmp_path / "out.json"
    assert main(["workload", "dlrm", *small, "--set", "library=zerocopy", "--json", str(out)]) == 0
    shown, data = capsys.readouterr().out, json.loads(out.read_text())
    assert "all-reduce" in shown and "zerocopy" in shown
    assert data["switches"]["library"] == "zerocopy" and data["status"] == "predicted"
    assert data["step_us"] == dlrm().run(library="zerocopy").step_us
    assert main(["workload", "dlrm", *small, "--ablation", "--json", "-"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [r["name"] for r in rows] == [p.name for p in dlrm().description.published]
    assert main(["workload", "dlrm", "--assumptions"]) == 0
    assert "bucket_bytes" in capsys.readouterr().out
    for wrong in (["--set", "overlap=maybe"], ["--set", "batch"], ["--set", "batch=many"], ["--set", "color=1"]):
        assert main(["workload", "dlrm", *wrong]) == 2
        assert "strata workload:" in capsys.readouterr().err


def test_a_machine_that_was_changed_is_told():
    half = machines.load("cm384").replace(**{"die.ub_gbps": 98.0})
    small = dlrm()
    assert any("die.ub_gbps=98.0" in note for note in small.run(half).notes)
    assert not any("set:" in note for note in small.run("cm384").notes)
