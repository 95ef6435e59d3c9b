"""What the fronts of operations need to know of a numpy array."""

cimport numpy as cnp
from libc.stdint cimport uint32_t

from strata import dtypes

cnp.import_array()


cdef extern from "st_kernels_plan.h" nogil:
    int st_reduce_supported(int dtype, int op)


cdef int[24] NUMERIC
NUMERIC[:] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 8, 9, 12, 13, 0, 14, 15, 0, 0, 0, 0, 0, 0, 0, 10]
cdef dict _extended = {}  # other dtypes -> code
_names = {}               # code of a raw dtype -> its text


cdef uint32_t extended_code(object dtype) except? 0:
    """The fingerprint's code of a dtype that is not one of numpy's plain numbers."""
    code = _extended.get(dtype)
    if code is None:
        if dtype.hasobject:
            raise TypeError(f"dtype {dtype}: arrays that hold Python objects cannot be shared between dies")
        code = dtypes.EXTENDED.get(dtype.name) if dtype.isnative else None
        if code is None:
            import zlib
            text = f"{dtype.descr if dtype.names else dtype.str}:{dtype.itemsize}:{dtype.name}"
            code = RAW | zlib.crc32(text.encode()) & 0x7fff
            _names[code] = str(dtype)
        _extended[dtype] = code
    return code


cdef int look(object a, Array *d) except -1:
    """What the front needs to know of an array."""
    cdef cnp.ndarray x
    cdef int num
    if not cnp.PyArray_Check(a):
        raise TypeError(f"a numpy array is expected, not {type(a).__name__}: give it as one, by numpy.asarray(x) or "
                        "x.numpy()")
    x = <cnp.ndarray>a
    num = cnp.PyArray_TYPE(x)
    d.dtype = 0
    if 0 <= num < 24 and cnp.PyArray_ISNOTSWAPPED(x):
        d.dtype = NUMERIC[num]
    if d.dtype == 0:
        d.dtype = extended_code(x.dtype)
    d.data = cnp.PyArray_DATA(x)
    d.itemsize = cnp.PyArray_ITEMSIZE(x)
    d.count = cnp.PyArray_SIZE(x)
    d.nbytes = d.count * d.itemsize
    d.contiguous = cnp.PyArray_IS_C_CONTIGUOUS(x)
    d.writeable = cnp.PyArray_ISWRITEABLE(x)
    return 0


def dtype_code(object dtype):
    """The fingerprint's code of a dtype.  TypeError if it holds Python objects."""
    cdef int num = dtype.num
    if 0 <= num < 24 and dtype.isnative and NUMERIC[num]:
        return NUMERIC[num]
    return extended_code(dtype)


def reducible(object dtype, int redop):
    """Whether a reduction operator is defined for a dtype."""
    code = dtype_code(dtype)
    return not code & RAW and bool(st_reduce_supported(code, redop))


def dtype_name(uint32_t code):
    """The name of a fingerprint's dtype code."""
    if code & RAW:
        return _names.get(code, f"another dtype (#{code & 0x7fff:04x})")
    return DTYPES[code] if code < len(DTYPES) else f"dtype {code}"


DTYPES = ("bytes", *[name for _, name, _ in dtypes.DTYPES[1:]])
