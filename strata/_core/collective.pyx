"""The collectives' front: looks at the arguments, finds the plan, runs it.

Everything here is on the path of every call; texts, shapes that need work and
plans that are not known yet are elsewhere.
"""

cimport numpy as cnp
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memset

import numpy as np

from strata._core.abi cimport st_mailbox_fits, st_owner
from strata._core.group cimport (
    ST_DESC,
    PlanHandle,
    st_item,
    st_plan,
    st_request,
    st_worker_idle,
    st_worker_submit,
)
from strata._core.space cimport timeout_to_ns
from strata._core.array cimport RAW, Array, look
from strata._core.transfer cimport Transfers
from strata._core.work cimport Work

from strata import errors

cnp.import_array()


cdef extern from "st_kernels_plan.h" nogil:
    int st_reduce_supported(int dtype, int op)


cdef enum:
    OP_BARRIER = 0
    OP_ALL_REDUCE = 1
    OP_ALL_GATHER = 2
    OP_REDUCE_SCATTER = 3
    OP_ALL_TO_ALL = 4
    OP_ALL_TO_ALL_V = 5
    OP_BROADCAST = 6
    OP_REDUCE = 7
    OP_GATHER = 8
    OP_SCATTER = 9
    OP_ABSTAIN = 11
# In the order of the codes above.
OPERATIONS = ("barrier", "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "all_to_all_v",
              "broadcast", "reduce", "gather", "scatter", "send", "nothing (it failed)")
REDOPS = {"sum": 1, "prod": 2, "min": 3, "max": 4, "avg": 5, "band": 6, "bor": 7, "bxor": 8}

cdef inline bint overlap(Array *a, Array *b) noexcept:
    cdef uintptr_t p = <uintptr_t>a.data, q = <uintptr_t>b.data
    return a.nbytes > 0 and b.nbytes > 0 and p < q + b.nbytes and q < p + a.nbytes


cdef bint fits(object part, object whole, uint32_t n) except -1:
    """Whether two arrays have one dtype and are (n, *shape) and shape; n 0: both of one shape,
    at least one-dimensional; and the second may be written.  The common case, fast."""
    cdef cnp.ndarray p, w
    cdef int i, extra = n > 0
    if not (cnp.PyArray_Check(part) and cnp.PyArray_Check(whole)):
        return False
    p, w = <cnp.ndarray>part, <cnp.ndarray>whole
    if (cnp.PyArray_NDIM(w) != cnp.PyArray_NDIM(p) + extra or not cnp.PyArray_ISWRITEABLE(w)
            or not cnp.PyArray_ISWRITEABLE(p) or cnp.PyArray_NDIM(w) == 0
            or p.descr is not w.descr or (extra and w.shape[0] != n)):
        return False
    for i in range(cnp.PyArray_NDIM(p)):
        if p.shape[i] != w.shape[i + extra]:
            return False
    return True


cdef int redop_code(object op) except -1:
    code = REDOPS.get(op)
    if code is None:
        raise ValueError(f"op={op!r}: one of {', '.join(REDOPS)} is expected")
    return code


