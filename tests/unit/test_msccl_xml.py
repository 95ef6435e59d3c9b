"""MSCCL XML: known algorithms are read, run by the reference executor and compared; wrong files are refused."""

import random
import re

import msccl_files as files
import numpy as np
import plan_cases as cases
import pytest
from foreign import deliver
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.errors import InvalidArgument
from strata.exec import reference
from strata.plan import algorithms, build
from strata.plan.interchange import msccl_write, msccl_xml
from strata.plan.spec import normal
from strata.plan.topology import HOST


@pytest.mark.parametrize("name", files.ALL)
@pytest.mark.parametrize("count", [0, 1, 17, 1003])
def test_known_algorithms_deliver(name, count):
    make, sizes = files.ALL[name]
    for n in sizes:
        algorithm = algorithms.register(msccl_xml.parse(make(n)))
        for in_place in (0, (1 << n) - 1, 0b0110_0101):
            for dtype, op in (("f32", "sum"), ("bf16", "avg")):
                deliver(algorithm, count, dtype, op, in_place, cores=1 + count % 2, seed=count * n)


def test_sums_are_rounded_once():
    """1 + 3 x 2**-9 in bf16: each addition alone is lost, or rounded by itself."""
    algorithm = algorithms.register(msccl_xml.parse(files.ring_allreduce(4)))
    spec = cases.spec("all_reduce", 64, 4, "bf16")
    plans = cases.plans(spec, algorithm=algorithm.name)
    kind = reference.numpy_dtype(spec.dtype)
    sources = [np.full(64, 1 if r == 0 else 2**-9, kind) for r in range(4)]
    outs = [np.zeros(64, kind) for _ in plans]
    reference.run(plans, [reference.buffers(s, o, p.scratch) for s, o, p in zip(sources, outs, plans, strict=True)])
    for out in outs:
        assert (out == kind.type(np.float32(1 + 3 * 2**-9))).all() and (out != kind.type(1)).all()


@pytest.mark.parametrize(
    "pattern, new, what",
    [
        ('coll="allreduce"', 'coll="magic"', "coll is 'magic'"),
        ('ngpus="4"', 'ngpus="5"', "each of 0 to 4 once"),
        ('ngpus="4"', 'ngpus="many"', "ngpus is 'many'"),
        ('nchunksperloop="4"', 'nchunksperloop="99999999"', "nchunksperloop is 99999999"),
        ('type="rrs"', 'type="zap"', "gpu 0 tb 0 step 1: type is 'zap'"),
        ('srcoff="0"', 'srcoff="9"', "gpu 0 tb 0 step 0: srcbuf 'i' has no chunks 9"),
        ('srcbuf="i"', 'srcbuf="q"', "srcbuf 'q'"),
        ('cnt="1"', 'cnt="0"', "cnt is 0"),
        ('type="s"', 'type="nop"', "sends"),
        ('send="1"', 'send="-1"', "send is -1"),
        ('send="1"', 'send="4"', "send is 4"),
        ('recv="3"', 'recv="2"', "receives"),
        ('type="rrcs"', 'type="rcs"', "output chunk"),
        ('type="rrs"', 'type="rcs"', "output chunk"),
        ('depid="-1" deps="-1"', 'depid="7" deps="0"', "depends on tb 7 step 0"),
        ('depid="-1" deps="-1"', 'depid="0" deps="3"', "waits for itself"),
        ('s="1"', 's="7"', "is not step 1"),
        ("<algo", "<algorithm", "mismatched tag"),
        ("<algo ", "<!DOCTYPE x><algo ", "document type"),
    ],
)
def test_errors_say_what_is_wrong_where(pattern, new, what):
    text = files.ring_allreduce(4).decode()
    assert pattern in text
    with pytest.raises(InvalidArgument, match=re.escape(what)):
        msccl_xml.parse(text.replace(pattern, new, 1).encode())


