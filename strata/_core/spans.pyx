"""Calls and probes in traces: what Python code does, where, and with how many bytes.

A call is two events (st_abi_trace.h): the span, then its group, number, site and tags.  Calls within calls are not
told.  What is written for a call's number: the last operation of the group that it was (48 bits), how many operations
(8), and, if a thread of the group runs it, how many earlier ones the number may be off by (2 bits) and NUMBER_LATER.
"""

cimport numpy as cnp
from cpython.object cimport PyObject
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport strlen

from strata._core.abi cimport st_ctx, st_is_die
from strata._core.group cimport CoreGroup, st_worker
from strata._core.marks cimport place, tag, tags_of, tell_group
from strata._core.space cimport Context
from strata._core.tracing cimport (
    ST_TRACE_CALL,
    ST_TRACE_CALL_MORE,
    ST_TRACE_PROBE,
    st_trace_mode,
    st_trace_now,
    st_trace_on,
    st_tracer,
    write,
)

import functools
import types

from strata._core.tracing import name as number_of

cnp.import_array()


cdef extern from "st_trace_open.h" nogil:
    uint32_t st_trace_name(st_ctx *ctx, const char *text, uint32_t nbytes)


cdef extern from "strata_probes.h" nogil:
    uint32_t STRATA_PROBES

    struct strata_probes:
        uint32_t version
        uint32_t (*name)(const char *text) noexcept nogil
        uint64_t (*begin)() noexcept nogil
        void (*end)(uint64_t began, uint32_t name) noexcept nogil


cdef extern from "st_worker.h":
    """
    /* Calls in progress of this thread that are told of. */
    static _Thread_local uint32_t st_calls_deep;

    static void st_spans_called_at(PyObject *type, Py_ssize_t at)
    {
        PyTypeObject *t = (PyTypeObject *)type;

        t->tp_vectorcall_offset = at;
        t->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR;
        PyType_Modified(t);
    }

    static uint32_t st_spans_waiting(const struct st_worker *w) { return st_load_acquire_32(&w->outstanding); }
    """
    uint32_t st_calls_deep
    uint32_t st_spans_waiting(const st_worker *w)
    void st_spans_called_at(object type, Py_ssize_t at)
    object PyObject_Vectorcall(object f, PyObject **args, size_t nargsf, PyObject *names)
    Py_ssize_t PyVectorcall_NARGS(size_t nargsf)
    Py_ssize_t PyTuple_GET_SIZE(PyObject *t)
    PyObject *PyTuple_GET_ITEM(PyObject *t, Py_ssize_t i)


cdef enum:
    NESTED = 1  # a call within a call

NUMBER_LATER = 1 << 63
NUMBER_BITS, NUMBER_COUNT, NUMBER_SLACK = 48, 48, 60

cdef Context _joined = None  # here's
cdef object _handle = None, _stream_of = None  # strata._core.work.Work, and what is of stream, which import this


def join(Context context):
    """This process is a die now."""
    global here, _joined
    here, _joined = &context.ctx, context


# ---- calls ------------------------------------------------------------------------------------


cdef uint64_t entered(st_ctx *ctx) noexcept:
    cdef st_tracer *t
    global st_calls_deep
    if not st_is_die(ctx):
        return 0
    if st_calls_deep:
        st_calls_deep += 1
        return NESTED
    t = st_trace_on(ctx)
    if t == NULL:
        return 0
    st_calls_deep = 1
    return st_trace_now(t)


cdef int leave(Context context, uint64_t began, str name, uint64_t nbytes, uint32_t flags=0, uint32_t peer=NOBODY,
               CoreGroup group=None, uint64_t number=0) except -1:
    """The call has ended.  An error that it raises passes by."""
    cdef st_tracer *t
    cdef uint64_t end, id = 0, tags
    cdef uint32_t named, site
    global st_calls_deep
    st_calls_deep -= 1
    if began == NESTED or not st_is_die(&context.ctx):
        return 0
    t = st_trace_on(&context.ctx)
    if t == NULL:
        return 0
    end = st_trace_now(t)
    if group is not None:
        id = group.g.id
        tell_group(context, id, group)
    named, site, tags = number_of(context, name), place(context), tags_of(context)
    write(t, ST_TRACE_CALL, began, end, named, nbytes, peer, flags)
    write(t, ST_TRACE_CALL_MORE, id, number, site, tags)
    return 0


