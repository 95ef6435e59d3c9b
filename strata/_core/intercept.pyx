"""numpy's own arrays in fabric memory: handlers of its array data (NEP 49).

numpy gets the data of an array from the handler that is current in the running
context, and keeps the handler with the array, for resizing and freeing it.  The
current handler is the value of a context variable whose *default* is one capsule
that numpy made when it was imported (``PyDataMem_DefaultHandler``, part of its C
interface).

``begin`` sets the variable: for the running context, and those copied from it.
That is what a ``with`` block wants, and all that ``PyDataMem_SetHandler`` can do:
a new thread starts with an empty context, and so with the default.

``process_begin`` is for all threads.  It makes the default capsule point to our
handler (``PyCapsule_SetPointer``), once, and for good: from then on our handler
decides by size and address what is the fabric's, and hands all else to what the
capsule pointed to.  Why this way:

* The variable's default cannot be changed, and a handler set in each thread would
  miss threads that C code makes and contexts that programs make.
* The functions that numpy's handler points to could be overwritten in place;
  that is numpy's private data, while a capsule's pointer is the capsule's owner's
  to change, by a public call, with the interpreter's lock held.
* numpy reads the pointer at each call and keeps it nowhere (alloc.c: all of
  PyDataMem_UserNEW, ..NEW_ZEROED, ..RENEW and ..FREE begin with
  PyCapsule_GetPointer), so arrays that were there before go on as they were.
* It cannot be undone, since arrays in fabric memory refer to that capsule and
  nothing else; switched off, ours is a comparison in front of numpy's own.

A program that sets a handler of its own gets what it asks for, on top of ours.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.pycapsule cimport (
    PyCapsule_GetPointer,
    PyCapsule_New,
    PyCapsule_SetPointer,
)
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memset, strcpy


cdef extern from *:
    """
    #define NPY_TARGET_VERSION NPY_1_22_API_VERSION /* the first that has handlers */
    """


cimport numpy as cnp

from strata._core.abi cimport ST_ENOMEM, st_ctx
from strata._core.heap cimport Heap, st_heap
from strata._core.space cimport Context

import os
import warnings

from strata import errors
from strata._core.heap import heap_of

cnp.import_array()


cdef extern from "numpy/arrayobject.h":  # numpy's own declarations have these from 2.2 on
    ctypedef struct PyDataMemAllocator:
        void *ctx
        void *(*malloc)(void *, size_t) noexcept nogil
        void *(*calloc)(void *, size_t, size_t) noexcept nogil
        void *(*realloc)(void *, void *, size_t) noexcept nogil
        void (*free)(void *, void *, size_t) noexcept nogil
    ctypedef struct PyDataMem_Handler:
        char name[127]
        uint8_t version
        PyDataMemAllocator allocator
    PyObject *PyDataMem_DefaultHandler
    object PyDataMem_SetHandler(object handler)
    object PyDataMem_GetHandler()


cdef extern from "st_intercept.h" nogil:
    uint64_t ST_INTERCEPT_OFF
    struct st_cgroup:
        const char *limit
        const char *used
        const char *stat
    struct st_below:
        void *arg
        void *(*obtain)(void *, size_t) noexcept
        void *(*obtain_zero)(void *, size_t, size_t) noexcept
        void *(*resize)(void *, void *, size_t) noexcept
        void (*release)(void *, void *, size_t) noexcept
    struct st_intercept_hooks:
        void *(*detach)() noexcept
        void (*attach)(void *) noexcept
        int (*hold)() noexcept
        void (*drop)(int) noexcept
        int (*notice)(void *) noexcept
    struct st_intercept_counters:
        uint64_t arrays
        uint64_t bytes
        uint64_t fallbacks
        uint64_t fallback_bytes
    struct st_intercept_source:
        st_heap *heap
        const st_cgroup *groups
        uint32_t ngroups
        st_intercept_counters count
        uint64_t refused
        int64_t why
        const st_intercept_hooks *hooks
        st_intercept_source *next
    struct st_intercept:
        st_intercept_source *source
        uint64_t min_bytes
        st_below below
    void *st_intercept_malloc(void *arg, size_t bytes) noexcept
    void *st_intercept_calloc(void *arg, size_t count, size_t size) noexcept
    void *st_intercept_realloc(void *arg, void *p, size_t bytes) noexcept
    void st_intercept_free(void *arg, void *p, size_t bytes) noexcept
    void st_intercept_limit(st_intercept *s, uint64_t min_bytes)
    void st_intercept_bind(st_intercept_source *s, st_heap *heap, const st_ctx *ctx)
    uint64_t st_cgroup_free(const st_cgroup *groups, uint32_t n)


cdef extern from *:
    """
    /* The interpreter's lock, for code that does not know whether it holds it. */
    static void *st_python_detach(void) { return PyGILState_Check() ? PyEval_SaveThread() : NULL; }
    static void st_python_attach(void *state) { PyEval_RestoreThread((PyThreadState *)state); }
    static int st_python_hold(void) { return (int)PyGILState_Ensure(); }
    static void st_python_drop(int state) { PyGILState_Release((PyGILState_STATE)state); }
    """
    void *st_python_detach() noexcept nogil
    void st_python_attach(void *) noexcept nogil
    int st_python_hold() noexcept nogil
    void st_python_drop(int) noexcept nogil
    int Py_AddPendingCall(int (*)(void *) noexcept, void *) noexcept nogil


cdef struct Handler:
    # What a capsule of ours points to; first of all a handler of numpy's.
    PyDataMem_Handler numpy
    st_intercept mine
    PyObject *below     # the capsule that `mine.below` is from
    PyObject *previous  # the capsule that was current when this one became it
    bint ended          # its block is over


cdef const char *NAME = "mem_handler"  # numpy's, of all such capsules
cdef const char *NAME_OF_OURS = "strata"
cdef st_intercept_hooks hooks
cdef st_intercept_source *newest = NULL
cdef dict _sources = {}  # Heap -> Source; for ever, since arrays may outlive everything else
cdef Handler everywhere  # the handler of the whole process
cdef char[127] below_name  # of the handler below it
cdef bint installed = False
cdef list _process = []  # (token, min_bytes) of the blocks that are for all threads; the last one counts


cdef int notice_later(void *arg) noexcept nogil:
    # The main thread runs it between two steps of Python code.  A warning given where numpy
    # asks for memory could run any code, or raise, in the middle of an array's making.
    return Py_AddPendingCall(notice, arg)


cdef int notice(void *arg) noexcept with gil:
    cdef st_intercept_source *s = <st_intercept_source *>arg
    for source in _sources.values():
        if (<Source>source).c == s:
            try:
                warnings.warn((<Source>source).reason(), RuntimeWarning, stacklevel=2)
            except BaseException as error:  # a filter made it an error: there is nobody to catch it
                import sys
                sys.unraisablehook(_Unraisable(error))
    return 0


class _Unraisable:
    """The argument of sys.unraisablehook."""

    def __init__(self, error):
        self.exc_type, self.exc_value, self.exc_traceback = type(error), error, error.__traceback__
        self.err_msg, self.object = "Warning of strata.intercept", None


hooks.detach = st_python_detach
hooks.attach = st_python_attach
hooks.hold = st_python_hold
hooks.drop = st_python_drop
hooks.notice = notice_later


@cython.final
cdef class Source:
    """A heap, as handlers see it."""

    cdef st_intercept_source *c
    cdef Heap heap
    cdef list paths  # of its cgroups

    def __init__(self):
        raise TypeError("use source_of(heap)")

    def reason(self):
        """What the warning says."""
        if self.c.why == ST_ENOMEM:
            why = str(self.heap._shortage(self.c.refused))
        else:
            why = str(errors.from_status(self.c.why, "pages could not be mapped"))
        return (f"strata.intercept: a numpy array of {self.c.refused} bytes got ordinary memory, and operations "
                f"on it copy it: {why}. A larger min_bytes (STRATA_INTERCEPT_MIN_BYTES) leaves the fabric "
                "to large arrays. strata.stats()['intercept'] counts such arrays; this is said once")


cdef Source source_of(Heap heap):
    """The one Source of a heap."""
    global newest
    cdef Source source = _sources.get(heap)
    cdef st_cgroup *groups
    if source is not None:
        return source
    source = Source.__new__(Source)
    source.heap = heap
    source.paths = [[os.fsencode(path) for path in group] for group in heap.groups]
    source.c = <st_intercept_source *>PyMem_Malloc(sizeof(st_intercept_source))
    groups = <st_cgroup *>PyMem_Malloc(max(1, len(source.paths)) * sizeof(st_cgroup))
    if source.c == NULL or groups == NULL:
        PyMem_Free(source.c)
        PyMem_Free(groups)
        raise MemoryError
    for i, (limit, used, stat) in enumerate(source.paths):
        groups[i].limit, groups[i].used, groups[i].stat = (
            PyBytes_AS_STRING(limit), PyBytes_AS_STRING(used), PyBytes_AS_STRING(stat))
    memset(source.c, 0, sizeof(st_intercept_source))
    source.c.groups = groups
    source.c.ngroups = <uint32_t>len(source.paths)
    source.c.hooks = &hooks
    st_intercept_bind(source.c, heap.h, &(<Context>heap.source).ctx if isinstance(heap.source, Context) else NULL)
    source.c.next = newest
    newest = source.c
    _sources[heap] = source
    return source


cdef Handler *handler_in(PyObject *capsule) except NULL:
    """What a capsule of numpy's points to; ours or not."""
    return <Handler *>PyCapsule_GetPointer(<object>capsule, NAME)