cdef class Collectives(Transfers):
    """The operations of a group.  Documented in Group (comm.py)."""

    cdef int check_root(self, object root, const char *what) except -1:
        if not 0 <= <object>root < self.size:
            raise ValueError(f"{what.decode()}={root}: a number in the group, 0 to {self.size - 1}, is expected")
        return 0

    cdef object launch(self, Shape *s, Array *src, Array *out, object src_array, object out_array,
                       object result, object timeout, bint async_op):
        """Runs an operation on arrays that are as it needs them, or asks _prepare for such."""
        cdef st_request r
        cdef st_request *q = &r
        cdef uint32_t n = self.g.n
        cdef uint32_t itemsize = src.itemsize if src.itemsize else out.itemsize
        cdef uint32_t dtype = src.dtype if src.dtype else out.dtype
        cdef bint mailbox = st_mailbox_fits(s.mail, n, self.g.mailbox_bytes)
        cdef uint64_t key
        cdef bint stage_src, stage_out
        self.check_here()
        stage_src = src_array is not None and (not src.contiguous or (
            not mailbox and n > 1 and src.nbytes > 0 and st_owner(self.g.ctx, <uint64_t>src.data) < 0))
        stage_out = out_array is not None and (not out.contiguous or (
            s.pushes and not mailbox and n > 1 and out.nbytes > 0
            and st_owner(self.g.ctx, <uint64_t>out.data) < 0))
        if stage_src or stage_out:
            return self._stage(s.op, stage_src, stage_out, mailbox, src_array, out_array, result, timeout,
                               async_op, s.redop, s.root)
        memset(q, 0, sizeof(st_request))
        q.desc = ST_DESC(s.op, s.redop, dtype, s.root, mailbox)
        q.count = s.count
        q.src = src.data
        q.out = out.data
        q.solo = out.nbytes if out_array is not None else 0
        q.payload = s.payload if mailbox else 0
        q.fence = s.fence
        q.timeout_ns = timeout_to_ns(timeout, self.context.config.timeout)
        if n > 1 and s.op != OP_BARRIER:
            key = <uint64_t>itemsize << 2 | (s.in_place and not mailbox) << 1 | mailbox
            q.plan = self.find_plan(q.desc, q.count, key)
            if q.plan == NULL:
                q.plan = self.miss(s, q, key, itemsize, mailbox, dtype)
        if async_op or not st_worker_idle(&self.collectives):
            return self.submit(q, (src_array, out_array), result, async_op)
        self.run(q)
        return result

    cdef object submit(self, st_request *r, object keep, object result, bint async_op):
        """Hands a request to the group's thread; after those that are there already."""
        cdef Work work = Work.__new__(Work)
        work.group = self
        work.keep = keep
        work.result = result
        work.item.request = r[0]
        if st_worker_submit(&self.collectives, &work.item) != 0:
            raise errors.HostError("no thread could be made for asynchronous operations")
        self._works.add(work)
        return work if async_op else work.wait()

    cdef st_plan *miss(self, Shape *s, st_request *q, uint64_t key, uint32_t itemsize, bint mailbox,
                       uint32_t dtype) except NULL:
        """The plan for a shape that is not in the table."""
        cdef PlanHandle handle = self._plans.get((q.desc, q.count, key))
        if handle is None:
            self.g.ctx.count.plan_misses += 1
            plan = self._make_plan(
                operation=OPERATIONS[s.like or s.op], count=s.count, itemsize=itemsize,
                dtype=0 if dtype & RAW or s.like else dtype, redop=s.redop, root=s.root,
                mode="mailbox" if mailbox else "zero_copy", in_place=bool(s.in_place and not mailbox),
            )
            handle = PlanHandle(plan, self.g.n, s.mail, mailbox, s.mail >= 1 << 20)
        self.install_plan(q.desc, q.count, key, handle)
        return &handle.c

    # ---- the operations -----------------------------------------------------------

    def barrier(self, *, timeout=None, async_op=False):
        cdef Shape s
        cdef Array none
        memset(&s, 0, sizeof(s))
        memset(&none, 0, sizeof(none))
        s.op = OP_BARRIER
        s.fence = 1
        return self.launch(&s, &none, &none, None, None, None, timeout, async_op)

    def all_reduce(self, src, out=None, op="sum", *, timeout=None, async_op=False, algorithm=None, path=None):
        cdef Shape s
        cdef Array a, b
        memset(&s, 0, sizeof(s))
        look(src, &a)
        s.op = OP_ALL_REDUCE
        s.redop = redop_code(op)
        if algorithm is not None or path is not None or not st_reduce_supported(a.dtype, s.redop):
            self._check("all_reduce", algorithm, path, src, op)
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

    def all_gather(self, src, out=None, *, timeout=None, async_op=False, algorithm=None, path=None):
        cdef Shape s
        cdef Array a, b
        memset(&s, 0, sizeof(s))
        look(src, &a)
        if algorithm is not None or path is not None:
            self._check("all_gather", algorithm, path)
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

    def reduce_scatter(self, src, out=None, op="sum", *, timeout=None, async_op=False, algorithm=None, path=None):
        cdef Shape s
        cdef Array a, b
        memset(&s, 0, sizeof(s))
        look(src, &a)
        s.op = OP_REDUCE_SCATTER
        s.redop = redop_code(op)
        if algorithm is not None or path is not None or not st_reduce_supported(a.dtype, s.redop):
            self._check("reduce_scatter", algorithm, path, src, op)
        if out is None or not fits(out, src, self.g.n):
            out = self._out_for("reduce_scatter", src, out, -self.size)
        look(out, &b)
        s.count = b.count
        s.mail = s.payload = a.nbytes
        s.in_place = a.contiguous and b.contiguous and <uintptr_t>b.data == <uintptr_t>a.data + self.g.me * b.nbytes
        if not s.in_place and overlap(&a, &b):
            self._check_overlap("reduce_scatter", src, out)
        return self.launch(&s, &a, &b, src, out, out, timeout, async_op)

    def all_to_all(self, src, out=None, *, timeout=None, async_op=False, algorithm=None, path=None):
        cdef Shape s
        cdef Array a, b
        memset(&s, 0, sizeof(s))
        look(src, &a)
        if algorithm is not None or path is not None:
            self._check("all_to_all", algorithm, path)
        if out is None or not fits(src, out, 0) or (<cnp.ndarray>out).shape[0] % self.g.n:
            out = self._out_for("all_to_all", src, out, 0)
        look(out, &b)
        if a.data == b.data and a.nbytes and a.contiguous and b.contiguous:
            src = self._copy_of(src)  # every part of out overwrites a part that some peer reads
            look(src, &a)
        elif overlap(&a, &b):
            self._check_overlap("all_to_all", src, out)
        s.op = OP_ALL_TO_ALL
        s.count = a.count // self.g.n
        s.mail = s.payload = a.nbytes
        return self.launch(&s, &a, &b, src, out, out, timeout, async_op)

    def broadcast(self, x, root=0, *, timeout=None, async_op=False, algorithm=None, path=None):
        cdef Shape s
        cdef Array a, b
        memset(&s, 0, sizeof(s))
        look(x, &a)
        self.check_root(root, b"root")
        if algorithm is not None or path is not None:
            self._check("broadcast", algorithm, path)
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

    def reduce(self, src, out=None, root=0, op="sum", *, timeout=None, async_op=False, algorithm=None, path=None):
        cdef Shape s
        cdef Array a, b
        memset(&s, 0, sizeof(s))
        memset(&b, 0, sizeof(b))
        look(src, &a)
        self.check_root(root, b"root")
        s.op = OP_REDUCE
        s.redop = redop_code(op)
        s.root = root
        if algorithm is not None or path is not None or not st_reduce_supported(a.dtype, s.redop):
            self._check("reduce", algorithm, path, src, op)
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

    def gather(self, src, out=None, root=0, *, timeout=None, async_op=False, algorithm=None, path=None):
        cdef Shape s
        cdef Array a, b
        memset(&s, 0, sizeof(s))
        memset(&b, 0, sizeof(b))
        look(src, &a)
        self.check_root(root, b"root")
        if algorithm is not None or path is not None:
            self._check("gather", algorithm, path)
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

    def scatter_into(self, src, out, root, timeout, async_op):
        """scatter with an output array on every member; src is None off the root."""
        cdef Shape s
        cdef Array a, b
        memset(&s, 0, sizeof(s))
        memset(&a, 0, sizeof(a))
        look(out, &b)
        s.op = OP_SCATTER
        s.root = root
        s.count = b.count
        s.mail = b.nbytes * self.g.n
        if s.root == self.g.me:
            look(src, &a)
            s.payload = a.nbytes
            s.in_place = a.contiguous and b.contiguous and <uintptr_t>b.data == <uintptr_t>a.data + self.g.me * b.nbytes
            if not s.in_place and overlap(&a, &b):
                self._check_overlap("scatter", src, out)
        return self.launch(&s, &a, &b, src, out, out, timeout, async_op)

    # ---- for operations of several steps (comm.py) ------------------------------------

    def exchange(self, uint32_t op, uint32_t dtype, uint32_t root, record, timeout):
        """Every member's record (int64 vector that fits the mailbox), as a matrix by member."""
        cdef Shape s
        cdef Array a, b
        memset(&s, 0, sizeof(s))
        look(record, &a)
        table = np.empty((self.size, record.size), np.int64)
        look(table, &b)
        if a.nbytes > self.g.mailbox_bytes:
            raise errors.InvalidArgument(f"a record of {a.nbytes} bytes does not fit the mailbox")
        s.op = op
        s.like = OP_ALL_GATHER
        s.root = root
        s.count = a.count
        s.mail = s.payload = a.nbytes
        a.dtype = b.dtype = dtype
        self.launch(&s, &a, &b, record, table, table, timeout, False)
        return table

    def run_plan(self, uint32_t op, PlanHandle handle, src, out, uint64_t count, timeout, bint async_op):
        """Runs a plan made for this call on fabric (or own) arrays that are as it needs them."""
        cdef st_request r
        cdef Array a, b
        memset(&r, 0, sizeof(r))
        look(src, &a)
        look(out, &b)
        self.check_here()
        r.desc = ST_DESC(op, 0, a.dtype, 0, 0)
        r.count = count
        r.src = a.data
        r.out = b.data
        r.solo = min(a.nbytes, b.nbytes)
        r.plan = &handle.c
        r.timeout_ns = timeout_to_ns(timeout, self.context.config.timeout)
        if async_op or not st_worker_idle(&self.collectives):
            return self.submit(&r, (src, out, handle), out, async_op)
        self.run(&r)
        return out

    def abstain(self, timeout):
        """Stands in for an operation that this member cannot take part in: all members get
        CollectiveMismatch, and the group stays in step."""
        cdef st_request r
        memset(&r, 0, sizeof(r))
        self.check_here()
        r.desc = ST_DESC(OP_ABSTAIN, 0, 0, 0, 0)
        r.timeout_ns = timeout_to_ns(timeout, self.context.config.timeout)
        try:
            self.run(&r)
        except errors.CollectiveMismatch:
            pass

    def add_staged(self, uint64_t nbytes):
        """Counts bytes copied between a user's array and fabric memory."""
        self.g.ctx.count.staged_bytes += nbytes
