"""The collectives: what each one takes, and in which shapes."""

cimport numpy as cnp
from cpython.long cimport PyLong_AsLongAndOverflow, PyLong_CheckExact
from libc.stdint cimport uint32_t, uintptr_t
from libc.string cimport memset

from strata._core.array cimport Array, look
from strata._core.casting cimport Casts
from strata._core.front cimport (
    OP_ALL_GATHER,
    OP_ALL_REDUCE,
    OP_ALL_TO_ALL,
    OP_BARRIER,
    OP_BROADCAST,
    OP_GATHER,
    OP_REDUCE,
    OP_REDUCE_SCATTER,
    OP_SCATTER,
)
from strata._core.transfer cimport Draft, Shape

from strata.dtypes import OP_CODES

cnp.import_array()


cdef extern from "st_kernels_plan.h" nogil:
    int st_reduce_supported(int dtype, int op)


cdef inline bint overlap(Array *a, Array *b) noexcept:
    cdef uintptr_t p = <uintptr_t>a.data, q = <uintptr_t>b.data
    return a.nbytes > 0 and b.nbytes > 0 and p < q + b.nbytes and q < p + a.nbytes


cdef bint fits(object part, object whole, uint32_t n) except -1:
    """Whether ``whole`` is n ``part``s, stacked or joined along axis 0, of one dtype; n 0: both
    of one shape, at least one-dimensional; and both may be written.  The common case, fast."""
    cdef cnp.ndarray p, w
    cdef int i, extra
    if not (cnp.PyArray_Check(part) and cnp.PyArray_Check(whole)):
        return False
    p, w = <cnp.ndarray>part, <cnp.ndarray>whole
    extra = cnp.PyArray_NDIM(w) - cnp.PyArray_NDIM(p)
    if (not 0 <= extra <= (n > 0) or not cnp.PyArray_ISWRITEABLE(w) or not cnp.PyArray_ISWRITEABLE(p)
            or cnp.PyArray_NDIM(w) == 0 or p.descr is not w.descr):
        return False
    if n > 0 and w.shape[0] != (n if extra else n * p.shape[0]):
        return False
    for i in range(n > 0 and not extra, cnp.PyArray_NDIM(p)):
        if p.shape[i] != w.shape[i + extra]:
            return False
    return True


cdef dict CODES = OP_CODES
cdef object SUM = "sum"  # what a call that says nothing has, by identity
cdef int SUM_CODE = OP_CODES["sum"]


cdef int redop_code(object op) except -1:
    if op is SUM:
        return SUM_CODE
    code = CODES.get(op)
    if code is None:
        hint = "; a mean is 'avg'" if op in ("mean", "average") else ""
        raise ValueError(f"op={op!r}: one of {', '.join(OP_CODES)} is expected{hint}")
    return code


cdef inline uint32_t way(Collectives self, str operation, object algorithm, object path, object cores,
                         object partition) except? 0xffffffff:
    """Front.variant, at no cost for a call that asks for nothing."""
    if algorithm is None and path is None and cores is None and partition is None:
        return 0
    return self.variant(operation, algorithm, path, cores, partition)


