"""Traces of jobs as users make them: strata-run --trace, strata top --trace, strata.trace_start, probes and tags."""

import ctypes
import gzip
import json
import os
import signal

import pytest
from launching import Running, all_there, environment, run, sleeper, until, write
from test_top import START, command, the_job

import strata
from strata import tracing

FAMILIES = """
import os
import sys
import numpy as np
import strata
from strata import moe, sdma
g = strata.world()
me, n = g.rank, g.size
x, many = strata.ones(1000, "f4"), strata.ones((n, 1000), "f4")
g.barrier()  # barrier 0
g.all_reduce(x)  # all_reduce 4000
g.all_gather(x, out=many)  # all_gather 4000
g.reduce_scatter(many, out=x)  # reduce_scatter 4000n
g.all_to_all(many)  # all_to_all 4000n
g.all_to_all_v(x, [10] * n)  # all_to_all_v 4000
g.broadcast(x, root=1)  # broadcast 4000
g.reduce(x, root=0)  # reduce 4000
g.gather(x, root=1)  # gather 4000
g.scatter(None if me else many, x)  # scatter *
g.send(x, 1 - me) if me == 0 else None  # send 4000 0
g.recv(x, src=0) if me == 1 else None  # recv 4000 1
op = g.all_reduce.bind(x)  # bind_all_reduce 4000
op()  # all_reduce 4000
op.start().wait()  # wait_all_reduce 0
w = g.all_gather(x, async_op=True)  # all_gather 4000
w.wait() if not w.done() else None
g.split(0)  # split 0
g.subgroup([1, 0])  # subgroup 0
s = strata.Stream()
s.copy(x, many[0])  # Stream.copy 4000
s.synchronize()  # Stream.synchronize 0
with strata.stream(s):
    g.all_reduce(x)  # all_reduce 4000
s.synchronize()  # Stream.synchronize 0
ring = sdma.open_ring()
ring.submit(sdma.Batch().copy(x, many[1])).wait()  # sdma.submit 4000
flag = sdma.flag()
sdma.write(flag, 1)  # sdma.write 8
sdma.wait(flag, 1)  # sdma.wait 8
with strata.capture() as graph:  # capture 0
    g.all_reduce(x)
graph.replay()  # replay 0
b = moe.Buffer(g, 0, 0)
tokens, idx = np.ones((8, 128), "f4"), np.arange(16).reshape(8, 2) % 4
layout = b.get_dispatch_layout(idx, 4)  # moe.get_dispatch_layout 128
rows, _, _, _, handle, _ = b.dispatch(  # moe.dispatch 4096
    tokens, num_tokens_per_rank=layout[0], is_token_in_rank=layout[3], num_tokens_per_expert=layout[2], topk_idx=idx)
b.combine(rows, handle)  # moe.combine *
own = np.ones(10)
strata.register(own)  # register 80
strata.deregister(own)  # deregister 80
"""


def load(path):
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)


def tracks(found):
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in found["traceEvents"] if e["name"] == "thread_name"}


def spans(found, *categories):
    return [e for e in found["traceEvents"] if e["ph"] == "X" and e["cat"] in categories]


def traced(tmp_path, text, n=2, *options, name="t.json", status=0):
    path = tmp_path / name
    done = run("-n", n, "--trace", path, *options, write(tmp_path / "program.py", text), cwd=tmp_path)
    assert done.returncode == status, done.stderr.decode()
    return load(path), done.stderr.decode()


