"""Traces, drawn by matplotlib, which is imported when something is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from strata.errors import InvalidArgument, writing
from strata.profile import tables
from strata.profile.blame import late
from strata.profile.calls import covered, innermost, link, union
from strata.profile.reading import (
    ASIDE,
    CALL,
    CALLS,
    KIND_NAMES,
    NO,
    OTHER,
    PROBE,
    THREAD,
    TRANSFER,
    WAIT,
    Recorded,
)  # fmt: skip

KINDS = ("timeline", "cores", "bandwidth", "sizes")
FILES = (".svg", ".png", ".pdf")
COLOURS = {CALL: "#b9c7da", PROBE: "#b79ad6", WAIT: "#f0b64e", TRANSFER: "#2a78b8", OTHER: "#8d98a5"}
MAPPED = "#d1324a"  # pages mapped on first use: other, but worth seeing
PAIR = ("#8d98a5", "#2a78b8")  # of two traces: before and after
LINES = ("#2a78b8", "#e07b39", "#3a9a6d", "#8e5fbf", "#d1324a", "#8d98a5")
DENSE = 400  # spans of a track in one picture; more are drawn as parts of the time
BINS = 400
ROWS = 120  # tracks in one picture


def draw(file: str, kind: str, trace: Recorded, other: Recorded | None = None, operation: str | None = None) -> str:
    """Draws one of ``KINDS`` into a file; what is drawn, in a line.

    ``other``: of cores and sizes, another trace beside it.  InvalidArgument for a kind of file or picture that there is
    not, where there is nothing to draw, or without matplotlib.
    """
    if Path(file).suffix.lower() not in FILES:
        raise InvalidArgument(f"--plot {file}: a name that ends in {', '.join(FILES)} is expected")
    if kind not in KINDS:
        raise InvalidArgument(f"there is no picture {kind!r}; there are {', '.join(KINDS)}")
    if other is not None and kind not in ("cores", "sizes"):
        raise InvalidArgument(f"a picture of two traces is of cores or sizes; {kind} shows one")
    if operation is not None and kind == "timeline":
        raise InvalidArgument("a timeline shows all operations; --between cuts a part out")
    try:
        import matplotlib
    except ImportError:
        raise InvalidArgument("pictures need matplotlib, which is not installed: pip install matplotlib") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    look: Any = {"svg.fonttype": "none", "svg.hashsalt": "strata", "font.size": 9, "axes.spines.top": False,
            "axes.spines.right": False, "axes.titlesize": 10, "legend.frameon": False}  # fmt: skip
    with matplotlib.rc_context(look):
        maker = {"timeline": _timeline, "cores": _cores, "bandwidth": _bandwidth, "sizes": _sizes}[kind]
        figure, said = maker(pyplot, trace, other, operation)
        with writing(file):
            plain = {"metadata": {"Date": None}} if Path(file).suffix.lower() == ".svg" else {}
            figure.savefig(file, dpi=110, **plain)
        pyplot.close(figure)
    return f"{file}: {said}"


def _unit(span: float) -> tuple[float, str]:
    """What to divide microseconds by, and the unit's name."""
    return (1e6, "s") if span > 5e6 else (1e3, "ms") if span > 5e3 else (1.0, "us")


def _size(nbytes: float) -> str:
    for power, letter in ((30, "G"), (20, "M"), (10, "K")):
        if nbytes >= 1 << power:
            return f"{nbytes / (1 << power):.3g}{letter}"
    return f"{nbytes:.0f}"


def _about(trace: Recorded) -> str:
    return f"{Path(trace.file).name}, {'simulated' if trace.about.get('clock') == 'simulated' else 'measured'}"


