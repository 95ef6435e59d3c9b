"""strata trace: what it names first, tables, JSON, comparisons, pictures, and how it fails."""

import json
import struct
import subprocess
import sys

import pytest
import tracing_cases

from strata.cli import main


@pytest.fixture
def run(capsys):
    def ran(*words, status=0):
        ended = main(["trace", *map(str, words)])
        out, err = capsys.readouterr()
        assert ended == status, (out, err)
        if status:
            assert err.count("\n") == 1 and err.startswith("strata trace: ") and not out, err
            return err
        return out

    return ran


@pytest.fixture
def file(tmp_path):
    made = {}

    def saved(job, name=""):
        made[job] = tmp_path / f"{name or len(made)}.json.gz"
        return job.save(made[job])

    return saved


@pytest.mark.parametrize(
    "job, first",
    [
        (tracing_cases.slow_die(2), "die 2 is late: the others waited"),
        (tracing_cases.imbalance(), "cores are out of balance in all_to_all_v: core 0 of die 0 works 2.3 times"),
        (tracing_cases.late_registration(), "registration is late on die 2: it mapped pages of die 1 on first use 12"),
        (tracing_cases.exposed(), "communication is exposed: the dies spend 62% of their time in calls"),
        (tracing_cases.exposed(0.95), "nothing stands out"),
    ],
)
def test_what_is_wrong_is_in_the_first_line(job, first, run, file):
    text = run(file(job))
    assert text.splitlines()[0].startswith(first), text
    assert "planted.py, test, measured, 4 dies" in text and "train.py:12 in step" in text


def test_tables_and_what_cuts_them(run, file):
    path = file(tracing_cases.slow_die())
    text = run(path)
    for head in ("operations: ", "who is waited for", "exposed: ", "call sites", "tags"):
        assert f"\n{head}" in text, (head, text)
    (row,) = [line.split() for line in text.splitlines() if line.startswith("  all_reduce")]
    assert row[:3] == ["all_reduce", "64K", "80"]
    assert text.count("step=") == 10 and run(path, "--top", 3).count("step=") == 3
    assert run(path, "--op", "all_reduce").splitlines()[0] == text.splitlines()[0]
    one = run(path, "--die", "0,1")
    assert " 2 dies, " in one and "die 3" not in one
    assert " 40 " in next(line for line in one.splitlines() if line.startswith("  all_reduce"))
    part = run(path, "--between", "2000:3000")
    assert " 4 " in next(line for line in part.splitlines() if line.startswith("  all_reduce"))


def test_lost_events_are_said(run, file):
    job = tracing_cases.exposed()
    job.trace.about["lost"] = {"1": 1234, "2": 0}
    assert "die 1 lost 1234 events" in run(file(job))


def test_json_has_all_of_it(run, file):
    path = file(tracing_cases.late_registration())
    found = json.loads(run(path, "--json"))
    assert found["findings"][0]["kind"] == "registration" and found["registrations"][0]["die"] == 2
    assert found["program"] == "planted.py" and found["dies"] == [0, 1, 2, 3] and found["lost"] == {}
    assert {"operations", "straggler", "exposure", "imbalance", "sites", "probes", "tags"} <= set(found)
    both = json.loads(run(path, "--json", "--compare", path))
    assert [row["ratio"] for row in both["operations"]] == [1.0]


def test_real_against_simulated(run, file, capsys, tmp_path):
    words = "all_gather -n 4 -b 1M --cores 2 --trace".split()
    assert main(["sim", *words, str(tmp_path / "sim.json")]) == 0
    capsys.readouterr()
    text = run(file(tracing_cases.exposed()), "--compare", tmp_path / "sim.json")
    lines = [line for line in text.splitlines() if "all_gather" in line]
    assert "all_gather of 1M differs most" in lines[0] and len(lines) == 2
    assert lines[1].split()[:4] == ["all_gather", "1M", "40", "4"]
    other = run(file(tracing_cases.slow_die()), "--compare", tmp_path / "sim.json")
    assert "no operation of the same name" in other
    assert [line.split()[-1] for line in other.splitlines() if "all_reduce" in line] == ["-"]


def test_a_simulated_trace_has_the_same_tables(run, capsys, tmp_path):
    words = "all_to_all -n 4 -b 4M --cores 4 --slow-die 3:4 --trace".split()
    assert main(["sim", *words, str(tmp_path / "t.json")]) == 0
    capsys.readouterr()
    text = run(tmp_path / "t.json")
    assert text.splitlines()[0].startswith("die 3 is late"), text
    assert "CloudMatrix384, Ascend 910C, simulated, 4 dies" in text


