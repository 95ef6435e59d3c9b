"""Algorithms of other libraries' files, and users' own, on real dies: exact for integers."""

import msccl_files
import mscclpp_files
import numpy as np

import strata
from strata.dtypes import OP_CODES
from strata.plan import PlanError, Spec, algorithms, build, verify
from strata.plan.interchange import msccl_xml, mscclpp_json
from strata.plan.records import DTYPE_NAMES
from strata.plan.spec import normal

COUNTS = (1, 17, 1003, 100_003)


def values(rank, count):
    return (np.arange(count) * (rank + 3) % 251 - 100).astype(np.int32)


def register(n):
    """On every die, before the first use: names of all_reduce and of all_gather algorithms."""
    found = {}
    for parse, text in (
        (msccl_xml.parse, msccl_files.allpairs_allreduce(n)),
        (msccl_xml.parse, msccl_files.ring_allgather(n)),
        (mscclpp_json.parse, mscclpp_files.ring_allreduce(n)),
        (mscclpp_json.parse, mscclpp_files.allpairs_allreduce(n)),
        (mscclpp_json.parse, mscclpp_files.put_allgather(n)),
    ):
        algorithm = algorithms.register(parse(text))
        (operation,) = algorithm.operations
        found.setdefault(operation, []).append(algorithm.name)
    return found


def play(group):
    n, rank = group.size, group.rank
    found = register(n)
    assert [len(found[op]) for op in ("all_reduce", "all_gather")] == [3, 2]
    for count in COUNTS:
        everyone = [values(r, count) for r in range(n)]
        for name in found["all_reduce"]:
            x = strata.empty(count, np.int32)
            x[:] = everyone[rank]
            group.all_reduce(x, algorithm=name)
            assert np.array_equal(x, np.sum(everyone, axis=0, dtype=np.int32)), (name, count)
        for name in found["all_gather"]:
            x, out = strata.empty(count, np.int32), strata.empty(count * n, np.int32)
            x[:] = everyone[rank]
            group.all_gather(x, out, algorithm=name)
            assert np.array_equal(out, np.concatenate(everyone)), (name, count)
    group.barrier()
    return found


def test_files_of_msccl_and_mscclpp_run(peers):
    assert len({str(found) for found in peers.run(play)}) == 1


def users_own(group):
    @strata.algorithm("all_gather", name="my_ring")
    def my_ring(op, rank):
        left = (rank - 1) % op.ranks
        if not op.in_place:
            yield op.pull(rank, op.nbytes, src=op.src(), dst=rank * op.nbytes)
        for s in range(op.ranks - 1):
            block = (rank - 1 - s) % op.ranks
            src = op.src() if s == 0 else op.out(block * op.nbytes)
            wait = (left, s - 1) if s else None
            yield op.pull(left, op.nbytes, src=src, dst=block * op.nbytes, wait=wait, post=s, step=s)

    for count in COUNTS:
        x, out = strata.empty(count, np.int32), strata.empty(count * group.size, np.int32)
        x[:] = values(group.rank, count)
        group.all_gather(x, out, algorithm="my_ring")
        assert np.array_equal(out, np.concatenate([values(r, count) for r in range(group.size)])), count
    group.barrier()


def test_a_users_algorithm_runs(peers):
    peers.run(users_own)


def test_plans_are_built_without_dies():
    name = register(3)["all_reduce"][1]
    spec = normal(Spec("all_reduce", 1003, 4, DTYPE_NAMES.index("i32"), OP_CODES["sum"], nranks=3))
    plans = [build(spec, rank, algorithm=name) for rank in range(3)]
    assert {plan.algorithm for plan in plans} == {name} and all(plan.scratch for plan in plans)
    assert verify(plans)


def renamed(group):
    """The body that has a name now is the one that runs."""

    def whole(op, rank, first=0):
        for peer in range(first, op.ranks):
            if peer != rank or not op.in_place:
                yield op.pull(peer, op.nbytes, src=op.src(), dst=peer * op.nbytes)

    def partial(op, rank):
        return whole(op, rank, 1)

    x = strata.full(2000, group.rank, "i4")
    for body, right in ((partial, False), (whole, True), (partial, False)):
        strata.algorithm("all_gather", name="given_again")(body)
        try:
            out = group.all_gather(x, algorithm="given_again")
        except PlanError:
            assert not right
        else:
            assert right and (out == np.arange(group.size)[:, None]).all()


def test_a_name_may_be_given_to_another_algorithm(trio):
    trio.run(renamed)
