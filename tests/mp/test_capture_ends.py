"""Graphs that end: closed while replays are waited for, and collected together with their groups."""

import gc
import threading

import pytest

import strata
from strata import errors


def test_replays_of_a_closed_graph(pair):
    """One that had ended has ended well, whoever waits for it when; one that was given up is Cancelled."""

    def run(group):
        own = group.subgroup(range(group.size))
        x = strata.full(1000, 1, "f4")
        with strata.capture(own) as graph:
            own.all_reduce(x)
        good = graph.replay(async_op=True)
        graph.replay()
        group.barrier()
        if group.rank == 1:  # nobody replays with it
            found = []
            given_up = graph.replay(async_op=True)
            waiter = threading.Thread(target=lambda: found.append(given_up.exception() or _error(given_up)))
            waiter.start()
            graph.close()
            waiter.join(60)
            assert not waiter.is_alive() and isinstance(found[0], errors.Cancelled)
            assert given_up.done() and isinstance(given_up.exception(), errors.Cancelled)
            with pytest.raises(errors.Cancelled, match="closed"):
                given_up.wait()
            assert "failed" in repr(given_up)
        group.barrier()
        graph.close()
        good.wait()
        assert good.done() and good.exception() is None and "done" in repr(good)
        group.barrier()

    pair.run(run)


def _error(replay):
    with pytest.raises(errors.StrataError) as caught:
        replay.wait()
    return caught.value


@pytest.mark.parametrize("explicit", [True, False])
def test_collected_with_its_group(pair, explicit):
    """In one collection either of them may be finalized first."""

    def run(group, explicit):
        for replays in range(3):
            own = group.subgroup(range(group.size))
            x = strata.full(1000, 1, "f4")
            with strata.capture(own) as graph:
                own.all_reduce(x)
            for _ in range(replays):
                graph.replay()
            group.barrier()
            if explicit:
                own.__del__()
            circle = [own, graph]
            circle.append(circle)
            del own, graph, circle
            gc.collect()
            group.barrier()

    pair.run(run, explicit)