def _timeline(pyplot: Any, trace: Recorded, other: Any, operation: Any) -> tuple[Any, str]:
    """Tracks of all dies over time; a track with too many spans for a picture is drawn as parts of each moment."""
    from matplotlib.patches import Patch

    used = set(np.unique(trace.spans["track"]).tolist())
    seen = set(np.unique(trace.spans["track"][trace.spans["kind"] != ASIDE]).tolist())
    rows = [i for i in used if trace.tracks[i].kind != THREAD or i in seen]
    rows.sort(key=lambda i: trace.tracks[i])
    hidden = max(len(rows) - ROWS, 0)
    rows = rows[:ROWS]
    begin, end = float(trace.spans["begin"].min()), float(trace.spans["end"].max())
    scale, unit = _unit(end - begin)
    tall = min(max(0.17 if len(rows) > 40 else 0.24, 0.1) * len(rows) + 1.3, 24)
    figure, axes = pyplot.subplots(figsize=(11, tall), layout="constrained")
    phases = innermost(trace)
    red = late(trace, phases)
    for y, i in enumerate(rows):
        track = trace.tracks[i]
        for kind, high in ((PROBE, 0.92), (CALL, 0.92 if track.kind == CALLS else 0.5)):
            mine = trace.spans[(trace.spans["track"] == i) & (trace.spans["kind"] == kind)]
            _bars(axes, y, mine["begin"], mine["end"], COLOURS[kind], high, scale, begin, end)
            if kind == CALL:
                _words(axes, trace, mine, y, scale, end - begin)
        mine = phases["track"] == i
        _phases(axes, y, phases[mine], red[mine], scale, begin, end)
    _rows(axes, trace, rows)
    axes.set_xlim(begin / scale, end / scale if end > begin else begin / scale + 1)
    axes.set_xlabel(f"time ({unit})")
    there = set(np.unique(trace.spans["kind"]).tolist())
    shown = [(COLOURS[kind], KIND_NAMES[kind]) for kind in (CALL, WAIT, TRANSFER, OTHER) if kind in there]
    shown += [(MAPPED, "late registration")] * bool(red.any())
    shown += [(COLOURS[PROBE], "probe")] * (PROBE in there)
    figure.legend(handles=[Patch(color=colour, label=name) for colour, name in shown], loc="outside upper right",
                  ncols=len(shown))  # fmt: skip
    axes.set_title(_about(trace), loc="left")
    return figure, f"{len(rows)} tracks of {len(trace.dies)} dies" + (f"; {hidden} more are left out" if hidden else "")


def _rows(axes: Any, trace: Recorded, rows: list[int]) -> None:
    """Names of the tracks, and lines between the dies."""
    names, last = [], None
    for y, i in enumerate(rows):
        track = trace.tracks[i]
        names.append(f"{trace.dies[track.die]}   {track.name}" if track.die != last else track.name)
        if last is not None and track.die != last:
            axes.axhline(y - 0.5, color="#c8ced6", linewidth=0.7)
        last = track.die
    axes.set_yticks(range(len(rows)), names, fontsize=7 if len(rows) > 24 else 8)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _bars(axes: Any, y: int, begin: np.ndarray, end: np.ndarray, colour: str, high: float, scale: float,
          first: float, last: float) -> None:  # fmt: skip
    """Spans as bars, thin ones widened; where there are many, how much of each moment they cover."""
    if not len(begin):
        return
    least = (last - first) / 2500  # what can be seen
    if len(begin) > DENSE:
        edges, level = _parts(begin, end, first, last)
        low = y + high / 2
        axes.stairs(low - high * level, edges / scale, baseline=low, fill=True, color=colour, linewidth=0)
        return
    wide = np.maximum(end - begin, least)
    axes.broken_barh(list(zip(begin / scale, wide / scale, strict=True)), (y - high / 2, high), facecolors=colour,
                     edgecolors="white", linewidth=0.3)  # fmt: skip


def _parts(begin: np.ndarray, end: np.ndarray, first: float, last: float) -> tuple[np.ndarray, np.ndarray]:
    """The picture's width in equal steps, and how much of each such spans cover, 0 to 1."""
    edges = np.linspace(first, last, BINS + 1)
    return edges, np.diff(covered(union(begin, end), edges)) / np.diff(edges)


def _words(axes: Any, trace: Recorded, spans: np.ndarray, y: int, scale: float, whole: float) -> None:
    """Names in those calls that are long enough for them."""
    for row in spans[:DENSE]:
        name = trace.names[row["name"]]
        if (row["end"] - row["begin"]) / whole > 0.0085 * len(name):
            middle = (row["begin"] + row["end"]) / 2 / scale
            axes.text(middle, y, name, ha="center", va="center", fontsize=7, clip_on=True)


def _phases(axes: Any, y: int, spans: np.ndarray, red: np.ndarray, scale: float, first: float, last: float) -> None:
    kinds = [(spans["kind"] == WAIT, COLOURS[WAIT]), ((spans["kind"] == OTHER) & ~red, COLOURS[OTHER]),
             (spans["kind"] == TRANSFER, COLOURS[TRANSFER]), (red, MAPPED)]  # fmt: skip
    if len(spans) <= DENSE:
        for mine, colour in kinds:
            _bars(axes, y, spans["begin"][mine], spans["end"][mine], colour, 0.8, scale, first, last)
        return
    base = np.zeros(BINS)
    for mine, colour in (kinds[2], kinds[0], kinds[1], kinds[3]):
        edges, level = _parts(spans["begin"][mine], spans["end"][mine], first, last)
        if level.any():
            axes.stairs(y + 0.4 - 0.8 * (base + level), edges / scale, baseline=y + 0.4 - 0.8 * base, fill=True,
                        color=colour, linewidth=0)  # fmt: skip
            base += level