def test_every_family_of_calls_is_there_with_bytes_site_and_group(tmp_path):
    found, said = traced(tmp_path, FAMILIES)
    events = sum(e["ph"] != "M" for e in found["traceEvents"])
    assert said == f"strata-run: {events} events are in {tmp_path}/t.json (strata trace {tmp_path}/t.json)\n"
    assert found["otherData"]["dies"] == 2 and found["otherData"]["program"] == "program.py"
    assert not found["otherData"]["lost"]
    names, calls = tracks(found), {}
    for e in spans(found, "call"):
        assert names[e["pid"], e["tid"]] == "calls"
        calls.setdefault((e["pid"], e["args"]["site"]), []).append(e)
    expected = 0
    for number, line in enumerate(FAMILIES.splitlines(), 1):
        what = line.partition("  # ")[2].split()
        for rank in range(2):
            here = calls.pop((rank, f"program.py:{number} in <module>"), [])
            if not what or what[2:] and int(what[2]) != rank:
                continue
            name = what[0].replace("_", " ", 1) if what[0].startswith(("bind_", "wait_")) else what[0]
            mine = [e for e in here if e["name"] == name]
            assert len(mine) == 1, (line, rank, here)
            args, expected = mine[0]["args"], expected + 1
            if what[1] != "*":
                nbytes = int(what[1].removesuffix("n")) * (2 if what[1].endswith("n") else 1)
                assert args["bytes"] == nbytes, (line, args)
            if name in ("send", "recv"):
                assert args["peer"] == 1 - rank and args["group"] == "world"
            elif "." not in name and name not in ("capture", "replay", "register", "deregister", "subgroup"):
                assert args["group"] == "world" and args["number"] > 0, (line, args)
    assert not calls, "no call is told of that is not one of the program's lines"
    assert expected > 60


def test_phases_lie_within_their_calls_and_move_what_the_plan_moves(tmp_path):
    text = """
        import json
        import strata
        g = strata.world()
        x, many = strata.ones(100_000, "f4"), strata.zeros((g.size, 100_000), "f4")
        g.all_gather(x, many)
        g.all_gather(x, many)
        spec, choice = g._choose_plan(operation="all_gather", count=x.size, itemsize=4, dtype=0, redop=0, root=0,
                                      mode="zero_copy", in_place=False, variant=0, overlap=False)
        plan = g._build(spec, choice)
        assert choice.path == "mte"
        print(g.rank, int(plan.units["bytes"].sum()))
    """
    path = tmp_path / "t.json.gz"
    done = run("-n", 3, "--trace", path, write(tmp_path / "program.py", text), cwd=tmp_path,
               env=environment(STRATA_PATH="mte"))
    assert done.returncode == 0, done.stderr.decode()
    planned = dict(map(int, line.split()) for line in done.stdout.decode().splitlines())
    found = load(path)
    names = tracks(found)
    for rank in range(3):
        calls = [e for e in spans(found, "call") if e["pid"] == rank]
        assert [(e["name"], e["args"]["number"]) for e in calls] == [("all_gather", 1), ("all_gather", 2)]
        for call in calls:
            mine = [e for e in spans(found, "arrive", "wait", "check", "copy", "map") if e["pid"] == rank
                    and e["args"].get("call") == call["args"]["number"]]  # fmt: skip
            assert {"arrive", "copy"} <= {e["cat"] for e in mine}  # a wait, if there was one
            for e in mine:
                assert names[rank, e["tid"]].startswith("core ") and e["args"]["group"] == "world"
                assert call["ts"] <= e["ts"] and e["ts"] + e["dur"] <= call["ts"] + call["dur"] + 1e-3
            assert sum(e["args"]["bytes"] for e in mine if e["cat"] == "copy") == planned[rank]
    assert {e["name"] for e in found["traceEvents"] if e["ph"] == "C"} >= {"port in (GB/s)", "port out (GB/s)"}


def test_operations_of_a_groups_thread_have_their_own_numbers(tmp_path):
    found, _ = traced(tmp_path, """
        import strata
        g = strata.world()
        arrays = [strata.ones(50_000) for _ in range(6)]
        g.barrier()
        with strata.tag(step=7):
            works = [g.all_reduce(x, async_op=True) for x in arrays]
        for w in works:
            w.wait()
        g.barrier()
    """)
    names = tracks(found)
    for rank in range(2):
        calls = [e for e in spans(found, "call") if e["pid"] == rank and not e["name"].startswith("wait")]
        assert [e["args"]["number"] for e in calls] == list(range(1, 9))
        assert [e["args"].get("async", False) for e in calls] == [False] + [True] * 6 + [False]
        there = [e for e in spans(found, "arrive") if e["pid"] == rank and names[rank, e["tid"]] == "thread worker"]
        assert [e["args"]["call"] for e in there] == list(range(2, 8))
        assert all(e["args"]["tags"] == {"step": 7} for e in there)


