"""The tool that puts the paper's figures beside the timing plane's."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from reproduction import fitting, moe, page, sensitivity, sharing, transfers, workloads  # noqa: E402
from reproduction.claims import FITTED, KIB, MIB, PREDICTED, Claim, us, wide  # noqa: E402

from strata.machine import load  # noqa: E402

MACHINE = load("cm384")
CLAIMS = [*transfers.CLAIMS, *sharing.CLAIMS, *moe.CLAIMS, *workloads.CLAIMS]


def _claim(published, bound=0):
    return Claim("where", "what", published, "x", PREDICTED, lambda m: 0.0, bound=bound)


def test_ratios_know_ranges_and_bounds():
    assert _claim(4.0).ratio(2.0) == 0.5 and not _claim(4.0).near(2.0)
    assert _claim(4.0).near(4.5) and _claim(4.0).near(3.6)
    assert [_claim((1.0, 8.0)).ratio(v) for v in (0.5, 1.0, 5.0, 16.0)] == [0.5, 1.0, 1.0, 2.0]
    assert [_claim(5.0, -1).ratio(v) for v in (1.0, 5.0, 10.0)] == [1.0, 1.0, 2.0]
    assert [_claim(95.0, 1).ratio(v) for v in (99.0, 95.0, 47.5)] == [1.0, 1.0, 0.5]


def test_every_claim_says_what_it_is():
    assert len({(c.where, c.what) for c in CLAIMS}) == len(CLAIMS) > 30
    assert {c.kind for c in CLAIMS} <= {FITTED, PREDICTED}
    # No more is fitted than constants, and the core budget that the paper does not give.
    # One of them, a row's, comes from two.
    assert sum(c.kind == FITTED for c in CLAIMS) == 7


@pytest.mark.parametrize("what", ["all_gather of 64 KiB", "95 %", "submission", "time saved by balance"])
def test_what_is_fitted_comes_out(what):
    (claim,) = (c for c in CLAIMS if c.kind == FITTED and what in c.what)
    assert claim.ratio(claim.ours(MACHINE)) == pytest.approx(1, abs=0.02)


def test_what_a_row_takes_is_between_what_dispatch_and_combine_say():
    assert moe.of_eight(MACHINE) == pytest.approx(1, abs=0.01)
    assert moe.in_order(MACHINE) >= 3


def test_full_mesh_and_ring_cross_where_it_was_fitted():
    assert transfers.ahead(MACHINE, 15 * MIB) > 1 > transfers.ahead(MACHINE, 17 * MIB)


def test_a_wide_core_does_for_a_ring():
    for nbytes, rel in ((64 * KIB, 0.1), (4 * MIB, 0.03)):
        many = us(MACHINE, "all_gather", nbytes, 16, "zerocopy_ring")
        one = us(wide(MACHINE), "all_gather", nbytes, 16, "zerocopy_ring", cores=1)
        assert one == pytest.approx(many, rel=rel)


def test_the_inference_ablation_is_in_order():
    """All that has been published of it, but for its sizes, none of which the workload is fitted to."""
    assert workloads.in_order(MACHINE) == 5
    assert 10 <= workloads.exposed("dsv4_flash", MACHINE) <= 40


def test_constants_that_are_fitted_exist():
    assert set(fitting.FITTED) < set(MACHINE.constants())
    assert {MACHINE.sources[name][0] for name in fitting.FITTED} == {"F"}
    assert set(sensitivity.CONSTANTS) < set(MACHINE.constants())


def test_the_page_marks_what_is_missed():
    claim = Claim("where", "what", 2.0, "x", PREDICTED, lambda m: 3.0, "a reason")
    rows = page.table([page.Found(claim, 3.0), page.Found(claim, 2.1), page.Found(claim, float("nan"), "an error")])
    assert "**missed**, 1" in rows[2] and "1.50" in rows[2] and rows[-1] == "1. a reason."
    assert rows[3].endswith("| predicted |  |") and "an error" in rows[4]
    assert page.summary([page.Found(claim, 2.1), page.Found(claim, 3.0)]).endswith("predicted: 1 of 2 within 15 %")


def test_the_program_prints_a_table():
    program = [sys.executable, ROOT / "tools" / "reproduce.py", "-k", "95 %"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, check=True)
    assert "95.0 % | 95.0 % | 1.00 | fitted" in done.stdout
