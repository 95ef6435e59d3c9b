"""One picture of a run: a panel a question."""

from versus_lib.report import size_name

from registration_lib import report

MODE = {"on_allocation": "#c1272d", "just_in_time": "#2a6f97", "pool": "#e09f3e", "static": "#7f7f7f"}
SHADES = ["#9ecae1", "#4292c6", "#2171b5", "#08306b"]
SMALL = ", small pages"


def color(name):
    return MODE.get(name.split(",")[0], "black")


def _sizes(ax, sizes):
    sizes = sorted(set(sizes))
    ax.set_xscale("log", base=2)
    ax.set_xticks(sizes, [size_name(s) for s in sizes], rotation=35, ha="right", fontsize=8)
    ax.minorticks_off()
    ax.set_xlabel("buffer")


def _mapped(ax, records):
    mine = report.pick(records, "mapped")
    ax.set_title("from allocation to mapped on all peers")
    sizes = report.values(mine, "bytes")
    for k, n in enumerate(report.values(mine, "n")):
        for name, style in (("huge pages", "-"), ("small pages", ":")):
            points = [(b, report.median(f, "all_us") / 1e3) for b in sizes
                      if (f := report.pick(mine, "mapped", n=n, bytes=b, contender=name))]
            ax.plot(*zip(*points, strict=True), style, color=SHADES[k % 4], marker=".", label=f"n = {n}, {name}")
    n = report.values(mine, "n")[0]
    points = [(b, report.median(report.pick(mine, "mapped", n=n, bytes=b, contender="huge pages"), "alloc_us") / 1e3)
              for b in sizes]
    ax.plot(*zip(*points, strict=True), "--", color=MODE["on_allocation"], label=f"the call itself (n = {n}, huge)")
    _sizes(ax, sizes)
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
    ax.set_ylabel("ms")
    ax.legend(fontsize=7)


def _first_by_n(ax, records, how, title):
    """Geometric mean over operations and sizes that all n have, by n."""
    grid = report.cells(records)
    counts = sorted({n for n, _, _ in grid})
    common = [key for key in dict.fromkeys((op, b) for _, op, b in grid) if all((n, *key) in grid for n in counts)]
    ax.set_title(title)
    for name in report.values(report.pick(records, "first"), "contender"):
        points = []
        for n in counts:
            ratios = [r for key in common if (r := report.first_ratio(records, name, how, n, *key)[0])]
            if ratios:
                points.append((n, report.gmean(ratios)))
        if points:
            ax.plot(*zip(*points, strict=True), ":" if name.endswith(SMALL) else "-", marker="o", ms=4,
                    color=color(name), label=name)
    ax.axhline(1.0, color="black", lw=0.8)
    ax.set_xscale("log", base=2)
    ax.set_xticks(counts, [str(n) for n in counts])
    ax.minorticks_off()
    ax.set_xlabel("dies (n)")
    ax.set_ylabel("time / the same buffer warm")
    ax.set_ylim(bottom=0)
    ax.legend(fontsize=7)


def _first_by_size(ax, records):
    grid = report.cells(records)
    n = max(n for n, _, _ in grid)
    op = grid[0][1]
    sizes = sorted({b for m, o, b in grid if (m, o) == (n, op)})
    ax.set_title(f"{op}, n = {n}: alloc + use at once")
    for name in report.values(report.pick(records, "first"), "contender"):
        points = [(b, report.median(f, "us") / 1e3) for b in sizes
                  if (f := report.pick(records, "first", n=n, op=op, bytes=b, contender=name, how="at_once"))]
        if points:
            ax.plot(*zip(*points, strict=True), ":" if name.endswith(SMALL) else "-", marker=".", color=color(name),
                    label=name)
    _sizes(ax, sizes)
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
    ax.yaxis.set_minor_formatter(lambda y, _: "")
    ax.set_ylabel("ms")
    ax.legend(fontsize=7)


def _check(ax, records):
    mine = report.pick(records, "check")
    ax.set_title("phase 2, ready")
    for k, n in enumerate(report.values(mine, "n")):
        points = [(b, report.median(f, "ns")) for b in report.values(mine, "bytes")
                  if (f := report.pick(mine, "check", n=n, bytes=b))]
        ax.plot(*zip(*points, strict=True), marker=".", color=SHADES[k % 4], label=f"n = {n}")
    ax.axhline(report.CHECK_NS, color=MODE["on_allocation"], lw=1, label=f"{report.CHECK_NS:g} ns")
    _sizes(ax, report.values(mine, "bytes"))
    ax.set_ylim(bottom=0)
    ax.set_ylabel("ns a peer")
    ax.legend(fontsize=7)


