"""The scheduler in C against a plain statement of what units must be: random slices of several steps."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from strata.plan import cost as costs
from strata.plan.records import (
    ACCUMULATE,
    ATOMIC,
    COPY,
    DTYPE_NAMES,
    NONE,
    OP_NAMES,
    OUT,
    PARTIAL,
    PARTIAL_DST,
    PARTIAL_SRC,
    PULL,
    PUSH,
    REDUCE,
    SCRATCH,
    SLICE_DTYPE,
    SRC,
    SYNC,
    SYNC_SLICE,
    partial_bytes,
)  # fmt: skip
from strata.plan.schedule import POLICIES, schedule
from strata.plan.spec import Spec
from strata.plan.topology import Topology

SUM = OP_NAMES.index("sum")
PLACE = Topology(2, 4)


def drawn(chance, nranks, itemsize):
    """Slices of some steps; every destination is a place of its own."""
    rows, room, step = [], iter(range(0, 1 << 40, 1 << 24)), 0

    def add(kind, **more):
        row = np.zeros(1, SLICE_DTYPE)
        row["kind"], row["step"] = kind, step
        row["wait_peer"] = row["wait_flag"] = row["post_flag"] = NONE
        for name, value in more.items():
            row[name] = value
        if chance.random() < 0.5:
            row["wait_peer"], row["wait_flag"] = chance.integers(nranks), chance.integers(6)
        rows.append(row)

    for _ in range(int(chance.integers(1, 12))):
        step += int(chance.random() < 0.4)
        what, post = chance.integers(4), int(chance.choice([NONE, 3, 9]))
        size = int(chance.integers(1, chance.choice([10, 3000, 200_000]))) * itemsize
        one = {"bytes": size, "post_flag": post, "peer": chance.integers(nranks)}
        if what == 0:
            add(SYNC_SLICE, post_flag=post)
        elif what == 1:
            add(chance.choice([PULL, PUSH]), src_buf=SRC, src=next(room), dst_buf=OUT, dst=next(room), **one)
        elif what == 2:
            add(chance.choice([PULL, PUSH]), op=SUM, flags=ATOMIC, src=next(room), dst_buf=OUT, dst=next(room), **one)
        else:
            at, partial = next(room), int(chance.choice([0, PARTIAL_DST]))
            pushes = int(chance.integers(3))
            for peer in chance.permutation(nranks)[: int(chance.integers(1, nranks + 1))]:
                wide = int(chance.choice([0, PARTIAL_SRC]))
                add(PULL, op=SUM, src_buf=SCRATCH, src=next(room), dst_buf=OUT, dst=at, flags=wide | partial,
                    **{**one, "peer": peer})  # fmt: skip
            for peer in chance.permutation(nranks)[:pushes]:
                add(PUSH, src_buf=OUT, src=at, dst_buf=OUT, dst=next(room), flags=partial, **{**one, "peer": peer})
    return np.concatenate(rows)


def pieces(slices, rank):
    """What must be moved, by first slice: (kind, sources, targets, slices, post); end: (member, buf, flags, offset)."""

    def end(s, member, side, flag):
        return member, int(s[f"{side}_buf"]), PARTIAL if s["flags"] & flag else 0, int(s[side])

    found, sent = {}, set()
    for i, s in enumerate(slices):
        push, peer = s["kind"] == PUSH, int(s["peer"])
        if s["kind"] == SYNC_SLICE:
            found[i] = SYNC, [], [], [s], int(s["post_flag"])
        elif s["op"] and not s["flags"] & ATOMIC:
            same = [j for j, o in enumerate(slices) if o["op"] and not o["flags"] & ATOMIC and o["dst"] == s["dst"]]
            if i != same[0]:
                continue
            out = [j for j, o in enumerate(slices) if o["kind"] == PUSH and not o["op"] and o["src"] == s["dst"]]
            sent.update(out)
            sources = [end(slices[j], int(slices[j]["peer"]), "src", PARTIAL_SRC) for j in same]
            targets = [end(s, rank, "dst", PARTIAL_DST)]
            targets += [end(slices[j], int(slices[j]["peer"]), "dst", PARTIAL_DST) for j in out]
            found[i] = REDUCE, sources, targets, [slices[j] for j in same + out], int(s["post_flag"])
        elif i not in sent:
            ends = [end(s, rank if push else peer, "src", 0)], [end(s, peer if push else rank, "dst", 0)]
            found[i] = ACCUMULATE if s["op"] else COPY, *ends, [s], int(s["post_flag"])
    return found


@given(st.integers(0, 1 << 32), st.integers(1, 9), st.integers(1, 12), st.sampled_from(["f32", "bf16"]),
       st.sampled_from(POLICIES), st.booleans())  # fmt: skip
def test_units_are_what_slices_ask_for(seed, nranks, cores, dtype, policy, local_first):
    chance = np.random.default_rng(seed)
    itemsize, code = {"f32": 4, "bf16": 2}[dtype], DTYPE_NAMES.index(dtype)
    rank = int(chance.integers(nranks))
    slices = drawn(chance, nranks, itemsize)
    cost = costs.Cost((0.2,) * 4, (9, 8, 7, 6), (int(chance.choice([1 << 12, 1 << 16])),) * 4)
    spec = Spec("all_reduce", 1, itemsize, code, SUM, nranks=nranks)
    made = schedule(slices, spec, rank, cores, policy=policy, cost=cost, tiers=PLACE.seen(rank, nranks),
                    local_first=local_first)  # fmt: skip
    wanted, wide = pieces(slices, rank), partial_bytes(code, SUM) // itemsize
    covered = {i: [] for i in wanted}
    for core in range(cores):
        steps, waited, synced = [], set(), set()
        for u in made.units[made.core_begin[core] : made.core_begin[core + 1]]:
            steps.append(int(u["step"]))
            if u["wait_flag"] != NONE:
                waited.add((int(u["wait_peer"]), int(u["wait_flag"])))
            kind, sources, targets, carried, post = wanted[int(u["slice"])]
            if u["kind"] == SYNC and kind != SYNC:
                assert u["post_flag"] == NONE and u["wait_flag"] != NONE
                continue
            assert (u["kind"], u["post_flag"], u["core"]) == (kind, post, core)
            assert {(int(s["wait_peer"]), int(s["wait_flag"])) for s in carried} - {(NONE, NONE)} <= waited
            if kind == SYNC:
                synced.add(int(u["slice"]))
                continue
            both = [made.operands[int(u[f"{side}_first"]) :][: int(u[f"n{side}"])].tolist() for side in ("src", "dst")]
            begin = both[1][0][-1] - targets[0][-1]
            begin //= wide if targets[0][2] else 1
            for got, ends in zip(both, (sources, targets), strict=True):
                shifted = [(m, b, f, o + begin * (wide if f else 1)) for m, b, f, o in ends]
                assert sorted((o[0], o[1], o[2], o[-1]) for o in got) == sorted(shifted)
            assert kind != REDUCE or [o[0] for o in both[0]] == [o[0] for o in sources]
            covered[int(u["slice"])].append((begin, int(u["bytes"])))
        assert steps == sorted(steps)
        for i, (kind, _, _, carried, post) in wanted.items():
            if kind == SYNC and i not in synced:  # nothing to tell, and waited for before
                flag = int(carried[0]["wait_peer"]), int(carried[0]["wait_flag"])
                assert post == NONE and (flag == (NONE, NONE) or flag in waited)
    for i, parts in covered.items():
        at = 0
        for begin, length in sorted(parts):
            assert begin == at and length
            at += length
        assert at == slices["bytes"][i]
