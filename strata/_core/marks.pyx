"""What events of calls refer to by number: where in the program they are, their tags, their groups.

Names that begin with GROUP are groups (id in hexadecimal, name, world ranks), with TAGS shapes of tags: a list in JSON
of (key, bits), whose whole number is in the event, and (key, 0, value).
"""

from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport uint32_t, uint64_t

from strata._core.space cimport Context

import contextlib
import json
import operator
import os
import threading

from strata._core.tracing import name as number_of


cdef extern from *:
    """
    /* Where Python code is: the code object (borrowed), and the instruction. */
    static PyFrameObject *st_frame(void) { return (PyFrameObject *)PyEval_GetFrame(); }

    static PyObject *st_frame_code(PyFrameObject *frame)
    {
        PyCodeObject *code = PyFrame_GetCode(frame);

        Py_DECREF(code); /* the frame has it */
        return (PyObject *)code;
    }

    static int st_frame_at(PyFrameObject *frame)
    {
    #if PY_VERSION_HEX >= 0x030B0000
        return PyFrame_GetLasti(frame);
    #else
        return frame->f_lasti;
    #endif
    }
    """
    ctypedef struct PyFrameObject:
        pass
    PyFrameObject *st_frame()
    PyObject *st_frame_code(PyFrameObject *frame)
    int st_frame_at(PyFrameObject *frame)
    PyFrameObject *PyFrame_GetBack(PyFrameObject *frame)
    int PyFrame_GetLineNumber(PyFrameObject *frame)
    void Py_XDECREF(PyFrameObject *frame)
    void Py_XINCREF(PyFrameObject *frame)


cdef enum:
    SITES = 1024         # a power of two
    TRIES = 4
    INNER = 0xffffffff   # a frame of the library's
    INLINE = 48          # bits of tags' whole numbers that an event holds

GROUP, TAGS = "\x01group ", "\x01tags "
BLOCKS = contextlib.__file__  # between a block's end and the library's generator
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep

cdef struct Site:
    PyObject *code  # held; NULL: nothing here
    int at
    uint32_t number

cdef Site sites[SITES]
cdef Context _told = None       # that the numbers are of
cdef set _groups = set()        # ids of groups that the trace has
cdef dict _files = {}           # file -> whether it is the library's, or numpy's
cdef int _tagged = 0            # `with strata.tag()` blocks in progress, of all threads
_local = threading.local()      # a thread's tags, and what is known of them


cdef int forget(Context context) except -1:
    """Numbers are another die's from now on."""
    global _told
    cdef int i
    _told = context
    _groups.clear()
    for i in range(SITES):
        if sites[i].code != NULL:
            Py_DECREF(<object>sites[i].code)
            sites[i].code = NULL
    return 0


cdef int tell_group(Context context, uint64_t id, object group) except -1:
    """The trace has the group's name, and whose it is."""
    if context is not _told:
        forget(context)
    if id not in _groups:
        _groups.add(id)
        ranks = ",".join(map(str, group.ranks))
        number_of(context, f"{GROUP}{id:x} {group.name} {ranks}")
    return 0


# ---- where ------------------------------------------------------------------------------------


cdef uint32_t place(Context context) except? 0xfffffffe:
    """The number of the innermost place outside the library that this thread is at; 0: there is none."""
    cdef PyFrameObject *frame = st_frame()
    cdef PyFrameObject *back
    cdef uint32_t number = 0
    if context is not _told:
        forget(context)
    if frame == NULL:
        return 0
    Py_XINCREF(frame)
    try:
        while True:
            number = site(context, frame)
            if number != INNER:
                return number
            back = PyFrame_GetBack(frame)
            if back == NULL:  # nothing but the library, as in its tools
                return number_of(context, text_of(<object>st_frame_code(frame), PyFrame_GetLineNumber(frame)))
            Py_XDECREF(frame)
            frame = back
    finally:
        Py_XDECREF(frame)


