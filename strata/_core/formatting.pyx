"""The UB space before anybody is in it: its sizes, and its header."""

from libc.errno cimport errno
from libc.stdint cimport uint32_t, uint64_t

from strata._core.abi cimport ST_OK, ST_PAGE_BYTES, st_header

from strata import errors

cdef extern from "st_space.h" nogil:
    int st_space_layout_of(st_header *h, uint32_t ndies, uint64_t hbm_bytes, uint64_t mailbox_bytes,
                           uint64_t window_base, uint64_t trace_events)
    int st_space_format(int fd, const st_header *h, uint64_t token0, uint64_t token1)


cdef extern from "st_abi.h" nogil:
    enum:
        ST_TRACE_EVENTS
        ST_TRACE_LEAST
        ST_TRACE_MOST


TRACE_EVENTS = ST_TRACE_EVENTS


def layout(uint32_t ndies, uint64_t hbm_bytes, uint64_t mailbox_bytes, uint64_t window_base=0,
           uint64_t trace_events=ST_TRACE_EVENTS):
    """Sizes in bytes of a job's UB space, as a dict.  ValueError if no window can hold it."""
    cdef st_header h
    if trace_events & (trace_events - 1) or not ST_TRACE_LEAST <= trace_events <= ST_TRACE_MOST:
        raise errors.InvalidArgument(f"trace_events={trace_events}: a power of two from {ST_TRACE_LEAST} to "
                                     f"{ST_TRACE_MOST} is expected (STRATA_TRACE_EVENTS)")
    if st_space_layout_of(&h, ndies, hbm_bytes, mailbox_bytes, window_base, trace_events) != ST_OK:
        raise errors.InvalidArgument(
            f"no UB space of {ndies} dies with {hbm_bytes} bytes of HBM each and {mailbox_bytes} bytes "
            f"of mailbox: 1 to 1024 dies are possible, HBM in whole pages of {ST_PAGE_BYTES} bytes, and "
            "all segments (twice the HBM, a power of two) within 80 TiB; lower --hbm (STRATA_HBM)"
        )
    return {
        "object_bytes": h.object_bytes,
        "control_bytes": h.control_bytes,
        "control_offset": h.control_offset,
        "segment_bytes": h.seg_bytes,
    }


def format_space(int fd, uint32_t ndies, uint64_t hbm_bytes, uint64_t mailbox_bytes,
                 uint64_t window_base, bytes token, uint64_t trace_events=ST_TRACE_EVENTS):
    """Sizes an empty shared-memory object and writes its header.  ``token``: 16 random bytes; ``trace_events``: of
    each of a die's slices."""
    cdef st_header h
    cdef int rc
    layout(ndies, hbm_bytes, mailbox_bytes, window_base, trace_events)
    if len(token) != 16:
        raise ValueError(f"token: 16 bytes expected, not {len(token)}")
    rc = st_space_layout_of(&h, ndies, hbm_bytes, mailbox_bytes, window_base, trace_events)
    if rc == ST_OK:
        rc = st_space_format(fd, &h, int.from_bytes(token[:8], "little"),
                             int.from_bytes(token[8:], "little"))
    if rc != ST_OK:
        raise errors.from_status(rc, "cannot lay out the UB space in shared memory", errno=errno)
