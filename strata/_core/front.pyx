"""What all collectives' fronts do once they know what is asked for: stage, find the plan, run it.

Everything here is on the path of every call; texts, shapes that need work and
plans that are not known yet are elsewhere.
"""

cimport numpy as cnp
from libc.errno cimport errno
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

import numpy as np

from strata._core.abi cimport st_mailbox_fits, st_owner
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
from strata._core.transfer cimport Draft, Shape, Transfers
from strata._core.work cimport Work

from strata import errors
from strata._core.names import OPERATIONS

cnp.import_array()


cdef enum:
    DIGEST = 49  # in a fingerprint: the bits above the mode say which algorithm


BINDS = ST_BINDS


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


cdef inline bint by_mail(const Shape *s, uint32_t n, uint64_t mailbox_bytes) noexcept:
    """Whether an operation goes by mailboxes.  An algorithm that was asked for by name may not work from
    them: odd variants are those."""
    return s.like != 0 or (not s.variant & 1 and mail_fits(s.op, s.mail, n, mailbox_bytes))


def mailbox_fits(str operation, uint64_t nbytes, uint32_t n, uint64_t mailbox_bytes):
    """Whether a contributor's ``nbytes`` travel by mailbox in a group of n members."""
    return bool(mail_fits(OPERATIONS.index(operation), nbytes, n, mailbox_bytes))


cdef inline void blank(st_request *r, uint32_t n) noexcept:
    """Clears a request; of its masks, which are long, as much as there are members."""
    cdef uint32_t i
    memset(r, 0, <char *>&r.mask - <char *>r)
    for i in range((n + 63) >> 6):
        r.mask[i] = r.late[i] = 0


cdef inline void fill(st_request *q, const Shape *s, const Array *src, const Array *out, bint reads, bint writes,
                      bint mailbox) noexcept:
    """The arrays of a request, which has all else from settle()."""
    q.src = src.data
    q.out = out.data
    q.solo = q.out_bytes = out.nbytes if writes else 0
    q.src_bytes = src.nbytes if reads else 0
    q.payload = s.payload if mailbox else 0
    q.fence = s.fence