cdef uint64_t numbers(CoreGroup group, uint64_t before, uint32_t queued, bint later) noexcept:
    """The numbers of operations that a call of a group has run, whose last one before was ``before``, when ``queued``
    of them were in progress or queued.  ``later``: the group's thread runs it."""
    cdef uint64_t count
    if queued or later:
        return (before + queued + 1) | <uint64_t>1 << 48 | <uint64_t>min(queued, 3) << 60 | <uint64_t>1 << 63
    count = min(group.g.number - before, 255)
    return group.g.number | count << 48 if count else 0


cdef uint64_t size_of(PyObject *value) except? 0xffffffffffffffff:
    """Bytes of an array, of the arrays in a tuple, or of what knows its own; 0: it is none."""
    cdef object x
    cdef uint64_t found = 0
    if value == NULL:
        return 0
    x = <object>value
    if cnp.PyArray_Check(x):
        return <uint64_t>cnp.PyArray_NBYTES(<cnp.ndarray>x)
    if type(x) is tuple:
        for y in <tuple>x:
            if cnp.PyArray_Check(y):
                found += <uint64_t>cnp.PyArray_NBYTES(<cnp.ndarray>y)
    elif type(x) not in (int, str):
        size = getattr(x, "nbytes", None)  # as batches of descriptors have it
        found = size if isinstance(size, int) and 0 <= size < 1 << 62 else 0
    return found


cdef uint64_t payload(PyObject **args, Py_ssize_t n, PyObject *names, object result) except? 0xffffffffffffffff:
    """Bytes that a call is about: of the array that goes in, else of the first there is, else of what comes out."""
    cdef Py_ssize_t i
    cdef uint64_t found = 0
    for i in range(n and isinstance(<object>args[0], CoreGroup), n):
        found = size_of(args[i])
        if found:
            return found
    if names != NULL:
        for i in range(PyTuple_GET_SIZE(names)):
            if <object>PyTuple_GET_ITEM(names, i) in ("src", "x"):
                found = size_of(args[n + i])
        if not found:
            for i in range(PyTuple_GET_SIZE(names)):
                found = found or size_of(args[n + i])
    return found or size_of(<PyObject *>result)


cdef object traced(object function, str name, PyObject **args, size_t nargsf, PyObject *names):
    """A call of a method, of a group or whatever has one, or of a function."""
    cdef Py_ssize_t n = PyVectorcall_NARGS(nargsf)
    cdef uint64_t began = entered(here), before = 0, number = 0
    cdef uint32_t queued = 0, flags = FAILED
    cdef bint message = name == "send" or name == "recv"
    cdef CoreGroup group = None
    if not began:
        return PyObject_Vectorcall(function, args, nargsf, names)
    result = None
    if began != NESTED:
        owner = <object>args[0] if n else None
        found = owner if isinstance(owner, CoreGroup) else getattr(owner, "group", None)
        if isinstance(found, CoreGroup):
            group = found
            before, queued = group.g.number, waiting(group)
    try:
        result = PyObject_Vectorcall(function, args, nargsf, names)
        flags = 0
    finally:
        if began == NESTED:
            leave(_joined, began, name, 0)
        else:
            if not flags and later(result):
                flags = LATER
            if group is not None and not message and not (flags & FAILED and before == group.g.number):
                number = numbers(group, before, queued, flags & LATER)
            leave(_joined, began, name, payload(args, n, names, result), flags,
                  peer_of(group, name, args, n, names) if message else NOBODY, group, number)
    return result


cdef uint32_t waiting(CoreGroup group) noexcept:
    """Operations of a group that are in progress in, or queued for, its thread."""
    return st_spans_waiting(&group.collectives)


cdef bint later(object result) except -1:
    """Whether a call has only begun what it is about."""
    global _handle, _stream_of
    if _handle is None:
        from strata._core.stream import current_stream
        from strata._core.work import Work
        _handle, _stream_of = Work, current_stream
    return isinstance(result, _handle) or _stream_of() is not None


