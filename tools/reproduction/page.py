"""The page of the docs: tables of what is published and what comes out here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from reproduction.claims import FITTED, PREDICTED, Claim


class Found(NamedTuple):
    """A claim and our figure; ``error``: why there is none."""

    claim: Claim
    value: float
    error: str = ""


def number(value: float) -> str:
    """Three digits that count, and no exponent."""
    if value == 0 or abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


def published(claim: Claim) -> str:
    """With its unit, as a text."""
    if isinstance(claim.published, tuple):
        return f"{number(claim.published[0])} to {number(claim.published[1])} {claim.unit}"
    sign = {-1: "at most ", 0: "", 1: "at least "}[claim.bound]
    return f"{sign}{number(claim.published)} {claim.unit}"


def table(found: Sequence[Found]) -> list[str]:
    """Markdown rows, a head before them, and below them why those that are off are."""
    why: dict[str, int] = {}
    lines = ["| in the paper | what | published | ours | ratio | how | |", "|---|---|---|---|---|---|---|"]
    for claim, value, error in found:
        if error:
            ours, ratio, verdict = "-", "-", error
        else:
            ours, ratio = f"{number(value)} {claim.unit}", number(claim.ratio(value))
            verdict = ""
            if not claim.near(value):
                verdict = f"**missed**, {why.setdefault(claim.why or 'no reason known', len(why) + 1)}"
        cells = claim.where, claim.what, published(claim), ours, ratio, claim.kind, verdict
        lines.append(f"| {' | '.join(cells)} |")
    if why:
        lines += ["", "What we believe of those that are off:", "", *(f"{n}. {text}." for text, n in why.items())]
    return lines


def summary(found: Sequence[Found]) -> str:
    """How many of each kind are within 15 %."""
    parts = []
    for kind in (FITTED, PREDICTED):
        of = [f for f in found if f.claim.kind == kind and not f.error]
        near = sum(f.claim.near(f.value) for f in of)
        parts.append(f"{kind}: {near} of {len(of)} within 15 %")
    return "; ".join(parts)


PREAMBLE = """\
# What comes out of the paper's figures

The StrataCL paper (arXiv 2607.26444) published figures of CloudMatrix384. This page puts the timing plane's beside
them: the plans of this library, simulated on `strata/machine/cm384.toml` (`docs/simulation.md` says how, and what is
left out). Made by `python tools/reproduce.py --page docs/reproduction.md`; nothing on it is edited by hand.

* **fitted**: a constant was chosen so that the figure comes out. It validates nothing.
* **predicted**: the figure follows from the fitted constants and from those with sources of their own.
* *ratio* is ours by the published figure; 1 within a published range, or on the right side of a bound. A row that is
  off by more than 15 % is marked, with the reason that we believe.

The paper does not say how many cores its operations took, nor whether 128 MiB are of a rank or in all. Here they are
of a rank (31 x 128 MiB arrive in some 22 ms, of which 40 us are below 0.5 %, as it says of making the plan), and core
budgets are in the rows. Systems compared with: *zero-copy* is `zerocopy_ring`, a ring on the members' own arrays;
*HCCL* is the same with (1 + N) M bytes copied to and from internal buffers.

"""
