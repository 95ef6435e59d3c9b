"""The reduction kernels, for tests and benchmarks; collectives call them from C.

Operands are objects with a contiguous buffer (of ml_dtypes' arrays: a view as
unsigned integers), taken as bytes: they need not be aligned.  What a kernel
computes is described in ``st_kernels.h``.
"""

from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport uint64_t, uintptr_t

from strata import errors


cdef extern from "st_kernels.h" nogil:
    int c_reduce "st_reduce"(int dtype, int op, void **dst, int ndst, const void **src,
                             int nsrc, uint64_t count, int nt) noexcept
    int st_reduce_at(int level, int dtype, int op, void **dst, int ndst, const void **src,
                     int nsrc, uint64_t count, int nt) noexcept
    int st_reduce_supported(int dtype, int op) noexcept
    int st_kernels_level() noexcept
    int st_dtype_size(int dtype) noexcept
    void st_copy(void *dst, const void *src, uint64_t bytes, int nt) noexcept
    float st_f16_to_f32(unsigned short h) noexcept
    float st_bf16_to_f32(unsigned short h) noexcept
    float st_f8e4m3fn_to_f32(unsigned char x) noexcept
    float st_f8e5m2_to_f32(unsigned char x) noexcept
    unsigned short st_f32_to_f16(float f) noexcept
    unsigned short st_f32_to_bf16(float f) noexcept
    unsigned char st_f32_to_f8e4m3fn(float f) noexcept
    unsigned char st_f32_to_f8e5m2(float f) noexcept
    enum:
        ST_MAX_OPERANDS
        ST_OK
        ST_F16
        ST_BF16
        ST_F8E4M3FN
        ST_F8E5M2


cdef extern from "st_kernels_partial.h" nogil:
    int c_reduce_partial "st_reduce_partial"(int dtype, int op, void **dst, int ndst, const uint64_t *dst_partial,
                                             const void **src, int nsrc, const uint64_t *src_partial, int total,
                                             uint64_t count) noexcept
    unsigned int st_partial_bytes(int dtype, int op) noexcept


cdef extern from "st_accumulate.h" nogil:
    int c_accumulate "st_accumulate"(int dtype, int op, void *dst, const void *src, uint64_t count) noexcept
    unsigned int st_accumulate_width(int dtype, int op) noexcept


cdef extern from "st_kernels_rows.h" nogil:
    int c_weigh "st_weigh"(int dtype, void *dst, const void *const *src, const float *weights, int nsrc,
                           const void *const *bias, uint64_t count) noexcept
    int st_weigh_at(int level, int dtype, void *dst, const void *const *src, const float *weights, int nsrc,
                    const void *const *bias, uint64_t count) noexcept


LEVELS = ("portable", "avx2", "avx512")  # enum st_level
MAX_OPERANDS = ST_MAX_OPERANDS


cdef st_reduce_fn *reduce_fn() noexcept nogil:
    return <st_reduce_fn *>&c_reduce


cdef st_reduce_partial_fn *reduce_partial_fn() noexcept nogil:
    return <st_reduce_partial_fn *>&c_reduce_partial


cdef st_accumulate_fn *accumulate_fn() noexcept nogil:
    return <st_accumulate_fn *>&c_accumulate


cdef st_copy_fn *copy_fn() noexcept nogil:
    return <st_copy_fn *>&st_copy


cdef st_weigh_fn *weigh_fn() noexcept nogil:
    return <st_weigh_fn *>&c_weigh


cdef class _Buffers:
    """Contiguous buffers of one size, held until close()."""

    cdef Py_buffer *views
    cdef void **pointers
    cdef int n
    cdef uint64_t nbytes

    def __cinit__(self, objects, bint writable):
        cdef Py_ssize_t i, count = len(objects)
        self.views = <Py_buffer *>PyMem_Calloc(count + 1, sizeof(Py_buffer))
        self.pointers = <void **>PyMem_Calloc(count + 1, sizeof(void *))
        if self.views == NULL or self.pointers == NULL:
            raise MemoryError
        for i in range(count):
            PyObject_GetBuffer(objects[i], &self.views[i], PyBUF_WRITABLE if writable else PyBUF_SIMPLE)
            self.n += 1
            self.pointers[i] = self.views[i].buf
            if i == 0:
                self.nbytes = <uint64_t>self.views[i].len
            elif self.nbytes != <uint64_t>self.views[i].len:
                raise ValueError(f"buffer {i} has {self.views[i].len} bytes, buffer 0 has {self.nbytes}")

    def __dealloc__(self):
        self.close()
        PyMem_Free(self.views)
        PyMem_Free(self.pointers)

    cdef void close(self) noexcept:
        while self.n:
            self.n -= 1
            PyBuffer_Release(&self.views[self.n])


