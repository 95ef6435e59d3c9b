"""What a die does in the tests of collectives: one operation, all that must hold of it checked."""

from __future__ import annotations

import hashlib
import threading
from typing import Any, NamedTuple

import numpy as np
from collectives_reference import Wanted, canonical, counts, dtype_of, exchange, member, same

import strata

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "all_to_all_v", "broadcast",
              "reduce", "gather", "scatter")  # fmt: skip
REDUCING = ("all_reduce", "reduce_scatter", "reduce")
ROOTED = ("broadcast", "reduce", "gather", "scatter")
LAYOUTS = ("C", "F", "strided", "reversed", "offset")
GUARD = 0xA7


class Case(NamedTuple):
    """One call of one operation by all members."""

    op: str
    dtype: Any = "float32"
    shape: tuple[int, ...] = (10,)  # as in collectives_reference.operation; all_to_all_v: of a row
    redop: str = "sum"
    root: int = 0
    salt: int = 0
    in_place: bool = False
    give_out: bool = True
    fabric_src: bool = True
    fabric_out: bool = True
    layout_src: str = "C"
    layout_out: str = "C"
    read_only: bool = False  # the source
    async_op: bool = False
    rows: int = 5  # all_to_all_v: at most so many from one member to another
    recv_counts: bool = False
    algorithm: str | None = None
    cores: int | None = None
    partition: str | None = None
    path: str | None = None  # "mixed": every second member takes the other one


class Array(NamedTuple):
    """An array, and the memory in which it lies between bytes that nobody may touch."""

    view: np.ndarray
    memory: np.ndarray
    own: np.ndarray  # which bytes of memory are the view's

    def intact(self) -> bool:
        """Whether everything outside of the view is as it was."""
        return bool(((self.memory == GUARD) | self.own).all())


def place(shape, dtype, layout: str = "C", fabric: bool = True) -> Array:
    """An array with a layout, its contents arbitrary, between guards."""
    dtype = dtype_of(dtype)
    shape = tuple(shape)
    wide = tuple(2 * s + 1 for s in shape) if layout == "strided" else shape
    nbytes = int(np.prod(wide, dtype=np.int64)) * dtype.itemsize
    memory = strata.empty(nbytes + 256, "u1") if fabric else np.empty(nbytes + 256, "u1")
    memory[:] = GUARD
    start = 64 - memory.ctypes.data % 64 + {"offset": dtype.itemsize, "odd": 1}.get(layout, 0)
    view = memory[start : start + nbytes].view(dtype)
    view = view.reshape(wide[::-1]).T if layout == "F" else view.reshape(wide)
    if layout == "strided":
        view = view[(slice(1, None, 2),) * len(shape) + (...,)]
    elif layout == "reversed":
        view = view[(slice(None, None, -1),) * len(shape) + (...,)]
    assert view.shape == shape and view.dtype == dtype
    return Array(view, memory, _bytes_of(view, memory))


def _bytes_of(view: np.ndarray, memory: np.ndarray) -> np.ndarray:
    """Which bytes of memory belong to a view of it, as a mask."""
    mask = np.zeros(memory.size, bool)
    at = view.ctypes.data - memory.ctypes.data
    if view.size:
        np.ndarray((*view.shape, view.itemsize), bool, mask, at, (*view.strides, 1))[...] = True
    return mask


def play(group, case: Case, expected: np.ndarray | None = None) -> str:
    """Runs a case and checks what this member gets; the digest of a result that all members share.

    ``expected``: this member's result, where it is not the one in rank order.
    """
    n, me = group.size, group.rank
    table = counts(n, case.rows, case.salt) if case.op == "all_to_all_v" else None
    if table is not None:
        wanted = exchange(me, table, case.shape, case.dtype, case.salt)
    else:
        wanted = member(me, case.op, n, case.shape, case.dtype, case.redop, case.root, case.salt)
    if expected is not None:
        wanted = wanted._replace(out=expected)
    src, out = _arrays(case, wanted, n, me)
    given = _given(case, src, me)
    before = group.context.counters()["staged_bytes"]
    result = _call(group, case, given, out.view if out is not None and case.give_out else None, table)
    if case.async_op:
        result = result.wait()
    staged = group.context.counters()["staged_bytes"] - before
    if not case.give_out and case.op in ("reduce_scatter", "scatter"):
        # Axis 0 is the one that was shared out; scatter's members go by the root, who may have given an out.
        assert result.shape == (1, *case.shape) or (case.op == "scatter" and result.shape == case.shape)
        result = result.reshape(case.shape)
    _check(case, wanted, src, out, result, me)
    if _is_zero_copy(case):
        assert staged == 0, f"{staged} bytes staged"
    if case.op in ("all_reduce", "all_gather", "broadcast"):
        return hashlib.sha256(np.ascontiguousarray(result).tobytes()).hexdigest()
    return ""