def test_tags_and_probes(tmp_path):
    found, _ = traced(tmp_path, """
        import numpy as np
        import strata
        g = strata.world()
        x = strata.ones(8)
        for step in (1, 300, 70_000):
            with strata.tag(step=np.int64(step)), strata.probe("layer", layer=2, kind="mlp"):
                g.all_reduce(x)
        with strata.tag(a=-1, b=1.5, c=True, d="é"):
            g.all_reduce(x)
        g.all_reduce(x)
        for bad in ({"step": None}, {"x": [1]}):
            try:
                strata.tag(**bad)
                raise SystemExit(1)
            except TypeError as error:
                assert "tags are whole numbers, floats, strings or bools" in str(error)
    """)
    for rank in range(2):
        calls = [e["args"].get("tags") for e in spans(found, "call") if e["pid"] == rank]
        steps = [{"step": step, "layer": 2, "kind": "mlp"} for step in (1, 300, 70_000)]
        assert calls == [*steps, {"a": -1, "b": 1.5, "c": True, "d": "é"}, None]
        probes = [e for e in spans(found, "probe") if e["pid"] == rank]
        assert [(e["name"], e["args"]["tags"]) for e in probes] == [("layer", tags) for tags in steps]
        beneath = [e["args"]["tags"]["step"] for e in spans(found, "arrive") if e["pid"] == rank and "tags" in e["args"]
                   and "step" in e["args"]["tags"]]  # fmt: skip
        assert beneath == [1, 300, 70_000]


LONG = """
import strata
g = strata.world()
x = strata.ones(8)
for step in range(1000):
    g.all_reduce(x)
"""


@pytest.mark.parametrize("mode", ["ring", "stop"])
def test_what_does_not_fit_is_counted(tmp_path, mode):
    found, said = traced(tmp_path, LONG, 2, "--trace-events", 256, "--trace-mode", mode)
    lost = found["otherData"]["lost"]
    assert lost.keys() == {"0", "1"} and all(f"{lost[str(r)]} of die {r}" in said for r in range(2))
    for rank in range(2):
        mine = [e["args"]["number"] for e in spans(found, "call") if e["pid"] == rank and "number" in e["args"]]
        assert mine == list(range(1, len(mine) + 1)) if mode == "stop" else mine == list(range(1001 - len(mine), 1001))
        shown = sum(e["ph"] == "X" and e["pid"] == rank for e in found["traceEvents"])
        assert 0 < len(mine) < 256 and shown <= 256 * 3  # the caller's, and the registrar's


def test_a_killed_die_leaves_its_trace(tmp_path):
    found, said = traced(tmp_path, """
        import os, signal
        import strata
        g = strata.world()
        for _ in range(5):
            g.barrier()
        if g.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        g.barrier()
    """, status=128 + signal.SIGKILL)
    assert "strata-run: rank 1 of 2 failed" in said and "events are in" in said
    calls = [[e["args"] for e in spans(found, "call") if e["pid"] == rank] for rank in range(2)]
    assert [c["number"] for c in calls[1]] == [1, 2, 3, 4, 5]
    assert calls[0][5]["number"] == 6 and calls[0][5]["failed"] is True


def test_dies_that_hang_and_are_stopped(tmp_path):
    text = START + """
import os, signal
world.all_reduce(strata.ones(8))
os.kill(os.getpid(), signal.SIGSTOP) if world.rank else world.barrier()
"""
    found, said = traced(tmp_path, text, 2, "--timeout", 4, "--grace", 0.2, "--trace-sample", 50, status=124)
    assert "timed out after 4 s" in said
    for rank in range(2):
        assert {e["name"] for e in spans(found, "call") if e["pid"] == rank} == {"barrier", "all_reduce"}
    assert "stopped" in {e["name"] for e in spans(found, "sample") if e["pid"] == 1}
    assert all(e["args"]["cpu"] >= 0 for e in spans(found, "sample"))


