"""Operations as attributes: what tools and subclasses see of them is what they see of methods."""

import inspect
import pickle
import pydoc

import numpy as np
import pytest

import strata
from strata._core.binding import BoundOperation, Operation
from strata._core.collective import Collectives
from strata._core.transfer import Transfers

NAMES = ("barrier", "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "all_to_all_v", "broadcast", "reduce",
         "gather", "scatter", "send", "recv")  # fmt: skip
METHOD_DESCRIPTOR, VECTORCALL = 1 << 17, 1 << 11


@pytest.fixture(scope="module")
def group():
    return strata.world()


@pytest.mark.parametrize("name", NAMES)
def test_looks_like_a_method(group, name):
    on_class, bound = getattr(strata.Group, name), getattr(group, name)
    assert isinstance(on_class, Operation) and isinstance(bound, BoundOperation)
    whole, rest = inspect.signature(on_class), inspect.signature(bound)
    assert list(whole.parameters) == ["self", *rest.parameters] and "async_op" in rest.parameters
    if hasattr(Collectives, name):
        assert whole == inspect.signature(getattr(Collectives, name))
    assert on_class.__name__ == bound.__name__ == name and on_class.__qualname__.endswith(f".{name}")
    assert on_class.__doc__ == bound.__doc__ and len(on_class.__doc__) > 40
    assert inspect.isroutine(on_class) and inspect.isroutine(bound) and callable(bound)
    assert bound.__self__ is group and bound.__func__ is on_class
    assert bound == getattr(group, name) and hash(bound) == hash(getattr(group, name)) and bound != group.split
    assert name in repr(bound) and name in repr(on_class)
    assert pickle.loads(pickle.dumps(on_class)) is on_class
    text = pydoc.plain(pydoc.render_doc(bound))
    assert name in text and on_class.__doc__.splitlines()[0] in text
    assert f" {name}(self" in pydoc.plain(pydoc.render_doc(strata.Group))


def test_calls_do_not_make_an_object():
    """The interpreter calls the attribute with the group first, as it does with functions."""
    wanted = METHOD_DESCRIPTOR | VECTORCALL
    assert Operation.__flags__ & wanted == wanted
    assert BoundOperation.__flags__ & wanted == VECTORCALL and strata.Persistent.__flags__ & wanted == VECTORCALL


def test_all_ways_to_call(group):
    x = strata.full(3, 2.0)
    f = group.all_reduce
    for result in (group.all_reduce(x), f(x), f(src=x), f(x, None, "max", timeout=5), f(*[x], **{"op": "min"}),
                   f.__call__(x), strata.Group.all_reduce(group, x), strata.Group.all_reduce.__call__(group, x),
                   list(map(f, [x]))[0], inspect.unwrap(f)(x)):  # fmt: skip
        assert result is x
    for call in (group.all_reduce, f, f.bind, f.__call__):
        with pytest.raises(TypeError):
            call()
        with pytest.raises(TypeError, match="wrong"):
            call(x, wrong=1)
    with pytest.raises(TypeError):
        strata.Group.all_reduce()
    many = {f"k{i}": i for i in range(40)}
    with pytest.raises(TypeError):
        f(x, **many)
    with pytest.raises(TypeError, match="function"):
        Operation(3)
    for kind in (BoundOperation, strata.Persistent):
        with pytest.raises(TypeError):
            kind()


def test_subclasses(group):
    class Counting(strata.Group):
        calls = 0

        def all_reduce(self, *args, **kwargs):
            self.calls += 1
            return super().all_reduce(*args, **kwargs)

        @Operation
        def barrier(self, **kwargs):
            """Mine."""
            self.calls += 1
            return super().barrier(**kwargs)

    made = Counting(group.context, group.ranks, "counting", bytes(range(16)))
    x = strata.ones(3)
    assert made.all_reduce(x, op="max") is x and made.barrier() is None and made.calls == 2
    assert super(Counting, made).all_reduce.bind(x)() is x and made.calls == 2
    assert made.barrier.__doc__ == "Mine." and made.barrier.__qualname__.endswith("Counting.barrier")
    assert made.all_gather.bind(x)().shape == (1, 3)
    made.all_reduce = lambda y: "mine"  # an instance's own attribute comes first, as with methods
    assert made.all_reduce(x) == "mine"
    assert Transfers.send is not strata.Group.send


def test_what_is_bound(group):
    x = strata.full(3, 2.0)
    op = group.all_gather.bind(x)
    assert isinstance(op, strata.Persistent) and "all_gather float64 (3,)" in repr(op)
    assert op.group is group and op.operation == "all_gather" and op.result.shape == (1, 3)
    assert op() is op.result and (op.result == 2).all() and op.__call__() is op.result
    work = op.start()
    assert isinstance(work, strata.Work) and work.wait() is op.result
    with pytest.raises(TypeError, match="no arguments"):
        op(x)
    with pytest.raises(TypeError):
        op(timeout=3)
    with pytest.raises(AttributeError):
        op.result = x
    with op as entered:
        assert entered is op
    assert op.result is None and "freed" in repr(op)
    strided = np.arange(6.0)[::2]
    assert group.all_reduce.bind(strided)() is strided
    with pytest.raises(TypeError, match="cannot be bound"):
        _Odd(group.context, group.ranks, "odd", bytes(range(1, 17))).lonely.bind()


class _Odd(strata.Group):
    @Operation
    def lonely(self, async_op=False):
        return None