def _arrays(case: Case, wanted: Wanted, n: int, me: int) -> tuple[Array | None, Array | None]:
    """Source and output, the source filled in."""
    src = out = None
    if case.op == "broadcast":
        src = out = place(case.shape, case.dtype, case.layout_src, case.fabric_src)
    elif case.in_place and case.op in ("all_gather", "gather") and wanted.out is not None:
        out = place(wanted.out.shape, case.dtype, case.layout_out, case.fabric_out)
        src = Array(out.view[me, ...], out.memory, out.own)
    else:
        if wanted.src is not None:
            src = place(wanted.src.shape, case.dtype, case.layout_src, case.fabric_src)
        if wanted.out is None:
            out = None
        elif case.in_place and src is not None and case.op in ("reduce_scatter", "scatter"):
            out = Array(src.view[me, ...], src.memory, src.own)
        elif case.in_place and src is not None and case.op in ("all_reduce", "all_to_all", "reduce"):
            out = src
        else:
            out = place(wanted.out.shape, case.dtype, case.layout_out, case.fabric_out)
    if src is not None and wanted.src is not None:
        src.view[...] = wanted.src
    return src, out


def _given(case: Case, src: Array | None, me: int) -> np.ndarray | None:
    """The source as it is passed."""
    if src is None:
        return None
    if not case.read_only or case.in_place or (case.op == "broadcast" and me != case.root):
        return src.view
    if case.op == "all_reduce" and not case.give_out:
        return src.view
    given = src.view.view()
    given.flags.writeable = False
    return given


def _call(group, case: Case, src, out, table):
    kwargs = {"async_op": case.async_op}
    kwargs |= {name: getattr(case, name) for name in ("algorithm", "cores", "partition") if getattr(case, name)}
    if case.path:
        kwargs["path"] = ("sdma", "mte")[group.rank % 2] if case.path == "mixed" else case.path
    run = getattr(group, case.op)
    if case.op == "all_to_all_v":
        recv = table[:, group.rank] if case.recv_counts else None
        return run(src, table[group.rank], out, recv, **kwargs)
    if case.op == "broadcast":
        return run(src, case.root, **kwargs)
    if case.op == "reduce":
        return run(src, out, case.root, case.redop, **kwargs)
    if case.op in ROOTED:
        return run(src, out, case.root, **kwargs)
    if case.op in REDUCING:
        return run(src, out, case.redop, **kwargs)
    return run(src, out, **kwargs)


def _check(case: Case, wanted: Wanted, src: Array | None, out: Array | None, result, me: int) -> None:
    if wanted.out is None:
        assert result is None
    else:
        overwrites = case.op == "all_reduce" and not case.give_out
        assert isinstance(result, np.ndarray)
        assert same(result, wanted.out), _difference(result, wanted.out)
        if case.op == "broadcast":
            assert result.ctypes.data == src.view.ctypes.data
        elif case.give_out:
            assert result is out.view
        elif not overwrites:
            assert strata.is_fabric(result) and result.flags.c_contiguous
            assert strata.owner(result) == strata.world().rank
        if overwrites:
            assert result is src.view
    for array in (src, out):
        assert array is None or array.intact(), "bytes outside of the array were written"
    if src is None or case.op == "broadcast" or (case.op == "all_reduce" and not case.give_out):
        return
    left, expected = src.view, wanted.src
    if case.in_place and wanted.out is not None:
        if case.op not in ("reduce_scatter", "scatter"):
            return
        left, expected = np.delete(left, me, axis=0), np.delete(expected, me, axis=0)
    assert left.tobytes() == expected.tobytes(), "the source was changed"


def _difference(found: np.ndarray, expected: np.ndarray) -> str:
    """Where a result is wrong, in words."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return f"{found.dtype} of shape {found.shape} instead of {expected.dtype} of shape {expected.shape}"
    a, b = (canonical(x).reshape(-1) for x in (found, expected))
    wrong = [i for i in range(a.size) if a[i].tobytes() != b[i].tobytes()]
    return f"{len(wrong)} of {a.size} elements differ, first at {wrong[0]}: {a[wrong[0]]!r} instead of {b[wrong[0]]!r}"


def _is_zero_copy(case: Case) -> bool:
    """Whether nothing may be copied on the way."""
    straight = {"C", "offset", "odd"}
    if case.algorithm in ("staged", "hierarchical"):  # which collect own parts in scratch
        return False
    if not (case.fabric_src and case.fabric_out and {case.layout_src, case.layout_out} <= straight):
        return False
    return not (case.in_place and case.op == "all_to_all")


def side_by_side(count: int, use) -> None:
    """Calls use(0), use(1), ... in as many threads; fails as the first of them that did."""
    failed = []

    def run(k):
        try:
            use(k)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed[0]


def in_step(group) -> None:
    """Proves that the members of a group still understand each other."""
    assert group.all_gather(np.array([group.rank])).tolist() == [[m] for m in range(group.size)]