def test_a_running_job_is_traced_from_outside(tmp_path):
    body = START + """
x = strata.ones(8)
there()
while True:
    world.all_reduce(x)
    step = world.all_gather(np.array([os.path.exists(sys.argv[1] + "/over")]))
    if step.any():
        break
"""
    with Running("-n", 2, sleeper(tmp_path, "import numpy as np\n" + body), tmp_path) as running:
        all_there(tmp_path, 2)
        the_job(running)
        status, said = command("top", running.pid, "--trace", "start")
        assert status == 0 and "traced from now on" in said
        path = tmp_path / "t.json"

        def caught():
            status, said = command("top", running.pid, "--trace", "dump", path)
            assert status == 0 and said.startswith(f"{path}: "), said
            return {e["pid"] for e in spans(load(path), "call")} == {0, 1}

        until(caught, "both dies have called something")
        status, said = command("top", running.pid, "--trace", "stop")
        assert status == 0 and "no longer traced" in said
        for wrong in (("go",), ("dump",), ("start", "fast"), ("start", "--once")):
            status, said = command("top", running.pid, "--trace", *wrong)
            assert status == 2, said
        (tmp_path / "over").touch()
        assert running.end()[0] == 0


def _from_within(g, path):
    x = strata.ones(8)
    g.all_reduce(x)
    g.barrier()
    if g.rank == 0:
        strata.trace_start("stop")
    g.barrier()
    g.all_reduce(x, op="max")
    g.barrier()
    if g.rank == 0:
        strata.trace_stop()
    g.barrier()
    g.all_gather(x)
    g.barrier()
    events = strata.trace_dump(path) if g.rank == 0 else None
    for call in (lambda: strata.trace_start("fast"), lambda: strata.trace_start(ranks=[g.size]),
                 lambda: strata.trace_dump(path, ranks=[-1])):  # fmt: skip
        with pytest.raises(strata.errors.InvalidArgument):
            call()
    g.barrier()
    return events


def test_tracing_from_within(small, tmp_path):
    path = tmp_path / "t.json.gz"
    (events, *_) = small.run(_from_within, path)
    found = load(path)
    assert events == sum(e["ph"] != "M" for e in found["traceEvents"]) and found["otherData"]["dies"] == small.n
    for rank in range(small.n):
        names = [e["name"] for e in spans(found, "call") if e["pid"] == rank]
        assert "all_reduce" in names and "all_gather" not in names and names.count("all_reduce") == 1


def _from_c(g, path):
    class Probes(ctypes.Structure):
        _fields_ = [("version", ctypes.c_uint32), ("name", ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_char_p)),
                    ("begin", ctypes.CFUNCTYPE(ctypes.c_uint64)),
                    ("end", ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_uint32))]  # fmt: skip

    p = Probes.from_address(tracing.c_functions())
    assert p.version == 1 and p.begin() == 0  # nothing is traced
    strata.trace_start(ranks=[g.rank])
    name = p.name(b"pack rows")
    began = p.begin()
    p.end(began, name)
    child = os.fork()
    if child == 0:  # it is no die, and writes to no trace
        try:
            with strata.probe("child"), strata.tag(a=1):
                os._exit(int(p.begin() != 0))
        finally:
            os._exit(2)
    status = os.waitpid(child, 0)[1]
    strata.trace_stop(ranks=[g.rank])
    strata.trace_dump(f"{path}.{g.rank}", ranks=[g.rank])
    return began > 0, status


def test_probes_from_c_and_forked_children(pair, tmp_path):
    assert pair.run(_from_c, tmp_path / "t") == [(True, 0)] * 2
    for rank in range(2):
        found = load(tmp_path / f"t.{rank}")
        assert [(e["name"], e["pid"]) for e in spans(found, "probe")] == [("pack rows", rank)]


@pytest.mark.parametrize(("options", "said"), [
    (("--trace", "/nowhere/at/all.json"), "--trace /nowhere/at/all.json: it cannot be written: No such file"),
    (("--trace-mode", "ring"), "--trace FILE, which is missing"),
    (("--trace", "x", "--trace-events", "100"), "--trace-events 100: a power of two from 64 to 1048576 is expected"),
    (("--trace", "x", "--trace-mode", "fast"), "--trace-mode fast: ring or stop expected"),
    (("--trace", "x", "--trace-sample", "0"), "--trace-sample 0: 0.1 to 1000 looks a second are possible"),
    (("--trace", "x", "--trace-sample", "9", "--restarts", "1"), "must have no threads"),
])  # fmt: skip
def test_what_the_launcher_refuses(tmp_path, options, said):
    done = run("-n", 1, *options, write(tmp_path / "program.py", ""), cwd=tmp_path)
    assert done.returncode == 2 and said in done.stderr.decode(), done.stderr.decode()