cdef uint32_t site(Context context, PyFrameObject *frame) except? 0xfffffffe:
    cdef PyObject *code = st_frame_code(frame)
    cdef int at = st_frame_at(frame), i
    cdef uint64_t hashed = (<uint64_t>code >> 4) * 0x9e3779b97f4a7c15ull + <uint64_t>at * 0xc2b2ae3d27d4eb4full
    cdef Site *s
    cdef Site *free = &sites[hashed >> 54]
    cdef uint32_t number
    for i in range(TRIES):
        s = &sites[((hashed >> 54) + i) & (SITES - 1)]
        if s.code == code and s.at == at:
            return s.number
        if s.code == NULL:
            free = s
            break
    if inner((<object>code).co_filename):
        number = INNER
    else:
        number = number_of(context, text_of(<object>code, PyFrame_GetLineNumber(frame)))
    if free.code != NULL:
        Py_DECREF(<object>free.code)
    Py_INCREF(<object>code)
    free.code, free.at, free.number = code, at, number
    return number


cdef bint inner(str file) except -1:
    """Whether a file is no part of the user's program."""
    found = _files.get(file)
    if found is None:
        parts = file.split(os.sep)
        packages = "site-packages" in parts or "dist-packages" in parts
        found = file.startswith((PACKAGE, "<frozen")) or file == BLOCKS or (packages and "numpy" in parts)
        _files[file] = found
    return found


cdef str text_of(object code, int line):
    """As "train.py:12 in step": a file below the working directory by its path from there."""
    file = code.co_filename
    try:
        below = os.path.relpath(file) if os.path.isabs(file) else file
    except (OSError, ValueError):
        below = ".."
    name = getattr(code, "co_qualname", code.co_name)
    return f"{file if below.startswith('..') else below}:{line} in {name}"


# ---- tags ------------------------------------------------------------------------------


cdef dict checked(dict tags):
    for key, value in tags.items():
        if not isinstance(value, (str, float)):
            try:
                tags[key] = value if isinstance(value, bool) else operator.index(value)
            except TypeError:
                raise TypeError(f"{key}={value!r}: tags are whole numbers, floats, strings or bools") from None
    return tags


cdef uint64_t tags_of(Context context) except? 0xffffffffffffffff:
    """What an event says of this thread's tags: the number of their shape (16 bits), and whole numbers in it."""
    if not _tagged:
        return 0
    tags = getattr(_local, "tags", None)
    if not tags:
        return 0
    known = getattr(_local, "known", None)
    if known is None or known[0] is not tags or known[1] is not context:
        known = _local.known = tags, context, shaped(context, tags)
    return known[2]


cdef uint64_t shaped(Context context, dict tags) except? 0xffffffffffffffff:
    """Whole numbers travel in the event, as far as there is room: what changes with each step must not fill the table
    of names."""
    cdef uint64_t found = 0, number
    cdef int used = 0, bits
    shape = []
    for key, value in tags.items():
        bits = 0
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            bits = max(8, (value.bit_length() + 7) // 8 * 8)
        if bits and used + bits <= INLINE:
            shape.append([key, bits])
            found |= <uint64_t>value << (16 + used)
            used += bits
        else:
            shape.append([key, 0, value])
    number = number_of(context, TAGS + json.dumps(shape))
    return found | number if number < 1 << 16 else 0


cdef class tag:
    """``with strata.tag(step=3, layer="mlp"):`` all that this thread does in the block is marked so in traces.

    Values are numbers, strings or bools; tags of inner blocks are added, and take the place of those of one name.
    Costs next to nothing when nothing is traced.  Whole numbers of at most 48 bits together are free; each other new
    value takes some of the trace's room for names (64 KiB a die).
    """
    def __init__(self, **tags):
        self.own, self.before = checked(tags), []

    def __enter__(self):
        global _tagged
        before = getattr(_local, "tags", None)
        self.before.append(before)
        _local.tags = {**before, **self.own} if before else self.own
        _tagged += 1
        return self

    def __exit__(self, *_):
        global _tagged
        _tagged -= 1
        _local.tags = self.before.pop()
