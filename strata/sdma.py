"""SDMA by hand: descriptors, rings, doorbells, flags.  (StrataCL paper, NPU-driven SDMA)

Each die has a DMA thread that executes 64-byte *descriptors* from *rings*, so that whoever wants bytes moved
builds descriptors, rings the doorbell and goes on computing:

    from strata import sdma

    ring = sdma.open_ring()                      # of this die's DMA thread
    done = sdma.flag()                           # a word in the fabric that only grows
    batch = sdma.Batch()                         # build
    batch.copy(dst, src).write(done, 1)
    work = ring.submit(batch)                    # submit, and ring the doorbell
    ...                                          # compute
    work.wait()                                  # completion II: a notification that the host waits for
    sdma.wait(done, 1)                           # completion I: a flag that somebody polls, on any die

Order: descriptors of one ring are executed one after another, those of different rings in any order; a *gate* holds
its ring up until a flag has come to a value.  Arrays must be fabric memory, contiguous, and may be another die's.

Errors: a submission is a chain.  When one of its descriptors fails, nothing after it is executed; flags that it
would have raised are *poisoned*, so that gates and ``wait`` elsewhere fail with the same status, and
``Submission.wait`` raises the error, which names the descriptor.  RegistrationError: memory that is not there (any
more); ValueError: what makes no sense; CollectiveTimeout: a gate's flag did not come in time; Deadlock: gates wait
for each other; Cancelled.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from strata import bootstrap, config, dtypes, errors
from strata._core import descriptors as d
from strata._core import engine as engines
from strata._core import flags, kernels, memory, space
from strata._core import sdma as core
from strata._core.descriptors import DESCRIPTOR, OPERAND, POISON
from strata._core.sdma import Ring
from strata._core.spans import spanned
from strata._core.submission import Submission
from strata.fabric import arrays

__all__ = [
    "DESCRIPTOR",
    "OPERAND",
    "POISON",
    "Batch",
    "Ring",
    "Submission",
    "flag",
    "open_ring",
    "poll",
    "read",
    "ring",
    "seal",
    "stats",
    "wait",
    "write",
]

Place = Any  # a fabric array, or an address in the fabric (an int)


def _engine() -> engines.Engine:
    return engines.engine_of(bootstrap.context())


def open_ring(depth: int | None = None, *, first: int = 0) -> Ring:
    """A new ring of this die, ``depth`` descriptors deep (a power of two; None: option sdma_depth).

    ``first``: the index of its first descriptor.  RingFull: a die has at most 1024; FabricMemoryError.
    """
    engine = _engine()  # first: a die that is checked has another core once it has joined
    return core.open_ring(engine, depth, _whole("first", first, d.FOREVER))


def ring(index: int, rank: int | None = None) -> Ring:
    """Ring ``index`` of die ``rank`` (world rank; None: this one), which that die has opened.

    Any die may submit to any ring.  NotInJob: there is no such ring; PeerDead.
    """
    engine = _engine()
    return core.attach(engine, _rank(engine.context, rank), _whole("index", index, d.MOST))


def flag(count: int = 1) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """``count`` flags, zero: a uint64 array in this die's memory.  A flag's value only grows, and stays below 2**63."""
    return arrays.zeros((count,), np.uint64)


def _whole(name: str, value: Any, most: int) -> int:
    """A whole number from 0 to ``most``."""
    try:
        value = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}={value!r}: a whole number is expected") from None
    if not 0 <= value <= most:
        raise ValueError(f"{name}={value}: 0 to {most} is expected")
    return value


def _rank(context: space.Context, rank: int | None) -> int:
    return context.rank if rank is None else _whole("rank", rank, context.ndies - 1)


def _flag(name: str, at: Place, writes: bool = False) -> int:
    if isinstance(at, np.ndarray):
        if at.dtype != np.uint64 or at.size != 1:
            raise TypeError(f"{name}: a flag is one uint64 of fabric memory, not {at.size} of {at.dtype}; "
                            "of an array of flags take flags[i:i+1]")  # fmt: skip
        if writes and not at.flags.writeable:
            raise ValueError(f"{name} is read-only")
        bootstrap.context()  # or a forked child hears that its arrays are none
        va = arrays.address(at)
    else:
        va = _address(name, at)
    if va % 8:
        raise ValueError(f"{name}: {va:#x} is no multiple of 8, and so no flag's address")
    return va


def _address(name: str, at: Any) -> int:
    va = _whole(f"{name} (an array, or an address)", at, d.FOREVER)
    if bootstrap.context().owner(va) < 0:
        raise ValueError(f"{name}: {va:#x} is no address in the fabric")
    return va


def read(at: Place) -> int:
    """What a flag holds, after all that was written before it was raised."""
    return flags.read(bootstrap.context(), _flag("at", at))


@spanned("sdma.write")
def write(at: Place, value: int) -> None:
    """Raises a flag from the host: gates on it open, after all that this die has written before.

    Stores ``value``, whatever is there: a lower one, or one over a poisoned flag, is for when nobody waits for it.
    """
    flags.write(bootstrap.context(), _flag("at", at, True), _value(value))


def poll(at: Place, value: int) -> bool:
    """Whether a flag has come to ``value``.  One that was poisoned before it had raises what ``wait`` would."""
    now = read(at)
    if now & POISON:
        wait(at, _value(value))  # raises, or it had come to that before
    return now >= _value(value)


@spanned("sdma.wait")
def wait(at: Place, value: int, *, rank: int | None = None, timeout: float | None = None) -> None:
    """Returns when a flag has come to ``value`` (completion I).

    ``rank``: the die that will raise it, whose death ends the wait with PeerDead.  ``timeout``: seconds (None: option
    timeout); CollectiveTimeout.  A flag that was poisoned before it had come to ``value`` raises the error that its
    chain failed with.
    """
    context = bootstrap.context()
    flags.wait(context, _flag("at", at), _value(value), _rank(context, rank), timeout)


def _value(value: int) -> int:
    return _whole("value (of a flag)", value, POISON - 1)


def seal(descriptors: np.ndarray) -> None:
    """States, in descriptors made by hand, which memory they mean: given back before they are executed, they fail
    instead of touching what is there then."""
    core.seal(bootstrap.context(), descriptors)


def stats() -> dict[str, int]:
    """Of the DMA thread so far: ``descriptors`` executed, ``failed`` chains, ``bytes`` moved, ``gates`` found shut,
    ``notifies``, ``sleeps``; and open ``rings``.  Zeros, if nobody has used it."""
    engine = bootstrap.context().engine
    names = ("descriptors", "bytes", "failed", "sleeps", "gates", "notifies", "rings")
    return dict.fromkeys(names, 0) if engine is None else engine.counters()


def stop(context: space.Context) -> None:
    """Ends a die's DMA thread (at finalize)."""
    if context.engine is not None:
        context.engine.stop()


