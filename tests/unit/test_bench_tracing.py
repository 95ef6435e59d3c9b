"""What a trace costs is measured, said, and written in the benchmarks' form."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

from bench_lib import lines  # noqa: E402


def test_a_short_run(tmp_path):
    file = tmp_path / "tracing.jsonl"
    line = ["bench/tracing.py", "--rounds", "2", "--seconds", "0.001", "--sizes", "8", "64K", "--ops", "all_reduce",
            "sendrecv", "--json", str(file)]  # fmt: skip
    done = subprocess.run([sys.executable, *line], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("all_reduce") == done.stdout.count("sendrecv") == 2 and "an event:" in done.stdout
    found = lines.series(lines.read(file))
    names = [(kind, dict(key).get("bytes"), figure) for _, kind, key, figure in found]
    assert names.count(("tracing", 8, "on_us")) == names.count(("tracing", 65536, "ratio")) == 2
    assert ("event", None, "span_ns") in names
    assert all(less and values and min(values) > 0 for less, values in found.values())