cdef inline bint is_ours(const Handler *h) noexcept:
    return h.numpy.allocator.malloc == st_intercept_malloc


cdef int fill(Handler *h, PyObject *capsule, st_intercept_source *source, uint64_t min_bytes) except -1:
    """Makes a handler on top of the one in a capsule; of one of ours, on top of what that is on."""
    cdef Handler *under = handler_in(capsule)
    memset(h, 0, sizeof(Handler))
    strcpy(h.numpy.name, NAME_OF_OURS)
    h.numpy.version = 1
    h.numpy.allocator.ctx = &h.mine
    h.numpy.allocator.malloc = st_intercept_malloc
    h.numpy.allocator.calloc = st_intercept_calloc
    h.numpy.allocator.realloc = st_intercept_realloc
    h.numpy.allocator.free = st_intercept_free
    h.mine.source = source
    h.mine.min_bytes = min_bytes
    if is_ours(under):
        h.mine.below = under.mine.below
        h.below = under.below
    else:
        h.mine.below.arg = under.numpy.allocator.ctx
        h.mine.below.obtain = under.numpy.allocator.malloc
        h.mine.below.obtain_zero = under.numpy.allocator.calloc
        h.mine.below.resize = under.numpy.allocator.realloc
        h.mine.below.release = under.numpy.allocator.free
        h.below = capsule
    Py_INCREF(<object>h.below)
    return 0


