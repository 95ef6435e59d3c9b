"""strata plan: what it prints, saves, compares and proves, and how it fails."""

import json
import subprocess
import sys

import msccl_files
import mscclpp_files
import numpy as np
import pytest

from strata.cli import main
from strata.cli.main import COMMANDS, usage
from strata.plan import load, load_all


def run(capsys, *words, status=0):
    """What the command prints, on stdout or, after an error, on stderr."""
    try:
        ended = main(["plan", *map(str, words)])
    except SystemExit as end:
        ended = end.code
    out, err = capsys.readouterr()
    assert ended == status, (out, err)
    assert not (out if status == 2 else err)
    return err if status == 2 else out


def test_prints_a_plan(capsys):
    text = run(capsys, "all_reduce", "-n", 4, "-b", "1M", "--algorithm", "full_mesh")
    assert text.startswith("all_reduce zero_copy die 0 of 4, full_mesh mte: 262144 x 4 B f32 sum")
    assert "die 3 of 4" in run(capsys, "all_gather", "-n", 4, "--rank", 3)
    assert "1024 x 1 B" in run(capsys, "all_gather", "-n", 4, "-b", "1K")
    assert "naive partition" in run(capsys, "all_gather", "-n", 4, "--partition", "naive", "--cores", 2)
    assert "mailbox" in run(capsys, "all_reduce", "-n", 4, "-b", "1K", "--mailbox", "--dtype", "bf16", "--op", "max")
    assert "barrier" in run(capsys, "barrier", "-n", 2)
    found = json.loads(run(capsys, "broadcast", "-n", 3, "-b", 12, "--root", 2, "--json"))
    assert [p["rank"] for p in found["plans"]] == [0, 1, 2] and found["plans"][0]["spec"]["root"] == 2


@pytest.mark.parametrize("operation", ["all_gather", "all_reduce", "reduce_scatter", "reduce", "gather"])
def test_proves_all_members(capsys, operation):
    text = run(capsys, operation, "-n", 4, "-b", 4096, "--algorithm", "full_mesh", "--verify")
    assert "verified, all 4 ranks" in text
    found = json.loads(run(capsys, operation, "-n", 4, "-b", 4096, "--algorithm", "full_mesh", "--verify", "--json"))
    assert found["verified"]["units"] > 0


@pytest.mark.parametrize("name", ["p.npz", "p.json"])
def test_saves_loads_and_compares(capsys, tmp_path, name):
    file = tmp_path / name
    words = ("reduce_scatter", "-n", 4, "--algorithm", "full_mesh")
    assert "4 plans" in run(capsys, *words, "-b", 4096, "-o", file)
    assert [p.rank for p in load_all(file)] == [0, 1, 2, 3]
    assert "die 2 of 4" in run(capsys, "--load", file, "--rank", 2)
    assert "verified" in run(capsys, "--load", file, "--verify")
    assert run(capsys, *words, "-b", 4096, "--diff", file) == "no differences\n"
    assert "rank 1: spec.count: 256 -> 512" in run(capsys, *words, "-b", 8192, "--diff", file, status=1)
    run(capsys, *words, "-b", 4096, "--rank", 1, "-o", file)
    assert load(file).rank == 1
    assert run(capsys, *words, "-b", 4096, "--diff", file) == "no differences\n"
    assert "rank 5" in run(capsys, "--load", file, "--rank", 5, status=2)
    file.write_bytes(b"nonsense")
    assert "not a plan" in run(capsys, "--load", file, status=2)


@pytest.mark.parametrize("name", ["c.npy", "c.txt"])
def test_counts(capsys, tmp_path, name):
    counts = np.arange(9).reshape(3, 3)
    np.save(tmp_path / name, counts) if name == "c.npy" else np.savetxt(tmp_path / name, counts, "%d")
    text = run(capsys, "all_to_all_v", "--counts", tmp_path / name, "--dtype", "f32", "--verify")
    assert "counts x 4 B" in text and "verified, all 3 ranks" in text
    assert "--counts" in run(capsys, "all_gather", "-n", 3, "--counts", tmp_path / name, status=2)
    assert "--counts" in run(capsys, "all_to_all_v", "-n", 3, status=2)
    (tmp_path / name).write_text("a b")
    assert "c." in run(capsys, "all_to_all_v", "--counts", tmp_path / name, status=2)


def test_explains(capsys):
    assert "full_mesh" in run(capsys, "all_gather", "-n", 4, "-b", "1M", "--explain")
    found = json.loads(run(capsys, "all_reduce", "-n", 4, "-b", "1M", "--explain", "--json", "--dtype", "bf16"))
    assert found["operation"] == "all_reduce" and found["algorithm"] and found["why"]


def test_the_path(capsys):
    words = ("all_gather", "-n", 4, "-b", "1M")
    assert "full_mesh mte" in run(capsys, *words) and "full_mesh sdma" in run(capsys, *words, "--overlap")
    assert "full_mesh sdma" in run(capsys, *words, "--path", "sdma") and "mte" in run(
        capsys, *words, "--path", "mte", "--overlap")  # fmt: skip
    found = json.loads(run(capsys, *words, "--overlap", "--explain", "--json"))
    assert found["path"] == "sdma" and set(found["paths"]) == {"mte", "sdma"}
    assert "verified, all 4 ranks" in run(capsys, *words, "--path", "sdma", "--verify")
    text = run(capsys, *words, "--explain")
    assert "\npaths" in text and "exposed" in text and "descriptors" in text


