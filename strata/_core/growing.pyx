"""Newcomers and the groups that take them in: the words by which they find each other."""

cimport numpy as cnp
from cpython.bytes cimport PyBytes_AS_STRING
from libc.errno cimport errno
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

import numpy as np

from strata._core.abi cimport (
    ST_AGAIN,
    ST_EDEAD,
    ST_EINTR,
    ST_ETIMEOUT,
    ST_MAGIC,
    ST_OK,
    st_ctx,
    st_ensure_mapped,
)
from strata._core.group cimport CoreGroup, st_group
from strata._core.heap cimport ST_HEAP_GROUP
from strata._core.space cimport Context, st_raise_pending, timeout_to_ns

from strata import errors

cnp.import_array()

cdef extern from "st_invite.h" nogil:
    struct st_offer:
        uint64_t va
        uint64_t bytes
        uint64_t life

    int st_group_fail(st_group *g, int status, uint32_t phase, uint64_t desc, const uint64_t *mask)
    int st_invite_await(st_ctx *ctx, uint64_t timeout_ns, st_offer *offer)
    int st_invite_offer(st_ctx *ctx, uint32_t die, uint64_t va, uint64_t bytes)
    void st_invite_retract(st_ctx *ctx, uint32_t die)
    int st_invite_claim_all(st_group *g, const uint32_t *dies, uint32_t n, uint64_t timeout_ns, uint32_t *lives,
                            uint8_t *missing)

cdef extern from "st_accept.h" nogil:
    int st_accept(st_ctx *ctx, uint32_t die)

cdef extern from "st_group.h" nogil:
    struct st_group_header:
        uint64_t magic
        uint64_t id[2]
        uint32_t nmembers

    uint64_t st_group_bytes(uint64_t n, uint64_t mailbox_bytes)
    uint64_t st_group_ranks_off()
    uint64_t st_group_lives_off(uint64_t n)
    void st_group_format(uint8_t *memory, uint32_t n, uint64_t mailbox_bytes, const uint64_t *id,
                         const uint32_t *ranks)
    void st_group_set_lives(uint8_t *memory, uint32_t n, const uint32_t *lives)

NAME = 256  # bytes behind a group's memory that hold its name


def accept(Context context, uint32_t die):
    """Parts with what is mapped here of a die's former processes.  False: not yet, since an operation
    with one of them is still in progress in this process."""
    cdef int rc
    if die == context.ctx.rank:
        return True
    with nogil:
        rc = st_accept(&context.ctx, die)
    if rc not in (ST_OK, ST_AGAIN):
        raise errors.from_status(rc, f"cannot unmap the pages of die {die}", errno=errno, ranks=(die,))
    return rc == ST_OK


def await_offer(Context context, timeout):
    """What a newcomer is offered: (address, bytes, incarnation of the die that has the memory), or the name of
    what has come instead: "timeout", or "dead" (no die is left that could make an offer)."""
    cdef st_offer offer = st_offer(0, 0, 0)
    cdef uint64_t ns = timeout_to_ns(timeout, 0.0)
    cdef int rc
    with nogil:
        rc = st_invite_await(&context.ctx, ns, &offer)
    if rc == ST_EINTR:
        st_raise_pending()
    if rc == ST_ETIMEOUT:
        return "timeout"
    if rc == ST_EDEAD:
        return "dead"
    if rc != ST_OK:
        raise errors.from_status(rc, "what this die was offered is not a group's memory", operation="world")
    return offer.va, offer.bytes, offer.life


