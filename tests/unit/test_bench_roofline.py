"""bench/roofline.py: the page says what the records say, and names what missed its goal and why."""

import json
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import roofline  # noqa: E402
from roofline_lib import page  # noqa: E402
from versus_lib import cells, report  # noqa: E402

M = 1 << 20
MACHINE = {"record": "machine", "bench": "versus", "kinds": {}, "cpu": "a machine", "cores": 2, "memory_GiB": 23,
           "shm_GiB": 11, "kernel": "6", "python": "3", "load_before": 0.5, "commit": "abc", "skipped": [],
           "arguments": ["--full", "--json", "a file"],
           "settings": {"strata": {}, "strata:bind": {"X": "1"}, "impi": {}}}
LIMITS = {"record": "limits", "round": 0, "n": 2, "cores": 2, "line_us": 0.2, "yield_us": 0.5, "yield_one_us": 2.0,
          "rates": [[what, c, size, 20.0 * c] for what in ("copy", "read", "fill") for c in (1, 2)
                    for size in (16384, M)]}


def cell(contender, us, op="all_reduce", nbytes=8, n=2, number=0):
    return {"record": "cell", "round": number, "contender": contender, "about": f"{contender} 1.0", "n": n, "op": op,
            "bytes": nbytes, "us": us, "us_mean": us, "wrong": 0, "iters": 10}


def taken():
    records = [MACHINE, LIMITS]
    for n in (2, 4):
        for op, nbytes in cells.grid(cells.OPS, [8, M], n):
            for k, name in enumerate(("strata", "strata:bind", "impi")):
                records.append(cell(name, 10.0 * (k + 1) + nbytes / 1e3, op, nbytes, n))
    return records


def write(tmp_path, records, text=""):
    file, why = tmp_path / "run.jsonl", tmp_path / "why.toml"
    file.write_text("".join(json.dumps(r) + "\n" for r in records))
    why.write_text(text)
    return [str(file), "--reasons", str(why)]


def test_goals():
    def missed(op, nbytes, mine, theirs):
        found = report.collect([cell("strata", mine, op, nbytes), cell("impi", theirs, op, nbytes)])
        return page.missed(found[op, nbytes, 2], ["impi"])

    assert missed("all_gather", M, 1.0, 1.2) is None and "goal 1" in missed("all_gather", M, 1.0, 0.9)
    assert missed("all_reduce", 8, 1.0, 1.2) is None and "goal 1.5" in missed("all_reduce", M, 1.0, 1.2)
    assert missed("sendrecv", 8, 0.4, 1.0) is None and "0.60 us one way" in missed("sendrecv", 8, 0.6, 1.0)


def test_the_page_has_every_cell_and_what_was_missed(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    records = taken()
    argv = write(tmp_path, records, '[[reason]]\nop = "all_reduce"\nbytes = [1048576]\nn = [2]\ntext = "the bus"\n'
                                    '[[reason]]\nop = "barrier"\ntext = "an old one"\n')
    out = tmp_path / "docs" / "performance.md"
    out.parent.mkdir()
    made = []
    for _ in range(2):
        assert roofline.main([*argv, "--page", str(out), "--svg", str(out.parent / "perf")]) == 0
        made.append([p.read_bytes() for p in sorted(out.parent.iterdir())])
    assert made[0] == made[1] and len(made[0]) == 4, "the same records made other files"
    text = out.read_text()
    assert "<!--" not in text and "a machine" in text and "bench/versus.py --full --json 'a file'" in text
    assert text.count("\n| 2, ") + text.count("\n| 4, ") + text.count("\n| 2 |") + text.count("\n| 4 |") == 13 + 11
    for name in ("perf-overview.svg", "perf-n2.svg", "perf-n4.svg"):
        assert f"]({name})" in text and (out.parent / name).read_text().startswith("<?xml")
    lost = text[text.index("## Cells that miss"):text.index("## Tables")].splitlines()
    assert any("all_reduce 1 MiB, n = 2" in line and "the bus" in line for line in lost)
    assert any("all_reduce 1 MiB, n = 4" in line and "not known yet" in line for line in lost)
    assert any("sendrecv 8 B" in line and "us one way" in line for line in lost)
    assert not any("all_gather" in line for line in lost)
    assert "an old one" in capsys.readouterr().err


def test_without_limits_and_alone(tmp_path, capsys):
    argv = write(tmp_path, [MACHINE, cell("strata", 1.0)])
    assert roofline.main(argv) == 0
    shown = capsys.readouterr().out
    assert "were not measured in this run" in shown and "| 2, 8 B | - | 1.00 | - | strata | - | - | - | - |" in shown


def test_a_reason_that_says_nothing_is_refused(tmp_path, capsys):
    for text in ('[[reason]]\nop = "barrier"\n', '[[reason]]\nop = "barrier"\ntext = "x"\nsize = 8\n', "= 3"):
        assert roofline.main(write(tmp_path, taken(), text)) == 2
    assert roofline.main(write(tmp_path, [MACHINE])) == 2
    assert "no cells" in capsys.readouterr().err


def test_the_reasons_that_are_kept_can_be_read():
    assert all(entry["text"] for entry in page.reasons())
