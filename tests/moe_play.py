"""A case of strata.moe: what it is, how dies play it, and what the reference says of it."""

from __future__ import annotations

from typing import NamedTuple

import moe_reference as ref
import numpy as np
from collectives_reference import data, dtype_of

LAYOUTS = ("fabric", "numpy", "strided", "columns")
SPREADS = ("any", "distinct", "one", "last", "none")


class Round(NamedTuple):
    """A dispatch and its combine.  ``tokens``: of each member; the rest is equal on all members."""

    mode: str = "ht"  # or "ll"
    dtype: str = "bfloat16"
    hidden: int = 8
    tokens: tuple = (3,)
    topk: int = 2
    spread: str = "any"  # of choices
    masked: float = 0.2  # share of choices that are none
    salt: int = 0
    layout: str = "fabric"
    wait: str = "now"  # "event", "hook" (ll): later, in the order of the case
    # high throughput
    exponents: bool = False  # scales of fp8 as exponents, four in an int32
    give_idx: bool = True
    give_weights: bool = True
    alignment: int = 1
    worst: bool = False
    cached: bool = False  # another dispatch, by the handle
    biases: int = 0
    combine_weights: bool = True
    # low latency
    quant: str = ""  # fp8 fp8r (powers of two) ue8m0 int8
    spare: int = 0  # rows that windows have above the most tokens
    give_out: bool = False
    zero_copy: bool = False


class Case(NamedTuple):
    members: tuple  # world ranks
    experts: int
    placement: tuple | None  # (logical, first)
    rounds: tuple
    path: str | None = None
    partition: str | None = None
    cores: int | None = None
    kept: int = 0  # bytes of receive arrays that the Buffer keeps
    order: tuple = ()  # rounds in the order in which they are waited for, turned by rank

    @property
    def where(self) -> ref.Placement:
        if self.placement is None:
            return ref.even(self.experts, len(self.members))
        return ref.Placement(*map(np.array, self.placement))


# ---- data ----------------------------------------------------------------------------


def routing(case: Case, r: Round, rank: int) -> np.ndarray:
    """(tokens, topk) int64"""
    rng = np.random.default_rng((r.salt, rank, 1))
    shape = (r.tokens[rank], r.topk)
    idx = rng.integers(0, case.experts, shape)
    if r.spread == "distinct":
        idx = np.full(shape, -1)
        some = min(r.topk, case.experts)
        idx[:, :some] = np.argsort(rng.random((shape[0], case.experts)), axis=1)[:, :some]
    elif r.spread in ("one", "last"):
        idx[:] = r.salt % case.experts if r.spread == "one" else case.experts - 1
    elif r.spread == "none":
        idx[:] = -1
    idx[rng.random(shape) < r.masked] = -1
    return idx.astype(np.int64)


def weights(r: Round, rank: int) -> np.ndarray:
    return np.random.default_rng((r.salt, rank, 2)).normal(size=(r.tokens[rank], r.topk)).astype(np.float32)


def numbers(shape, dtype, rank: int, salt: int) -> np.ndarray:
    """Of many magnitudes, so that sums of float32 depend on their order; NaN and infinities among them."""
    dtype = dtype_of(dtype)
    if dtype.name not in ("bfloat16", "float16", "float32", "float64"):
        return data(shape, dtype, rank, salt)
    made = data(shape, "float64", rank, salt)
    reach = 3 if dtype.name == "float16" else 5
    with np.errstate(over="ignore"):
        return (made * 10.0 ** np.random.default_rng((salt, rank, 4)).uniform(-reach, reach, shape)).astype(dtype)


def tokens(r: Round, rank: int, more: int = 0) -> np.ndarray:
    """x; finite where it is made smaller."""
    made = numbers((r.tokens[rank], r.hidden), r.dtype, rank, r.salt + more)
    return made if not r.quant else np.nan_to_num(made.astype(np.float32), posinf=9, neginf=-7).astype(made.dtype)


def scaled(r: Round) -> bool:
    """Whether scales go with x (ht)."""
    return r.mode == "ht" and r.dtype in ("float8_e4m3fn", "int8")