def picture(path):
    """Its size, if it is a picture of the kind that its name says, with something on it."""
    data = path.read_bytes()
    if path.suffix == ".png":
        assert data[:8] == b"\x89PNG\r\n\x1a\n"
        wide, high = struct.unpack(">II", data[16:24])
        from matplotlib.image import imread

        pixels = imread(path)[:, :, :3]
        assert len({tuple(p) for p in pixels[::3, ::3].reshape(-1, 3).tolist()}) > 3
        return wide, high
    assert path.suffix == ".svg" and b"<svg" in data and b"</svg>" in data
    return None


@pytest.mark.parametrize("kind", ["timeline", "cores", "bandwidth", "sizes"])
@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_pictures(kind, suffix, run, file, tmp_path):
    pytest.importorskip("matplotlib")
    out = tmp_path / f"out{suffix}"
    assert run(file(tracing_cases.imbalance()), "--plot", out, "--kind", kind).startswith(f"{out}: ")
    picture(out)
    if suffix == ".svg":
        text = out.read_text()
        words = {"timeline": "transfer", "cores": "max/mean 2.29", "bandwidth": "GB/s of a pair", "sizes": "1M"}
        assert words[kind] in text


def test_pictures_of_two(run, file, tmp_path):
    pytest.importorskip("matplotlib")
    before, after = (file(tracing_cases.imbalance(split=s), n) for s, n in (
        ((400, 100, 100, 100), "naive"), ((180, 175, 170, 175), "balanced")))  # fmt: skip
    out = tmp_path / "cores.svg"
    run(before, "--compare", after, "--plot", out, "--kind", "cores")
    assert "max/mean 2.29 → 1.03" in out.read_text()
    run(before, "--compare", after, "--plot", tmp_path / "sizes.png", "--kind", "sizes", "--op", "all_to_all_v")
    picture(tmp_path / "sizes.png")


def test_a_picture_of_many_spans_stays_small(run, file, tmp_path):
    pytest.importorskip("matplotlib")
    out = tmp_path / "t.svg"
    run(file(tracing_cases.slow_die(steps=1500)), "--plot", out)
    assert out.stat().st_size < 500_000


def test_the_same_trace_gives_the_same_picture(run, file, tmp_path):
    pytest.importorskip("matplotlib")
    path = file(tracing_cases.slow_die(), "same")
    found = []
    for name in ("a.svg", "b.svg"):
        run(path, "--plot", tmp_path / name)
        found.append((tmp_path / name).read_bytes())
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "words, what",
    [
        ((), "the following arguments are required: FILE"),
        (("none.json",), "none.json"),
        (("empty.json",), "no JSON, or cut short"),
        (("t.json", "--op", "nothing"), "no call of 'nothing'; there are all_reduce"),
        (("t.json", "--die", "9"), "there is no die 9; there are 0, 1, 2, 3"),
        (("t.json", "--die", "x"), "'x' is not numbers of dies"),
        (("t.json", "--between", "5"), "'5' is not FROM:TO"),
        (("t.json", "--between", "9:5"), "'9:5' is not FROM:TO"),
        (("t.json", "--between", "90000000:"), "nothing between"),
        (("t.json", "--top", "0"), "0 is not 1 or more"),
        (("t.json", "--kind", "cores"), "there is no --plot"),
        (("t.json", "--plot", "x.jpg"), ".svg, .png, .pdf"),
        (("t.json", "--plot", "x.png", "--kind", "pie"), "invalid choice: 'pie'"),
        (("t.json", "--plot", "x.png", "--compare", "t.json"), "of cores or sizes; timeline shows one"),
        (("t.json", "--plot", "x.png", "--op", "all_reduce"), "a timeline shows all operations"),
        (("t.json", "--plot", "no/such/x.png"), "no/such/x.png"),
        (("t.json", "--compare", "empty.json"), "no JSON, or cut short"),
        (("t.json", "--compare", "t.json", "--op", "send"), "no call of 'send' in t.json or t.json"),
    ],
)
def test_errors_are_one_line(words, what, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.json").write_text("")
    tracing_cases.slow_die(steps=2).save("t.json")
    assert what in run(*words, status=2)
    assert {p.name for p in tmp_path.iterdir()} == {"empty.json", "t.json"}


def test_without_matplotlib_only_pictures_fail(tmp_path):
    path = tracing_cases.slow_die(steps=2).save(tmp_path / "t.json")
    code = ("import sys; sys.modules['matplotlib'] = None; from strata.cli import main; "
            "sys.exit(main(['trace', *sys.argv[1:]]))")  # fmt: skip
    told = [subprocess.run([sys.executable, "-c", code, path, *more], capture_output=True, text=True, timeout=60)
            for more in ((), ("--plot", tmp_path / "x.png"))]  # fmt: skip
    assert told[0].returncode == 0 and told[0].stdout.startswith("die 3 is late")
    assert told[1].returncode == 2 and "pip install matplotlib" in told[1].stderr
