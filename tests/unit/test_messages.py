"""Plans as messages, as GOAL, and as Chakra traces: read back by parsers of their own, run, and counted."""

import random
import re
import sys

import pytest

from strata.cli import main
from strata.errors import InvalidArgument
from strata.plan import Spec, build
from strata.plan.interchange import chakra, goal, messages
from strata.plan.records import DTYPE_BYTES, DTYPE_NAMES, NONE, OP_NAMES, PULL, SYNC_SLICE
from strata.plan.spec import REDUCTIONS, normal
from strata.plan.topology import Topology

CASES = [
    ("all_gather", "full_mesh"), ("all_gather", "ring"), ("all_gather", "bruck"), ("all_gather", "pat"),
    ("all_reduce", "full_mesh"), ("all_reduce", "rhd"), ("all_reduce", "hierarchical"), ("all_reduce", "atomic"),
    ("all_reduce", "staged"), ("reduce_scatter", "pat"), ("all_to_all", "full_mesh"), ("broadcast", "ring"),
    ("reduce", "binomial"), ("scatter", "binomial"), ("gather", "full_mesh"), ("barrier", "full_mesh"),
]  # fmt: skip


def plans(operation="all_reduce", algorithm="rhd", n=4, cores=3, count=3000, dtype="f32"):
    code = DTYPE_NAMES.index(dtype) if operation in REDUCTIONS else 0
    op = OP_NAMES.index("sum") if operation in REDUCTIONS else 0
    count = 0 if operation == "barrier" else count
    spec = normal(Spec(operation, count, DTYPE_BYTES[code] or 4, code, op, nranks=n))
    place = Topology(2, 4)
    return [build(spec, r, cores, algorithm=algorithm, topology=place) for r in range(n)]


def run(ranks, seed):
    """Carries all steps out in a drawn order: a send at once, a receive when what is sent has come.  When each was
    done, as its number in that order."""
    rng = random.Random(seed)
    done, sent = {}, set()
    left = [(r, i) for r, nodes in enumerate(ranks) for i in range(len(nodes))]
    while left:
        ready = []
        for r, i in left:
            node = ranks[r][i]
            came = node.kind != "recv" or (node.peer, r, node.tag, node.nbytes) in sent
            if came and all((r, before) in done for before in node.after):
                ready.append((r, i))
        assert ready, f"{len(left)} steps wait for each other"
        for r, i in rng.sample(ready, rng.randint(1, len(ready))):
            node = ranks[r][i]
            if node.kind == "send":
                key = (r, node.peer, node.tag, node.nbytes)
                assert key not in sent, "a tag is used twice"
                sent.add(key)
            done[r, i] = len(done)
            left.remove((r, i))
    received = sum(node.kind == "recv" for nodes in ranks for node in nodes)
    assert received == len(sent)
    return done


@pytest.mark.parametrize(("operation", "algorithm"), CASES)
def test_steps_can_run_and_units_wait_for_those_that_raise_their_flags(operation, algorithm):
    made = plans(operation, algorithm)
    ranks = messages.ranks(made)
    done = run(ranks, f"{operation} {algorithm}")
    steps = {}  # of each unit, but those that only wait: when each was done
    for r, nodes in enumerate(ranks):
        for i, node in enumerate(nodes):
            words = node.name.split()
            if words[0] != "flag" and words[-1] != "begins":
                steps.setdefault(words[1], []).append(done[r, i])
    raised = {}
    for plan in made:
        for core in range(plan.cores):
            last = -1
            for u in range(plan.core_begin[core], plan.core_begin[core + 1]):
                mine = steps.get(f"{plan.rank}.{u}")
                if mine:
                    assert min(mine) > last  # a core's units in their order
                    last = max(last, min(mine))
                if plan.units[u]["post_flag"] != NONE:
                    raised.setdefault((plan.rank, int(plan.units[u]["post_flag"])), []).extend(mine or [])
    for plan in made:
        for u, unit in enumerate(plan.units):
            if unit["wait_flag"] != NONE and f"{plan.rank}.{u}" in steps:
                before = raised[int(unit["wait_peer"]), int(unit["wait_flag"])]
                assert not before or min(steps[f"{plan.rank}.{u}"]) > max(before)


