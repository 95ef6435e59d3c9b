"""Pictures of a comparison: colours of Okabe and Ito, and a mark for each line, so that none needs its colour."""

import math

from versus_lib.report import STRATA, library, of_limit, ours, size_name

STYLE = {   # colour, mark, line
    "limit": ("#000000", "", (0, (2, 1.5))),
    "strata": ("#0072b2", "o", "-"),
    "mpich": ("#cc79a7", "s", "--"),
    "openmpi": ("#e69f00", "^", "-."),
    "impi": ("#009e73", "D", "--"),
    "gloo": ("#56b4e9", "v", ":"),
}


def pyplot():
    """matplotlib, set so that the same records make the same file."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "strata", "font.size": 9, "axes.titlesize": 10,
                                "axes.spines.top": False, "axes.spines.right": False})
    from matplotlib import pyplot as plt

    return plt


def save(figure, path):
    """By the name's ending; SVG without a date."""
    more = {"metadata": {"Date": None}} if str(path).endswith(".svg") else {}
    figure.savefig(path, dpi=110, facecolor="white", **more)


def lines_of(found, op, n, names, limits):
    """{who: [(bytes, us)]} of a panel: each library by its best setting, and the limit."""
    mine = sorted((c for c in found.values() if c.op == op and c.n == n and c.bytes), key=lambda c: c.bytes)
    out = {}
    if limits:
        out["limit"] = [(c.bytes, limits.cell_us(op, c.bytes, n)) for c in mine]
    for lib in dict.fromkeys(map(library, names)):
        best = [(c.bytes, c.best([x for x in names if library(x) == lib])) for c in mine]
        out[lib] = [(nbytes, b[1]) for nbytes, b in best if b]
    return {who: points for who, points in out.items() if points}


def times(path, found, n, names, limits):
    """Time over size, a panel for each operation. False if there is nothing to draw."""
    ops = list(dict.fromkeys(c.op for c in found.values() if c.n == n and c.bytes))
    if not ops:
        return False
    plt = pyplot()
    columns = min(3, len(ops))
    rows = -(-len(ops) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(3.3 * columns, 2.6 * rows + 0.7), squeeze=False,
                                layout="constrained")
    shown = {}
    for ax, op in zip(axes.flat, ops, strict=False):
        for who, points in lines_of(found, op, n, names, limits).items():
            colour, mark, dash = STYLE.get(who, ("#777777", "x", "-"))
            (shown[who],) = ax.plot(*zip(*points, strict=True), color=colour, marker=mark, ls=dash, ms=4.5,
                                    lw=2.2 if who == STRATA else 1.3, zorder=4 if who == STRATA else 2)
        sizes = sorted({c.bytes for c in found.values() if c.op == op and c.n == n and c.bytes})
        ax.set(title=f"{op} (one way)" if op == "sendrecv" else op, xscale="log", yscale="log")
        ax.set_xticks(sizes, [size_name(s) for s in sizes], rotation=35, ha="right", fontsize=8)
        ax.minorticks_off()
        ax.grid(alpha=0.3, lw=0.6)
    for ax in list(axes.flat)[len(ops):]:
        ax.set_visible(False)
    for row in axes:
        row[0].set_ylabel("us")
    figure.legend(shown.values(), shown, loc="outside upper center", ncols=len(shown), frameon=False, handlelength=3)
    save(figure, path)
    plt.close(figure)
    return True


def heat(ax, found, n, value, text, colours, norm):
    """One panel: operations down, sizes across, the value in each field."""
    from matplotlib.patches import Rectangle

    mine = [c for c in found.values() if c.n == n]
    ops = list(dict.fromkeys(c.op for c in mine))
    sizes = sorted({c.bytes for c in mine if c.bytes}) or [0]
    for cell in mine:
        x, y = sizes.index(cell.bytes) if cell.bytes else 0, ops.index(cell.op)
        if (v := value(cell)) is None:
            continue
        colour = colours(norm(v))
        ax.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, edgecolor="white"))
        luminance = 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2]
        ax.text(x, y, text(v), ha="center", va="center", fontsize=8, color="white" if luminance < 0.5 else "black")
    ax.set(xlim=(-0.5, len(sizes) - 0.5), ylim=(len(ops) - 0.5, -0.5))
    ax.set_xticks(range(len(sizes)), [size_name(s) for s in sizes], rotation=35, ha="right", fontsize=8)
    ax.set_yticks(range(len(ops)), [f"{op} (no size)" if op == "barrier" else op for op in ops], fontsize=8)
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)


def short(value):
    """At most four characters."""
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def overview(path, found, names, peers, limits):
    """Ratios to the best peer, and beside them what is reached of the limit: panels for each n."""
    plt = pyplot()
    counts = list(dict.fromkeys(c.n for c in found.values()))
    what = []
    if ours(names) and peers:
        what.append(("best peer / strata\n(above 1: strata is faster)", lambda c: c.ratio(peers), short,
                     plt.get_cmap("PuOr"), lambda v: 0.5 + math.log2(min(max(v, 0.25), 4)) / 4))
    if ours(names) and limits:
        what.append(("of the machine's limit, %", lambda c: of_limit(c, limits), lambda v: f"{100 * v:.0f}",
                     plt.get_cmap("cividis"), lambda v: min(v, 1.0)))
    if not what:
        return False
    widest = max(len({c.bytes for c in found.values() if c.n == n and c.bytes}) for n in counts)
    most = max(len({c.op for c in found.values() if c.n == n}) for n in counts)
    inches = ((0.5 * max(widest, 3) + 1.3) * len(what) + 0.3, (0.29 * most + 0.6) * len(counts) + 0.5)
    figure, axes = plt.subplots(len(counts), len(what), squeeze=False, layout="constrained", figsize=inches)
    for row, n in zip(axes, counts, strict=True):
        for ax, (title, value, text, colours, norm) in zip(row, what, strict=True):
            heat(ax, found, n, value, text, colours, norm)
            if n == counts[0]:
                ax.set_title(title)
        row[0].set_ylabel(f"n = {n}", fontsize=10)
    save(figure, path)
    plt.close(figure)
    return True
