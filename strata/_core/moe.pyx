"""Boards: how the members of a group tell each other of rounds of dispatch and combine."""

cimport numpy as cnp
from libc.errno cimport errno
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

import numpy as np

from strata._core.abi cimport ST_EBROKEN, ST_EDEAD, ST_EINTR, ST_EINVAL, ST_EREG, ST_ETIMEOUT, ST_NSTATUS, ST_OK
from strata._core.space cimport deadline_of, st_raise_pending

from strata import errors
from strata._core import rows, rows_sdma

cnp.import_array()

Column, rows_handle, run_rows = rows.Column, rows.rows_handle, rows.run_rows
run_rows_sdma = rows_sdma.run_rows_sdma

ROUNDS = ST_BOARD_ROUNDS    # that may be in flight
COLUMNS = ST_BOARD_COLUMNS  # arrays that a round may move

# struct st_post.  Lengths are in bytes.
POST_DTYPE = np.dtype({
    "names": ["epoch", "desc", "count", "tokens", "at", "bytes", "block", "block_bytes"],
    "formats": ["<u8", "<u8", "<u8", "<u8", (("<u8"), (6,)), ("<u8", (6,)), "<u8", "<u8"],
    "offsets": [0, 8, 16, 24, 32, 80, 128, 136],
    "itemsize": 256,
})

kept = []  # of boards that nobody has closed: others may still write to them


def board_bytes(uint32_t n):
    """Bytes of a board in a group of n members."""
    return st_board_bytes(n)


def format_board(memory, uint32_t n):
    """Makes contiguous fabric memory of this die, of board_bytes(n) + 64 bytes, a board, and returns its address.
    Before any other member has the address."""
    cdef cnp.ndarray a = memory
    cdef uint64_t at = (<uint64_t>cnp.PyArray_DATA(a) + 63) // 64 * 64
    if memory.nbytes < st_board_bytes(n) + 64 or not memory.flags.c_contiguous or not memory.flags.writeable:
        raise errors.InvalidArgument(f"a board for {n} members needs {st_board_bytes(n) + 64} contiguous bytes that "
                                     f"can be written, not {memory.nbytes}")
    st_board_format(<void *>at, n)
    return at


