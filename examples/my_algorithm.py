"""An algorithm of one's own: a ring for all_gather, proved, run, and compared with numpy.

    strata-run -n 4 examples/my_algorithm.py
"""

import numpy as np

import strata
from strata.plan import PlanError, Spec, build
from strata.plan.user import check_algorithm


@strata.algorithm("all_gather", name="my_ring")
def my_ring(op, rank):
    """Step s: from the left neighbour, the block that it got in step s - 1."""
    left = (rank - 1) % op.ranks
    if not op.in_place:
        yield op.pull(rank, op.nbytes, src=op.src(), dst=rank * op.nbytes)
    for s in range(op.ranks - 1):
        block = (rank - 1 - s) % op.ranks
        src = op.src() if s == 0 else op.out(block * op.nbytes)
        wait = (left, s - 1) if s else None
        yield op.pull(left, op.nbytes, src=src, dst=block * op.nbytes, wait=wait, post=s, step=s)


@strata.algorithm("all_gather", name="my_hasty_ring")
def my_hasty_ring(op, rank):
    """The same without waits: it reads what its neighbour may not have yet."""
    for s in my_ring(op, rank):
        yield s._replace(wait=None)


@strata.algorithm("all_gather", name="my_stuck_ring")
def my_stuck_ring(op, rank):
    """The same, but nobody posts what others wait for."""
    for s in my_ring(op, rank):
        yield s._replace(post=None)


def main() -> None:
    g = strata.world()
    count = 100_000
    spec = Spec("all_gather", count, 4, nranks=g.size)
    if g.rank == 0:
        print(build(spec, 0, algorithm="my_ring").pretty())
        for name in ("my_ring", "my_hasty_ring", "my_stuck_ring"):
            try:
                check_algorithm(name, spec)
                print(f"{name}: proved for {g.size} members")
            except PlanError as error:
                print(f"{name}: {error}")
    x = strata.array(np.arange(count, dtype="f4") + g.rank)
    out = strata.empty(count * g.size, "f4")
    g.all_gather(x, out=out, algorithm="my_ring")
    want = np.concatenate([np.arange(count, dtype="f4") + r for r in range(g.size)])
    assert np.array_equal(out, want)
    if g.rank == 0:
        print("my_ring: as numpy has it")


if __name__ == "__main__":
    main()