def read_offer(Context context, uint64_t va, uint64_t nbytes):
    """(ranks, incarnations, key, name) of the group whose memory is offered; None: it is gone."""
    cdef uint8_t *memory = <uint8_t *><size_t>va
    cdef st_group_header *h = <st_group_header *>memory
    cdef uint32_t n
    cdef uint64_t size
    if st_ensure_mapped(&context.ctx, va, nbytes, 1) != ST_OK or nbytes < sizeof(st_group_header):
        return None
    if h.magic != ST_MAGIC:
        return None
    n = h.nmembers
    if n < 1 or n > context.ctx.ndies:
        return None
    size = st_group_bytes(n, context.mailbox_bytes)
    if nbytes != size + NAME:
        return None
    ranks = np.frombuffer((<char *>memory + st_group_ranks_off())[:4 * n], np.uint32)
    lives = np.frombuffer((<char *>memory + st_group_lives_off(n))[:4 * n], np.uint32)
    name = (<char *>memory + size)[:NAME].split(b"\0", 1)[0].decode(errors="replace")
    if len(set(ranks)) != n or ranks.max() >= context.ctx.ndies or context.ctx.rank not in ranks:
        return None
    return ranks.tolist(), lives.tolist(), (<char *>h.id)[:16], name


def claim(CoreGroup group, dies, timeout):
    """Claims newcomers, all of them or none: (incarnations, those that did not wait, whether a member is dead)."""
    cdef uint32_t n = len(dies)
    cdef uint64_t ns = timeout_to_ns(timeout, 0.0)
    cdef cnp.ndarray which = np.array(dies, np.uint32), lives = np.zeros(n, np.uint32), missing = np.zeros(n, np.uint8)
    cdef uint32_t *w = <uint32_t *>cnp.PyArray_DATA(which)
    cdef uint32_t *their = <uint32_t *>cnp.PyArray_DATA(lives)
    cdef uint8_t *m = <uint8_t *>cnp.PyArray_DATA(missing)
    cdef int rc
    with nogil:
        rc = st_invite_claim_all(&group.g, w, n, ns, their, m)
    if rc == ST_EINTR:
        st_raise_pending()
    gone = [d for d, late in zip(dies, missing.tolist()) if late] if rc == ST_ETIMEOUT else []
    return lives.tolist(), gone, rc == ST_EDEAD


def retract(Context context, dies):
    """Gives claims up: those newcomers wait again."""
    for die in dies:
        st_invite_retract(&context.ctx, die)


def offer(Context context, dies, uint64_t va, uint64_t nbytes):
    """Offers claimed newcomers the new group's memory; those that are gone."""
    return [die for die in dies if not st_invite_offer(&context.ctx, die, va, nbytes)]


def declare_dead(CoreGroup group, members):
    """The group has lost these members before it began: its operations raise PeerDead."""
    cdef uint64_t mask[16]
    cdef uint32_t m
    memset(mask, 0, sizeof(mask))
    for m in members:
        mask[m >> 6] |= <uint64_t>1 << (m & 63)
    st_group_fail(&group.g, ST_EDEAD, 0, 0, mask)


def format_memory(CoreGroup group, ranks, lives, bytes key, str name):
    """Memory for a new group in this die's HBM, as an array, with the group's name behind it."""
    cdef uint32_t n = len(ranks)
    cdef uint64_t size = st_group_bytes(n, group.context.mailbox_bytes)
    cdef cnp.ndarray who = np.array(ranks, np.uint32), which = np.array(lives, np.uint32), memory
    cdef uint8_t *at
    memory = group._allocate(size + NAME, ST_HEAP_GROUP)
    at = <uint8_t *>cnp.PyArray_DATA(memory)
    st_group_format(at, n, group.context.mailbox_bytes, <const uint64_t *>PyBytes_AS_STRING(key),
                    <const uint32_t *>cnp.PyArray_DATA(who))
    st_group_set_lives(at, n, <const uint32_t *>cnp.PyArray_DATA(which))
    text = name.encode()[: NAME - 1]
    memcpy(at + size, PyBytes_AS_STRING(text), len(text))
    return memory


def address(cnp.ndarray memory):
    """Where an array begins."""
    return <size_t>cnp.PyArray_DATA(memory)
