"""Machine descriptions: those that are packaged, what is refused, other constants, machines as text."""

import dataclasses
import pickle
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata import machine
from strata.errors import InvalidArgument
from strata.machine import GRADES, Machine
from strata.machine.description import SECTIONS, Tier
from strata.plan.cost import NO_CAP
from strata.plan.records import TIER_NAMES
from strata.plan.topology import HOST, Topology

ROOT = Path(__file__).parents[2]
CM384 = machine.load("cm384")


@pytest.fixture(scope="module")
def toml():
    return machine.dumps(CM384)


def test_these_are_packaged():
    assert machine.names() == ["cm384", "dgx_b200", "dgx_h100", "host"]


@pytest.mark.parametrize("name", machine.names())
def test_every_packaged_machine_loads_and_says_where_its_figures_are_from(name):
    found = machine.load(name)
    assert found.name == name and machine.load(name) is found and machine.load(found) is found
    told = set(found.constants()) - {"topology.flat"}
    assert told <= set(found.sources) <= told | {"topology.flat"}
    for constant, (grade, source) in found.sources.items():
        assert grade in GRADES and source.strip(), constant
    assert found.cost.gbps == tuple(t.core_gbps for t in found.tiers) and found.place.node <= found.topology.dies
    for tier in found.tiers:  # one core has no more than one die gives another, and that no more than memory
        assert tier.core_gbps <= max(tier.read_gbps, tier.write_gbps) <= found.die.hbm_gbps
    if not found.topology.flat:
        for tier in found.tiers[2:]:
            assert max(tier.read_gbps, tier.write_gbps) <= found.die.ub_gbps
    assert pickle.loads(pickle.dumps(found)) == found and hash(found) == hash(pickle.loads(pickle.dumps(found)))


def test_a_server_is_one_memory_that_the_library_takes_for_the_same_nodes():
    host = machine.load("host")
    assert host.place == HOST and host.cost.cap == (NO_CAP,) * 4


def test_gpus_have_their_data_sheets_ports():
    for name, port in (("dgx_h100", 450.0), ("dgx_b200", 900.0)):
        found = machine.load(name)
        assert found.die.ub_gbps == port and found.place == Topology(1, 8) and found.topology.dies == 8
        assert found.sources["die.ub_gbps"][0] == "S"


# What is refused


