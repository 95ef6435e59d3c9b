"""How far figures of several rounds are from others', and what of it may be chance."""

import math
import statistics
from functools import cache

EXACT = 40      # values of one side; for more, U is as good as normal


def geometric_mean(values):
    values = list(values)
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


@cache
def _below(m, n):
    """[u]: number of ways in which of m and n values, all different, u pairs are in the wrong order."""
    if m == 0 or n == 0:
        return (1,)
    # The largest of all is one of the m (then it is above all n) or one of the n.
    a, b = _below(m - 1, n), _below(m, n - 1)
    ways = [0] * (m * n + 1)
    for u, count in enumerate(a):
        ways[u + n] += count
    for u, count in enumerate(b):
        ways[u] += count
    return tuple(ways)


def _cut(m, n, alpha):
    """(the most pairs u in the wrong order that are so few only with a chance below alpha / 2, that chance doubled)."""
    if max(m, n) > EXACT:
        z = statistics.NormalDist().inv_cdf(1 - alpha / 2)
        return math.floor(m * n / 2 - z * math.sqrt(m * n * (m + n + 1) / 12)) - 1, alpha
    ways = _below(m, n)
    total, tail, cut = sum(ways), 0, -1
    for u, count in enumerate(ways):
        if 2 * (tail + count) > alpha * total:
            break
        tail, cut = tail + count, u
    return cut, 2 * tail / total


def interval(old, new, confidence=0.95):
    """(new / old, its interval, and the interval's own confidence); the last two None if there are too few rounds.

    The ratio is the median of all ratios of a new value to an old one; the interval goes from one of these
    to another, by the distribution of Mann and Whitney's U. It takes nothing for granted but that rounds are
    independent and that the change is a factor. (Hodges and Lehmann 1963; Moses 1965.)
    """
    ratios = sorted(b / a for a in old for b in new)
    cut, chance = _cut(len(old), len(new), 1 - confidence)
    if cut < 0:
        return statistics.median(ratios), None, None
    return statistics.median(ratios), (ratios[cut], ratios[-1 - cut]), 1 - chance
