"""numpy's own arrays as fabric memory, in programs that know nothing of it.

    with strata.intercept():
        x = np.zeros(1_000_000)
        group.all_reduce(x)  # where it lies: nothing is copied

Whatever numpy makes in the block is made in this die's HBM if it takes
``min_bytes`` or more: new arrays, copies, results of operations, and arrays that
grow.  They are plain arrays that own their memory.  They may outlive the block,
and ``finalize()``; numpy gives their memory back to where it is from.

* What is smaller stays ordinary memory.  The default, option intercept_min_bytes, is 1 KiB:
  up to there a reduction's operand always fits a mailbox, whatever the number of
  members, and is used from where it lies; beyond, an ordinary array is copied, which
  doubles the time of an operation on 2 or 4 KiB.  Fabric memory itself costs some 50 ns more
  an array than numpy's (bench/intercept.py prints both), so smaller limits gain nothing.
* When the fabric has no room, numpy gets ordinary memory and the program goes on
  as it would without strata; operations copy those arrays.  The first time a
  RuntimeWarning says why and what to change, and ``strata.stats()["intercept"]``
  counts them.
* The block is for the running context, as ``np.errstate`` is: other threads make
  ordinary arrays; coroutines and threads that got a copy of the context in the
  block go on with it.  ``process=True`` is for all threads, until the block ends;
  option intercept (STRATA_INTERCEPT, ``strata-run --intercept``) for all threads from
  ``init()`` to ``finalize()``.  A handler that a program gives numpy itself
  (``PyDataMem_SetHandler``) goes before that of ``process=True``.
* Blocks may be nested: the innermost says how small is small.
* numpy does not say what an array will hold, so arrays of Python objects are made
  in fabric memory as well.  That is harmless, and of no use: operations refuse them.
* In a forked child new arrays are ordinary, and those of its parent are its
  parent's: they can be read, and are not copied when they are written to.  A block
  cannot begin there (NotInJob): the child is not a die.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from strata import bootstrap
from strata._core import intercept as _core
from strata._core import memory

__all__ = ["intercept"]


@contextlib.contextmanager
def intercept(min_bytes: int | None = None, *, process: bool = False) -> Iterator[None]:
    """A block in which numpy's arrays of ``min_bytes`` bytes and more are fabric memory.

    ``min_bytes=None`` is option intercept_min_bytes; ``process=True`` is for all threads.
    Joins the job first, if that has not been done.  Also decorates functions.
    """
    context = bootstrap.context()
    least = context.config.intercept_min_bytes if min_bytes is None else min_bytes
    if not isinstance(least, int) or least < 0:
        raise ValueError(f"min_bytes={min_bytes!r}: a number of bytes, 0 or more, is expected")
    heap = memory.heap_of(context)
    begin, end = (_core.process_begin, _core.process_end) if process else (_core.begin, _core.end)
    token = begin(heap, min(least, 1 << 63))
    try:
        yield
    finally:
        end(token)