@pytest.mark.parametrize(("operation", "algorithm"), CASES)
def test_bytes_between_ranks_are_those_of_the_slices(operation, algorithm):
    made = plans(operation, algorithm)
    expected = {}
    for plan in made:
        for s in plan.slices[plan.slices["kind"] != SYNC_SLICE]:
            peer = int(s["peer"])
            pair = (peer, plan.rank) if s["kind"] == PULL else (plan.rank, peer)
            if peer != plan.rank:
                expected[pair] = expected.get(pair, 0) + int(s["bytes"])
    found = {}
    for r, nodes in enumerate(messages.ranks(made)):
        for node in nodes:
            if node.kind == "send" and "asks" not in node.name and not node.name.startswith("flag"):
                found[r, node.peer] = found.get((r, node.peer), 0) + node.nbytes
    assert found == expected
    assert operation == "barrier" or found


def test_a_pull_is_a_request_and_an_answer():
    nodes = messages.ranks(plans("all_gather", "full_mesh", 2, 1, 16))
    copies = [n for n in nodes[0] if n.kind == "recv" and n.nbytes == 64]
    asked = [n for n in nodes[1] if n.kind == "recv" and n.name.endswith("asks")]
    answer = [n for n in nodes[1] if n.kind == "send" and n.nbytes == 64]
    assert len(copies) == len(asked) == len(answer) == 1
    assert answer[0].after == [nodes[1].index(asked[0])] and nodes[0][copies[0].after[0]].name == asked[0].name
    assert asked[0].cpu == answer[0].cpu == 1 and copies[0].cpu == 0  # not its core's


def test_partial_operands_are_as_wide_as_accumulators():
    sizes = {}
    for node in messages.ranks(plans(dtype="f16", count=4096))[0]:
        if node.kind == "recv" and node.nbytes > messages.CONTROL_BYTES:
            sizes.setdefault(node.name.split()[0], set()).add(node.nbytes)
    assert sizes["copy"] == {2048} and sizes["reduce"] == {2048, 4096}


def test_what_is_refused():
    made = plans()
    for wrong in (made[:3], made[::-1], [*made[:3], plans("all_gather", "ring")[3]], [*made[:3], plans(count=8)[3]]):
        with pytest.raises(InvalidArgument, match="plans of all members of one operation, in rank order"):
            goal.write(wrong)
    spec = normal(Spec("all_gather", 16, 1, nranks=2, mode="mailbox"))
    with pytest.raises(InvalidArgument, match="go by mailboxes"):
        goal.write([build(spec, r) for r in range(2)])
    with pytest.raises(InvalidArgument, match="CPUs from 0 to 255, and these plans need .*fewer cores"):
        goal.write(plans("all_gather", "ring", 2, 200, 1 << 20))
    for gbps in (0, -1.0, float("nan"), float("inf")):
        for write in (goal.write, lambda made, gbps: chakra.write(made, "x", gbps=gbps)):
            with pytest.raises(InvalidArgument, match="gbps is"):
                write(made, gbps=gbps)


# GOAL


LINE = re.compile(
    r"l(?P<label>\d+): (?:(?P<message>send|recv) (?P<bytes>\d+)b (?:to|from) (?P<peer>\d+) tag (?P<tag>\d+)"
    r"|calc (?P<calc>\d+)) cpu (?P<cpu>\d+)|l(?P<later>\d+) requires l(?P<before>\d+)"
)


def parsed(text):
    """Blocks of a schedule, by the grammar of LogGOPSim's txt2bin; (ranks, steps, computations in ns)."""
    head, *blocks = text.split("\n\n")
    count = re.fullmatch(r"num_ranks (\d+)", head)
    ranks, times = [], []
    for rank, block in enumerate(blocks):
        first, *lines = block.rstrip("\n").split("\n")
        assert first == f"rank {rank} {{" and lines.pop() == "}"
        nodes = {}
        for line in lines:
            m = LINE.fullmatch(line)
            assert m, line
            if m["later"]:
                nodes[int(m["later"])].after.append(int(m["before"]) - 1)  # labels are stated before
                assert int(m["before"]) in nodes
                continue
            assert int(m["cpu"]) < 256
            kind = m["message"] or "calc"
            assert ("to" if kind == "send" else "from") in line or kind == "calc"
            nodes[int(m["label"])] = messages.Node(
                kind, "", int(m["cpu"]), int(m["bytes"] or 0), int(m["peer"] or NONE), int(m["tag"] or 0)
            )
            times.append(int(m["calc"] or 0))
        assert list(nodes) == list(range(1, len(nodes) + 1))
        ranks.append(list(nodes.values()))
    assert int(count[1]) == len(ranks)
    return ranks, times


