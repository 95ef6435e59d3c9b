"""Times and bandwidths, drawn."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from strata.cli.sim.cases import Case, Variant
from strata.errors import InvalidArgument, writing

KINDS = (".png", ".svg", ".pdf")
AXES = {"size": "bytes", "ranks": "ranks", "cores": "cores of a die"}


def check(file: str) -> None:
    """InvalidArgument for a kind of file that there is not, or if matplotlib is missing."""
    if Path(file).suffix.lower() not in KINDS:
        raise InvalidArgument(f"-o {file}: a name that ends in {', '.join(KINDS)} is expected")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise InvalidArgument("-o draws with matplotlib, which is not installed: pip install matplotlib") from None


def draw(file: str, rows: list[tuple[Case, dict[str, Any]]], total: bool) -> None:
    """Time and bus bandwidth over whatever varies: sizes, else ranks, else cores; a line for each variant."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    axis = next((a for a in AXES if len({_at(a, row) for _, row in rows}) > 1), "size")
    lines: dict[Variant, list[dict[str, Any]]] = {}
    for case, row in rows:
        changed: dict[str, Any] = {} if axis == "size" else {axis: 0}
        key = dataclasses.replace(case.variant, **changed)
        lines.setdefault(key, []).append(row)
    labels = list(lines)
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    for variant, found in lines.items():
        found.sort(key=lambda row: _at(axis, row))
        x = [_at(axis, row) for row in found]
        label = variant.label(labels)
        left.plot(x, [row["time_us"] for row in found], "o-", markersize=3, label=label)
        right.plot(x, [row["busbw_GBps"] for row in found], "o-", markersize=3, label=label)
    name = AXES[axis]
    if axis == "size":
        name = "bytes of the largest array of a rank" if total else "bytes of each rank's source"
    for side, what in ((left, "time (us)"), (right, "bus bandwidth (GB/s)")):
        if axis != "cores" and min(_at(axis, row) for _, row in rows) > 0:
            side.set_xscale("log", base=2)
            side.xaxis.set_major_formatter(lambda value, _: _size(value) if axis == "size" else f"{value:g}")
        side.set_xlabel(name)
        side.set_ylabel(what)
        side.grid(True, which="major", alpha=0.3)
    left.set_yscale("log")
    left.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    left.yaxis.set_minor_formatter("")
    right.set_ylim(bottom=0)
    left.legend()
    figure.suptitle(_title([case.variant for case, _ in rows], axis, rows[0][1]))
    with writing(file):
        figure.savefig(file, dpi=120)
    pyplot.close(figure)


def _at(axis: str, row: dict[str, Any]) -> int:
    return int(row[axis])


def _size(nbytes: float) -> str:
    """As "64K"."""
    for power, letter in ((30, "G"), (20, "M"), (10, "K")):
        if nbytes >= 1 << power:
            return f"{nbytes / (1 << power):g}{letter}"
    return f"{nbytes:g}"


def _title(variants: list[Variant], axis: str, row: dict[str, Any]) -> str:
    """What all have in common."""
    parts = []
    for name, form in (("operation", "{}"), ("ranks", "{} ranks"), ("machine", "machine {}")):
        if len({getattr(v, name) for v in variants}) == 1 and name != axis:
            parts.append(form.format(getattr(variants[0], name)))
    if axis != "size":
        parts.append(f"{row['size']} B")
    return ", ".join([*parts, "predicted"])
