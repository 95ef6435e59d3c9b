"""What all collectives' fronts do once they know what is asked for: stage, find the plan, run it.

Everything here is on the path of every call; texts, shapes that need work and
plans that are not known yet are elsewhere.
"""

cimport numpy as cnp
from libc.errno cimport errno
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

import numpy as np
from numpy.lib.array_utils import byte_bounds

from strata._core.abi cimport st_ctx, st_mailbox_fits, st_owner
from strata._core.array cimport RAW, Array, look
from strata._core.group cimport (
    ST_DESC,
    st_request,
    st_worker_idle,
    st_worker_submit,
)
from strata._core.lanes cimport Lanes, lanes_for
from strata._core.planned cimport PlanHandle
from strata._core.space cimport deadline_of
from strata._core.stream cimport CoreStream, current
from strata._core.transfer cimport Transfers
from strata._core.work cimport Work

from strata import errors
from strata._core.names import OPERATIONS

cnp.import_array()


cdef extern from "st_alias.h" nogil:
    bint st_alias_shared(const st_ctx *ctx, uint64_t a, uint64_t na, uint64_t b, uint64_t nb)


cdef enum:
    DIGEST = 49  # in a fingerprint: the bits above the mode say which algorithm


def fingerprint(uint64_t desc, uint64_t digest):
    """A fingerprint that says which algorithm, too."""
    return desc | digest << DIGEST


def digest_of(uint64_t desc):
    """What a fingerprint says of the algorithm: ``Plan.digest``."""
    return desc >> DIGEST


cdef inline bint mail_fits(uint32_t op, uint64_t nbytes, uint32_t n, uint64_t mailbox_bytes) noexcept:
    """Whether a contributor's payload travels by mailbox; the same on all members."""
    cdef uint64_t extra = max(1, n - 1) if op == OP_ALL_REDUCE or op == OP_REDUCE else 1
    return st_mailbox_fits(nbytes, extra, n, mailbox_bytes)


def mailbox_fits(str operation, uint64_t nbytes, uint32_t n, uint64_t mailbox_bytes):
    """Whether a contributor's ``nbytes`` travel by mailbox in a group of n members."""
    return bool(mail_fits(OPERATIONS.index(operation), nbytes, n, mailbox_bytes))


