"""One picture of a comparison: times per operation and n, and the ratio to the best peer."""

from versus_lib.report import STRATA, library, ours, size_name

COLORS = {"strata": "#c1272d", "mpich": "#2a6f97", "openmpi": "#e09f3e", "impi": "#588157", "gloo": "#7f7f7f"}
MARKS = {2: "o", 4: "s", 8: "D"}


def _fastest(cell, lib, names):
    """Median us of a library's best setting in a cell, or None."""
    found = [cell.median(n) for n in names if library(n) == lib and cell.median(n) is not None]
    return min(found) if found else None


def _times(ax, cells, op, n, names, libs):
    mine = [c for c in cells.values() if c.op == op and c.n == n]
    ax.set_yscale("log")
    for k, lib in enumerate(libs):
        points = [(c.bytes, _fastest(c, lib, names)) for c in mine]
        points = [p for p in points if p[1] is not None]
        if not points:
            continue
        if op == "barrier":
            ax.plot([k], [points[0][1]], "o", color=COLORS.get(lib, "black"), ms=9 if lib == STRATA else 7)
        else:
            ax.plot(*zip(*points, strict=True), color=COLORS.get(lib, "black"), marker=".", label=lib,
                    lw=2.2 if lib == STRATA else 1.2, zorder=3 if lib == STRATA else 2)
    if op == "barrier":
        ax.set_xticks(range(len(libs)), libs, rotation=45, ha="right", fontsize=8)
        ax.margins(x=0.3, y=0.3)
    elif mine:
        ax.set_xscale("log", base=2)
        _size_ticks(ax, [c.bytes for c in mine])
    ax.grid(alpha=0.25)


def _ratios(ax, cells, op, peers):
    mine = [c for c in cells.values() if c.op == op and c.ratio(peers) is not None]
    for k, n in enumerate(dict.fromkeys(c.n for c in mine)):
        points = [(c.bytes, c.ratio(peers)) for c in mine if c.n == n]
        if op == "barrier":
            ax.plot([k], [points[0][1]], MARKS.get(n, "x"), color="black", ms=4 + k)
        else:
            ax.plot(*zip(*points, strict=True), marker=MARKS.get(n, "x"), ms=4, color=str(0.6 - 0.3 * k),
                    label=f"n = {n}")
    ax.axhline(1.0, color=COLORS[STRATA], lw=1)
    ax.set_yscale("log", base=2)
    ax.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
    if op == "barrier":
        found = list(dict.fromkeys(c.n for c in mine))
        ax.set_xticks(range(len(found)), [f"n = {n}" for n in found], fontsize=8)
        ax.margins(x=0.4)
    elif mine:
        ax.set_xscale("log", base=2)
        _size_ticks(ax, [c.bytes for c in mine])
    ax.grid(alpha=0.25)


def _size_ticks(ax, sizes):
    sizes = sorted(set(sizes))
    ax.set_xticks(sizes, [size_name(s) for s in sizes], rotation=45, ha="right", fontsize=8)
    ax.minorticks_off()


def draw(path, cells, names, peers, title):
    """Write the picture. Rows: one per n, and the ratios if strata took part. Columns: operations."""
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    ops = list(dict.fromkeys(c.op for c in cells.values()))
    counts = list(dict.fromkeys(c.n for c in cells.values()))
    libs = list(dict.fromkeys(map(library, names)))
    versus = bool(ours(names) and peers)
    rows = len(counts) + versus
    fig, axes = plt.subplots(rows, len(ops), figsize=(3.1 * len(ops) + 0.8, 2.7 * rows + 0.9), squeeze=False,
                             layout="constrained")
    for column, op in enumerate(ops):
        axes[0][column].set_title(op)
        for row, n in enumerate(counts):
            _times(axes[row][column], cells, op, n, names, libs)
            if column == 0:
                axes[row][0].set_ylabel(f"n = {n}: us per call")
        if versus:
            _ratios(axes[-1][column], cells, op, peers)
            if column == 0:
                axes[-1][0].set_ylabel("best peer / strata\n(above 1: strata faster)")
    handles = [plt.Line2D([], [], color=COLORS.get(lib, "black"), lw=2, label=lib) for lib in libs]
    if versus:
        handles += [plt.Line2D([], [], color=str(0.6 - 0.3 * k), marker=MARKS.get(n, "x"),
                               label=f"ratio, n = {n}") for k, n in enumerate(counts)]
    fig.legend(handles=handles, loc="outside upper right", ncols=len(handles), frameon=False)
    fig.suptitle(title, x=0.01, ha="left", fontsize=10)
    fig.savefig(path, dpi=110)
    plt.close(fig)
