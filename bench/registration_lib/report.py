"""From records to figures: medians and spreads, tables of each section, the claims and whether they hold."""

import math
import statistics

from versus_lib.report import size_name

READY, ONCE = 1.10, 1.05     # on_allocation may take so much of a warm buffer, and (used at once) of just_in_time
CHECK_NS = 20.0
OVERHEAD, LATE = 0.01, 0.04


def pick(records, kind, **having):
    return [r for r in records if r["record"] == kind and all(r.get(k) == v for k, v in having.items())]


def values(records, key):
    """The distinct values of a key, in the order of their first appearance."""
    return list(dict.fromkeys(r[key] for r in records))


def quantile(numbers, share):
    """The smallest number that at least a share of all do not exceed."""
    ordered = sorted(numbers)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def median(records, key):
    return statistics.median(r[key] for r in records) if records else None


def us(value):
    """A time of microseconds with its unit, three digits."""
    if value is None:
        return "-"
    for unit, scale in (("s", 1e6), ("ms", 1e3)):
        if abs(value) >= scale:
            return f"{value / scale:.3g} {unit}" if abs(value) < 1000 * scale else f"{value / scale:.0f} {unit}"
    return f"{value:.3g} us"


def spread(records, key):
    """"median (first .. third quartile)"."""
    if not records:
        return "-"
    found = [r[key] for r in records]
    return f"{us(statistics.median(found))} ({us(quantile(found, 0.25))} .. {us(quantile(found, 0.75))})"


def mib(value):
    return f"{value / 2**20:.1f}"