def _publish(ax, records):
    mine = report.pick(records, "publish")
    ax.set_title("one page: allocated to mapped at a peer")
    for k, n in enumerate(report.values(mine, "n")):
        found = sorted(r["from_call_us"] for r in report.pick(mine, "publish", n=n))
        ax.plot(found, [100 * (i + 1) / len(found) for i in range(len(found))], color=SHADES[k % 4], label=f"n = {n}")
    found = [r["from_call_us"] for r in mine]
    ax.set_xlim(min(found) * 0.9, report.quantile(found, 0.99) * 1.1)      # the tail is in the table
    ax.set_xlabel("us from the begin of the call (record to mapped: in the table)")
    ax.set_ylabel("% of pages")
    ax.legend(fontsize=7)


def _bars(ax, names, heights, texts, unit, title):
    ax.set_title(title)
    at = range(len(names))
    ax.barh(at, heights, color=[color(n) for n in names],
            hatch=["//" if "no cache" in n or "needed" in n else "" for n in names], edgecolor="white")
    for y, (h, text) in enumerate(zip(heights, texts, strict=True)):
        ax.text(max(h, 0), y, f" {text}", va="center", fontsize=8)
    ax.set_yticks(at, names, fontsize=8)
    ax.invert_yaxis()
    ax.set_xlim(0, 1.7 * max(heights))
    ax.set_axisbelow(True)
    ax.set_xlabel(unit)


def _moe(ax, records):
    mine = report.pick(records, "moe")
    n = report.values(mine, "n")[0]
    names = report.values(report.pick(mine, "moe", n=n), "contender")
    figures = {name: report.moe_figures(records, n, name) for name in names}
    _bars(ax, names, [figures[k]["us"] / 1e3 for k in names],
          [f"{100 * (figures[k]['ratio'] - 1):+.1f} %, {100 * figures[k]['late']:.0f} % late" if figures[k]["ratio"]
           else "" for k in names], "ms a step (text: against static; steps that mapped late)",
          f"loop of changing buffers, n = {n}")


def _waste(ax, records):
    mine = report.pick(records, "waste")
    n = report.values(mine, "n")[0]
    names = report.values(report.pick(mine, "waste", n=n), "contender")
    found = [report.waste_figures(records, n, name) for name in names]
    _bars(ax, names, [f["unused"] / 2**20 for f in found], [f"of {report.mib(f['reserved'])}" for f in found],
          "MiB a die, mean (text: most reserved)", f"reserved and not used, n = {n}")


def _cpu(ax, records):
    mine = report.pick(records, "mapping_cpu")
    names = [(n, c) for n in report.values(mine, "n") for c in report.values(mine, "contender")]
    found = [report.pick(mine, "mapping_cpu", n=n, contender=c) for n, c in names]
    heights = [1e3 * report.median(f, "map_s") for f in found]
    rest = report.pick(records, "idle")
    idle = f"; idle: {report.median(rest, 'cpu_us_per_s'):.0f} us a second" if rest else ""
    ax.set_title("the registrar's CPU time" + idle)
    ax.bar(range(len(names)), heights, color=[SHADES[2] if "huge" in c else SHADES[0] for _, c in names])
    for x, h in enumerate(heights):
        ax.text(x, h, f"{h:.3g}", ha="center", va="bottom", fontsize=8)
    ax.set_xticks(range(len(names)), [f"n = {n}\n{c.split()[0]}" for n, c in names], fontsize=7)
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
    ax.margins(y=0.2)
    ax.set_ylabel("ms a GiB mapped (huge, small pages)")


PANELS = (
    ("mapped", _mapped),
    ("first", lambda ax, r: _first_by_n(ax, r, "ready", "first collective on a fresh buffer, peers ready")),
    ("first", _first_by_size),
    ("check", _check),
    ("publish", _publish),
    ("moe", _moe),
    ("waste", _waste),
    ("mapping_cpu", _cpu),
)


def draw(path, records):
    """Write the picture: the panels that there are records of."""
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels = [paint for kind, paint in PANELS if report.pick(records, kind)]
    columns = min(4, max(1, len(panels)))
    rows = -(-len(panels) // columns) or 1
    fig, axes = plt.subplots(rows, columns, figsize=(5.2 * columns, 3.9 * rows + 0.6), squeeze=False,
                             layout="constrained")
    flat = list(axes.flat)
    for ax, paint in zip(flat, panels, strict=False):
        ax.grid(alpha=0.25)
        paint(ax, records)
    for ax in flat[len(panels):]:
        ax.axis("off")
    fig.suptitle("strata: what registration costs\n" + report.machine_lines(records)[0], x=0.01, ha="left", fontsize=10)
    fig.savefig(path, dpi=110)
    plt.close(fig)
