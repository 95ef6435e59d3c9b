"""Fabric memory as numpy arrays, and the blocks that they are views of."""

cimport cython
from cpython.buffer cimport PyBUF_RECORDS_RO, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer
from cpython.ref cimport Py_INCREF, PyObject
from libc.stdint cimport uint64_t, uintptr_t
from libc.string cimport memset
cimport numpy as cnp

from strata._core.abi cimport ST_AGAIN, st_owner
from strata._core.heap cimport (
    ST_HEAP_ARRAY,
    ST_HEAP_ZEROED,
    TRACE_DOMAIN,
    Heap,
    PyTraceMalloc_Untrack,
    st_heap,
)
from strata._core.space cimport Context

import numpy as np

from strata._core.heap import heap_of

cnp.import_array()


cdef extern from "Python.h":
    Py_ssize_t PyNumber_AsSsize_t(object o, object exc) except? -1


cdef extern from "numpy/arrayobject.h":
    bint PyDataType_REFCHK(cnp.dtype descr)
    object PyArray_NewFromDescr(type subtype, cnp.dtype descr, int nd, const cnp.npy_intp *dims,
                                const cnp.npy_intp *strides, void *data, int flags, PyObject *prototype)


cdef extern from "st_heap.h" nogil:
    int st_heap_put(st_heap *h, uint64_t va)
    int st_heap_settle(st_heap *h)


cdef enum:
    MAX_DIMS = 64
    BIG_FILL = 1 << 18  # bytes; zeroing more lets other threads run


@cython.final
@cython.no_gc
@cython.freelist(64)
cdef class Block:
    """The memory of one fabric array, given back when the last view has gone.

    ``address`` and ``nbytes`` say which.  A forked child that drops its copy
    gives nothing back: the memory is the parent's.
    """

    cdef Heap heap
    cdef readonly uint64_t address
    cdef readonly uint64_t nbytes

    def __init__(self):
        raise TypeError("fabric memory comes from strata.empty() and its like")

    def __dealloc__(self):
        cdef st_heap *h
        if self.address:
            h = self.heap.h
            PyTraceMalloc_Untrack(TRACE_DOMAIN, self.address)
            if st_heap_put(h, self.address) == ST_AGAIN:
                with nogil:
                    st_heap_settle(h)

    def __repr__(self):
        return f"<{self.nbytes} bytes of fabric memory at {self.address:#x}>"


cdef object new_array(Heap heap, int nd, const cnp.npy_intp *dims, cnp.dtype descr, bint zero, int tag):
    """A C-ordered array of a heap's memory.  The dtype holds no references."""
    cdef uint64_t nbytes = array_bytes(nd, dims, descr)
    cdef int fresh = 0
    cdef Block block = Block.__new__(Block)
    cdef cnp.ndarray array
    block.heap = heap
    block.nbytes = nbytes
    block.address = heap.take(nbytes, tag | ST_HEAP_ZEROED if zero else tag, &fresh)
    if zero and not fresh:
        fill_zero(block.address, nbytes)
    Py_INCREF(descr)  # the call takes a reference away
    array = PyArray_NewFromDescr(cnp.ndarray, descr, nd, dims, NULL, <void *><uintptr_t>block.address,
                                 cnp.NPY_ARRAY_CARRAY, NULL)
    cnp.set_array_base(array, block)
    return array


cpdef object heap_array(Heap heap, object shape, object dtype, bint zero=False, int tag=ST_HEAP_ARRAY):
    """A plain numpy array, C order, of a heap's memory that is zeroed if ``zero``.

    ``tag``: what it is for, of strata._core.heap.  TypeError for dtypes with references;
    ValueError for a negative or unrepresentable shape; FabricMemoryError if there is no room.
    """
    cdef cnp.npy_intp dims[MAX_DIMS]
    cdef int nd = parse_shape(shape, dims)
    return new_array(heap, nd, dims, parse_dtype(dtype), zero, tag)


cpdef object alloc_array(Context ctx, object shape, object dtype, bint zero=False, int tag=ST_HEAP_ARRAY):
    """heap_array() of a die's own heap."""
    return heap_array(heap_of(ctx) if ctx.heap is None else ctx.heap, shape, dtype, zero, tag)


cdef void fill_zero(uint64_t va, uint64_t nbytes) noexcept:
    if nbytes >= BIG_FILL:
        with nogil:
            memset(<void *><uintptr_t>va, 0, nbytes)
    else:
        memset(<void *><uintptr_t>va, 0, nbytes)


cdef int parse_shape(object shape, cnp.npy_intp *dims) except -1:
    """Number of dimensions of an integer or a sequence of integers, as numpy takes them."""
    cdef int nd = 0
    if isinstance(shape, bool):
        raise TypeError(f"shape: an integer or a sequence of integers expected, not {shape}")
    if isinstance(shape, int):
        dims[0] = PyNumber_AsSsize_t(shape, ValueError)
        return 1
    if not isinstance(shape, (tuple, list)):
        try:
            shape = tuple(shape)
        except TypeError:
            shape = (shape,)
    if len(shape) > MAX_DIMS:
        raise ValueError(f"shape has {len(shape)} dimensions, and numpy allows {MAX_DIMS}")
    for item in shape:
        dims[nd] = PyNumber_AsSsize_t(item, ValueError)
        nd += 1
    return nd


cdef uint64_t array_bytes(int nd, const cnp.npy_intp *dims, cnp.dtype descr) except? 1:
    """Bytes of an array; ValueError if negative or beyond what numpy can index."""
    cdef uint64_t total = descr.itemsize
    cdef bint empty = False
    for i in range(nd):
        if dims[i] < 0:
            raise ValueError(f"negative dimensions are not allowed: {dims[i]} along axis {i}")
        if dims[i] == 0:
            empty = True
        elif total > (<uint64_t>1 << 63) // <uint64_t>dims[i]:
            raise ValueError("array is too big: its size in bytes does not fit into 63 bits")
        else:
            total *= <uint64_t>dims[i]
    if total >> 63:
        raise ValueError("array is too big: its size in bytes does not fit into 63 bits")
    return 0 if empty else total


cdef object parse_dtype(object dtype):
    cdef cnp.dtype descr = dtype if isinstance(dtype, cnp.dtype) else np.dtype(dtype)
    if PyDataType_REFCHK(descr):
        raise TypeError(f"dtype {descr} holds references to Python objects, which mean nothing on another die")
    if descr.itemsize == 0:
        descr = np.empty(0, descr).dtype  # numpy's rule: "S" is "S1"
    return descr


def pointer(x):
    """Address of the first element of an array, or of any object with a buffer; else None."""
    cdef Py_buffer view
    if isinstance(x, cnp.ndarray):
        return <uintptr_t>cnp.PyArray_DATA(<cnp.ndarray>x)
    if not PyObject_CheckBuffer(x) or isinstance(x, np.generic):
        return None
    try:
        PyObject_GetBuffer(x, &view, PyBUF_RECORDS_RO)
    except (BufferError, ValueError):
        return None
    va = <uintptr_t>view.buf
    PyBuffer_Release(&view)
    return va


def owner(Context ctx, x):
    """World rank of the die whose memory ``x`` points into; -1 if none."""
    va = pointer(x)
    return -1 if va is None else st_owner(&ctx.ctx, va)