def test_accesses_in_no_order_are_refused():
    text = files.doubling_allgather(4).decode()
    broken = re.sub('depid="0" deps="1"', 'depid="-1" deps="-1"', text)
    with pytest.raises(InvalidArgument, match="in no order|nothing was written|ends with"):
        msccl_xml.parse(broken.encode())
    text = files.allpairs_allreduce(3).decode()
    broken = re.sub(r'(type="re".*)depid="\d+" deps="\d+"', r'\1depid="-1" deps="-1"', text)
    with pytest.raises(InvalidArgument, match="in no order|nothing was written"):
        msccl_xml.parse(broken.encode())


def test_it_is_for_its_number_of_ranks_and_keeps_the_librarys_names():
    algorithm = algorithms.register(msccl_xml.parse(files.ring_allgather(4)))
    with pytest.raises(InvalidArgument, match="4 ranks, not 3"):
        build(cases.spec("all_gather", 8, 3), 0, algorithm=algorithm.name)
    with pytest.raises(InvalidArgument, match="library's own"):
        algorithms.register(msccl_xml.parse(files.ring_allgather(4).replace(b'"ring_ag"', b'"full_mesh"')))


@settings(max_examples=90, deadline=None)
@given(st.sampled_from(sorted(files.ALL)), st.integers(0, 1 << 32))
def test_a_changed_file_is_refused_or_still_delivers(name, seed):
    make, sizes = files.ALL[name]
    chance = random.Random(seed)
    lines = make(sizes[-1] if sizes[-1] < 6 else sizes[1]).decode().splitlines()
    for _ in range(chance.randint(1, 2)):
        at = chance.randrange(len(lines))
        numbers = list(re.finditer(r'"-?\d+"', lines[at]))
        if numbers and chance.random() < 0.8:
            one = chance.choice(numbers)
            value = chance.choice((-1, 0, 1, 2, 3, 1 << 40))
            lines[at] = f'{lines[at][: one.start()]}"{value}"{lines[at][one.end() :]}'
        else:
            del lines[at]
    try:
        algorithm = algorithms.register(msccl_xml.parse("\n".join(lines).encode()))
    except InvalidArgument as error:
        assert str(error)
        return
    deliver(algorithm, 70, seed=seed)


WRITTEN = [
    (name, operation)
    for operation in msccl_write.COLLECTIVES
    for name in ("full_mesh", "ring", "zerocopy_ring", "rhd", "pat", "bruck", "hierarchical", "staged")
    if operation in algorithms.find(name).operations and (name, operation) != ("staged", "all_reduce")
]


@pytest.mark.parametrize("name, operation", WRITTEN)
def test_plans_are_written_and_read_again(name, operation):
    """What was written of one size is proved as it is read, and right for other sizes and dtypes."""
    for n in (1, 2, 3, 5, 8):
        spec = normal(cases.spec(operation, 64 * n, n))
        if algorithms.find(name).refusal(spec, HOST) is not None:
            continue
        plans = cases.plans(spec, algorithm=name)
        algorithm = algorithms.register(msccl_xml.parse(msccl_write.write(plans).encode()))
        assert algorithm.name == f"{name}_msccl"
        for count in (1, 203):
            deliver(algorithm, count, seed=n)


def test_what_cannot_be_written_is_named():
    for spec, in_place, what in (
        (cases.spec("broadcast", 16, 2), 0, "not of broadcast"),
        (cases.spec("all_gather", 16, 2), 3, "in place"),
        (cases.spec("all_gather", 16, 2, mode="mailbox"), 0, "mailboxes"),
        (cases.spec("all_reduce", 16, 2, "bf16"), 0, "float32"),
    ):
        with pytest.raises(InvalidArgument, match=what):
            msccl_write.write(cases.plans(spec, in_place))
    for name, what in (("atomic", "die 0 slice 1: atomic"), ("staged", "waiting for gpu 1")):
        with pytest.raises(InvalidArgument, match=what):
            msccl_write.write(cases.plans(cases.spec("all_reduce", 192, 3), algorithm=name))
