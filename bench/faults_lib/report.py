"""Records of bench/faults.py, put together: one row for a contender and a fault."""

from collections import Counter
from statistics import median

ORDER = ("kill", "stop", "counts", "operations", "left")


def size_name(nbytes):
    for unit, name in ((1 << 20, " MiB"), (1 << 10, " KiB")):
        if nbytes >= unit and nbytes % unit == 0:
            return f"{nbytes // unit}{name}"
    return f"{nbytes} B"


def groups(records):
    """{(fault, bytes, contender): its records}, in the order of the table."""
    found = {}
    for r in records:
        if r["record"] == "fault":
            found.setdefault((r["fault"], r["bytes"], r["contender"]), []).append(r)
    return dict(sorted(found.items(), key=lambda item: (ORDER.index(item[0][0]), item[0][1])))


def counted(words):
    """ "error" if all are one, else "2 error, 1 hang", the most frequent first."""
    count = Counter(words)
    return next(iter(count)) if len(count) == 1 else ", ".join(f"{k} {word}" for word, k in count.most_common())


def span(values):
    """Median and, of several that differ, the range, in ms."""
    values = [v for v in values if v is not None]
    if not values:
        return "-"
    low, high = min(values), max(values)
    one = f"{median(values):.0f} ms"
    return one if f"{low:.0f}" == f"{high:.0f}" else f"{one} ({low:.0f}-{high:.0f})"


def aggregate(rows):
    """What the rounds of one contender and fault come to: a dict of words and figures."""
    members = sum(len(r["how"]) for r in rows)
    later = [word for r in rows for word in r.get("later", ())]
    return {
        "how": counted([how for r in rows for how in r["how"]]) if members else "-",
        "ms": span([ms for r in rows for ms in r["ms"]]),
        "ended": span([r["ended_ms"] for r in rows]) if any(r["ended_ms"] is not None for r in rows) else "no",
        "status": counted(["runs" if r["status"] is None else str(r["status"]) for r in rows]),
        "named": "yes" if rows and all(r.get("named") for r in rows) else "no",
        "went_on": "yes" if members and all(
            r["went_on"] == len(r["how"]) + (r["fault"] == "stop") for r in rows) else "no",
        "same_error": "yes" if rows and all(r.get("same_error") for r in rows) else "no",
        "later": counted(later) if later else "-",
        "silent": any(set(r["how"]) <= {"wrong", "right"} and r["status"] == 0 for r in rows if "later" in r),
        "files": counted([str(r.get("shm_files", 0)) for r in rows]),
        "bytes": max((r.get("shm_bytes", 0) for r in rows), default=0),
        "kept": counted([str(r.get("tmp_files", 0)) for r in rows]),
    }


HEADS = {
    "kill": ("A rank is SIGKILLed in all_reduce",
             ("contender", "survivors see", "after", "rank named", "job ends after", "status", "survivors go on")),
    "stop": ("A rank is SIGSTOPped for 2.5 s, timeout 1 s where there is one",
             ("contender", "the others see", "after", "rank named", "status", "all go on after SIGCONT")),
    "counts": ("One rank gives 2c elements, the others c",
               ("contender", "the call", "one text on all", "a later right call", "status")),
    "operations": ("One rank calls all_gather, the others all_reduce",
                   ("contender", "the call", "one text on all", "a later right call", "status")),
    "left": ("kill -9 of launcher, daemons and ranks",
             ("contender", "files in /dev/shm", "their bytes", "files in TMPDIR")),
}


def cells(fault, contender, a):
    if fault == "kill":
        return contender, a["how"], a["ms"], a["named"], a["ended"], a["status"], a["went_on"]
    if fault == "stop":
        return contender, a["how"], a["ms"], a["named"], a["status"], a["went_on"]
    if fault == "left":
        return contender, a["files"], size_name(a["bytes"]) if a["bytes"] else "0", a["kept"]
    call = a["how"] + (" (silently: status 0)" if a["silent"] else "")
    return contender, call, a["same_error"], a["later"], a["status"]


def tables(records):
    """Markdown, a table for each fault and size."""
    lines, found = [], groups(records)
    for fault, nbytes in dict.fromkeys((f, b) for f, b, _ in found):
        title, heads = HEADS[fault]
        lines += ["", f"{title}; {size_name(nbytes)}:", "", f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
        lines += [f"| {' | '.join(cells(fault, name, aggregate(rows)))} |"
                  for (f, b, name), rows in found.items() if (f, b) == (fault, nbytes)]
    return lines
