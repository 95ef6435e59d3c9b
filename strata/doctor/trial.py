"""The self-test's job: each die joins, reduces, and leaves.  Run by ``strata doctor`` under strata-run."""

import sys

from strata import comm, job
from strata.fabric import arrays


def main() -> int:
    """0 if the sum is right."""
    group = comm.world()
    x = arrays.full((1024,), group.rank + 1.0)
    group.all_reduce(x)
    group.barrier()
    right = bool((x == group.size * (group.size + 1) / 2).all())
    job.finalize()
    if group.rank == 0:
        print("well" if right else f"the sum is wrong: {x[:4]}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
