"""strata tune: measures, saves, prints the winners; and how it fails."""

import pytest

from strata.cli import main
from strata.cli.tune import winners
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


def test_no_or_a_wrong_subcommand_lists_them(capsys):
    assert main([]) == 2
    out = capsys.readouterr().out
    assert all(name in out for name in ("plan", "tune"))
    assert main(["tun"]) == 2
    assert "there are plan, tune" in capsys.readouterr().err
