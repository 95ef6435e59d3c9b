"""Litmus tests over real processes, with the flags that programs have: docs/memory-model.md."""

import textwrap

import launching
import pytest

PROGRAM = textwrap.dedent("""
    import sys
    import numpy as np
    import strata
    from strata import sdma

    strata.init()
    g, rounds = strata.world(), int(sys.argv[1])
    me, you = g.rank, 1 - g.rank
    flags = sdma.flag(8)
    data = strata.zeros(4096, "u8")
    there, mirror = g.all_gather(strata.array([strata.address(flags), strata.address(data)], "u8"))[you].tolist()
    ring, here = sdma.open_ring(64), strata.zeros(4096, "u8")
    sb = 0
    for k in range(1, rounds + 1):
        # store buffering: each raises its flag, then looks at the other's; one of them sees the other
        sdma.write(flags[:1], k)
        seen = sdma.read(there)
        g.barrier()
        both = g.all_gather(strata.array([seen >= k], "u8"))
        assert both.any(), f"store buffering in round {k}"
        sb += not both.all()
        # message passing, and a flag that is used again by epoch: what a chain copies is there when its flag is
        here[:] = k * 10 + me
        work = ring.submit(sdma.Batch(block=4096).copy(mirror, here, here.nbytes).write(there + 8, k))
        sdma.wait(flags[1:2], k, timeout=30)
        assert (data == k * 10 + you).all(), f"message passing in round {k}: {data}"
        sdma.write(there + 16, k)  # it has been read, and may be written over
        sdma.wait(flags[2:3], k, timeout=30)
        work.wait(30)
        # one word: a flag that only grows is never seen to fall
        sdma.write(flags[3:4], 2 * k)
        first, second = sdma.read(there + 24), sdma.read(there + 24)
        assert first <= second, f"coherence in round {k}: {first}, then {second}"
        sdma.write(flags[3:4], 2 * k + 1)
    print("rounds in which one did not see the other:", sb)
""")


@pytest.mark.parametrize("seed", [None, 3, 4])
def test_flags_of_two_dies(tmp_path, seed):
    path = tmp_path / "litmus.py"
    path.write_text(PROGRAM)
    weak = () if seed is None else ("--weak-order", seed)
    done = launching.run("-n", 2, *weak, path, 40)
    assert done.returncode == 0, done.stderr.decode()
    print(done.stdout.decode())
