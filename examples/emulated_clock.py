"""A data-parallel step, with and without overlap: real gradients, and the time that a machine would take.

    strata-run --clock cm384 -n 4 examples/emulated_clock.py

Each layer's gradients are averaged as soon as they are there, while the layer before it is still at work (overlap),
or all at the end.  Results are the same; without --clock, too, but then there is no time to tell.
"""

import numpy as np

import strata
from strata import clock

LAYERS, WIDTH, BATCH = 4, 512, 4096


def step(g, weights, x, overlap):
    """Gradients of ``LAYERS`` layers, averaged; predicted microseconds."""
    begin, pending = clock.now(), []
    activations = [x]
    for w in weights:
        activations.append(np.tanh(activations[-1] @ w))
        clock.compute(flops=2 * BATCH * WIDTH * WIDTH)
    error = activations[-1]
    grads = [strata.empty_like(w) for w in weights]
    for k in reversed(range(LAYERS)):
        error = error * (1 - activations[k + 1] ** 2)
        np.matmul(activations[k].T, error, out=grads[k])
        error = error @ weights[k].T
        clock.compute(flops=4 * BATCH * WIDTH * WIDTH)
        if overlap:
            pending.append(g.all_reduce(grads[k], op="avg", async_op=True))
    if not overlap:
        for grad in grads:
            g.all_reduce(grad, op="avg")
    for work in pending:
        work.wait()
    return grads, clock.now() - begin


def main():
    g = strata.world()
    draw = np.random.default_rng(7)
    weights = [strata.array(draw.standard_normal((WIDTH, WIDTH), np.float32) / WIDTH**0.5) for _ in range(LAYERS)]
    x = np.random.default_rng(g.rank).standard_normal((64, WIDTH), np.float32)  # a sample of the batch that is told of
    apart, one = step(g, weights, x, overlap=False)
    beside, other = step(g, weights, x, overlap=True)
    assert all((a == b).all() for a, b in zip(apart, beside, strict=True))
    if g.rank == 0:
        if not clock.enabled():
            print("the gradients agree; start with --clock cm384 to see what a step takes there")
            return
        print(f"without overlap {one:.1f} us, with overlap {other:.1f} us")
        assert other < one


if __name__ == "__main__":
    main()
