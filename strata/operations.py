"""The operations of groups, each of which can be bound to its arguments; and those that take several steps."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from strata import errors, failure, staging
from strata._core import array as codes
from strata._core.binding import Operation, Persistent
from strata._core.collective import Collectives
from strata._core.front import OPERATIONS
from strata._core.memory import alloc_array
from strata._core.planned import PlanHandle
from strata._core.stream import current_stream
from strata.plan.spec import Spec

__all__ = ["Operations"]

_OP = {name: code for code, name in enumerate(OPERATIONS)}


class Operations(Collectives):
    """Base of Group.  ``g.all_reduce.bind(...)`` takes what ``g.all_reduce(...)`` takes and returns a Persistent."""

    # What Group has, for those below.
    _choose: Any
    _build: Any
    _out_for: Any
    _check_overlap: Any

    barrier = Operation(Collectives.barrier)
    all_reduce = Operation(Collectives.all_reduce)
    all_gather = Operation(Collectives.all_gather)
    reduce_scatter = Operation(Collectives.reduce_scatter)
    all_to_all = Operation(Collectives.all_to_all)
    broadcast = Operation(Collectives.broadcast)
    reduce = Operation(Collectives.reduce)
    gather = Operation(Collectives.gather)
    send = Operation(Collectives.send)
    recv = Operation(Collectives.recv)

    @Operation
    def scatter(self, src: np.ndarray | None, out: np.ndarray | None = None, root: int = 0, *,
                timeout: float | None = None, async_op: bool = False,
                algorithm: str | None = None, path: str | None = None, cores: int | None = None,
                partition: str | None = None) -> Any:  # fmt: skip
        """Part i of the root's ``src`` (size equal parts along axis 0) goes to member i.

        ``src`` counts on the root only and may be None elsewhere.  ``out``: the shape of a
        part, (src.shape[0] // size, *src.shape[1:]), or src.shape[1:] if there is one row
        each; None: allocated in the fabric.  Returns ``out``.  Raises CollectiveMismatch on
        all members if the shapes do not agree.
        """
        self.check_member(root, "root")
        variant = self.variant("scatter", algorithm, path, cores, partition)
        if current_stream() is not None:
            self.check_queued(src if self.rank == root else None, out)
        if self.rank == root:
            if src is None:
                raise TypeError("scatter: src must be an array on the root")
            out = self._out_for("scatter", src, out, -self.size)
            self._check_overlap("scatter", src, out)
        elif out is not None and (not isinstance(out, np.ndarray) or not out.flags.writeable):
            raise TypeError("scatter: out must be a writable numpy array or None")
        if out is not None:
            self.check_frames(_OP["scatter"], src if self.rank == root else None, out)
        if self.recorder is None:
            table = self._headers(_OP["scatter"], root, out, timeout)
            shape, dtype = staging.read_header(table[root])
        elif out is None:
            raise errors.InvalidArgument("scatter: in a capture the root cannot be asked for out's shape: give out")
        if self.rank != root and out is None:
            try:
                out = alloc_array(self.context, shape, dtype, False)
            except MemoryError:
                self.abstain(timeout)
                raise
        assert out is not None  # for type checkers
        return self.scatter_into(src if self.rank == root else None, out, root, timeout, async_op, variant)

    def _headers(self, op: int, root: int, out: np.ndarray | None, timeout: float | None) -> np.ndarray:
        """What each member's part looks like; CollectiveMismatch if they do not agree with the root."""
        record = np.zeros(staging.HEADER, np.int64)
        if out is not None:
            staging.write_header(record, out)
        table = self.exchange(op, 0, root, record, timeout)
        wanted = staging.read_header(table[root])
        size = int(np.prod(wanted[0], dtype=object)) if wanted[0] else 1
        bad = []
        for member, row in enumerate(table):
            if row[0]:
                shape, dtype = staging.read_header(row)
                if dtype != wanted[1] or (int(np.prod(shape, dtype=object)) if shape else 1) != size:
                    bad.append((member, shape, dtype))
        if bad:
            text = "; ".join(f"rank {self.ranks[m]}: {d} of shape {s}" for m, s, d in bad)
            raise errors.CollectiveMismatch(
                f"scatter: the root's parts (rank {self.ranks[root]}) are {wanted[1]} of shape {wanted[0]}, but "
                f"the outputs are: {text}", ranks=sorted(self.ranks), group=self.name, operation="scatter",
            )  # fmt: skip
        return table

    @Operation
    def all_to_all_v(self, src: np.ndarray, send_counts: Iterable[int], out: np.ndarray | None = None,
                     recv_counts: Iterable[int] | None = None, *, timeout: float | None = None,
                     async_op: bool = False, algorithm: str | None = None, path: str | None = None,
                     cores: int | None = None, partition: str | None = None) -> Any:  # fmt: skip
        """``send_counts[i]`` rows of axis 0 of ``src``, packed in order, go to member i.

        ``recv_counts``: rows that come from each member; None: they are exchanged (they
        always are, since they are checked).  ``out``: at least as many rows as come, of
        src's row shape and dtype; None: allocated in the fabric with just those.  Rows
        beyond stay as they are.  Returns ``out``.  Counts that do not agree, an ``out``
        that is too short, and rows that differ raise CollectiveMismatch on all members
        before any byte moves.
        """
        variant = self.variant("all_to_all_v", algorithm, path, cores, partition)
        send = self._row_counts("send_counts", send_counts)
        recv = None if recv_counts is None else self._row_counts("recv_counts", recv_counts)
        if not isinstance(src, np.ndarray) or src.ndim == 0:
            raise TypeError("all_to_all_v: src must be a numpy array of at least one dimension")
        if sum(send) > src.shape[0]:
            raise ValueError(f"all_to_all_v: send_counts sum to {sum(send)}, but src has {src.shape[0]} rows")
        self._check_rows(src, out)
        queued = current_stream() is not None
        if queued:
            self.check_queued(src, out)
        row = int(np.prod(src.shape[1:], dtype=np.int64)) * src.dtype.itemsize
        n = self.size
        record = np.array([*send, *(recv or [-1] * n), row, -1 if out is None else out.shape[0]], np.int64)
        code = codes.dtype_code(src.dtype)
        table = self.exchange(_OP["all_to_all_v"], code, 0, record, timeout)
        counts = table[:, :n]
        failure.check_counts(self, counts, table[:, n : 2 * n], table[:, 2 * n], table[:, 2 * n + 1])
        total = int(counts[:, self.rank].sum())
        try:
            spec = Spec("all_to_all_v", itemsize=row, nranks=n, counts=counts)
            overlap = queued or (async_op and not isinstance(async_op, Persistent))
            choice = self._choose(spec, variant, overlap)
            plan = self._build(spec, choice)
            handle = PlanHandle(plan, n, 0, False, self.context.ndies)
            handle.insists = choice.path_named
            exposed = plan.exposes_out or (handle.sdma and handle.insists)
            if isinstance(async_op, Persistent) and out is None:
                out = alloc_array(self.context, (total, *src.shape[1:]), src.dtype, False)
        except Exception:
            self.abstain(timeout)
            raise
        count = int(counts.sum())
        if not isinstance(async_op, Persistent):
            return self._move(handle, total, exposed, count, 0, src, out, timeout, async_op)
        told = zlib.crc32(counts.tobytes()) % 0xFFFF + 1  # bound operations do not exchange their counts again
        move = functools.partial(self._move, handle, total, exposed, count, told, src, out, timeout)
        self.describe_plan(async_op, _OP["all_to_all_v"], handle, move, src, out, count, timeout, told)
        return out

    def _move(self, handle: PlanHandle, total: int, exposed: bool, count: int, told: int, src: np.ndarray,
              out: np.ndarray | None, timeout: float | None, async_op: bool) -> Any:  # fmt: skip
        """all_to_all_v whose counts are known."""
        self.uncapturable("all_to_all_v")
        if current_stream() is not None:
            self.check_queued(src, out)
        try:
            source, target = staging.rows(self, src, out, total, exposed)
        except Exception:
            self.abstain(timeout)
            raise
        result = target if out is None else out
        done = self.run_plan(_OP["all_to_all_v"], handle, source, target, count, timeout, async_op, told)
        rows = None if out is None or target is out else out[:total]
        if async_op:
            return done.deliver(rows, target, result)
        if rows is not None:
            rows[...] = target
        return result

    def _row_counts(self, name: str, values: Iterable[int]) -> list[int]:
        counts = [int(v) for v in values]
        if len(counts) != self.size or min(counts) < 0:
            raise ValueError(f"{name}={counts}: {self.size} counts, none negative, are expected")
        return counts

    def _check_rows(self, src: np.ndarray, out: Any) -> None:
        if out is None:
            return
        if not isinstance(out, np.ndarray) or out.dtype != src.dtype or out.shape[1:] != src.shape[1:] or not out.ndim:
            raise ValueError(f"all_to_all_v: out must be a {src.dtype} array of rows of shape {src.shape[1:]}")
        if not out.flags.writeable:
            raise ValueError("all_to_all_v: the output array is read-only")
        if np.shares_memory(src, out):
            raise ValueError("all_to_all_v: input and output overlap; it cannot work in place")
        self.check_frames(_OP["all_to_all_v"], src, out)