class Batch:
    """Descriptors to be submitted together, in order, as one chain.  Its methods return the batch.

    It keeps the arrays that it names alive, and may be submitted again and again.
    """

    def __init__(self, block: int | None = None) -> None:
        """``block``: largest copy of one descriptor in bytes, at most 64 MiB (None: option sdma_block)."""
        self.block = config.get().sdma_block if block is None else _whole("block", block, d.MOST)
        if self.block < 1:
            raise ValueError(f"block={block}: 1 to {d.MOST} bytes are expected")
        self._parts: list[np.ndarray] = []
        self._keep: list[Any] = []
        self._built: np.ndarray | None = None

    def __repr__(self) -> str:
        return f"<strata.sdma.Batch, {len(self)} descriptors>"

    def __len__(self) -> int:
        return sum(part.size for part in self._parts)

    @property
    def nbytes(self) -> int:
        """Bytes that its descriptors copy, reduce or fill."""
        return sum(int(part["bytes"][part["type"] <= d.FILL].sum(dtype=np.uint64)) for part in self._parts)

    def build(self) -> np.ndarray:
        """The descriptors, as an array of ``DESCRIPTOR``, sealed."""
        if self._built is None:
            self._built = np.concatenate(self._parts) if self._parts else np.zeros(0, DESCRIPTOR)
            core.seal(bootstrap.context(), self._built)
        return self._built

    def _add(self, kind: int, n: int = 1, **fields: Any) -> Batch:
        part = np.zeros(n, DESCRIPTOR)
        part["type"] = kind
        for name, value in fields.items():
            part[name] = value
        self._parts.append(part)
        self._built = None
        return self

    def _place(self, name: str, at: Place, nbytes: int | None, writes: bool) -> tuple[int, int]:
        """Address and bytes of an array, or of an address."""
        nbytes = None if nbytes is None else _whole("nbytes", nbytes, d.FOREVER)
        if not isinstance(at, np.ndarray):
            if nbytes is None:
                raise TypeError(f"{name}: an address needs nbytes")
            va, here = _address(name, at), bootstrap.context()
            if nbytes and here.owner(min(va + nbytes - 1, d.FOREVER)) != here.owner(va):
                raise ValueError(f"{name}: {nbytes} bytes from {va:#x} on go beyond the memory of their die")
            return va, nbytes
        if memory.owner(bootstrap.context(), at) < 0:
            raise ValueError(f"{name}: {arrays.FOREIGN}")
        if not at.flags.c_contiguous:
            raise ValueError(f"{name} is strided; descriptors move contiguous bytes: give a row at a time, or a copy")
        if writes and not at.flags.writeable:
            raise ValueError(f"{name} is read-only")
        if nbytes is not None and nbytes > at.nbytes:
            raise ValueError(f"{name} has {at.nbytes} bytes, and nbytes is {nbytes}")
        self._keep.append(at)
        return memory.pointer(at), at.nbytes if nbytes is None else nbytes

    def _pair(self, dst: Place, src: Place, nbytes: int | None) -> tuple[int, int, int]:
        if nbytes is None and isinstance(dst, np.ndarray) != isinstance(src, np.ndarray):
            nbytes = dst.nbytes if isinstance(dst, np.ndarray) else src.nbytes
        a, na = self._place("dst", dst, nbytes, True)
        b, nb = self._place("src", src, nbytes, False)
        if na != nb:
            raise ValueError(f"dst has {na} bytes and src {nb}")
        if a != b and a < b + nb and b < a + na:
            raise ValueError("dst and src overlap; they may be the same, or apart")
        return a, b, na

    def _blocks(self, kind: int, dst: int, src: int | None, nbytes: int, block: int, **fields: Any) -> Batch:
        begin = np.arange(0, max(nbytes, 1), block, dtype=np.uint64)
        size = np.minimum(np.uint64(block), np.uint64(nbytes) - begin)
        if src is not None:
            fields["src"] = begin + np.uint64(src)
        return self._add(kind, begin.size, dst=begin + np.uint64(dst), bytes=size, **fields)

    def copy(self, dst: Place, src: Place, nbytes: int | None = None, *, nt: bool = False) -> Batch:
        """dst = src, byte by byte: fabric arrays of as many bytes, or addresses and ``nbytes`` (None: the array's).

        ``nt``: with stores past the cache, which pay where several dies write more than the cache holds.
        """
        a, b, size = self._pair(dst, src, nbytes)
        return self._blocks(d.COPY, a, b, size, self.block, flags=d.NT if nt else 0)

    def reduce(self, dst: np.ndarray, src: np.ndarray, op: str = "sum", *, atomic: bool = False) -> Batch:
        """dst = dst op src, element by element; fabric arrays of one dtype and size.

        ``atomic``: each element by one atomic read-modify-write, so that others may add into dst at the same time.
        TypeError: op is not defined for the dtype; ValueError: dst is not aligned for atomics.
        """
        if not isinstance(dst, np.ndarray) or not isinstance(src, np.ndarray) or dst.dtype != src.dtype:
            got = " and ".join(str(getattr(x, "dtype", type(x).__name__)) for x in (dst, src))
            raise TypeError(f"reduce: dst and src are arrays of one dtype, not {got}")
        dtype, code = dtypes.reduction(dst.dtype, op)
        a, b, size = self._pair(dst, src, None)
        if atomic:
            width = kernels.accumulate_width(dtype, code)
            if width == 0:
                raise errors.UnsupportedType(f"reduce: there is no atomic {op} of {dst.dtype}")
            if a % width:
                raise ValueError(f"reduce: dst is at {a:#x}, and atomics of {dst.dtype} need a multiple of {width}")
        block = max(self.block // dst.itemsize, 1) * dst.itemsize
        return self._blocks(d.ACCUMULATE if atomic else d.REDUCE, a, b, size, block, dtype=dtype, op=code)

    def fill(self, dst: np.ndarray, value: Any) -> Batch:
        """Each element of dst = value; of elements of 1, 2, 4 or 8 bytes."""
        if not isinstance(dst, np.ndarray):
            raise TypeError(f"fill: dst is an array, whose dtype value takes, not {type(dst).__name__}")
        a, size = self._place("dst", dst, None, True)
        if dst.itemsize not in (1, 2, 4, 8):
            raise TypeError(f"fill: elements of {dst.itemsize} bytes do not divide the pattern of 8")
        element = np.zeros((), dst.dtype)
        element[()] = value
        pattern = int(np.full(8 // dst.itemsize, element).view(np.uint64)[0])
        return self._blocks(d.FILL, a, None, size, max(self.block // 8, 1) * 8, value=pattern)

    def write(self, at: Place, value: int) -> Batch:
        """Raises a flag, of any die, to ``value`` when all before it in the ring is done."""
        return self._flag(d.WRITE, at, value)

    def add(self, at: Place, value: int = 1) -> Batch:
        """Adds to a flag, atomically."""
        return self._flag(d.ADD, at, value)

    def _flag(self, kind: int, at: Place, value: int) -> Batch:
        va = _flag("at", at, True)
        self._keep.append(at)
        return self._add(kind, dst=va, value=_value(value))

    def gate(self, at: Place, value: int, *, timeout: float | None = None, host: bool = False) -> Batch:
        """Holds up all that follows in the ring until the flag has come to ``value``.

        ``timeout``: seconds, after which the chain fails (None: option timeout; inf: never).  ``host``: a program may
        still raise the flag (``strata.sdma.write``), also when descriptors that would lie behind gates that wait for
        this one: such a gate is never a Deadlock.
        """
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"timeout={timeout!r}: seconds, 0 or more, expected (None: the default)")
        ns = 0 if timeout is None else d.FOREVER if timeout > 1e9 else int(timeout * 1e9) + 1
        va = _flag("at", at)
        self._keep.append(at)
        return self._add(d.GATE, src=va, value=_value(value), bytes=ns, flags=d.HOST if host else 0)

    def nop(self) -> Batch:
        """Nothing."""
        return self._add(d.NOP)

    def call(self, descriptors: np.ndarray, base: int = 0) -> Batch:
        """Executes an array of DESCRIPTOR in fabric memory, as if it stood here: one descriptor for many.

        ``base`` is added to the value of those that have 2 (RELATIVE) in ``flags``.  It must not hold calls or
        notifications.
        """
        if not isinstance(descriptors, np.ndarray) or descriptors.dtype != DESCRIPTOR:
            raise TypeError("call: an array of strata.sdma.DESCRIPTOR in fabric memory is expected")
        a, _ = self._place("descriptors", descriptors, None, False)
        return self._add(d.CALL, src=a, bytes=descriptors.size, value=_value(base))