cdef void drop(object capsule) noexcept:
    """Destructor of our capsules: the block is over and no array is left."""
    cdef Handler *h = <Handler *>PyCapsule_GetPointer(capsule, NAME)
    Py_DECREF(<object>h.below)
    Py_DECREF(<object>h.previous)
    PyMem_Free(h)


def begin(Heap heap, uint64_t min_bytes):
    """Arrays of ``min_bytes`` and more that this context makes come from ``heap``, until end()
    is given what this returns."""
    cdef Source source = source_of(heap)
    cdef Handler *h = <Handler *>PyMem_Malloc(sizeof(Handler))
    if h == NULL:
        raise MemoryError
    try:
        previous = PyDataMem_GetHandler()
        fill(h, <PyObject *>previous, source.c, min_bytes)
    except BaseException:
        PyMem_Free(h)
        raise
    Py_INCREF(previous)
    h.previous = <PyObject *>previous
    capsule = PyCapsule_New(h, NAME, drop)
    PyDataMem_SetHandler(capsule)
    return capsule


def end(capsule):
    """Undoes begin(), if its handler is current in this context.

    It need not be: a generator may have been left in the middle of its block, and closed
    elsewhere, or after a block that began later.  Who ends last finds the handler of the last
    block that is not over.
    """
    cdef Handler *h = handler_in(<PyObject *>capsule)
    cdef PyObject *previous = h.previous
    h.ended = True
    if PyDataMem_GetHandler() is not capsule:
        return
    while True:
        h = handler_in(previous)
        if not is_ours(h) or not h.ended:
            break
        previous = h.previous
    PyDataMem_SetHandler(<object>previous)


def process_begin(Heap heap, uint64_t min_bytes):
    """The same for all threads, in contexts that have no other handler; until process_end()."""
    global installed
    cdef Source source = source_of(heap)
    if not installed:
        strcpy(below_name, handler_in(PyDataMem_DefaultHandler).numpy.name)
        fill(&everywhere, PyDataMem_DefaultHandler, NULL, ST_INTERCEPT_OFF)
        everywhere.mine.source = source.c
        if PyCapsule_SetPointer(<object>PyDataMem_DefaultHandler, &everywhere) != 0:
            raise SystemError("numpy's default handler cannot be replaced")
        installed = True
    everywhere.mine.source = source.c
    token = object()
    _process.append((token, min_bytes))
    settle()
    return token


def process_end(token):
    """Undoes process_begin()."""
    _process[:] = [entry for entry in _process if entry[0] is not token]
    settle()


cdef int settle() except -1:
    """The last block counts; without one ours has the name, too, of what is below it."""
    if _process:
        strcpy(everywhere.numpy.name, NAME_OF_OURS)
        st_intercept_limit(&everywhere.mine, _process[len(_process) - 1][1])
    else:
        strcpy(everywhere.numpy.name, below_name)
        st_intercept_limit(&everywhere.mine, ST_INTERCEPT_OFF)
    return 0


def enable(Context context):
    """What option intercept asks for: from now on, everywhere."""
    process_begin(heap_of(context), context.config.intercept_min_bytes)


def counters(Heap heap):
    """Counters of a heap's handlers: dict of arrays, bytes, fallbacks and fallback_bytes."""
    cdef Source source = _sources.get(heap)
    if source is None:
        return dict.fromkeys(("arrays", "bytes", "fallbacks", "fallback_bytes"), 0)
    return dict(source.c.count)


def handler_name():
    """Name of the current handler; ours is "strata"."""
    current = PyDataMem_GetHandler()
    return handler_in(<PyObject *>current).numpy.name.decode()


def cgroup_free(groups):
    """Bytes below the tightest limit of (limit, used, stat) files; None if there is none.  For tests."""
    cdef st_cgroup one
    cdef uint64_t least = <uint64_t>-1
    for limit, used, stat in groups:
        paths = [os.fsencode(limit), os.fsencode(used), os.fsencode(stat)]
        one.limit, one.used, one.stat = (
            PyBytes_AS_STRING(paths[0]), PyBytes_AS_STRING(paths[1]), PyBytes_AS_STRING(paths[2]))
        least = min(least, st_cgroup_free(&one, 1))
    return None if least == <uint64_t>-1 else least
