"""What the tests of the timing plane share: machines of round figures, and plans for them."""

import numpy as np

from strata import machine
from strata.plan import Spec, algorithms, build
from strata.plan.records import DTYPE_NAMES, OP_NAMES
from strata.plan.spec import MODES, OPERATIONS

DTYPE, SUM = DTYPE_NAMES.index("f32"), OP_NAMES.index("sum")

CM384 = machine.load("cm384")

# No losses, no synchronisation, nothing but distance and rates: closed forms hold to the picosecond.
PLAIN = CM384.replace(
    **{
        "fanout.loss": 0.0, "sync.entry_us": 0.0, "sync.poll_us": 0.0, "core.issue_us": 0.0,
        **{f"tier.{tier}.seen_us": 0.0 for tier in ("local", "sio", "l1", "l2")},
    }
)  # fmt: skip
# One distance, and cores that ask for more than ports give.
FAST_CORES = {f"tier.{tier}.core_gbps": 1000.0 for tier in ("local", "sio", "l1", "l2")}


def spec(operation, nbytes, n, **more):
    """Of elements of one byte, or of f32 where something is reduced."""
    if operation in ("all_reduce", "reduce_scatter", "reduce"):
        return Spec(operation, nbytes // 4, 4, DTYPE, nranks=n, redop=SUM, **more)
    return Spec(operation, nbytes, 1, nranks=n, **more)


def plans(given, on=CM384, cores=24, **options):
    """Plans of all members, by the machine's cost and topology."""
    options = {"cost": on.cost, "topology": on.place, **options}
    return [build(given, m, cores, **options) for m in range(given.nranks)]


def every_case(n, nbytes, on=CM384):
    """(Spec, algorithm) of every operation, and of every algorithm that can do it."""
    found = []
    for operation in OPERATIONS:
        more = {}
        if operation == "all_to_all_v":
            more["counts"] = np.random.default_rng(n).integers(0, nbytes // 2 + 1, (n, n))
        given = spec(operation, 0 if more or operation == "barrier" else nbytes, n, **more)
        for mode in MODES:
            moded = given._replace(mode=mode)
            found += [(moded, a.name) for a in algorithms.available(moded, on.place)]
    return found
