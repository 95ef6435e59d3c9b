"""strata tune: measures, saves, prints the winners; and how it fails."""

import re

import pytest

from strata import machine, measuring
from strata.cli import main
from strata.cli.tune import winners
from strata.plan.records import TIER_NAMES
from strata.plan.table import Table


def test_it_measures_and_saves(capsys, tmp_path):
    file = tmp_path / "table.json"
    words = ["-n", "2", "-b", "1K", "-e", "4K", "--ops", "all_reduce,broadcast", "--rounds", "1", "--seconds", "0.001"]
    assert main(["tune", *words, "-o", str(file)]) == 0
    out, err = capsys.readouterr()
    assert f"export STRATA_TABLE={file}" in out and "2 dies" in err
    table = Table.load(file)
    assert [row[:3] for row in table.rows] == [(o, 2, b) for o in ("all_reduce", "broadcast") for b in (1024, 4096)]
    assert all("full_mesh" in us for *_, us in table.rows)
    for line in winners(table).splitlines():
        assert line in out


def test_winners_are_the_fastest():
    us = {"ring": 3.0, "full_mesh": 2.0, "rhd": 4.0}
    table = Table("x", [("all_reduce", 4, 64, us), ("reduce", 2, 8, {"pat": 1})])
    first, second = winners(table).splitlines()[1:]
    assert first.endswith("full_mesh 2.0 us, then ring 3.0 us") and second.endswith("pat 1.0 us")


@pytest.mark.parametrize(
    "words, what",
    [
        (["--ops", "all_sum"], "'all_sum' is not one of all_reduce"),
        (["-n", "1"], "2 or more dies"),
        (["-b", "4K", "-e", "1K"], "sizes from 4096 to 1024"),
        (["-f", "1"], "by a factor of 1"),
        (["--rounds", "0"], "--rounds 1 or more"),
        (["-o", "no/such/place.json"], "no/such/place.json"),
    ],
)
def test_errors_are_told_before_measuring(words, what, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["tune", *words]) == 2
    assert what in capsys.readouterr().err


def test_this_host_as_a_machine(capsys, tmp_path):
    file = tmp_path / "mine.toml"
    assert main(["tune", "--machine", str(file), "--rounds", "1"]) == 0
    out, err = capsys.readouterr()
    assert f"strata sim all_reduce -n 4 -b 1K -e 1M --machine {file}" in out and "memory, flags" in err
    found, assumed = machine.load(str(file)), machine.load("host")
    assert found.name == "mine" and measuring.cpu_model() in found.title and found.place == assumed.place
    measured = {name for name, (grade, _) in found.sources.items() if grade == "M"}
    assert measured == {
        *(f"tier.{t}.{k}" for t in TIER_NAMES for k in ("core_gbps", "read_gbps", "write_gbps", "seen_us")),
        "die.hbm_gbps", "die.ub_gbps", "sync.entry_us", "sync.poll_us", "estimate.step_us", "estimate.entry_us",
        "launch.eager_us", "sdma.descriptor_us", "sdma.handover_us", "sdma.share",
    }  # fmt: skip
    pattern = r"strata tune, \d{4}-\d\d-\d\d, " + re.escape(measuring.cpu_model())
    for name, value in found.constants().items():
        if name in measured:
            assert re.match(pattern, found.sources[name][1]) and f"{name} " in out
        else:
            assert value == assumed.constants()[name] and found.sources.get(name) == assumed.sources.get(name)
    # What any host does, however busy.
    assert 0.05 < found.tiers[0].core_gbps < 500 and 0.05 < found.die.hbm_gbps < 1000
    assert 0 <= found.tiers[0].seen_us < 10_000 and 0.05 < found.launch.eager_us < 10_000
    assert 0 < found.sdma.handover_us < 100_000 and 0 < found.sdma.share <= 1


@pytest.mark.parametrize(
    "words, what",
    [
        (["--machine", "mine.txt"], "ends in .toml"),
        (["--machine", "mine.toml", "--rounds", "0"], "--rounds 1 or more"),
        (["--machine", "no/such/mine.toml"], "no/such/mine.toml"),
        (["--machine", "mine.toml", "-b", "4K"], "--begin is of tables: not with --machine"),
        (["--machine", "mine.toml", "-o", "x.json"], "--output is of tables"),
    ],
)
def test_errors_of_machines_are_told_before_measuring(words, what, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        assert main(["tune", *words]) == 2
    except SystemExit as ended:
        assert ended.code == 2
    assert what in capsys.readouterr().err


def test_no_or_a_wrong_subcommand_lists_them(capsys):
    assert main([]) == 2
    out = capsys.readouterr().out
    assert all(name in out for name in ("plan", "tune"))
    assert main(["tun"]) == 2
    assert "there are check-server, doctor, dump, plan, sim, top, trace, tune, workload" in capsys.readouterr().err
