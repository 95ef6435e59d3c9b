"""Loops that allocate and free over and over, and what they may leave: nothing."""

import ctypes
import gc

import numpy as np
from registration_levels import PAGE, descriptors, lines, mapped, memory, settled, space_bytes
from registration_play import view

import strata
from strata import bootstrap


def moe(group, seed, steps):
    """A mixture of experts: rows go to experts on all dies and back, other numbers of them each step."""
    rng, n, me = np.random.default_rng(seed), group.size, group.rank
    for step in range(steps):
        counts = rng.integers(0, 1 + int(rng.choice([5, 400, 3000])), (n, n))
        tokens = strata.empty((int(counts[me].sum()), 64), "f4")
        tokens[:] = np.repeat(np.arange(n), counts[me])[:, None] + n * me + step
        got = group.all_to_all_v(tokens, counts[me].tolist())
        wanted = np.repeat(np.arange(n), counts[:, me])[:, None] * n + me + step
        assert got.shape == (wanted.size, 64) and (got == wanted).all(), f"step {step}: rows that came"
        hidden = strata.empty_like(got)
        np.multiply(got, 2, out=hidden)
        back = group.all_to_all_v(hidden, counts[:, me].tolist())
        assert (back == 2 * tokens).all(), f"step {step}: rows that came back"


def cycles(group, count, nbytes):
    """Allocates, writes, lets the next die read, and frees, ``count`` times.  What is wrong, if anything."""
    n, me = group.size, group.rank
    for k in range(count):
        x = strata.empty(nbytes, "u1")
        x[:] = (k * n + me) % 251
        at = group.all_gather(np.array([strata.address(x)]), np.empty((n, 1), "i8")).ravel()
        group.barrier()
        right = (me + 1) % n
        seen = view(int(at[right]), nbytes)[:: PAGE // 4]
        assert (seen == (k * n + right) % 251).all(), f"cycle {k}: stale bytes of die {right}: {np.unique(seen)}"
        group.barrier()
        del x, seen


def measure(group):
    """What this die has, with nothing allocated: a dict of numbers.

    ``rss``, ``pss``, ``space`` (bytes that the UB space takes of its file system), ``descriptors``,
    ``mappings`` (lines of /proc/self/maps), ``window`` (pages that are mapped in it), ``frames`` (in use),
    ``log`` (records that it has written), ``lag`` (records of peers that it has not followed).
    """
    context = bootstrap.context()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what the C library keeps for later is nobody's
    strata.empty_cache()
    group.barrier()
    settled(context, 0, quarantine=0)
    group.barrier()
    rss, pss = memory()
    found = {
        "rss": rss, "pss": pss, "space": space_bytes(context), "descriptors": descriptors(), "mappings": lines(),
        "window": sum(mapped(context)), "frames": context.hbm_bytes // PAGE - context.frames_left,
        "log": context.die_info(context.rank)["log_head"], "lag": context.lag(),
    }  # fmt: skip
    group.barrier()
    return found
