"""Rows as float8_e4m3fn or int8 with scales, and back: st_quantise.h says how they are rounded.

Arrays are C-contiguous; x is (rows, hidden) of bfloat16, float16 or float32.
"""

cimport numpy as cnp
from libc.stdint cimport int8_t, uint8_t, uint64_t

import numpy as np

from strata._core.array cimport Array, look

from strata import errors

cnp.import_array()


cdef extern from "st_quantise.h" nogil:
    enum:
        ST_OK
        ST_I8
        ST_F8E4M3FN
        ST_GROUP
    int st_kernels_level()
    uint64_t st_groups(uint64_t hidden)
    int st_cast_fp8_at(int level, int dtype, const void *x, uint8_t *q, float *scales, uint64_t rows, uint64_t hidden,
                       int round_scale)
    int st_cast_int8_at(int level, int dtype, const void *x, int8_t *q, float *scales, uint64_t rows, uint64_t hidden)
    int st_cast_back_at(int level, int from_, const void *q, const float *scales, int dtype, void *out, uint64_t rows,
                        uint64_t hidden)


GROUP = ST_GROUP  # elements of a row that share a scale
_LEVELS = ("portable", "avx2", "avx512")


cdef int level_of(object level) except -1:
    return st_kernels_level() if level is None else _LEVELS.index(level)


cdef int check(str name, object array, tuple shape, Array *a, bint writes) except -1:
    look(array, a)
    if array.shape != shape or not a.contiguous or (writes and not a.writeable):
        raise errors.InvalidArgument(f"{name} of shape {array.shape}: a C-contiguous array of {shape} is expected"
                                     + (", that can be written" if writes else ""))
    return 0


cdef int check_scales(object scales, tuple shape, Array *a, bint writes) except -1:
    check("scales", scales, shape, a, writes)
    if scales.dtype != np.float32:
        raise errors.UnsupportedType(f"scales of {scales.dtype}: float32 is expected")
    return 0


cdef int check_cast(object x, object out, object scales, uint64_t each, int wanted, str name, Array *a, Array *q,
                    Array *s) except -1:
    """What a cast of x to ``wanted`` takes, with ``each`` scales for a row."""
    check("x", x, x.shape, a, False)
    check("out", out, x.shape, q, True)
    check_scales(scales, (x.shape[0], each), s, True)
    if q.dtype != wanted:
        raise errors.UnsupportedType(f"out of {out.dtype}: {name} is expected")
    return 0


cdef int outcome(int rc, object x) except -1:
    if rc != ST_OK:
        raise errors.from_status(rc, f"rows of {x.dtype}: bfloat16, float16 or float32 are expected")
    return 0


def groups(uint64_t hidden):
    """Scales of a row of float8."""
    return st_groups(hidden)


def cast_fp8(x, out, scales, bint round_scale=False, level=None):
    """``out``: float8_e4m3fn like x; ``scales``: f32 (rows, groups(hidden)).  ``round_scale``: to powers of two, up."""
    cdef Array a, q, s
    cdef uint64_t rows, hidden
    cdef int rc, which = level_of(level)
    rows, hidden = x.shape
    check_cast(x, out, scales, st_groups(hidden), ST_F8E4M3FN, "float8_e4m3fn", &a, &q, &s)
    with nogil:
        rc = st_cast_fp8_at(which, a.dtype, a.data, <uint8_t *>q.data, <float *>s.data, rows, hidden, round_scale)
    outcome(rc, x)


def cast_int8(x, out, scales, level=None):
    """``out``: int8 like x; ``scales``: f32 (rows, 1)."""
    cdef Array a, q, s
    cdef uint64_t rows, hidden
    cdef int rc, which = level_of(level)
    rows, hidden = x.shape
    check_cast(x, out, scales, 1, ST_I8, "int8", &a, &q, &s)
    with nogil:
        rc = st_cast_int8_at(which, a.dtype, a.data, <int8_t *>q.data, <float *>s.data, rows, hidden)
    outcome(rc, x)


def cast_back(q, scales, out, level=None):
    """``q``, ``scales``: what cast_fp8 or cast_int8 made; ``out``: bfloat16, float16 or float32 like q."""
    cdef Array a, s, o
    cdef uint64_t rows, hidden
    cdef int rc, which = level_of(level)
    rows, hidden = q.shape
    check("q", q, (rows, hidden), &a, False)
    check("out", out, (rows, hidden), &o, True)
    if a.dtype != ST_I8 and a.dtype != ST_F8E4M3FN:
        raise errors.UnsupportedType(f"q of {q.dtype}: int8 or float8_e4m3fn is expected")
    check_scales(scales, (rows, 1 if a.dtype == ST_I8 else st_groups(hidden)), &s, False)
    with nogil:
        rc = st_cast_back_at(which, a.dtype, a.data, <const float *>s.data, o.dtype, o.data, rows, hidden)
    outcome(rc, out)
