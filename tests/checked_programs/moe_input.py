"""The rows of a dispatch are changed before its event."""

import numpy as np
from common import main

import strata
from strata import moe

KIND = "race"


def wrong(g):
    dispatch(g, early=True)


def right(g):
    dispatch(g, early=False)


def dispatch(g, early):
    buffer = moe.Buffer(g)
    x = strata.ones((8, 64), np.float32)
    topk = np.arange(8, dtype=np.int64).reshape(8, 1) % g.size
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(topk, g.size)
    got = buffer.dispatch(x, num_tokens_per_rank=per_rank, is_token_in_rank=in_rank,
                          num_tokens_per_expert=per_expert, topk_idx=topk, async_finish=True)
    if early:
        x[...] = 0.0  # BUG
    got[-1].current_stream_wait()
    x[...] = 0.0
    g.barrier()


if __name__ == "__main__":
    main(wrong, right)
