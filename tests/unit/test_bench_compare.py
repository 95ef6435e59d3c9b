"""bench/compare.py: it knows a change from noise, and any benchmark's file; all scripts write one form."""

import itertools
import json
import random
import re
import statistics
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import compare  # noqa: E402
from bench_lib import lines, noise  # noqa: E402

KINDS = {"cell": lines.Kind(("contender", "bytes"), less=("us",), more=("GBps",))}


def file(path, rows, kinds=KINDS, bench="try"):
    lines.write(path, bench, kinds, rows)
    return str(path)


def cells(us, contender="strata", nbytes=8, **more):
    return [{"contender": contender, "bytes": nbytes, "us": value, "round": k, **more} for k, value in enumerate(us)]


@pytest.mark.parametrize("m, n", [(1, 1), (2, 3), (4, 4), (5, 3)])
def test_the_distribution_is_that_of_all_orders(m, n):
    ways = [0] * (m * n + 1)
    for first in itertools.combinations(range(m + n), m):
        ways[sum(a > b for a in first for b in set(range(m + n)) - set(first))] += 1
    assert list(noise._below(m, n)) == ways


def test_intervals_hold_the_true_factor_as_often_as_they_say():
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance, held = random.Random(seed), 0
    for _ in range(1500):
        old = [chance.lognormvariate(0, 0.3) for _ in range(5)]
        new = [1.2 * chance.lognormvariate(0, 0.3) for _ in range(6)]
        _, (low, high), confidence = noise.interval(old, new)
        held += low <= 1.2 <= high
    assert confidence >= 0.95
    assert abs(held / 1500 - confidence) < 5 * (confidence * (1 - confidence) / 1500) ** 0.5


def test_few_rounds_have_no_interval_and_many_have_a_narrow_one():
    assert noise.interval([1.0] * 3, [2.0] * 3) == (2.0, None, None)
    assert noise.interval([1.0, 1.0, 1.1, 1.0], [2.0, 2.0, 2.2, 2.0])[1] == pytest.approx((2 / 1.1, 2.2))
    chance = random.Random(1)
    exact, normal = ([chance.gauss(10, 1) for _ in range(2 * n)] for n in (noise.EXACT, noise.EXACT + 1))
    widths = [noise.interval(v[::2], v[1::2])[1] for v in (exact, normal)]
    assert all(0.85 < low < 1 < high < 1.15 for low, high in widths)


def test_what_changed_is_told_from_what_did_not(tmp_path, capsys):
    old = file(tmp_path / "old", cells([1.0, 1.1, 0.9, 1.0, 1.05]) + cells([5, 5.1, 4.9, 5, 5], nbytes=1024)
               + cells([2.0] * 5, "mpich"))
    new = file(tmp_path / "new", cells([2.0, 2.1, 1.9, 2.2, 2.0]) + cells([5.05, 4.9, 5, 5.1, 5], nbytes=1024)
               + cells([1.0] * 5, "mpich"))
    assert compare.main([old, new]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"strata bytes=8 +us +1 +2 +5, 5 +2\.000 .* worse", shown)
    assert re.search(r"mpich bytes=8 .* 0\.500 .* better", shown)
    assert "1 worse, 1 better beyond the noise, 1 not" in shown and "try, us, mpich: mean factor 0.500 of 1" in shown
    assert compare.main([old, new, "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [c["verdict"] for c in found] == ["worse", "same", "better"] and found[0]["key"]["bytes"] == 8


def test_the_status_says_it_only_if_asked(tmp_path, capsys):
    old, new = (file(tmp_path / str(f), cells([f * 1.0] * 5) + cells([f * 2.0], nbytes=64)) for f in (1, 2))
    assert compare.main([old, new]) == 0
    assert compare.main([old, new, "--fail-above", "120"]) == 0
    assert compare.main([old, new, "--fail-above", "90"]) == 1
    assert capsys.readouterr().err.count("FAILED") == 2     # of one figure the noise is not known
    assert compare.main([old, new, "--fail-above", "0", "--only", "bytes=8"]) == 1
    assert compare.main([new, old, "--fail-above", "0"]) == 0


def test_rates_count_the_other_way(tmp_path, capsys):
    row = {"contender": "ring", "bytes": 8}
    old, new = (file(tmp_path / str(g), [{**row, "GBps": g}]) for g in (8.0, 4.0))
    compare.main([old, new])
    assert re.search(r"GBps +8 +4 +1, 1 +2\.000 +- +noise unknown", capsys.readouterr().out)


def test_runs_may_be_put_together_and_rounds_may_be_a_list(tmp_path):
    one = file(tmp_path / "1", [{"contender": "a", "bytes": 8, "us": 2.0, "us_rounds": [1.0, 2.0, 9.0]}])
    two = file(tmp_path / "2", cells([3.0, 4.0], "a"))
    both = tmp_path / "both"
    both.write_text(Path(one).read_text() + Path(two).read_text())
    (_, _, key, figure), = found = lines.series(lines.read(both))
    assert key == (("contender", "a"), ("bytes", 8)) and figure == "us"
    assert found["try", "cell", key, "us"] == (True, [1.0, 2.0, 9.0, 3.0, 4.0])


def test_wrong_answers_and_zeros_are_no_figures(tmp_path, capsys):
    old = file(tmp_path / "old", cells([1.0], wrong=0) + cells([0.0], nbytes=16))
    new = file(tmp_path / "new", cells([1.0], wrong=0) + cells([0.1], wrong=3) + cells([3.0], nbytes=16))
    compare.main([old, new])
    shown = capsys.readouterr().out
    assert "1.000" in shown and "1 figures are 0 in a round" in shown and "bytes=16" not in shown


def test_what_cannot_be_read_is_said(tmp_path, capsys):
    good = file(tmp_path / "good", cells([1.0]))
    other = file(tmp_path / "other", cells([1.0], nbytes=99))
    bad, old, headless = (tmp_path / name for name in ("bad", "old", "headless"))
    bad.write_text('{"record": "machine"}\nnot json\n')
    old.write_text('{"record": "machine", "cpu": "x"}\n')
    headless.write_text('{"record": "cell", "us": 1}\n')
    for path, says in ((bad, "line 2"), (old, "an older benchmark"), (headless, "does not begin"),
                       (other, "no figure in common"), (tmp_path / "none", "No such file")):
        assert compare.main([good, str(path)]) == 2
        assert says in capsys.readouterr().err
    with pytest.raises(SystemExit):
        compare.main([good, good, "--only", "bytes"])


def test_every_script_that_writes_json_lines_writes_this_form():
    """faults.py keeps events, not figures; collectives.py writes nccl-tests' document."""
    for path in BENCH.glob("*.py"):
        text = path.read_text()
        if "--json" in text and path.name not in ("faults.py", "compare.py"):
            assert "bench_lib.lines" in text and "json.dumps" not in text, path.name


def test_medians_are_told(tmp_path):
    old, new = [3.0, 1.0, 2.0], [4.0, 8.0, 6.0]
    found = compare.change(("b", "cell", (("x", 1),), "us"), True, old, new, 0.95)
    assert (found.old, found.new, found.factor) == (2.0, 6.0, statistics.median(b / a for a in old for b in new))