cdef class Front(Transfers):
    """Base of Collectives."""

    cpdef uint32_t variant(self, str operation, object algorithm, object path, object cores,
                           object partition) except? 0xffffffff:
        """The number of what a call asks for, 0 if for nothing; refuses what cannot be, before anything is started."""
        if algorithm is None and path is None and cores is None and partition is None:
            return 0
        return self._selector.number(operation, algorithm, path, cores, partition)

    cdef bint overlaps(self, bint async_op, object stream) noexcept:
        """Whether the caller has other work to do meanwhile: what the choice of a path goes by."""
        return async_op or stream is not None

    cdef bint outside(self, Array *a) noexcept:
        """Whether some of an array's bytes are not in the fabric."""
        return a.nbytes > 0 and st_owner(self.g.ctx, <uint64_t>a.data) < 0

    cdef object launch(self, Shape *s, Array *src, Array *out, object src_array, object out_array,
                       object result, object timeout, bint async_op):
        """Runs an operation on arrays that are as it needs them, or asks _prepare for such."""
        cdef st_request r
        cdef st_request *q = &r
        cdef uint32_t n = self.g.n
        cdef uint32_t itemsize = src.itemsize if src.itemsize else out.itemsize
        cdef uint32_t dtype = src.dtype if src.dtype else out.dtype
        # An algorithm that was asked for by name may not work from mailboxes: odd variants are those.
        cdef bint mailbox = s.like != 0 or (not s.variant & 1
                                            and mail_fits(s.op, s.mail, n, self.g.mailbox_bytes))
        cdef bint stage_src, stage_out, overlap, sdma = False, exposed = False
        cdef uint64_t key
        cdef PlanHandle handle = None
        stream = None if s.like else current()  # an exchange is the host's
        self.check_here()
        if self.context.recorders is not None and self.recorder is not None:
            if timeout is not None:
                raise errors.InvalidArgument(f"{OPERATIONS[s.op]}: an operation that is captured has no timeout of its "
                                             "own: replay() takes one for all", operation=OPERATIONS[s.op])
            return self.record(s, src, out, src_array, out_array, result, mailbox, async_op)
        if stream is not None:
            self.check_queued(src_array, out_array)
        memset(q, 0, sizeof(st_request))
        q.desc = ST_DESC(s.op, s.redop, dtype, s.root, mailbox)
        q.count = s.count
        if n > 1 and s.op != OP_BARRIER:
            if mailbox and s.op != OP_BROADCAST:  # whose root has nothing to write, and may not be able to
                s.in_place = False
            overlap = not mailbox and self.overlaps(async_op, stream)
            key = (<uint64_t>s.variant << 40 | <uint64_t>overlap << 39 | <uint64_t>itemsize << 2 | s.in_place << 1
                   | mailbox)
            handle = self.find_plan(q.desc, q.count, key)
            if handle is None:
                handle = self.miss(s, q, key, itemsize, mailbox, dtype, overlap, timeout)
            q.plan = &handle.c
            q.desc |= handle.digest << DIGEST
            # The DMA engine writes to the fabric alone: unless it was asked for, cores write to other arrays.
            sdma = handle.sdma and (handle.insists or out_array is None or not self.outside(out))
            exposed = not mailbox and (s.pushes or handle.exposes_out)
        stage_src = src_array is not None and (not src.contiguous or (not mailbox and n > 1 and self.outside(src)))
        stage_out = out_array is not None and (not out.contiguous or ((exposed or sdma) and self.outside(out)) or (
            exposed and s.redop and out.nbytes > 0 and <uint64_t>out.data % out.itemsize))  # atomics want aligned ones
        if self.g.ctx.vmm and out_array is not None:
            self.check_frames(s.op, src_array, out_array)
        if stage_src or stage_out:
            return self._stage(s.op, stage_src, stage_out, mailbox, src_array, out_array, result, timeout,
                               async_op, s.redop, s.root, s.variant)
        q.src = src.data
        q.out = out.data
        q.solo = q.out_bytes = out.nbytes if out_array is not None else 0
        q.src_bytes = src.nbytes if src_array is not None else 0
        q.payload = s.payload if mailbox else 0
        q.fence = s.fence
        q.timeout_ns = deadline_of(timeout, self.context)
        scratch = None if handle is None else self.lend(q, handle.scratch)
        lanes = self.lanes(q, handle, timeout) if sdma else None
        if async_op or stream is not None or not st_worker_idle(&self.collectives):
            return self.submit(q, (src_array, out_array, scratch, handle, lanes), result, async_op, stream)
        self.run(q, src_array, out_array, scratch, handle)
        return result

    cdef object record(self, Shape *s, Array *src, Array *out, object src_array, object out_array, object result,
                       bint mailbox, bint async_op):
        """Takes an operation down instead of running it: this thread captures."""
        cdef uint32_t itemsize = src.itemsize if src.itemsize else out.itemsize
        cdef uint32_t dtype = src.dtype if src.dtype else out.dtype
        if s.like or async_op:
            self.uncapturable(OPERATIONS[s.op] + (" with async_op=True" if async_op else ""))
        if self.g.ctx.vmm and out_array is not None:
            self.check_frames(s.op, src_array, out_array)
        self.recorder.record(
            self, ST_DESC(s.op, s.redop, dtype, s.root, 0), src_array, out_array,
            (<uint64_t>src.data, <uint64_t>out.data), pushes=bool(s.pushes), mail=s.mail, variant=s.variant,
            in_place=bool(s.in_place), operation=OPERATIONS[s.op], count=s.count, itemsize=itemsize,
            dtype=0 if dtype & RAW else dtype, redop=s.redop, root=s.root, mode="mailbox" if mailbox else "zero_copy",
        )
        return result

    cdef object submit(self, st_request *r, object keep, object result, bint async_op, object stream):
        """Hands a request to the group's thread; after those that are there already, and those on the stream.
        ``keep``: None, or what it uses: source, output, scratch, PlanHandle, lanes."""
        cdef Work work
        cdef int err
        cdef bint queued = False
        work = self.make_work()
        work.group = self
        work.keep = keep
        work.result = result
        work.item.request = r[0]
        if stream is not None:
            (<CoreStream>stream).begin(&work.item)
            work.progress = (<CoreStream>stream).progress
        try:
            self.remember(work)
            queued = st_worker_submit(&self.collectives, &work.item) == 0
            err = errno
        finally:
            if stream is not None:
                (<CoreStream>stream).end(work if queued else None)
        if not queued:
            self.forget(work)
            self.abstain(None)  # the others must not wait for this die
            raise errors.HostError("no thread could be made for asynchronous operations "
                                   "(raise `ulimit -u` or `ulimit -v`)", errno=err)
        if async_op:
            return work
        return work.wait() if stream is None else result

    cdef object miss(self, Shape *s, st_request *q, uint64_t key, uint32_t itemsize, bint mailbox,
                     uint32_t dtype, bint overlap, object timeout):
        """The plan for a shape that is not in the table.  Errors of choosing are the same on all members, which stay
        in step; of what only this member makes, or of its memory, the others hear (abstain)."""
        cdef PlanHandle handle = self._plans.get((q.desc, q.count, key))
        if handle is None:
            self.g.ctx.count.plan_misses += 1
            alone = MemoryError
            try:
                spec, choice = self._choose_plan(
                    operation=OPERATIONS[s.like or s.op], count=s.count, itemsize=itemsize,
                    dtype=0 if dtype & RAW or s.like else dtype, redop=s.redop, root=s.root,
                    mode="mailbox" if mailbox else "zero_copy", in_place=bool(s.in_place), variant=s.variant,
                    overlap=bool(overlap),
                )
                alone = Exception
                handle = PlanHandle(self._build(spec, choice), self.g.n, s.mail, mailbox, s.mail >= 1 << 20)
                handle.insists = choice.path_named
            except alone:
                self.abstain(timeout)
                raise
        self.install_plan(q.desc, q.count, key, handle)
        return handle

    cdef object lanes(self, st_request *r, PlanHandle handle, object timeout):
        """Gives a request what the DMA engine needs for a plan: an object that its caller keeps.  One serves all
        operations, as scratch does.  None: there is no room for it, and nobody asked for the engine: cores will do."""
        cdef Lanes lanes = self._lanes
        if lanes is None or not lanes.serve(handle):
            try:
                lanes = self._lanes = lanes_for(self.context, <size_t>&self.g, handle, lanes)
            except Exception:
                if not handle.insists:
                    return None
                self.abstain(timeout)  # the others must not wait for this die
                raise
        r.sdma = &lanes.c
        return lanes

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
        r.desc = ST_DESC(op, 0, a.dtype, 0, 0) | handle.digest << DIGEST
        r.count = count
        r.src = a.data
        r.out = b.data
        r.solo = min(a.nbytes, b.nbytes)
        r.src_bytes = a.nbytes
        r.out_bytes = b.nbytes
        r.plan = &handle.c
        scratch = self.lend(&r, handle.scratch)
        lanes = self.lanes(&r, handle, timeout) if handle.sdma and not self.outside(&b) else None
        r.timeout_ns = deadline_of(timeout, self.context)
        stream = current()
        if async_op or stream is not None or not st_worker_idle(&self.collectives):
            return self.submit(&r, (src, out, scratch, handle, lanes), out, async_op, stream)
        self.run(&r, src, out, scratch, handle)
        return out

    def abstain(self, timeout):
        """Stands in for an operation that this member cannot take part in: all members get
        CollectiveMismatch, and the group stays in step."""
        cdef st_request r
        memset(&r, 0, sizeof(r))
        self.check_here()
        if self.recorder is not None:
            return  # nobody waits: the end of the block tells
        r.desc = ST_DESC(OP_ABSTAIN, 0, 0, 0, 0)
        r.timeout_ns = deadline_of(timeout, self.context)
        try:
            if st_worker_idle(&self.collectives):
                self.run(&r, None, None, None, None)
            else:
                self.submit(&r, None, None, False, None)
        except errors.CollectiveMismatch:
            pass

    def check_frames(self, uint32_t op, src, out):
        """ValueError if the arrays, though apart from each other, lie on the same frames of
        physical memory, or the output has a frame twice (mappings made with strata.vmm)."""
        if not self.g.ctx.vmm:
            return
        what = None
        if src is not None and src is not out and not np.may_share_memory(src, out) and self.shared(src, out):
            what = "input and output are"
        elif self.shared(out, out):
            what = "parts of the output are"
        if what:
            raise ValueError(f"{OPERATIONS[op]}: {what} the same physical memory under two addresses (strata.vmm "
                             "mapped a handle twice); use arrays on memory of their own")

    cdef bint shared(self, object a, object b) except -1:
        cdef uint64_t low_a, high_a, low_b, high_b
        low_a, high_a = byte_bounds(a)
        low_b, high_b = byte_bounds(b)
        return (low_a < high_a and low_b < high_b and st_owner(self.g.ctx, low_a) >= 0
                and st_owner(self.g.ctx, low_b) >= 0
                and st_alias_shared(self.g.ctx, low_a, high_a - low_a, low_b, high_b - low_b))

    def add_staged(self, uint64_t nbytes):
        """Counts bytes copied between a user's array and fabric memory."""
        self.g.ctx.count.staged_bytes += nbytes