cdef int _check_overlap(_Buffers dst, _Buffers src) except -1:
    """Every destination is equal to another buffer or overlaps none."""
    cdef int i, j
    cdef uintptr_t a, b
    for i in range(dst.n):
        a = <uintptr_t>dst.pointers[i]
        for j in range(dst.n + src.n):
            b = <uintptr_t>(dst.pointers[j] if j < dst.n else src.pointers[j - dst.n])
            if a != b and (b - a if a < b else a - b) < dst.nbytes:
                raise ValueError(f"destination {i} overlaps another buffer in part")
    return 0


def reduce(dsts, srcs, int dtype, int op, bint nt=False, level=None):
    """Folds ``srcs`` left to right, element by element, into each of ``dsts``.

    All buffers have the same number of bytes, a multiple of the element's.
    ``dtype`` and ``op`` are codes of ``strata.dtypes``; ``nt`` writes past the
    cache; ``level`` is one of LEVELS up to ``level()``, or None for the best.
    Raises UnsupportedType, InvalidArgument, ValueError (sizes, overlap),
    BufferError.
    """
    cdef int rc, at = st_kernels_level() if level is None else LEVELS.index(level)
    cdef int size = st_dtype_size(dtype)
    cdef _Buffers dst = _Buffers(dsts, True)
    cdef _Buffers src = _Buffers(srcs, False)
    cdef uint64_t count
    if dst.n and src.n and dst.nbytes != src.nbytes:
        raise ValueError(f"destinations have {dst.nbytes} bytes, sources {src.nbytes}")
    if size and src.nbytes % <uint64_t>size:
        raise ValueError(f"{src.nbytes} bytes are no whole number of elements of {size}")
    _check_overlap(dst, src)
    count = src.nbytes // <uint64_t>size if size else 0
    with nogil:
        rc = st_reduce_at(at, dtype, op, dst.pointers, dst.n, <const void **>src.pointers, src.n,
                          count, nt)
    dst.close()
    src.close()
    if rc != ST_OK:
        raise errors.from_status(rc, f"reduce(dtype={dtype}, op={op}, {src.n} operands, level={LEVELS[at]})")


def copy(dst, src, bint nt=False):
    """Copies the bytes of ``src`` to ``dst``, of the same size; ``nt`` goes past the cache."""
    cdef _Buffers to = _Buffers((dst,), True)
    cdef _Buffers source = _Buffers((src,), False)
    if to.nbytes != source.nbytes:
        raise ValueError(f"destination has {to.nbytes} bytes, source {source.nbytes}")
    _check_overlap(to, source)
    with nogil:
        st_copy(to.pointers[0], source.pointers[0], to.nbytes, nt)


def supported(int dtype, int op):
    """Whether the kernels reduce this pair of codes."""
    return st_reduce_supported(dtype, op) != 0


def itemsize(int dtype):
    """Bytes of an element; 0 if there is no such code."""
    return st_dtype_size(dtype)


def level():
    """The best of LEVELS on this processor."""
    return LEVELS[st_kernels_level()]


def widen(int dtype, unsigned int code):
    """The value of a small float's code, as the kernels read it."""
    if dtype == ST_F16:
        return st_f16_to_f32(<unsigned short>code)
    if dtype == ST_BF16:
        return st_bf16_to_f32(<unsigned short>code)
    if dtype == ST_F8E4M3FN:
        return st_f8e4m3fn_to_f32(<unsigned char>code)
    if dtype == ST_F8E5M2:
        return st_f8e5m2_to_f32(<unsigned char>code)
    raise errors.UnsupportedType(f"dtype code {dtype} is no small float")