def bare(ranks):
    return [[(n.kind, n.cpu, n.nbytes * (n.kind != "calc"), n.peer, n.tag, n.after) for n in nodes] for nodes in ranks]


@pytest.mark.parametrize(("operation", "algorithm"), CASES)
def test_goal_is_read_back(operation, algorithm):
    made = plans(operation, algorithm)
    ranks, times = parsed(goal.write(made, gbps=4.0))
    expected = messages.ranks(made)
    assert bare(ranks) == bare(expected)
    assert times == [round(n.nbytes / 4.0) if n.kind == "calc" else 0 for nodes in expected for n in nodes]
    run(ranks, 0)


# Chakra, decoded by hand: field numbers of mlcommons/chakra, schema/protobuf/et_def.proto


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def fields(data):
    """(number, value) of each field: an int, or bytes."""
    at, found = 0, []
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
        else:
            assert key & 7 == 2, "no other wire type is written"
            size, at = varint(data, at)
            value, at = data[at : at + size], at + size
            assert len(value) == size
        found.append((key >> 3, value))
    return found


def packed(data):
    at, found = 0, []
    while at < len(data):
        value, at = varint(data, at)
        found.append(value)
    return found


def decoded(data):
    """(version, nodes) of a file."""
    at, parts = 0, []
    while at < len(data):
        size, at = varint(data, at)
        parts.append(fields(data[at : at + size]))
        at += size
    nodes = []
    for part in parts[1:]:
        values = dict(part)
        attrs = {}
        for _, attr in (f for f in part if f[0] == 10):
            inner = fields(attr)
            assert inner[0][0] == 1 and len(inner) == 2
            attrs[inner[0][1].decode()] = inner[1]
        name, kind, deps, us = values[2].decode(), values[3], packed(values.get(5, b"")), values.get(7, 0)
        nodes.append((values.get(1, 0), name, kind, deps, us, attrs))
    return dict(parts[0])[1].decode(), nodes


@pytest.mark.parametrize(("operation", "algorithm"), CASES)
def test_chakra_is_read_back(operation, algorithm, tmp_path):
    pytest.importorskip("google.protobuf")
    made = plans(operation, algorithm)
    names = chakra.write(made, tmp_path / "x.et", gbps=4.0)
    assert names == [str(tmp_path / f"x.{r}.et") for r in range(4)]
    for rank, (name, expected) in enumerate(zip(names, messages.ranks(made), strict=True)):
        with open(name, "rb") as file:
            version, nodes = decoded(file.read())
        assert version == "0.0.4" and len(nodes) == len(expected)
        for i, ((number, label, kind, deps, us, attrs), node) in enumerate(zip(nodes, expected, strict=True)):
            assert (number, label, deps) == (i, node.name, node.after)
            assert attrs["is_cpu_op"] == (27, 0) and attrs["core"] == (7, node.cpu)
            if node.kind == "calc":
                assert kind == 4 and us == -(-node.nbytes // 4000) and attrs["tensor_size"] == (13, node.nbytes)
                continue
            src, dst = (rank, node.peer) if node.kind == "send" else (node.peer, rank)
            assert kind == {"send": 5, "recv": 6}[node.kind] and us == 0
            assert attrs["comm_src"] == (7, src) and attrs["comm_dst"] == (7, dst)
            assert attrs["comm_tag"] == (7, node.tag) and attrs["comm_size"] == (9, node.nbytes)


def test_without_protobuf_the_error_says_what_to_install(monkeypatch, tmp_path):
    chakra._classes.cache_clear()
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    with pytest.raises(InvalidArgument, match=r'pip install "strata\[chakra\]"'):
        chakra.write(plans(), tmp_path / "x.et")
    assert not list(tmp_path.iterdir())
    monkeypatch.undo()
    chakra._classes.cache_clear()


def test_by_the_command_line(tmp_path, capsys):
    words = ["plan", "all_gather", "-n", "4", "-b", "64K", "--machine", "cm384", "--cores", "2"]
    assert main([*words, "-o", str(tmp_path / "x.goal")]) == 0
    ranks, _ = parsed((tmp_path / "x.goal").read_text())
    assert len(ranks) == 4
    assert main([*words, "--rank", "1", "-o", str(tmp_path / "y.goal")]) == 2
    assert "plans of all members" in capsys.readouterr().err
    pytest.importorskip("google.protobuf")
    assert main([*words, "-o", str(tmp_path / "x.et")]) == 0
    assert sorted(p.name for p in tmp_path.glob("*.et")) == [f"x.{r}.et" for r in range(4)]