PLANES = '"7 planes of 28 (hicann/shmem)"'
CHANGES = {
    "unknown section": ("[launch]", "[lunch]", r"unknown lunch; a machine has"),
    "unknown constant": ("ub_planes = ", "ub_plains = ", r"\[die\] unknown ub_plains; its constants are cores"),
    "missing section": ("[compute]", "[tier.compute]", r"without compute"),
    "missing constant": ("issue_us = ", "# ", r"\[core\] without issue_us"),
    "missing name": ("name = ", "title1 = ", r"unknown title1"),
    "missing tier": ("[tier.sio]", "[tier.sea]", r"\[tier\] needs local, sio, l1, l2"),
    "no table of constants": ("[fanout]", "[fanout]\ninner = 3", r"\[fanout\] unknown inner"),
    "bare value": ("{ value = 7, grade", "{ valu = 7, grade", r"die.ub_planes is .*, not \{ value"),
    "extra key": ("{ value = 7, ", "{ value = 7, unit = 'planes', ", r"die.ub_planes is .*, not \{ value"),
    "below range": ("value = 196.0", "value = 0.0", r"die.ub_gbps is 0.0: a number from 0.001"),
    "above range": ("{ value = 7, ", "{ value = 9999, ", r"die.ub_planes is 9999: a whole number from 1 to 1024"),
    "negative": ("value = 0.7,", "value = -0.7,", r"tier.l1.alpha_us is -0.7"),
    "infinite": ("value = 196.0", "value = inf", r"die.ub_gbps is inf"),
    "no number": ("value = 196.0", "value = nan", r"die.ub_gbps is nan"),
    "huge": ("value = 196.0", "value = 1" + "0" * 400, r"die.ub_gbps is 1000"),
    "text for a number": ("value = 196.0", "value = '196'", r"die.ub_gbps is '196': a number from"),
    "real for a whole": ("{ value = 7, ", "{ value = 7.0, ", r"die.ub_planes is 7.0: a whole number"),
    "truth for a whole": ("{ value = 7, ", "{ value = true, ", r"die.ub_planes is True: a whole number"),
    "whole for truth": ("{ value = false, ", "{ value = 0, ", r"sdma.reduces is 0: true or false"),
    "date": ("value = 196.0", "value = 2026-01-01", r"die.ub_gbps is datetime"),
    "unknown grade": ('grade = "S"', 'grade = "X"', r"has grade 'X'.* a grade of M, M2"),
    "list of grades": ('grade = "S"', 'grade = ["S"]', r"has grade \['S'\]"),
    "empty source": (f"source = {PLANES}", 'source = " "', r"die.ub_gbps has .* source ' '"),
    "source that is no text": (f"source = {PLANES}", "source = 7", r"die.ub_gbps has .* source 7"),
    "name that is no text": ('name = "cm384"', "name = 384", r"name is 384: a text"),
    "empty name": ('name = "cm384"', 'name = ""', r"name is '': a text"),
    "no TOML": ("[die]", "[die", r"is no TOML: .*line"),
    "twice": ("[core]", "[die]", r"is no TOML"),
    "deep": ("[die]", "x = " + "[" * 5000, r"is no TOML"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_is_wrong_is_named(what, toml):
    old, new, error = CHANGES[what]
    assert old in toml
    with pytest.raises(InvalidArgument, match=error):
        machine.parse(toml.replace(old, new, 1), "mine.toml")


def test_tables_that_are_none(toml):
    for text in ("", "name = 'x'", toml.replace("[fanout]", "[fan]").replace('name = "', 'fanout = 1\nname = "', 1),
                 "tier = 1\n" + "\n".join(f"{n} = 1" for n in ("name", *SECTIONS))):  # fmt: skip
        with pytest.raises(InvalidArgument):
            machine.parse(text)


@pytest.mark.parametrize("constant", [c for c in CM384.constants() if c not in ("topology.flat",)])
def test_each_constant_is_needed_and_checked(constant, toml):
    section, _, key = constant.rpartition(".")
    lines = toml.splitlines()
    at = next(i for i in range(lines.index(f"[{section}]"), len(lines)) if lines[i].startswith(f"{key} = "))
    without = "\n".join([*lines[:at], *lines[at + 1 :]])
    with pytest.raises(InvalidArgument, match=rf"\[{section}\] without {key};"):
        machine.parse(without)
    wrong = "\n".join([*lines[:at], f"{key} = {{ value = 'x', grade = 'A', source = 'a' }}", *lines[at + 1 :]])
    with pytest.raises(InvalidArgument, match=f"{constant} is 'x'"):
        machine.parse(wrong)


def test_a_machine_may_have_no_engine(toml):
    without = machine.parse(toml[: toml.index("[sdma]")] + toml[toml.index("[compute]") :])
    assert without.sdma is None and without.model.engine is None
    assert "sdma.share" not in without.constants() and machine.parse(machine.dumps(without)) == without
    with pytest.raises(InvalidArgument, match="has no constant 'sdma.share'"):
        without.replace(**{"sdma.share": 0.5})


def test_files(tmp_path, toml):
    mine = tmp_path / "mine.toml"
    mine.write_text(toml.replace('"cm384"', '"mine"'))
    assert machine.load(str(mine)).name == "mine"
    mine.write_text(toml.replace("value = 196.0", "value = 98.0"))  # read anew
    assert machine.load(str(mine)).die.ub_gbps == 98.0
    (tmp_path / "binary.toml").write_bytes(bytes(range(256)))
    (tmp_path / "directory.toml").mkdir()
    for name in ("binary", "directory", "missing"):
        with pytest.raises(InvalidArgument, match=rf"machine .*{name}.toml cannot be read"):
            machine.load(str(tmp_path / f"{name}.toml"))
    with pytest.raises(InvalidArgument, match="'cm385' is not known; there are cm384, dgx_b200"):
        machine.load("cm385")
    for name in (None, 384, b"cm384"):
        with pytest.raises(InvalidArgument, match=r"a name, a \.toml file or a Machine is expected"):
            machine.load(name)


# Other constants


def test_replace():
    half = CM384.replace(**{"die.ub_gbps": 98, "tier.l2.alpha_us": 4.2, "topology.nodes": 2})
    assert (half.die.ub_gbps, half.tiers[3].alpha_us, half.topology.dies) == (98.0, 4.2, 32)
    assert half.cost.ub_gbps == 98.0 and half.cost.alpha_us[3] == 4.2 and half.model.port_gbps == 98.0
    assert half.tiers[:3] == CM384.tiers[:3] and CM384.die.ub_gbps == 196.0 and half != CM384
    assert half.sources["die.ub_gbps"] == ("A", "set by Machine.replace") and CM384.sources["die.ub_gbps"][0] == "S"
    back = {c: CM384.constants()[c] for c in ("die.ub_gbps", "tier.l2.alpha_us", "topology.nodes")}
    assert half.replace(**back) == CM384 and CM384.replace() == CM384


def test_a_caption_says_what_replace_has_set():
    assert CM384.caption == CM384.title
    half = CM384.replace(**{"die.ub_gbps": 98, "tier.l2.alpha_us": 4.2})
    assert half.caption == f"{CM384.title}; set: die.ub_gbps=98.0, tier.l2.alpha_us=4.2" and half.title == CM384.title
    assert machine.parse(machine.dumps(half)).caption == half.caption
    many = CM384.replace(**{c: v for c, v in CM384.constants().items() if c.startswith("tier.")})
    assert many.caption.endswith("and 22 more")


@pytest.mark.parametrize(
    ("constant", "value", "error"),
    [
        ("die.ub_gbps", -1.0, "die.ub_gbps is -1.0"),
        ("die.ub_gbps", "98", "die.ub_gbps is '98'"),
        ("die.cores", 1.5, "die.cores is 1.5: a whole number"),
        ("die.ub", 1.0, "has no constant 'die.ub'; there are topology.nodes"),
        ("ub_gbps", 1.0, "has no constant 'ub_gbps'"),
        ("tier.l3.alpha_us", 1.0, "has no constant 'tier.l3.alpha_us'"),
        ("tiers", 1.0, "has no constant 'tiers'"),
        ("name", "x", "has no constant 'name'"),
    ],
)
def test_replace_refuses(constant, value, error):
    with pytest.raises(InvalidArgument, match=error):
        CM384.replace(**{constant: value})


def test_constants_are_all_and_cannot_be_set():
    fields = sum(len(dataclasses.fields(kind)) for kind in SECTIONS.values()) + 4 * len(dataclasses.fields(Tier))
    assert len(CM384.constants()) == fields
    assert isinstance(CM384, Machine)
    with pytest.raises(dataclasses.FrozenInstanceError):
        CM384.die.cores = 1


# As text


def _value(value):
    if isinstance(value, bool):
        return st.booleans()
    if isinstance(value, int):
        return st.integers(1, 2)
    return st.floats(0.001, 1.0)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.data())
def test_what_is_written_is_read_as_the_same(data):
    found = machine.load(data.draw(st.sampled_from(machine.names())))
    constants = found.constants()
    chosen = data.draw(st.lists(st.sampled_from(sorted(set(constants) - {"core.accumulate_weight"})), max_size=8))
    found = found.replace(**{c: data.draw(_value(constants[c])) for c in chosen})
    text = st.text(st.characters(exclude_categories=("Cs",)), min_size=1).filter(str.strip)
    sources = {**found.sources, "die.cores": ("A", data.draw(text))}
    found = dataclasses.replace(found, name=data.draw(text), title=data.draw(text), sources=sources)
    again = machine.parse(machine.dumps(found))
    assert again == found and again.sources == found.sources


@pytest.mark.parametrize("name", machine.names())
def test_describe_has_each_constant_with_value_grade_and_source(name):
    found = machine.load(name)
    lines = machine.describe(found).splitlines()
    assert lines[0] == f"{name}: {found.title}, {found.topology.dies} dies"
    for constant, (grade, source) in found.sources.items():
        (line,) = [x for x in lines if x.split()[:1] == [constant]]
        value = found.constants()[constant]
        shown = {True: "true", False: "false"}[value] if isinstance(value, bool) else value
        assert line.replace("_", "").split()[1:3] == [str(shown), grade] and line.endswith(f"  {source}")
    assert [x for x in lines if x.startswith("S: ")] == ["S: specification"]
    assert TIER_NAMES[2] in "".join(lines)


def test_the_page_has_the_packaged_machines_as_they_are():
    """To renew: machine.describe(machine.load("cm384"), markdown=True) in the place of the table."""
    page = (ROOT / "docs" / "machines.md").read_text()
    assert page.endswith("## CloudMatrix384\n\n" + machine.describe(CM384, markdown=True) + "\n")
    assert all(f"| `{name}` |" in page for name in machine.names())
    for section, kind in {**SECTIONS, "tier": Tier}.items():
        assert f"**{section}**" in page
        assert section in ("registration", "compute", "launch") or all(
            field.name in page for field in dataclasses.fields(kind)
        )
    assert all(f"| {grade} | {meaning}" in page for grade, meaning in GRADES.items())


def test_the_page_runs(tmp_path, monkeypatch, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "machines.md").read_text(), re.S)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "docs/machines.md", "exec"), {})
    assert "die.ub_gbps" in capsys.readouterr().out
    assert machine.load("half.toml").die.ub_gbps == 98.0
