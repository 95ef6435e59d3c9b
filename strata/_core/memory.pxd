from strata._core.heap cimport Heap
from strata._core.space cimport Context


cpdef object heap_array(Heap heap, object shape, object dtype, bint zero=*, int tag=*)
cpdef object alloc_array(Context ctx, object shape, object dtype, bint zero=*, int tag=*)