def table(title, head, rows):
    """Lines of a table, columns as wide as they need."""
    if not rows:
        return []
    cells = [head, *[[str(c) for c in row] for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    return ["", title, *("  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in cells)]


# ---- figures that several places need -----------------------------------------------------


def first_ratio(records, contender, how, n, op, nbytes):
    """(median of its times / the same repeat's on a warm buffer, all of them); (None, []) without any."""
    having = {"n": n, "op": op, "bytes": nbytes, "contender": contender}
    warm = {(r["round"], r["repeat"]): r["us"] for r in pick(records, "first", how="warm", **having)}
    ratios = [r["us"] / warm[key] for r in pick(records, "first", how=how, **having)
              if (key := (r["round"], r["repeat"])) in warm]
    return (statistics.median(ratios) if ratios else None), ratios


def late_growth(records, pages, sizes):
    """n: (fresh - warm) of just_in_time over the same at the smallest n; geometric mean over operations and bytes."""
    added = {}
    for n, op, nbytes in cells(records):
        having = {"n": n, "op": op, "bytes": nbytes, "contender": f"just_in_time{pages}"}
        warm = {(r["round"], r["repeat"]): r["us"] for r in pick(records, "first", how="warm", **having)}
        late = [r["us"] - warm[key] for r in pick(records, "first", how="ready", **having)
                if (key := (r["round"], r["repeat"])) in warm]
        if late and statistics.median(late) > 0:
            added[n, op, nbytes] = statistics.median(late)
    kinds = [c[1:] for c in added if c[0] == sizes[0] and all((n, *c[1:]) in added for n in sizes)]
    if len(sizes) < 2 or not kinds:
        return {}
    return {n: gmean(added[(n, *k)] / added[(sizes[0], *k)] for k in kinds) for n in sizes}


def at_once_ratio(records, pages, n, op, nbytes):
    """on_allocation / just_in_time, allocation and first use together."""
    having = {"n": n, "op": op, "bytes": nbytes, "how": "at_once"}
    return paired(pick(records, "first", contender=f"on_allocation{pages}", **having),
                  pick(records, "first", contender=f"just_in_time{pages}", **having), "us")


def paired(mine, theirs, key):
    """(median, list) over the rounds of median(mine) / median(theirs); (None, []) if a side is missing."""
    ratios = []
    for number in values(mine, "round"):
        a, b = (median([r for r in side if r["round"] == number], key) for side in (mine, theirs))
        if a is not None and b:
            ratios.append(a / b)
    return (statistics.median(ratios) if ratios else None), ratios


def cells(records):
    """(n, op, bytes) of section first."""
    return list(dict.fromkeys((r["n"], r["op"], r["bytes"]) for r in pick(records, "first")))


def moe_figures(records, n, contender):
    """Of the loop: step time, its ratio to static buffers, shares of late steps, pages, time in the allocator."""
    mine, static = (pick(records, "moe", n=n, contender=c) for c in (contender, "static"))
    ratio, every = paired(mine, static, "us")
    total = sum(r["us"] for r in mine)
    return {"us": median(mine, "us"), "ratio": ratio, "ratios": every,
            "late": sum(r["late"] > 0 for r in mine) / len(mine),
            "waited": sum(r["late_us"] for r in mine) / total,
            "allocator": sum(r["allocator_us"] for r in mine) / total,
            "MiB": sum(r["pages"] for r in mine) * 2 / len(mine) / n}


def waste_figures(records, n, contender):
    """Bytes of a die: most and mean reserved, mean reserved that nobody had asked for, most asked for."""
    mine = pick(records, "waste", n=n, contender=contender)
    return {"reserved": max(r["reserved"] for r in mine),
            "mean_reserved": statistics.mean(r["reserved"] for r in mine),
            "unused": statistics.mean(r["reserved"] - r["requested"] for r in mine),
            "most_unused": max(r["reserved"] - r["requested"] for r in mine),
            "requested": max(r["requested"] for r in mine)}


# ---- tables ---------------------------------------------------------------------------------


def machine_lines(records):
    info = pick(records, "machine")[0]
    busy = info["load_before"] > info["cores"] / 2
    return [f"{info['cores']} cores of {info['cpu']}, {info['memory_GiB']} GiB, /dev/shm {info['shm_GiB']} GiB, "
            f"Linux {info['kernel']}, Python {info['python']}, commit {info['commit']}, "
            f"load before the run {info['load_before']:.1f}", f"huge pages: {info['huge_pages']}",
            *["THE MACHINE WAS BUSY before the run: its times, and what is said of claims, mean little"] * busy,
            "medians, in brackets the first and third quartile"]


def mapped_lines(records):
    mine = pick(records, "mapped")
    rows = [(n, size_name(b), c, spread(found, "alloc_us"), spread(found, "first_us"), spread(found, "all_us"))
            for n in values(mine, "n") for b in values(mine, "bytes") for c in values(mine, "contender")
            if (found := pick(mine, "mapped", n=n, bytes=b, contender=c))]
    return table("From allocation to mapped on all peers; the clock starts when the owner calls empty()",
                 ["n", "size", "frames", "call took", "on the first peer", "on all peers"], rows)


def first_lines(records):
    rows = []
    names = values(pick(records, "first"), "contender")
    for n, op, nbytes in cells(records):
        for name in names:
            having = {"n": n, "op": op, "bytes": nbytes, "contender": name}
            warm, ready, once = (pick(records, "first", how=h, **having) for h in ("warm", "ready", "at_once"))
            ratio = first_ratio(records, name, "ready", n, op, nbytes)[0]
            if ready:
                rows.append((n, op, size_name(nbytes), name, us(median(warm, "us")), spread(ready, "us"),
                             "-" if ratio is None else f"{ratio:.2f}", spread(once, "us")))
    return table("The first collective on a fresh buffer (bytes of a die's buffer): used once peers are ready and "
                 "filled, and its ratio to a warm buffer; allocated and used at once (both timed)",
                 ["n", "operation", "size", "mode", "warm", "fresh", "/ warm", "alloc + use at once"], rows)


def check_lines(records):
    mine = pick(records, "check")
    rows = [(n, size_name(b), f"{median(found, 'ns'):.1f}", f"{max(r['worst_ns'] for r in found):.1f}")
            for n in values(mine, "n") for b in values(mine, "bytes") if (found := pick(mine, "check", n=n, bytes=b))]
    return table("The check of phase 2, ready: ns a peer", ["n", "size", "median", "slowest peer"], rows)


def publish_lines(records):
    mine = pick(records, "publish")
    rows = []
    for n in values(mine, "n"):
        found, words = pick(mine, "publish", n=n), pick(records, "histogram", n=n)[0]
        rows.append((n, *(us(quantile([r[k] for r in found], q)) for k in ("alloc_us", "after_us", "from_call_us")
                          for q in (0.5, 0.99)), us(words["p50_us"]), us(words["p99_us"])))
    return table("One page, the registrar asleep before: the call itself; from its return, and from its begin, until "
                 "die 1 sees the page mapped; from the record to mapped, as stats() has it (all peers' records)",
                 ["n", "call p50", "p99", "after p50", "p99", "in all p50", "p99", "record p50", "p99"], rows)


def moe_lines(records):
    mine = pick(records, "moe")
    rows = []
    for n in values(mine, "n"):
        for name in values(pick(mine, "moe", n=n), "contender"):
            f = moe_figures(records, n, name)
            low, high = (min(f["ratios"]), max(f["ratios"])) if f["ratios"] else (math.nan, math.nan)
            rows.append((n, name, spread(pick(mine, "moe", n=n, contender=name), "us"),
                         "-" if f["ratio"] is None else f"{100 * (f['ratio'] - 1):+.1f} %",
                         f"{100 * (low - 1):+.1f} .. {100 * (high - 1):+.1f} %", f"{100 * f['late']:.1f} %",
                         f"{100 * f['waited']:.2f} %", f"{100 * f['allocator']:.2f} %", f"{f['MiB']:.1f}"))
    return table("A loop whose buffers change each step: time of a step, its cost against static buffers (and of each "
                 "round), steps in which a die mapped late, time so lost, time in the allocator, MiB that a die maps",
                 ["n", "mode", "step", "cost", "rounds", "late", "lost", "allocator", "MiB mapped"], rows)


def waste_lines(records):
    mine = pick(records, "waste")
    rows = []
    for n in values(mine, "n"):
        for name in values(pick(mine, "waste", n=n), "contender"):
            f = waste_figures(records, n, name)
            rows.append((n, name, *(mib(f[k]) for k in ("requested", "reserved", "mean_reserved", "unused",
                                                        "most_unused"))))
    lines = table("Memory of a die in the same loop, MiB: most asked for, most and mean reserved, of that not used",
                  ["n", "mode", "asked", "reserved", "mean", "unused mean", "most"], rows)
    return lines + [f"smallest pool that holds the loop, n = {r['n']}: {mib(r['needed'])} MiB; live at most "
                    f"{mib(r['peak_live'])} MiB" for r in pick(records, "pool_size")]


def idle_lines(records):
    rest, busy = pick(records, "idle"), pick(records, "mapping_cpu")
    rows = [(n, name, f"{median(found, 'cpu_us_per_s'):.1f}", f"{max(r['cpu_us_per_s'] for r in found):.1f}",
             f"{median(found, 'switches_per_s'):.1f}", found[0]["threads"])
            for n in values(rest, "n") for name in values(rest, "contender")
            if (found := pick(rest, "idle", n=n, contender=name))]
    lines = table("An idle second of a die's registrar: CPU us (median and most), wake-ups",
                  ["n", "mode", "CPU us", "most", "wakes", "threads"], rows)
    rows = [(n, name, f"{1e3 * median(found, 'map_s'):.1f}", f"{1e3 * median(found, 'unmap_s'):.1f}")
            for n in values(busy, "n") for name in values(busy, "contender")
            if (found := pick(busy, "mapping_cpu", n=n, contender=name))]
    return lines + table("CPU time of a registrar, ms a GiB of a peer's memory", ["n", "frames", "map", "unmap"], rows)


def problems(records):
    """What makes a run worthless: wrong answers and failures, as lines."""
    bad = [f"WRONG: {r['record']}, n = {r['n']}, {r.get('contender')}: {r['wrong']} elements"
           for r in records if r.get("wrong")]
    return bad + [f"FAILED: {r['section']}: {r['error']}" for r in pick(records, "failure")]


def lines(records):
    out = machine_lines(records)
    for section in (mapped_lines, first_lines, check_lines, publish_lines, moe_lines, waste_lines, idle_lines):
        out += section(records)
    return [*out, *problems(records)]


# ---- claims ---------------------------------------------------------------------------------


def claims(records):
    """[{claim, figure, holds}] of what was measured; ``holds`` None where there is only a figure."""
    found = [*first_claims(records)]
    checks = pick(records, "check")
    if checks:
        worst = max(median(pick(checks, "check", n=n, bytes=b), "ns")
                    for n, b in dict.fromkeys((r["n"], r["bytes"]) for r in checks))
        found.append(claim(f"phase 2, ready: under {CHECK_NS:g} ns a peer, all sizes", f"at most {worst:.1f} ns",
                           worst < CHECK_NS))
    for n in values(pick(records, "moe"), "n"):
        found += moe_claims(records, n)
    return found


def claim(text, figure, holds):
    return {"claim": text, "figure": figure, "holds": holds}


def first_claims(records):
    grid = cells(records)
    names = values(pick(records, "first"), "contender")
    found = []
    control = [r for cell in grid if (r := first_ratio(records, "pool", "ready", *cell)[0])]
    noise = f"; pool, the control: {gmean(control):.2f}" if control else ""
    for pages in ("", ", small pages"):
        rated = {cell: r for cell in grid if (r := first_ratio(records, f"on_allocation{pages}", "ready", *cell)[0])}
        if rated:
            worst = max(rated, key=rated.get)
            found.append(claim(f"fresh and ready within 10 % of warm, on_allocation{pages}",
                               f"geometric mean {gmean(rated.values()):.2f}, worst {rated[worst]:.2f} "
                               f"(n = {worst[0]}, {worst[1]}, {size_name(worst[2])}){noise}",
                               gmean(rated.values()) <= READY))
        if f"just_in_time{pages}" in names:
            found += late_claims(records, grid, pages)
    return found


def late_claims(records, grid, pages):
    """just_in_time is slower, ever more with n; and never better than use at once."""
    by_n = {}
    for cell in grid:
        ratio = first_ratio(records, f"just_in_time{pages}", "ready", *cell)[0]
        if ratio:
            by_n.setdefault(cell[0], []).append(ratio)
    means = {n: gmean(r) for n, r in sorted(by_n.items())}
    found = []
    if means:
        figure = ", ".join(f"n = {n}: {r:.2f}" for n, r in means.items())
        found.append(claim(f"just_in_time{pages} is several times slower than warm", figure,
                           min(means.values()) >= 2.0))
        growth = late_growth(records, pages, list(means))
        if growth:
            found.append(claim(f"what just_in_time{pages} adds to a first use grows with n",
                               ", ".join(f"n = {n}: {r:.1f} times" for n, r in growth.items()),
                               list(growth.values())[-1] > 1.5))
    rated = {cell: r for cell in grid if (r := at_once_ratio(records, pages, *cell)[0])}
    if rated:
        worst = max(rated, key=rated.get)
        found.append(claim(f"used at once never worse than just_in_time{pages}",
                           f"on_allocation / just_in_time: geometric mean {gmean(rated.values()):.2f}, worst "
                           f"{rated[worst]:.2f} (n = {worst[0]}, {worst[1]}, {size_name(worst[2])})",
                           gmean(rated.values()) <= ONCE))
    return found


def moe_claims(records, n):
    names = values(pick(records, "moe", n=n), "contender")
    found = []
    if "static" in names and "on_allocation" in names:
        f = moe_figures(records, n, "on_allocation")
        found.append(claim(f"loop, n = {n}: on_allocation costs under 1 % against static buffers",
                           f"{100 * (f['ratio'] - 1):+.2f} % (in the allocator {100 * f['allocator']:.2f} %, mapping "
                           f"late {100 * f['waited']:.2f} %)", f["ratio"] < 1 + OVERHEAD))
        found.append(claim(f"loop, n = {n}: under 4 % of steps map late", f"{100 * f['late']:.1f} %", f["late"] < LATE))
    for name in names:
        if name not in ("static", "on_allocation"):
            f = moe_figures(records, n, name)
            ratio = "-" if f["ratio"] is None else f"{100 * (f['ratio'] - 1):+.2f} %"
            found.append(claim(f"loop, n = {n}: {name}", f"{ratio}, late in {100 * f['late']:.1f} % of steps", None))
    return found


def gmean(numbers):
    numbers = list(numbers)
    return math.exp(sum(map(math.log, numbers)) / len(numbers))


def claim_lines(found):
    word = {True: "holds", False: "DOES NOT HOLD", None: "figure"}
    return [f"{word[c['holds']]:>13}  {c['claim']}: {c['figure']}" for c in found]