def _cores(pyplot: Any, trace: Recorded, other: Recorded | None, operation: str | None) -> tuple[Any, str]:
    """How long each core was busy, by die; of two traces side by side."""
    both = [trace] if other is None else [trace, other]
    found = []
    for t in both:
        calls, phases = link(t)
        if operation is not None:
            calls, phases = tables.only(t, calls, phases, operation)
        loads = {key: load for key, load in tables.core_loads(t, phases).items() if load[0] > 0}
        if not loads:
            raise InvalidArgument(f"{t.file}: no core was busy" + (f" in {operation}" if operation else ""))
        found.append(loads)
    dies = sorted({die for loads in found for die, _ in loads})
    cut, dies = len(dies), dies[:8]
    most = max(load[0] for loads in found for load in loads.values())
    scale, unit = _unit(most)
    columns = min(len(dies), 4)
    high = -(-len(dies) // columns)
    figure, grid = pyplot.subplots(high, columns, figsize=(max(2.9 * columns, 5), 2.5 * high + 0.7), sharey=True,
                                   squeeze=False, layout="constrained")  # fmt: skip
    for axes, die in zip(grid.flat, dies, strict=False):
        notes = []
        cores = sorted({core for loads in found for d, core in loads if d == die})
        for at, loads in enumerate(found):
            busy = np.array([loads.get((die, core), [0.0])[0] for core in cores])
            wide = 0.8 / len(found)
            colour = PAIR[at] if other is not None else COLOURS[TRANSFER]
            axes.bar(np.arange(len(cores)) - 0.4 + wide * (at + 0.5), busy / scale, wide, color=colour,
                     label=_about(both[at]) if die == dies[0] else None)  # fmt: skip
            if busy.sum() > 0:
                mean = busy[busy > 0].mean()
                axes.axhline(mean / scale, color=colour, linewidth=0.8, linestyle="--")
                notes.append(f"{busy.max() / mean:.2f}")
        axes.set_title(f"{trace.dies.get(die, f'die {die}')}: max/mean {' → '.join(notes)}")
        step = max(len(cores) // 8, 1)
        axes.set_xticks(range(0, len(cores), step), [str(core) for core in cores[::step]])
        axes.set_xlabel("core")
    for axes in grid.flat[len(dies) :]:
        axes.set_visible(False)
    for axes in grid[:, 0]:
        axes.set_ylabel(f"busy ({unit})")
    figure.legend(loc="outside upper left", ncols=2)
    return figure, f"cores of {len(dies)} dies" + (f"; {cut - len(dies)} more are left out" if cut > len(dies) else "")


def rate(begin: np.ndarray, end: np.ndarray, nbytes: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Bytes for each microsecond between the edges, each span's spread evenly over it."""
    end = np.maximum(end, begin + 1e-6)
    when = np.concatenate([begin, end])
    slope = nbytes / (end - begin)
    order = np.argsort(when, kind="stable")
    when, change = when[order], np.concatenate([slope, -slope])[order]
    level = np.r_[0.0, np.cumsum(np.cumsum(change)[:-1] * np.diff(when))]
    return np.asarray(np.diff(np.interp(edges, when, level)) / np.diff(edges))


def _bandwidth(pyplot: Any, trace: Recorded, other: Any, operation: str | None) -> tuple[Any, str]:
    """Bytes over time, by tier where the trace knows it, else by die; and by pair of dies while they moved any."""
    calls, phases = link(trace)
    if operation is not None:
        calls, phases = tables.only(trace, calls, phases, operation)
    spans = phases.spans
    spans = spans[(spans["kind"] == TRANSFER) & (spans["bytes"] > 0)]
    if not len(spans):
        where = f" in {operation}" if operation else ""
        raise InvalidArgument(f"{trace.file}: no phase says how many bytes it moved{where}")
    begin, end = float(spans["begin"].min()), float(spans["end"].max())
    scale, unit = _unit(end - begin)
    edges = np.linspace(begin, max(end, begin + 1e-3), 161)
    words = np.array([name.split() for name in trace.names], dtype=object)
    tier = np.array([w[1] if w[:1] == ["move"] and len(w) > 1 else "" for w in words])[spans["name"]]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2), width_ratios=[3, 2], layout="constrained")
    if (tier != "").any():
        by, groups = "tier", {name: tier == name for name in ("local", "sio", "l1", "l2") if (tier == name).any()}
    else:
        by, groups = "die", {trace.dies[die]: spans["die"] == die for die in sorted(trace.dies)[:6]}
    for colour, (name, mine) in zip(LINES, groups.items(), strict=False):
        values = rate(spans["begin"][mine], spans["end"][mine], spans["bytes"][mine].astype("f8"), edges) / 1e3
        label = f"{name}: {_size(spans['bytes'][mine].sum())}B"
        left.stairs(values, edges / scale, color=colour, label=label, linewidth=1.2)
    left.set(xlabel=f"time ({unit})", ylabel="GB/s, all dies" if by == "tier" else "GB/s, moved by the die")
    left.set_ylim(bottom=0)
    left.set_title(f"{_about(trace)}: by {by}", loc="left")
    left.legend()
    _pairs(figure, right, trace, spans)
    return figure, f"{_size(spans['bytes'].sum())}B by {by}, and by pair of dies"


def _pairs(figure: Any, axes: Any, trace: Recorded, spans: np.ndarray) -> None:
    """GB/s of each pair of dies while it moved bytes."""
    dies = sorted(trace.dies)
    place = {die: i for i, die in enumerate(dies)}
    spans = spans[np.isin(spans["peer"], dies) | (spans["peer"] == NO)]
    found = np.full((len(dies), len(dies)), np.nan)
    peers = np.where(spans["peer"] == NO, spans["die"], spans["peer"])
    pair = spans["die"].astype("i8") << 32 | peers
    order = np.argsort(pair, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(pair[order])) + 1) if len(order) else []:
        begin, end = union(spans["begin"][rows], spans["end"][rows])
        took = max(float((end - begin).sum()), 1e-6)
        found[place[int(spans["die"][rows[0]])], place[int(peers[rows[0]])]] = spans["bytes"][rows].sum() / took / 1e3
    image = axes.imshow(found, cmap="Blues", vmin=0)
    if len(dies) <= 10:
        middle = np.nanmax(found) * 0.6
        for (y, x), value in np.ndenumerate(found):
            if np.isfinite(value):
                colour = "white" if value > middle else "black"
                axes.text(x, y, f"{value:.3g}", ha="center", va="center", fontsize=8, color=colour)
    step = max(len(dies) // 8, 1)
    ticks = range(0, len(dies), step)
    axes.set_xticks(ticks, [str(dies[i]) for i in ticks])
    axes.set_yticks(ticks, [str(dies[i]) for i in ticks])
    axes.set(xlabel="with die (its own: local)", ylabel="moved by die")
    axes.set_title("GB/s of a pair while it moves", loc="left")
    for side in axes.spines.values():
        side.set_visible(False)
    figure.colorbar(image, ax=axes, label="GB/s", shrink=0.8)


def _sizes(pyplot: Any, trace: Recorded, other: Recorded | None, operation: str | None) -> tuple[Any, str]:
    """Time over bytes, by operation: medians, and up to the 99th percentile; another trace dashed."""
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    count = 0
    colours: dict[str, str] = {}
    for at, t in enumerate([trace] if other is None else [trace, other]):
        calls, _ = link(t)
        rows = [row for row in tables.operations(t, calls) if row["bytes_most"] > 0]
        rows = [row for row in rows if operation in (None, row["operation"])]
        for name in sorted({row["operation"] for row in rows}):
            mine = sorted((row for row in rows if row["operation"] == name), key=lambda row: row["bytes_most"])
            x = np.array([row["bytes_most"] for row in mine], "f8")
            y, top = (np.array([row[key] for row in mine]) for key in ("p50_us", "p99_us"))
            colour = colours.setdefault(name, LINES[len(colours) % len(LINES)])
            label = f"{name}, {'simulated' if t.about.get('clock') == 'simulated' else 'measured'}"
            style: dict[str, Any] = {"color": colour, "markersize": 3.5, "linewidth": 1.2}
            left.plot(x, y, "o-" if at == 0 else "s--", label=label, **style)
            left.fill_between(x, y, np.maximum(top, y), color=colour, alpha=0.15, linewidth=0)
            right.plot(x, x / np.maximum(y, 1e-9) / 1e3, "o-" if at == 0 else "s--", **style)
            count += len(mine)
    if not count:
        raise InvalidArgument(f"{trace.file}: no call says how many bytes it was given")
    for axes, what in ((left, "time of a call (us): median, shaded to p99"),
                       (right, "bytes given / median time (GB/s)")):  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: _size(value))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set(xlabel="bytes given", ylabel=what)
        axes.grid(True, which="major", alpha=0.3)
    left.legend()
    figure.suptitle(" and ".join(_about(t) for t in (trace, other) if t is not None), x=0.01, ha="left")
    return figure, f"{count} sizes of {len(colours)} operations"
