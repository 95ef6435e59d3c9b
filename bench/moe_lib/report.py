"""Tables of bench/moe.py."""

from __future__ import annotations

from typing import Any

from .measure import Task

Rows = list[dict[str, Any]]


def _times(task: Task, rows: Rows) -> str:
    """Milliseconds and microseconds per token by system, and what it moves; phases of the baseline below."""
    lines = ["  system             dispatch ms   combine ms   us/token   KiB read   KiB written   (both, per token)"]
    for row in rows:
        read, written = (sum(row[f"{part}_{what}"] for part in ("dispatch", "combine")) for what in ("read", "written"))
        both = row["dispatch"] + row["combine"]
        lines.append(f"  {row['system']:18} {row['dispatch'] * 1e3:11.1f} {row['combine'] * 1e3:12.1f} "
                     f"{both / task.tokens * 1e6:10.1f} {read / 1024:10.1f} {written / 1024:13.1f}")  # fmt: skip
    fresh, old = rows[0], rows[-1]
    ratios = [old[part] / fresh[part] for part in ("dispatch", "combine")]
    lines.append(f"  staged / strata    {ratios[0]:11.2f} {ratios[1]:12.2f}")
    phases = [name for name in old if name in ("pack", "spread", "all_to_all_v", "gather", "sum")]
    lines.append("  of staged: " + ", ".join(f"{name} {old[name] * 1e3:.1f} ms" for name in phases))
    return "\n".join(lines)


def _title(task: Task, what: str) -> str:
    return (f"{what}: {task.tokens} tokens a die, hidden {task.hidden}, top-{task.topk} of {task.experts} experts, "
            f"{task.rounds} rounds")


def high(task: Task, rows: Rows) -> str:
    return f"{_title(task, 'high throughput')}\n{_times(task, rows)}"


def low(task: Task, rows: Rows) -> str:
    return f"{_title(task, 'low latency')}\n{_times(task, rows)}"


def partition(task: Task, rows: Rows) -> str:
    lines = [f"{_title(task, 'partition')}, Zipf {task.zipf:g}, {task.cores} cores",
             "low latency has an eighth of the tokens",
             "                                            busiest core / mean     model / bound, us        measured",
             "                              partition    worst die    median    of the slowest die          ms"]
    for row in rows:
        for part in ("dispatch", "combine"):
            model = f"{row[f'{part}_model_us']:.0f} / {row[f'{part}_bound_us']:.0f}"
            lines.append(f"  {row['mode']:16} {part:9} {row['system']:10} {row[f'{part}_spread']:12.3f} "
                         f"{row[f'{part}_spread_median']:9.3f} {model:>21} {row[part] * 1e3:11.1f}")  # fmt: skip
    return "\n".join(lines)


def rounds(task: Task, rows: Rows) -> str:
    lines = [_title(task, "changing routing"),
             "           waited for pages   us a round   MiB, most until a third's end: in use      reserved"]
    for row in rows:
        memory = [row[f"{name}_{k}"] / (1 << 20) for name in ("used", "reserved") for k in range(3)]
        lines.append(f"  {row['system']:8} {row['waited']:16.1%} {row['wait_us']:12.1f}                         "
                     + " ".join(f"{value:6.0f}" for value in memory))
    return "\n".join(lines)