cdef uint32_t peer_of(CoreGroup group, str name, PyObject **args, Py_ssize_t n, PyObject *names) except? 0xfffffffe:
    """World rank of whom a message goes to, or comes from."""
    cdef Py_ssize_t i
    if group is None:
        return NOBODY
    peer = <object>args[2] if n > 2 else None
    if names != NULL:
        for i in range(PyTuple_GET_SIZE(names)):
            if n <= 2 and <object>PyTuple_GET_ITEM(names, i) == ("dst" if name == "send" else "src"):
                peer = <object>args[n + i]
    return group.ranks[peer] if isinstance(peer, int) and 0 <= peer < group.size else NOBODY


cdef object call_spanned(PyObject *self, PyObject **args, size_t nargsf, PyObject *names):
    if on():
        return traced((<Spanned>self).function, (<Spanned>self).title, args, nargsf, names)
    return PyObject_Vectorcall((<Spanned>self).function, args, nargsf, names)


cdef class Spanned:
    """A function whose calls are told; see spanned()."""
    cdef void *call
    cdef object function
    cdef str title
    cdef dict __dict__

    def __cinit__(self, function, str title):
        self.call = <void *>call_spanned
        self.function, self.title = function, title

    def __get__(self, owner, kind):
        return self if owner is None else types.MethodType(self, owner)

    def __call__(self, *args, **kwargs):
        return self.function(*args, **kwargs)

    def __reduce__(self):
        return getattr(self, "__qualname__")

    def __repr__(self):
        return repr(self.function)


def spanned(str title):
    """``@spanned("Stream.copy")``: calls of a function, or method, are told under that name; nothing else changes."""
    return lambda function: functools.update_wrapper(Spanned(function, title), function, updated=())


cdef int callable_by_vector() except -1:
    """What Cython cannot say of a type: its objects are called without a tuple of arguments."""
    cdef Spanned s = Spanned.__new__(Spanned, spanned, "")
    st_spans_called_at(Spanned, <char *>&s.call - <char *><PyObject *>s)
    return 0


callable_by_vector()


# ---- probes ---------------------------------------------------------------------------------------


cdef class probe:
    """``with strata.probe("forward", layer=3):`` a span of the program's own in traces; keywords are tags of the block.

    Costs next to nothing when nothing is traced.  Begin and end of a block are in one thread.
    """
    cdef str name
    cdef tag tags
    cdef list began

    def __init__(self, str name, /, **tags):
        self.name, self.tags, self.began = name, tag(**tags) if tags else None, []

    def __enter__(self):
        cdef st_tracer *t = NULL
        if self.tags is not None:
            self.tags.__enter__()
        if on() and st_is_die(here):
            t = st_trace_on(here)
        self.began.append(st_trace_now(t) if t != NULL else 0)
        return self

    def __exit__(self, *_):
        cdef uint64_t began = self.began.pop(), end
        cdef st_tracer *t = NULL
        if began and st_is_die(here):
            t = st_trace_on(here)
        if t != NULL:
            end = st_trace_now(t)
            write(t, ST_TRACE_PROBE, began, end, number_of(_joined, self.name), tags_of(_joined))
        if self.tags is not None:
            self.tags.__exit__()


# ---- for C ------------------------------------------------------------------------------------------


cdef uint32_t c_name(const char *text) noexcept nogil:
    return st_trace_name(here, text, <uint32_t>strlen(text)) if here != NULL else 0


cdef uint64_t c_begin() noexcept nogil:
    cdef st_tracer *t = NULL
    if here != NULL and st_trace_mode(here) and st_is_die(here):
        t = st_trace_on(here)
    return st_trace_now(t) if t != NULL else 0


cdef void c_end(uint64_t began, uint32_t name) noexcept nogil:
    cdef st_tracer *t = st_trace_on(here) if began and here != NULL and st_is_die(here) else NULL
    if t != NULL:
        write(t, ST_TRACE_PROBE, began, st_trace_now(t), name, 0)


cdef strata_probes functions
functions.version, functions.name, functions.begin, functions.end = STRATA_PROBES, c_name, c_begin, c_end
PROBES = <size_t>&functions  # address of a struct strata_probes: strata_probes.h
