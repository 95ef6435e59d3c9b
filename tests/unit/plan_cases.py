"""What the tests of plans share: specs of all operations, and sets of plans."""

import numpy as np

from strata.plan import Spec, build
from strata.plan.records import DTYPE_BYTES, DTYPE_NAMES, OP_NAMES
from strata.plan.spec import MODES, OPERATIONS, REDUCTIONS, ROOTED, normal

SUM = OP_NAMES.index("sum")
PARTLY_IN_PLACE = ("all_gather", "all_reduce", "reduce_scatter", "broadcast", "reduce", "gather", "scatter")


def code(dtype: str) -> int:
    return DTYPE_NAMES.index(dtype)


def spec(operation: str, count: int, nranks: int, dtype: str = "f32", itemsize: int | None = None, **more) -> Spec:
    """A spec whose elements are ``dtype``, or raw ones of ``itemsize`` bytes."""
    number = code(dtype) if itemsize is None else 0
    size = DTYPE_BYTES[number] if itemsize is None else itemsize
    if operation in REDUCTIONS:
        more.setdefault("redop", SUM)
    if operation == "all_to_all_v":
        counts = np.random.default_rng(count + 1).integers(0, 2 * count + 1, (nranks, nranks))
        more.setdefault("counts", counts)
        count = 0
    if operation == "barrier":
        count = 0
    return Spec(operation, count, size, number, nranks=nranks, **more)


def plans(given: Spec, in_place: int = 0, cores: int = 1, **options) -> list:
    """Plans of all members; bit m of ``in_place``: member m works in place."""
    given = normal(given)
    able = given.operation in PARTLY_IN_PLACE
    return [
        build(given._replace(in_place=bool(able and in_place >> m & 1)), m, cores, **options)
        for m in range(given.nranks)
    ]


def every_operation(nranks: int, count: int, itemsizes=(1, 2, 4, 8, 16, 3)):
    """Specs of all operations and modes; raw elements of these sizes where nothing is reduced."""
    dtypes = {1: "i8", 2: "bf16", 4: "f32", 8: "i64", 16: "c128"}
    for operation in OPERATIONS:
        for mode in MODES:
            for root in sorted({0, nranks // 2, nranks - 1}) if operation in ROOTED else (0,):
                for size in itemsizes:
                    if operation in REDUCTIONS and size in dtypes:
                        yield spec(operation, count, nranks, dtypes[size], root=root, mode=mode)
                    elif operation not in REDUCTIONS:
                        yield spec(operation, count, nranks, itemsize=size, root=root, mode=mode)