def test_explains_who_has_something_to_do(capsys):
    """16 elements of four bytes are one share, the last member's."""
    words = ("all_reduce", "-n", 8, "-b", 64, "--machine", "cm384", "--explain")
    found = json.loads(run(capsys, *words, "--json"))
    assert found["rank"] == 7 and sum(found["units"]) == 1 and found["makespan_us"] > 0 and found["steps"] == 1
    text = run(capsys, "all_gather", "-n", 4, "-b", "1M", "--explain")
    assert "see candidates" in text and "\norder" not in text


def test_explains_beside_the_rest(capsys, tmp_path):
    words = ("all_gather", "-n", 4, "-b", "1M", "--algorithm", "ring", "--explain")
    text = run(capsys, *words, "--verify", "-o", tmp_path / "p.json")
    assert "the call names it" in text and "4 plans" in text and "verified, all 4 ranks" in text
    assert load_all(tmp_path / "p.json")[0].algorithm == "ring"
    found = json.loads(run(capsys, *words, "--verify", "--json"))
    assert found["explained"]["algorithm"] == "ring" and found["verified"]["units"] > 0
    for other in ("--in-place", "--mailbox"):
        assert "--explain goes by" in run(capsys, *words, other, status=2)


@pytest.mark.parametrize(
    "words, what",
    [
        (("all_gather",), "-n N"),
        (("all_gather", "-n", 4, "-b", 7, "--dtype", "f32"), "whole elements"),
        (("all_to_all", "-n", 3, "-b", 7), "3 equal parts"),
        (("all_gather", "-n", 4, "-b", "many"), "not a size"),
        (("all_gather", "-n", 4, "--algorithm", "none"), "no algorithm"),
        (("all_gather", "-n", 4, "--path", "none"), "mte, sdma"),
        (("all_reduce", "-n", 4, "--path", "sdma", "--machine", "cm384"), "does not reduce"),
        (("--load", "absent.npz", "--overlap"), "--overlap"),
        (("all_gather", "-n", 4, "--cores", 0), "cores"),
        (("all_gather", "-n", 0), "nranks"),
        (("all_gather", "-n", 4, "--rank", 4), "rank"),
        (("all_to_all", "-n", 4, "--in-place"), "in place"),
        (("broadcast", "-n", 4, "--root", 4), "root"),
        (("no_such", "-n", 4), "no_such"),
        (("--load", "absent.npz"), "absent.npz"),
        (("all_gather", "-n", 2, "--load", "x"), "--load"),
        ((), "OP"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(capsys, words, what):
    text = run(capsys, *words, status=2)
    assert what in text.splitlines()[-1] and "Traceback" not in text


def test_an_msccl_file(capsys, tmp_path):
    file = tmp_path / "ring.xml"
    file.write_bytes(msccl_files.ring_allgather(4))
    assert "die 1 of 4, ring_ag mte: 1048576 x 1 B" in run(capsys, "--msccl", file, "--rank", 1)
    assert "4 plans" in run(capsys, "all_gather", "-n", 4, "-b", "1K", "--msccl", file, "-o", tmp_path / "p.json")
    assert load_all(tmp_path / "p.json")[2].algorithm == "ring_ag"
    assert "4 ranks, not 3" in run(capsys, "-n", 3, "--msccl", file, status=2)
    assert "all_gather, not" in run(capsys, "all_reduce", "--msccl", file, status=2)
    file.write_bytes(file.read_bytes().replace(b"cpy", b"copy"))
    assert "tb 0 step 0: type is 'copy'" in run(capsys, "--msccl", file, status=2)


def test_commands_are_found_by_name(capsys):
    assert main(["--help"]) == 0 and capsys.readouterr().out.strip() == usage()
    assert main([]) == 2 and main(["nothing"]) == 2
    assert "plan" in capsys.readouterr().err
    assert all(name in usage() for name in COMMANDS)
    assert "examples:" in run(capsys, "--help")


def test_imports_only_what_a_command_needs():
    code = "import sys, strata.cli; assert 'strata.cli.plan' not in sys.modules and 'strata.comm' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    line = [sys.executable, "-m", "strata.cli", "plan", "all_gather", "-n", "2", "--rank", "9"]
    ended = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2 and len(ended.stderr.splitlines()) == 1


def test_an_mscclpp_plan(capsys, tmp_path):
    file = tmp_path / "ring.json"
    file.write_bytes(mscclpp_files.ring_allreduce(3))
    assert "die 0 of 3, pp_ar_ring" in run(capsys, "-b", "12K", "--mscclpp", file, "--verify")
    assert "is for 3 ranks, not 4" in run(capsys, "-n", 4, "--mscclpp", file, status=2)
    assert "two algorithms" in run(capsys, "--msccl", file, "--mscclpp", file, status=2)