cdef class Board:

    def __cinit__(self):
        memset(&self.b, 0, sizeof(self.b))
        self.closed = True

    def __init__(self, CoreGroup group, memory, addresses):
        """``memory``: what format_board() made this member's board of; ``addresses``: of all boards, by member.

        CorruptSpace, RegistrationError: there is no board of that member.
        """
        cdef uint32_t j, n = group.size
        cdef uint64_t va
        cdef int rc
        group.check_here()
        if len(addresses) != n:
            raise errors.InvalidArgument(f"{len(addresses)} addresses of boards for {n} members")
        self.group, self.memory = group, memory
        self.b.g = &group.g
        free(self.b.at)
        self.b.at = <st_board_head **>calloc(n, sizeof(void *))
        if self.b.at == NULL:
            raise MemoryError
        for j in range(n):
            va = int(addresses[j])
            rc = st_board_attach(&self.b, j, va)
            if rc != ST_OK:
                raise errors.from_status(rc, f"rank {group.ranks[j]} has no board for {n} members at {va:#x}",
                                         ranks=(group.ranks[j],), group=group.name, operation="moe")
        self.closed = False

    def __dealloc__(self):
        if not self.closed and kept is not None:  # None: the interpreter ends, and with it the die
            kept.append(self.memory)
        free(self.b.at)

    def close(self):
        """All members have stopped using these boards, as after a barrier: the memory may be used for other things."""
        self.closed = True

    cdef int check(self) except -1:
        self.group.check_here()
        if self.closed:
            raise errors.InvalidArgument("the board is closed", group=self.group.name, operation="moe")
        return 0

    # ---- rounds -------------------------------------------------------------------

    def post(self, uint64_t round, uint64_t desc, uint64_t count, uint64_t tokens, columns, block=(0, 0), timeout=None,
             bint masking=False):
        """Posts a round, once all have done the one 8 rounds before.

        ``desc``, ``count``  fingerprints;  ``tokens``: rows of each column
        ``columns``          (address, bytes) of up to 6 arrays in this member's memory
        ``block``            (address, bytes) of the routing block: u32, aligned to 8 bytes
        ``timeout``          seconds;  ``masking``: members that are late, dead or have given up are masked instead

        PeerDead, CollectiveTimeout, GroupBroken: ``ranks`` have not done that earlier round.
        """
        cdef st_post p
        cdef uint64_t mask[16]
        cdef uint64_t ns
        cdef int rc, k
        self.check()
        ns = deadline_of(timeout, self.group.context)
        if len(columns) > <int>ST_BOARD_COLUMNS:
            raise errors.InvalidArgument(f"{len(columns)} columns: a round has {ST_BOARD_COLUMNS} at most")
        memset(&p, 0, sizeof(p))
        memset(mask, 0, sizeof(mask))
        p.epoch, p.desc, p.count, p.tokens = round, desc, count, tokens
        for k, (at, nbytes) in enumerate(columns):
            p.at[k], p.bytes[k] = at, nbytes
        p.block, p.block_bytes = block
        with nogil:
            rc = st_board_post(&self.b, round, &p, ns, masking, mask)
        if rc != ST_OK:
            self.failed(rc, mask, "has not done an earlier round", round)

    def wait(self, uint64_t round, timeout=None, bint masking=False):
        """Waits for all members' posts of a round that this one has posted: (posts, waited).

        ``posts``   POST_DTYPE (members,), copies; zeros for masked members.  Addresses and lengths are checked: they
                    are the member's own memory, and mapped here
        ``waited``  i64 (members,): ns until each was there, 0 if it was at the first look

        PeerDead, CollectiveTimeout, GroupBroken, CorruptSpace, RegistrationError: ``ranks``.
        """
        cdef uint64_t mask[16]
        cdef uint64_t ns
        cdef int rc
        cdef st_post *to
        cdef uint64_t *late
        self.check()
        ns = deadline_of(timeout, self.group.context)
        memset(mask, 0, sizeof(mask))
        posts, waited = np.zeros(self.group.size, POST_DTYPE), np.zeros(self.group.size, np.int64)
        to = <st_post *>cnp.PyArray_DATA(<cnp.ndarray>posts)
        late = <uint64_t *>cnp.PyArray_DATA(<cnp.ndarray>waited)
        with nogil:
            rc = st_board_read(&self.b, round, ns, masking, to, late, mask)
        if rc != ST_OK:
            self.failed(rc, mask, "has not posted it", round)
        return posts, waited

    def block(self, post):
        """A copy of the routing block that a post points at: u32.  ``post``: a row of what wait() returned.

        CorruptSpace, RegistrationError; GroupBroken: the member has gone on without this one.
        """
        cdef st_post p
        cdef uint64_t mask[16]
        cdef uint32_t j
        cdef int rc
        cdef void *to
        self.check()
        memset(&p, 0, sizeof(p))
        memset(mask, 0, sizeof(mask))
        p.epoch, p.block, p.block_bytes = int(post["epoch"]), int(post["block"]), int(post["block_bytes"])
        out = np.empty(p.block_bytes // 4, np.uint32)
        if not p.block_bytes:
            return out
        to = cnp.PyArray_DATA(<cnp.ndarray>out)
        for j in range(self.b.g.n):
            with nogil:
                rc = st_board_block(&self.b, p.epoch, j, &p, to)
            if rc == ST_OK:
                return out
            if rc != ST_EINVAL:
                mask[j >> 6] |= 1ull << (j & 63)
                self.failed(rc, mask, "has a routing block that cannot be read", p.epoch)
        raise errors.InvalidArgument(f"no member has posted round {p.epoch} with a routing block of {p.block_bytes} "
                                     f"bytes at {p.block:#x}")

    def done(self, uint64_t round, bint masking=False):
        """Tells all sources that this member has read what it wants of a round.

        GroupBroken: ``ranks`` have masked this member and gone on, or have given up, so what was read of them may be
        anything; with ``masking`` they are masked instead.
        """
        cdef uint64_t mask[16]
        cdef int rc
        self.check()
        memset(mask, 0, sizeof(mask))
        rc = st_board_done(&self.b, round, masking, mask)
        if rc != ST_OK:
            self.failed(rc, mask, "has gone on without this member", round)

    def drain(self, uint64_t round, timeout=None, bint masking=False):
        """Waits until all members have done a round: what it pointed at may be written over.

        PeerDead, CollectiveTimeout, GroupBroken: ``ranks`` have not.
        """
        cdef uint64_t mask[16]
        cdef uint64_t ns
        cdef int rc
        self.check()
        ns = deadline_of(timeout, self.group.context)
        memset(mask, 0, sizeof(mask))
        with nogil:
            rc = st_board_drain(&self.b, round, ns, masking, mask)
        if rc != ST_OK:
            self.failed(rc, mask, "has not read it", round)

    def fail(self, int status, uint64_t round=0):
        """This member gives up, for good: whoever waits for it gets GroupBroken.  ``status``: of the C core."""
        self.check()
        if status <= ST_OK or status >= <int>ST_NSTATUS:
            raise errors.InvalidArgument(f"status {status} is no failure")
        st_board_fail(&self.b, status, round)

    # ---- masks --------------------------------------------------------------------

    @property
    def mask(self):
        """Members that this one leaves out: bool (members,), a copy.  Set: the same; one's own place must be False."""
        return np.array([st_board_masked(&self.b, j) for j in range(self.b.g.n)], bool)

    @mask.setter
    def mask(self, value):
        cdef uint32_t j
        wanted = np.asarray(value, bool)
        if wanted.shape != (self.group.size,) or wanted[self.group.rank]:
            raise errors.InvalidArgument(f"mask of shape {wanted.shape}: one truth value for each of {self.group.size} "
                                         "members is expected, False for this one")
        for j in range(self.b.g.n):
            st_board_leave_out(&self.b, j, bool(wanted[j]))

    # ---- failure ------------------------------------------------------------------

    cdef object failed(self, int rc, uint64_t *mask, str what, uint64_t round):
        """Raises the error of a round."""
        cdef uint32_t j
        cdef uint64_t at = 0
        cdef int status
        if rc == ST_EINTR:
            st_raise_pending()
        if rc == ST_EINVAL:
            raise errors.InvalidArgument(
                f"round {round} was not posted by this member" if round else "rounds begin at 1",
                group=self.group.name, operation="moe")
        members = [j for j in range(self.b.g.n) if mask[j >> 6] >> (j & 63) & 1]
        if rc == ST_EDEAD:
            what = f"died, and {what}"
        elif rc == ST_ETIMEOUT:
            what += " in time"
        elif rc == ST_EBROKEN:
            for j in members:
                status = st_board_failure(&self.b, j, &at)
                if status:
                    what = f"has given up at round {at} ({errors.STATUS[status].name})"
                    break
            else:
                what = "has gone on without this member"
        elif rc == ST_EREG:
            what = "has posted memory that cannot be read here"
        else:
            what = "has posted addresses that are not its own"
        ranks = [self.group.ranks[j] for j in members]
        many = len(ranks) > 1
        who = ("ranks " if many else "rank ") + ", ".join(map(str, ranks))
        raise errors.from_status(rc, f"round {round}: {who} {what.replace('has ', 'have ') if many else what}",
                                 errno=errno, ranks=ranks, group=self.group.name, operation="moe", number=round)
