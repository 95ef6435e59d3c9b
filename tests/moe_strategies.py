"""Hypothesis strategies for cases of strata.moe."""

import numpy as np
from collectives_strategies import members
from hypothesis import strategies as st
from moe_play import LAYOUTS, SPREADS, Case, Round

DTYPES = ("bfloat16", "bfloat16", "float16", "float32")
HIGH_ONLY = ("float64", "float8_e4m3fn", "int8")


@st.composite
def placements(draw, n: int):
    """(experts, None or (logical, first)): with and without replicas, dies with many slots and with none."""
    experts = draw(st.integers(1, 9))
    if draw(st.booleans()):
        return experts, None
    more = draw(st.lists(st.integers(0, experts - 1), max_size=5))
    logical = draw(st.permutations([*range(experts), *more]))
    cuts = sorted(draw(st.lists(st.integers(0, len(logical)), min_size=n - 1, max_size=n - 1)))
    return experts, (tuple(logical), (0, *cuts, len(logical)))


@st.composite
def rounds(draw, n: int, mode: str):
    flag = st.booleans()
    quant = draw(st.sampled_from(("", "", "fp8", "fp8r", "ue8m0", "int8"))) if mode == "ll" else ""
    dtype = draw(st.sampled_from(DTYPES + (HIGH_ONLY if mode == "ht" else ())))
    exponents = dtype == "float8_e4m3fn" and draw(flag)
    hidden = draw(st.sampled_from((512, 1024) if quant == "ue8m0" or exponents else (1, 7, 64, 128, 200, 500)))
    return Round(
        mode=mode,
        dtype=dtype,
        hidden=hidden,
        tokens=tuple(draw(st.lists(st.integers(0, 6), min_size=n, max_size=n))),
        topk=draw(st.integers(1, 16) if draw(flag) else st.integers(1, 3)),
        spread=draw(st.sampled_from(SPREADS[:-1] if draw(flag) else SPREADS)),
        masked=draw(st.sampled_from((0.0, 0.1, 0.5))),
        salt=draw(st.integers(0, 1 << 16)),
        layout=draw(st.sampled_from(LAYOUTS)),
        wait=draw(st.sampled_from(("now", "event") if mode == "ht" else ("now", "event", "hook"))),
        exponents=exponents,
        give_idx=draw(flag),
        give_weights=draw(flag),
        alignment=draw(st.sampled_from((1, 4))),
        worst=draw(st.integers(0, 3)) == 3,
        cached=draw(flag),
        biases=draw(st.integers(0, 2)),
        combine_weights=draw(flag),
        quant=quant,
        spare=draw(st.integers(0, 2)),
        give_out=draw(flag),
        zero_copy=draw(flag),
    )


@st.composite
def cases(draw, n: int, most: int = 8):
    """Of a job of n dies: a group of some, and up to ``most`` rounds in flight."""
    ranks = draw(members(n))
    experts, placement = draw(placements(len(ranks)))
    count = draw(st.sampled_from((1, 1, 2, 3, most)))
    made = tuple(draw(rounds(len(ranks), draw(st.sampled_from(("ht", "ll"))))) for _ in range(count))
    return Case(
        ranks, experts, placement, made,
        path=draw(st.sampled_from((None, "mte", "sdma"))),
        partition=draw(st.sampled_from((None, "balanced", "naive"))),
        cores=draw(st.sampled_from((None, 1, 3))),
        kept=draw(st.sampled_from((0, 3000, 1 << 20))),
        order=tuple(draw(st.permutations(range(count)))),
    )  # fmt: skip


def regular(n: int, mode: str, **other) -> Round:
    """An ordinary round."""
    return Round(mode=mode, tokens=tuple(np.arange(n) + 3), **other)