def scales(r: Round, rank: int, more: int = 0) -> np.ndarray:
    each = 1 if r.dtype == "int8" else -(-r.hidden // 512) if r.exponents else -(-r.hidden // 128)
    return data((r.tokens[rank], each), "int32" if r.exponents else "float32", rank, r.salt + 50 + more)


def results(r: Round, rows: int, rank: int) -> np.ndarray:
    """What a member sends back in place of rows."""
    return numbers((rows, r.hidden), combined(r), rank, r.salt + 99)


def combined(r: Round) -> np.dtype:
    """Type of what comes back."""
    return ref.BF16 if r.quant or scaled(r) else dtype_of(r.dtype)


def bias(r: Round, rank: int) -> list[np.ndarray]:
    return [numbers((r.tokens[rank], r.hidden), combined(r), rank, r.salt + 200 + b) for b in range(r.biases)]


def most(case: Case, r: Round) -> int:
    """Rows that the window of a source has at a slot: the most tokens, and the most choices of one slot."""
    chosen = 1
    for rank in range(len(case.members)):
        slot = ref.slots_of(case.where, routing(case, r, rank), rank)
        chosen = max(chosen, *np.bincount(slot[slot >= 0], minlength=1))
    return int(max(*r.tokens, chosen)) + r.spare


# ---- what dies must find -------------------------------------------------------------


def expected(case: Case) -> list[list[dict]]:
    """Of each round, of each member: arrays by name."""
    return [high(case, r) if r.mode == "ht" else low(case, r) for r in case.rounds]


def high(case: Case, r: Round) -> list[dict]:
    n, where = len(case.members), case.where
    idx = [routing(case, r, m) for m in range(n)]
    w = [weights(r, m) for m in range(n)] if r.give_weights else None

    def columns(m, more=0):
        return [tokens(r, m, more)] + ([scales(r, m, more)] if scaled(r) else [])

    got = ref.dispatch(where, [columns(m) for m in range(n)], idx, w, r.alignment)
    layouts = [ref.layout(where, i, m) for m, i in enumerate(idx)]
    y = [results(r, len(g.token), m) for m, g in enumerate(got)]
    back_weights = [ref_weights(r, g, m) for m, g in enumerate(got)] if r.combine_weights else None
    given = [(*bias(r, m), None, None)[:2] for m in range(n)]
    back = ref.combine(got, y, [made.in_rank for made in layouts], back_weights, given)
    again = ref.dispatch(where, [columns(m, 7) for m in range(n)], idx) if r.cached else None
    found = []
    for m, g in enumerate(got):
        made = {
            "per_rank": layouts[m].per_rank.astype(np.int32), "per_slot": layouts[m].per_slot.astype(np.int32),
            "in_rank": layouts[m].in_rank, "x": g.columns[0], "prefix": g.prefix.astype(np.int32),
            "per_slot_list": [] if r.worst else g.per_slot, "combined": back[m][0], "src": g.token.astype(np.int32),
        }  # fmt: skip
        if scaled(r):
            made["scales"] = g.columns[1]
        if r.give_idx:
            made["idx"] = g.topk_idx
            if r.give_weights:
                made["weights"] = g.topk_weights
        if r.combine_weights:
            made["combined_weights"] = back[m][1]
        if again:
            made["again"] = again[m].columns[0]
        found.append(made)
    return found


def ref_weights(r: Round, received, rank: int) -> np.ndarray:
    """What goes back beside rows: other weights than those that came."""
    return np.random.default_rng((r.salt, rank, 3)).normal(size=(len(received.token), r.topk)).astype(np.float32)


def low(case: Case, r: Round) -> list[dict]:
    n, where = len(case.members), case.where
    idx = [routing(case, r, m) for m in range(n)]
    sent = [small(r, tokens(r, m)) for m in range(n)]
    windows = ref.low_latency_dispatch(where, sent, idx)
    slots, rows = [len(mine) for mine in windows], most(case, r) * n
    y = [results(r, s * rows, m).reshape(s, rows, r.hidden) for m, s in enumerate(slots)]
    back = ref.low_latency_combine(where, windows, y, idx, [weights(r, m) for m in range(n)])
    found = []
    for m, mine in enumerate(windows):
        made = {"count": np.array([len(w.token) for w in mine], np.int32), "combined": back[m]}
        for nth, window in enumerate(mine):
            made[f"x{nth}"] = window.columns[0]
            if len(window.columns) > 1:
                made[f"scales{nth}"] = window.columns[1]
            made[f"src{nth}"], made[f"range{nth}"] = window.token.astype(np.int32), window.range
        found.append(made)
    return found


def small(r: Round, x: np.ndarray) -> list[np.ndarray]:
    """x as it travels."""
    if not r.quant:
        return [x]
    q, made = ref.int8(x) if r.quant == "int8" else ref.fp8(x, r.quant != "fp8")
    return [q, ref.ue8m0(made) if r.quant == "ue8m0" else made]


def differences(case: Case, found: list[list[dict]], wanted: list[list[dict]]) -> list[str]:
    """``found``: of each member, of each round."""
    text = []
    for k, r in enumerate(case.rounds):
        for m in range(len(case.members)):
            got, must = found[m][k], wanted[k][m]
            if got.keys() != must.keys():
                text.append(f"round {k}, member {m}: {sorted(got)} instead of {sorted(must)}")
                continue
            for name, value in must.items():
                alike = ref.same(got[name], value) if isinstance(value, np.ndarray) else got[name] == value
                if not alike:
                    text.append(f"round {k} ({r}), member {m}: {name} is\n{got[name]!r}\ninstead of\n{value!r}")
    return text