cdef void _narrow(int dtype, const float *values, unsigned short *codes, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        if dtype == ST_F16:
            codes[i] = st_f32_to_f16(values[i])
        elif dtype == ST_BF16:
            codes[i] = st_f32_to_bf16(values[i])
        elif dtype == ST_F8E4M3FN:
            codes[i] = st_f32_to_f8e4m3fn(values[i])
        else:
            codes[i] = st_f32_to_f8e5m2(values[i])


def narrow(int dtype, values, codes):
    """Rounds a buffer of float32 to a small float; its codes go to a buffer of uint16."""
    cdef _Buffers source = _Buffers((values,), False)
    cdef _Buffers to = _Buffers((codes,), True)
    if dtype not in (ST_F16, ST_BF16, ST_F8E4M3FN, ST_F8E5M2):
        raise errors.UnsupportedType(f"dtype code {dtype} is no small float")
    if source.nbytes % 4 or to.nbytes * 2 != source.nbytes:
        raise ValueError(f"{source.nbytes} bytes of float32 give no {to.nbytes} bytes of uint16")
    with nogil:
        _narrow(dtype, <const float *>source.pointers[0], <unsigned short *>to.pointers[0],
                <Py_ssize_t>(source.nbytes // 4))


def partial_bytes(int dtype, int op):
    """Bytes of an element of a partial operand; see ``strata.plan.records.partial_bytes``."""
    return st_partial_bytes(dtype, op)


def accumulate_width(int dtype, int op):
    """Bytes that a target of ``accumulate`` must be aligned to; 0: the operator does not go with the dtype there."""
    return st_accumulate_width(dtype, op)


def reduce_partial(dsts, dst_partial, srcs, src_partial, int dtype, int op, int total=0):
    """As ``reduce``, where the buffers of which ``dst_partial`` and ``src_partial`` say so are partial.

    A mean divides by ``total`` (0: the number of ``srcs``) where a destination is whole.  Elements are
    counted by the first source.  Raises as ``reduce`` does.
    """
    cdef int rc, i, ndst, nsrc, size = st_dtype_size(dtype)
    cdef _Buffers buffer
    cdef uint64_t count, elements
    cdef uint64_t bits[2][16]
    cdef void *at[2][1024]
    sides = (list(zip(dsts, dst_partial, strict=True)), list(zip(srcs, src_partial, strict=True)))
    if not size or not sides[1] or max(map(len, sides)) > 1024:
        raise errors.InvalidArgument("1 to 1024 sources and at most as many destinations of a dtype are expected")
    kept = []
    count = 0
    for side in range(2):
        for i in range(16):
            bits[side][i] = 0
        for i in range(len(sides[side])):
            buffer = _Buffers([sides[side][i][0]], side == 0)
            kept.append(buffer)
            at[side][i] = buffer.pointers[0]
            if sides[side][i][1]:
                bits[side][i >> 6] |= 1ull << (i & 63)
            elements = buffer.nbytes // (st_partial_bytes(dtype, op) if sides[side][i][1] else <unsigned int>size)
            if len(kept) == 1:
                count = elements
            elif elements != count:
                raise ValueError(f"a buffer has {elements} elements, the first one {count}")
    ndst, nsrc = len(sides[0]), len(sides[1])
    with nogil:
        rc = c_reduce_partial(dtype, op, at[0], ndst, bits[0], <const void **>at[1], nsrc, bits[1], total, count)
    if rc != ST_OK:
        raise errors.from_status(rc, f"no reduction of dtype {dtype} by operator {op}")


def accumulate(dst, src, int dtype, int op):
    """dst = dst op src, by an atomic read-modify-write of each element: several threads and dies at once.

    Buffers of one size; ``dst`` aligned to ``accumulate_width``.  Raises UnsupportedType (avg; products of
    complex128, for which no atomic is wide enough), InvalidArgument (alignment), ValueError (sizes).
    """
    cdef int rc, size = st_dtype_size(dtype)
    cdef _Buffers to = _Buffers([dst], True)
    cdef _Buffers given = _Buffers([src], False)
    cdef uint64_t count
    if to.nbytes != given.nbytes or (size and to.nbytes % <uint64_t>size):
        raise ValueError(f"{to.nbytes} and {given.nbytes} bytes: as many whole elements are expected")
    count = to.nbytes // <uint64_t>size if size else 0
    with nogil:
        rc = c_accumulate(dtype, op, to.pointers[0], given.pointers[0], count)
    if rc != ST_OK:
        raise errors.from_status(rc, f"no accumulation of dtype {dtype} by operator {op} there: its target must be "
                                     f"aligned to {st_accumulate_width(dtype, op)} bytes (0: there is none)")


def weigh(dst, srcs, int dtype, weights=None, bias=(None, None), level=None):
    """dst = bias[0] + bias[1] + weights[0] * srcs[0] + ..., left to right; biases may be None.

    ``weights``  float32, one for each of ``srcs``; None: of 1.  ``level``: one of LEVELS, or None for the best
    """
    cdef int rc, k, which = st_kernels_level() if level is None else LEVELS.index(level)
    cdef const void *given[2]
    cdef const float *w = NULL
    cdef uint64_t count
    given[0] = given[1] = NULL
    cdef _Buffers a = _Buffers([dst], True), b = _Buffers(srcs, False), d = None
    cdef _Buffers c = _Buffers([x for x in bias if x is not None], False)
    if (b.n and b.nbytes != a.nbytes) or (c.n and c.nbytes != a.nbytes) or st_dtype_size(dtype) == 0:
        raise ValueError("operands of the size of dst are expected")
    if weights is not None:
        d = _Buffers([weights], False)
        w = <const float *>d.pointers[0]
        if d.nbytes != 4 * <uint64_t>b.n:
            raise ValueError(f"{d.nbytes // 4} weights for {b.n} operands")
    for k in range(c.n):
        given[k] = c.pointers[k]
    count = a.nbytes // <uint64_t>st_dtype_size(dtype)
    with nogil:
        rc = st_weigh_at(which, dtype, a.pointers[0], <const void *const *>b.pointers, w, b.n, given, count)
    if rc != ST_OK:
        raise errors.from_status(rc)
