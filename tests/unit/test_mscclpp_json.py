"""MSCCL++ JSON: known plans are read, run by the reference executor and compared; wrong ones are refused."""

import json
import random
import re

import mscclpp_files as files
import pytest
from foreign import deliver
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.errors import InvalidArgument
from strata.plan import algorithms
from strata.plan.interchange import mscclpp_json


@pytest.mark.parametrize("make", files.MAKERS)
def test_known_plans_deliver(make):
    for n in range(2, 9):
        algorithm = algorithms.register(mscclpp_json.parse(make(n)))
        for count in (0, 1, 17, 1003) if n < 5 else (259,):
            for in_place in (0, (1 << n) - 1, 0b0110_0101):
                deliver(algorithm, count, "f32", "sum", in_place, cores=1 + count % 2, seed=count * n)
        deliver(algorithm, 65, "bf16", "avg", seed=n)


def changed(make, n, *path_and_value):
    *path, last, value = path_and_value
    plan = json.loads(make(n))
    at = plan
    for key in path:
        at = at[key]
    at[last] = value
    return json.dumps(plan).encode()


OP = ("gpus", 1, "threadblocks", 0, "ops")


@pytest.mark.parametrize(
    "path, value, what",
    [
        (("version",), 7, "top: 'version' is not known"),
        (("protocol",), "LL", "protocol is 'LL'"),
        (("collective",), "sendrecv", "collective is 'sendrecv'"),
        (("inplace",), 1, "inplace is 1"),
        (("gpus", 1, "id"), 0, "gpu 1: its id is 0"),
        (("gpus", 1, "input_chunks"), 4, "gpu 1: 4 input and 3 output chunks"),
        (("gpus", 1, "semaphores"), [{"init_value": 0}], "gpu 1: semaphores are not read"),
        (("gpus", 0, "channels", 0, "channel_type"), "switch", "gpu 0: a channel of type 'switch'"),
        (("gpus", 0, "channels", 0, "connected_to"), [0], "connected to its own gpu"),
        (("gpus", 0, "remote_buffers", 0, "type"), "x", "type is 'x'"),
        ((*OP, 0, "name"), "ppkt", "gpu 1 threadblock 0 op 0: operation 'ppkt' is not one of"),
        ((*OP, 0, "i_buff"), {}, "gpu 1 threadblock 0 op 0: 'i_buff' is not known"),
        ((*OP, 0, "src_buff"), [files.near("i", 9)], "op 0 (put) src_buff 0: buffer i of gpu 1 has 3 chunks"),
        ((*OP, 0, "src_buff"), [files.near("i", 0, 2)], "op 0 (put): sources and results are not of one size"),
        ((*OP, 0, "src_buff"), [files.near("i", 0)] * 2, "2 sources and 1 results"),
        ((*OP, 0, "dst_buff", 0, "buffer_id"), 9, "buffer_id is '9'"),
        ((*OP, 0, "tbg_info"), {"tb_id": 2, "tbg_size": 2}, "tb_id is '2'"),
        ((*OP, 2, "channel_ids"), [5], "op 2 (signal): channel_ids is '5'"),
        ((*OP, 2, "name"), "nop", "0 to 2: 3 signals|1 to gpu 2: 3 signals on memory channel 0, 4 waits"),
        ((*OP, 4, "reduce_op"), "max", "reduce_op is 'max'"),
        ((*OP, 4, "dst_buff", 0, "type"), "s", "ends with"),
    ],
)
def test_errors_say_what_is_wrong_where(path, value, what):
    with pytest.raises(InvalidArgument, match="|".join(re.escape(w) for w in what.split("|"))):
        mscclpp_json.parse(changed(files.ring_allreduce, 3, *path, value))


def test_races_and_results_nobody_waits_for_are_refused():
    plan = json.loads(files.put_allgather(3))
    ops = plan["gpus"][0]["threadblocks"][0]["ops"]
    assert ops.pop()["name"] == "wait"
    peer = plan["gpus"][1]["threadblocks"][0]["ops"]
    peer.pop(next(i for i, op in enumerate(peer) if op["name"] == "signal"))
    with pytest.raises(InvalidArgument, match="writes output chunk 1 of gpu 0, which does not wait for it"):
        mscclpp_json.parse(json.dumps(plan).encode())
    text = files.allpairs_allreduce(3).replace(b'"barrier_id": 1', b'"barrier_id": 0')
    assert mscclpp_json.parse(text)  # one barrier, met twice
    plan = json.loads(text)
    for block in plan["gpus"][2]["threadblocks"]:
        block["ops"] = [op for op in block["ops"] if op["name"] != "barrier"]
    with pytest.raises(InvalidArgument, match="in no order"):
        mscclpp_json.parse(json.dumps(plan).encode())
    plan["gpus"][1]["threadblocks"][0]["ops"] = plan["gpus"][1]["threadblocks"][0]["ops"][:-3]
    with pytest.raises(InvalidArgument):
        mscclpp_json.parse(json.dumps(plan).encode())


def test_barriers_that_do_not_meet_are_refused():
    text = files.grouped_allgather(2)
    with pytest.raises(InvalidArgument, match="barrier 0 is of 3 threadblocks; 2 come to it"):
        mscclpp_json.parse(text.replace(b'"num_threadblocks": 2', b'"num_threadblocks": 3', 1))
    for data in (b"", b"[]", b"[" * 100000, b'{"gpus": 1}', b"\xff"):
        with pytest.raises(InvalidArgument, match=re.escape("MSCCL++ JSON")):
            mscclpp_json.parse(data)


@settings(max_examples=90, deadline=None)
@given(st.sampled_from(files.MAKERS), st.integers(0, 1 << 32))
def test_a_changed_plan_is_refused_or_still_delivers(make, seed):
    chance = random.Random(seed)
    plan = json.loads(make(3))
    at = plan["gpus"]
    while True:  # a random walk to a leaf, which is changed or taken away
        key = chance.choice(list(at)) if isinstance(at, dict) else chance.randrange(len(at)) if at else None
        if key is None:
            break
        if isinstance(at[key], (dict, list)) and chance.random() < 0.95:
            at = at[key]
            continue
        if chance.random() < 0.4:
            del at[key]
        else:
            at[key] = chance.choice((0, 1, 2, -1, 1 << 40, "i", "o", "s", "get", "wait", None, [], {}))
        break
    try:
        algorithm = algorithms.register(mscclpp_json.parse(json.dumps(plan).encode()))
    except InvalidArgument as error:
        assert str(error)
        return
    deliver(algorithm, 70, seed=seed)