cdef class Collectives(Casts):
    """The operations of a group.

    All of them: any numpy array is accepted; fabric arrays are used where they lie, others
    (and strided ones) are staged.  ``timeout``: seconds to wait for the members (None: option
    timeout; inf: for ever).  ``async_op=True`` returns a Work at once; its wait() returns what the
    call would.  ``algorithm``, ``path`` (mte: cores move the bytes; sdma: the die's DMA engine does,
    and arrays outside the fabric are staged), ``cores`` (emulated cores of this die at most) and
    ``partition`` (balanced, naive) say how; None leaves it to the library.  Members may take
    different paths.  Errors: CollectiveMismatch on all members if they do not ask for the same
    (the group stays usable), PeerDead, CollectiveTimeout, GroupBroken; TypeError and ValueError on
    the member whose arguments are wrong, before anything begins.
    """

    cdef int check_root(self, object root, const char *what) except -1:
        cdef int beyond = 0
        cdef long number
        if PyLong_CheckExact(root):
            number = PyLong_AsLongAndOverflow(root, &beyond)
            if not beyond and 0 <= number < self.size:
                return 0
        self.check_member(root, what.decode())
        return 0

    # ---- the operations -----------------------------------------------------------

    def barrier(self, *, timeout=None, async_op=False):
        """Returns when every member has called it.

        Also a registration fence: what any member allocated before it can be read on all
        members at its address afterwards.
        """
        cdef Shape s
        cdef Array none
        memset(&s, 0, sizeof(s))
        memset(&none, 0, sizeof(none))
        s.op = OP_BARRIER
        s.fence = 1
        return self.launch(&s, &none, &none, None, None, None, timeout, async_op)

    def all_reduce(self, src, out=None, op="sum", *, timeout=None, async_op=False, algorithm=None, path=None,
                   cores=None, partition=None):
        """Reduces element by element over the members; all get the result.

        ``src``, ``out``: one shape and dtype on all members; ``out`` None: in place.  ``op``: sum
        prod min max avg band bor bxor.  Operands are taken in the order of the members, small
        floats accumulate in float32, so that all members get the same bits.  Returns ``out``.
        Options and errors of all operations: see ``help(strata.Group)``.
        """
        cdef Shape s
        cdef Array a, b
        memset(&s, 0, sizeof(s))
        look(src, &a)
        s.op = OP_ALL_REDUCE
        s.redop = redop_code(op)
        if not st_reduce_supported(a.dtype, s.redop):
            self._check_reducible("all_reduce", src, op)
        s.variant = way(self, "all_reduce", algorithm, path, cores, partition)
        if out is None or out is src:
            out = src
            b = a
        else:
            look(out, &b)
            if b.dtype != a.dtype or not cnp.PyArray_SAMESHAPE(<cnp.ndarray>out, <cnp.ndarray>src):
                self._bad_out("all_reduce", src, out, src.shape)
            if overlap(&a, &b) and (a.data != b.data or not a.contiguous or not b.contiguous):
                self._check_overlap("all_reduce", src, out)
        if not b.writeable:
            raise ValueError("all_reduce: the output array is read-only")
        s.count = a.count
        s.mail = s.payload = a.nbytes
        s.pushes = True
        s.in_place = a.data == b.data
        return self.launch(&s, &a, &b, src, out, out, timeout, async_op)

    def all_gather(self, src, out=None, *, timeout=None, async_op=False, algorithm=None, path=None,
                   cores=None, partition=None):
        """Every member gets all members' ``src``, in the order of the group.

        ``src``: one shape and dtype on all members.  ``out``: (size, *src.shape) or, joined along
        axis 0, (size * src.shape[0], ...); None: allocated in the fabric.  In place if
        ``src`` is the member's own part of ``out``.  Returns ``out``.
        """
        cdef Shape s
        cdef Array a, b
        memset(&s, 0, sizeof(s))
        look(src, &a)
        s.variant = way(self, "all_gather", algorithm, path, cores, partition)
        if out is None or not fits(src, out, self.g.n):
            out = self._out_for("all_gather", src, out, self.size)
        look(out, &b)
        s.op = OP_ALL_GATHER
        s.count = a.count
        s.mail = s.payload = a.nbytes
        s.in_place = a.contiguous and b.contiguous and <uintptr_t>a.data == <uintptr_t>b.data + self.g.me * a.nbytes
        if not s.in_place and overlap(&a, &b):
            self._check_overlap("all_gather", src, out)
        return self.launch(&s, &a, &b, src, out, out, timeout, async_op)

    def reduce_scatter(self, src, out=None, op="sum", *, timeout=None, async_op=False, algorithm=None, path=None,
                       cores=None, partition=None):
        """Reduces, and leaves part i of the result with member i.

        ``src``: size equal parts along axis 0.  ``out``: one part, (src.shape[0] // size, ...);
        None: allocated in the fabric.  In place if ``out`` is the member's own part of ``src``.
        ``op`` as in all_reduce.  Returns ``out``.
        """
        cdef Shape s
        cdef Array a, b
        memset(&s, 0, sizeof(s))
        look(src, &a)
        s.op = OP_REDUCE_SCATTER
        s.redop = redop_code(op)
        if not st_reduce_supported(a.dtype, s.redop):
            self._check_reducible("reduce_scatter", src, op)
        s.variant = way(self, "reduce_scatter", algorithm, path, cores, partition)
        if out is None or not fits(out, src, self.g.n):
            out = self._out_for("reduce_scatter", src, out, -self.size)
        look(out, &b)
        s.count = b.count
        s.mail = s.payload = a.nbytes
        s.in_place = a.contiguous and b.contiguous and <uintptr_t>b.data == <uintptr_t>a.data + self.g.me * b.nbytes
        if not s.in_place and overlap(&a, &b):
            self._check_overlap("reduce_scatter", src, out)
        return self.launch(&s, &a, &b, src, out, out, timeout, async_op)

    def all_to_all(self, src, out=None, *, timeout=None, async_op=False, algorithm=None, path=None,
                   cores=None, partition=None):
        """Part j of member i's ``src`` becomes part i of member j's ``out``.

        ``src``, ``out``: one shape, size equal parts along axis 0; ``out`` None: allocated in the
        fabric; ``out is src`` is allowed and copies ``src`` first.  Returns ``out``.
        """
        cdef Shape s
        cdef Array a, b
        memset(&s, 0, sizeof(s))
        look(src, &a)
        s.variant = way(self, "all_to_all", algorithm, path, cores, partition)
        if out is None or not fits(src, out, 0) or (<cnp.ndarray>out).shape[0] % self.g.n:
            out = self._out_for("all_to_all", src, out, 0)
        look(out, &b)
        if a.data == b.data and a.nbytes and a.contiguous and b.contiguous:
            # Every part of out overwrites a part that some peer reads.
            if async_op is not False and isinstance(async_op, Draft):
                (<Draft>async_op).anew = True
            else:
                src = self._copy_of(src) if self.recorder is None else self.recorder.copy_of(self, src)
                look(src, &a)
        elif overlap(&a, &b):
            self._check_overlap("all_to_all", src, out)
        s.op = OP_ALL_TO_ALL
        s.count = a.count // self.g.n
        s.mail = s.payload = a.nbytes
        return self.launch(&s, &a, &b, src, out, out, timeout, async_op)

    def broadcast(self, x, root=0, *, timeout=None, async_op=False, algorithm=None, path=None,
                  cores=None, partition=None):
        """The root's ``x`` replaces the other members' ``x``: one shape and dtype.  Returns ``x``."""
        cdef Shape s
        cdef Array a, b
        memset(&s, 0, sizeof(s))
        look(x, &a)
        self.check_root(root, b"root")
        s.variant = way(self, "broadcast", algorithm, path, cores, partition)
        if not a.writeable and root != self.rank:
            raise ValueError("broadcast: the array is read-only on a member that receives")
        b = a
        s.op = OP_BROADCAST
        s.root = root
        s.count = a.count
        s.mail = a.nbytes
        s.in_place = s.root == self.g.me
        s.payload = a.nbytes if s.in_place else 0
        if s.in_place:
            return self.launch(&s, &a, &b, x, None, x, timeout, async_op)
        return self.launch(&s, &a, &b, None, x, x, timeout, async_op)

    def reduce(self, src, out=None, root=0, op="sum", *, timeout=None, async_op=False, algorithm=None, path=None,
               cores=None, partition=None):
        """Reduces element by element over the members; the root gets the result.

        ``out`` counts on the root only; None: allocated in the fabric; ``out is src``: in place.
        Returns ``out`` on the root, None elsewhere.
        """
        cdef Shape s
        cdef Array a, b
        memset(&s, 0, sizeof(s))
        memset(&b, 0, sizeof(b))
        look(src, &a)
        self.check_root(root, b"root")
        s.op = OP_REDUCE
        s.redop = redop_code(op)
        s.root = root
        if not st_reduce_supported(a.dtype, s.redop):
            self._check_reducible("reduce", src, op)
        s.variant = way(self, "reduce", algorithm, path, cores, partition)
        if s.root == self.g.me:
            if out is None or not fits(src, out, 0):
                out = self._out_for("reduce", src, out, 1)
            look(out, &b)
            s.in_place = a.data == b.data and a.contiguous and b.contiguous
            if not s.in_place and overlap(&a, &b):
                self._check_overlap("reduce", src, out)
        else:
            out = None
        s.count = a.count
        s.mail = s.payload = a.nbytes
        s.pushes = True
        return self.launch(&s, &a, &b, src, out, out, timeout, async_op)

    def gather(self, src, out=None, root=0, *, timeout=None, async_op=False, algorithm=None, path=None,
               cores=None, partition=None):
        """The root gets all members' ``src``, in the order of the group.

        ``out`` as in all_gather, on the root only.  Returns it there, None elsewhere.
        """
        cdef Shape s
        cdef Array a, b
        memset(&s, 0, sizeof(s))
        memset(&b, 0, sizeof(b))
        look(src, &a)
        self.check_root(root, b"root")
        s.variant = way(self, "gather", algorithm, path, cores, partition)
        s.op = OP_GATHER
        s.root = root
        if s.root == self.g.me:
            if out is None or not fits(src, out, self.g.n):
                out = self._out_for("gather", src, out, self.size)
            look(out, &b)
            s.in_place = a.contiguous and b.contiguous and <uintptr_t>a.data == <uintptr_t>b.data + self.g.me * a.nbytes
            if not s.in_place and overlap(&a, &b):
                self._check_overlap("gather", src, out)
        else:
            out = None
        s.count = a.count
        s.mail = s.payload = a.nbytes
        return self.launch(&s, &a, &b, src, out, out, timeout, async_op)

    def scatter_into(self, src, out, root, timeout, async_op, uint32_t variant=0):
        """scatter with an output array on every member; src is None off the root."""
        cdef Shape s
        cdef Array a, b
        memset(&s, 0, sizeof(s))
        memset(&a, 0, sizeof(a))
        look(out, &b)
        s.op = OP_SCATTER
        s.root = root
        s.variant = variant
        s.count = b.count
        s.mail = b.nbytes * self.g.n
        if s.root == self.g.me:
            look(src, &a)
            s.payload = a.nbytes
            s.in_place = a.contiguous and b.contiguous and <uintptr_t>b.data == <uintptr_t>a.data + self.g.me * b.nbytes
            if not s.in_place and overlap(&a, &b):
                self._check_overlap("scatter", src, out)
        return self.launch(&s, &a, &b, src, out, out, timeout, async_op)