cdef class Front(Transfers):
    """Base of Collectives."""

    cpdef uint32_t variant(self, str operation, object algorithm, object path, object cores,
                           object partition) except? 0xffffffff:
        """The number of what a call asks for, 0 if for nothing; refuses what cannot be, before anything is started."""
        if algorithm is None and path is None and cores is None and partition is None:
            return 0
        return self._selector.number(operation, algorithm, path, cores, partition)

    cdef bint outside(self, Array *a) noexcept:
        """Whether some of an array's bytes are not in the fabric."""
        return a.nbytes > 0 and st_owner(self.g.ctx, <uint64_t>a.data) < 0

    cdef object settle(self, Shape *s, Array *src, Array *out, object src_array, object out_array, bint overlap,
                       object timeout, st_request *q, Way *way):
        """Finds an operation's plan, and what of its arrays must be staged; fills in q all but arrays and timeout.
        ``overlap``: the caller has other work to do meanwhile, which is what the choice of a path goes by."""
        cdef uint32_t n = self.g.n
        cdef uint32_t itemsize = src.itemsize if src.itemsize else out.itemsize
        cdef uint32_t dtype = src.dtype if src.dtype else out.dtype
        cdef bint mailbox = by_mail(s, n, self.g.mailbox_bytes)
        cdef bint exposed = False
        cdef uint64_t key
        cdef PlanHandle handle = None
        way.sdma = False
        q.desc = ST_DESC(s.op, s.redop, dtype, s.root, mailbox)
        q.count = s.count
        if n > 1 and s.op != OP_BARRIER:
            if mailbox and s.op != OP_BROADCAST:  # whose root has nothing to write, and may not be able to
                s.in_place = False
            overlap = overlap and not mailbox
            key = (<uint64_t>s.variant << 40 | <uint64_t>overlap << 39 | <uint64_t>itemsize << 2 | s.in_place << 1
                   | mailbox)
            handle = self.find_plan(q.desc, q.count, key)
            if handle is None:
                handle = self.miss(s, q, key, itemsize, mailbox, dtype, overlap, timeout)
            q.plan = &handle.c
            q.desc |= handle.digest << DIGEST
            # The DMA engine writes to the fabric alone: unless it was asked for, cores write to other arrays.
            way.sdma = handle.sdma and (handle.insists or out_array is None or not self.outside(out))
            exposed = not mailbox and (s.pushes or handle.exposes_out)
        way.mailbox = mailbox
        way.stage_src = src_array is not None and (not src.contiguous
                                                   or (not mailbox and n > 1 and self.outside(src)))
        way.stage_out = out_array is not None and (
            not out.contiguous or ((exposed or way.sdma) and self.outside(out))
            or (exposed and s.redop and out.nbytes > 0 and <uint64_t>out.data % out.itemsize))  # for atomics
        if self.g.ctx.vmm and out_array is not None:
            self.check_frames(s.op, src_array, out_array)
        return handle

    cdef object launch(self, Shape *s, Array *src, Array *out, object src_array, object out_array,
                       object result, object timeout, object async_op):
        """Runs an operation on arrays that are as it needs them, or asks _stage for such."""
        cdef st_request r
        cdef Way way
        cdef PlanHandle handle
        cdef bint later = False
        if async_op is not False:
            if isinstance(async_op, Draft):
                return self.describe(s, src, out, src_array, out_array, result, timeout, <Draft>async_op)
            later = async_op
        stream = None if s.like else current()  # an exchange is the host's
        self.check_here()
        if self.context.recorders is not None and self.recorder is not None:
            if timeout is not None:
                raise errors.InvalidArgument(f"{OPERATIONS[s.op]}: an operation that is captured has no timeout of its "
                                             "own: replay() takes one for all", operation=OPERATIONS[s.op])
            return self.record(s, src, out, src_array, out_array, result,
                               by_mail(s, self.g.n, self.g.mailbox_bytes), later)
        if stream is not None:
            self.check_queued(src_array, out_array)
        blank(&r, self.g.n)
        handle = self.settle(s, src, out, src_array, out_array, later or stream is not None, timeout, &r, &way)
        if way.stage_src or way.stage_out:
            return self._stage(s.op, way.stage_src, way.stage_out, way.mailbox, src_array, out_array, result, timeout,
                               later, s.redop, s.root, s.variant)
        fill(&r, s, src, out, src_array is not None, out_array is not None, way.mailbox)
        r.timeout_ns = deadline_of(timeout, self.context)
        scratch = None if handle is None else self.lend(&r, handle.scratch)
        lanes = self.lanes(&r, handle, timeout) if way.sdma else None
        if later or stream is not None or not st_worker_idle(&self.collectives):
            return self.submit(&r, (src_array, out_array, scratch, handle, lanes), result, later, stream)
        self.run(&r, src_array, out_array, scratch, handle)
        return result

    # ---- bound operations (binding.pyx) -------------------------------------------------

    cdef object describe(self, Shape *s, Array *src, Array *out, object src_array, object out_array,
                         object result, object timeout, Draft d):
        """What launch() would do is kept in a draft, for calls to come."""
        cdef Way way
        cdef PlanHandle handle
        self.check_here()
        memset(&d.request, 0, sizeof(st_request))
        d.request.timeout_ns = deadline_of(timeout, self.context)
        handle = self.settle(s, src, out, src_array, out_array, False, timeout, &d.request, &way)
        d.ready = not (d.anew or way.stage_src or way.stage_out)
        if d.ready:
            fill(&d.request, s, src, out, src_array is not None, out_array is not None, way.mailbox)
            d.scratch = None if handle is None else self.lend(&d.request, handle.scratch)
            d.lanes = self.lanes(&d.request, handle, timeout) if way.sdma else None
        d.group, d.handle, d.shape, d.a, d.b = self, handle, s[0], src[0], out[0]
        d.src, d.out, d.result, d.timeout = src_array, out_array, result, timeout
        return result

    def describe_plan(self, Draft d, uint32_t op, PlanHandle handle, by, src, out, uint64_t count, timeout,
                      uint32_t told):
        """describe() for an operation of several steps, by run_plan(): a call is ``by(async_op)``."""
        look(src, &d.a)
        look(out, &d.b)
        memset(&d.request, 0, sizeof(st_request))
        d.request.desc = ST_DESC(op, 0, d.a.dtype, told, 0) | handle.digest << DIGEST
        d.request.count = count
        d.request.timeout_ns = deadline_of(timeout, self.context)
        d.group, d.by, d.src, d.out, d.result = self, by, src, out, out

    cdef int agree(self, Draft d) except -1:
        """Returns when all members have bound the same, and this one has mapped what they have; CollectiveMismatch on
        all of them if they have not."""
        cdef st_request r
        if self.g.n == 1:
            return 0
        memset(&r, 0, sizeof(r))
        r.desc = d.request.desc | ST_BINDS
        r.count = d.request.count
        r.fence = 1
        r.timeout_ns = d.request.timeout_ns
        self.in_turn(&r)
        return 0

    cdef object in_turn(self, st_request *r):
        """Runs a request without arrays to its end, after what the group's thread has."""
        if st_worker_idle(&self.collectives):
            self.run(r, None, None, None, None)
        else:
            self.submit(r, None, None, False, None)

    cdef object again(self, Draft d, bint async_op):
        """A call of what a draft describes, with all that a call looks at, but its arguments."""
        cdef Shape s = d.shape
        cdef Array a = d.a, b = d.b
        cdef object src = d.src
        if d.by is not None:
            return d.by(async_op)
        if d.anew:
            src = self._copy_of(src) if self.recorder is None else self.recorder.copy_of(self, src)
            look(src, &a)
        return self.launch(&s, &a, &b, src, d.out, d.result, d.timeout, async_op)

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
                handle = PlanHandle(self._build(spec, choice), self.g.n, s.mail, mailbox, self.context.ndies)
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

    def run_plan(self, uint32_t op, PlanHandle handle, src, out, uint64_t count, timeout, bint async_op,
                 uint32_t told=0):
        """Runs a plan made for this call on fabric (or own) arrays that are as it needs them.  ``told``: what else
        members must agree on, in 16 bits."""
        cdef st_request r
        cdef Array a, b
        memset(&r, 0, sizeof(r))
        look(src, &a)
        look(out, &b)
        self.check_here()
        r.desc = ST_DESC(op, 0, a.dtype, told, 0) | handle.digest << DIGEST
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
            self.in_turn(&r)
        except errors.CollectiveMismatch:
            pass

    def add_staged(self, uint64_t nbytes):
        """Counts bytes copied between a user's array and fabric memory."""
        self.g.ctx.count.staged_bytes += nbytes
