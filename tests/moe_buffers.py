"""A Buffer and data for it, and a look whether it is in order."""

import numpy as np
from moe_reference import BF16

from strata import moe

E, TOKENS, HIDDEN = 8, 6, 64


def low(group, tokens=TOKENS, hidden=HIDDEN, experts=E, **more):
    size = moe.Buffer.get_low_latency_rdma_size_hint(tokens, hidden, group.size, experts)
    return moe.Buffer(group, 0, size, low_latency_mode=True, **more)


def data(group, seed=0, tokens=TOKENS, topk=2):
    rng = np.random.default_rng([seed, group.rank])
    x = rng.standard_normal((tokens, HIDDEN)).astype(BF16)
    idx = np.argsort(rng.random((tokens, E)), axis=1)[:, :topk].astype(np.int64)
    return x, idx, np.full((tokens, topk), 1 / topk, np.float32)


def layout(buffer, idx, experts=E):
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(idx, experts)
    return {"num_tokens_per_rank": per_rank, "is_token_in_rank": in_rank, "num_tokens_per_expert": per_expert}


def there_and_back(group, buffer, seed=0):
    """A round of each kind gives the input back."""
    x, idx, weights = data(group, seed)
    rows, *_, handle, _ = buffer.dispatch(x, **layout(buffer, idx))
    sums = buffer.combine(rows, handle)[0]
    assert np.allclose(sums.astype("f4"), handle[4].sum(axis=1)[:, None] * x.astype("f4"), rtol=0.02)
    if buffer.low_latency_mode:
        got, _, handle, _, _ = buffer.low_latency_dispatch(x, idx, TOKENS, E, use_fp8=False)
        sums = buffer.low_latency_combine(got, idx, weights, handle)[0]
        assert np.allclose(sums.astype("f4"), x.astype("f4"), rtol=0.02)
    return True


