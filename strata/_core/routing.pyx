"""Routing of tokens to experts: the front of ``st_routing.h``.

What the passes over a die's tokens make: who gets how many rows, which, and where each choice of a token lies.
Arrays are C-contiguous and of the dtypes named, else ValueError.  t tokens, k choices of each, n dies, P slots.
The interpreter's lock is not held meanwhile.
"""

cimport numpy as cnp
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

import numpy as np

cnp.import_array()


cdef extern from "st_routing.h" nogil:
    enum:
        ST_ROUTE_CHOICES
    uint64_t st_route_physical(const int64_t *topk, uint64_t t, uint64_t k, const int32_t *table, uint64_t width,
                               const int32_t *replicas, int64_t experts, uint64_t rank, int64_t *slot) noexcept
    int st_route_dies(const int32_t *first, uint64_t n, uint64_t slots, int32_t *die) noexcept
    uint64_t st_route_layout(const int64_t *slot, uint64_t t, uint64_t k, const int32_t *die, uint64_t slots,
                             uint64_t n, int32_t *per_rank, int32_t *per_slot, uint8_t *in_rank) noexcept
    void st_route_count(const uint8_t *in_rank, uint64_t t, uint64_t n, uint32_t *counts) noexcept
    void st_route_by_rank(const uint8_t *in_rank, uint64_t t, uint64_t n, const uint64_t *begin, uint32_t *at,
                          uint32_t *list, int32_t *position) noexcept
    uint64_t st_route_slots(const int64_t *slot, uint64_t choices, uint64_t slots, uint32_t *counts) noexcept
    void st_route_by_slot(const int64_t *slot, uint64_t t, uint64_t k, const uint64_t *begin, uint32_t *at,
                          uint32_t *list, int32_t *position) noexcept
    uint64_t st_route_width(const int32_t *position, uint64_t t, uint64_t n, const int64_t *base) noexcept
    void st_route_ht_entries(const int32_t *position, uint64_t t, uint64_t n, const int64_t *base, uint64_t width,
                             uint64_t *rows) noexcept
    void st_route_ll_entries(const int64_t *slot, const int32_t *position, uint64_t t, uint64_t k,
                             const int64_t *base, const int32_t *order, uint64_t *rows, int32_t *which) noexcept
    uint64_t st_route_prices(const uint64_t *rows, uint64_t t, uint64_t width, const int64_t *price,
                             uint64_t operands, int64_t each, int64_t *sums) noexcept


cdef extern from "st_routing_cut.h" nogil:
    struct st_slice:
        pass
    struct st_operand:
        pass
    struct st_unit:
        pass
    struct st_route_window:
        int64_t peer, rows, entry, out
    struct st_route_piece:
        pass
    struct st_route_limits:
        int64_t big[4]
        int64_t small[4]
        double tail[4]
    enum:
        ST_NTIERS
    uint64_t st_route_pieces(const st_route_window *w, uint64_t n, const uint8_t *tier,
                             const st_route_limits *cut) noexcept
    void st_route_cut(const st_route_window *w, uint64_t n, const uint8_t *tier, const st_route_limits *cut,
                      uint64_t apart, st_route_piece *piece, st_slice *slices) noexcept
    void st_route_units(const st_route_piece *piece, uint32_t row, st_unit *units, uint64_t n,
                        st_operand *operands) noexcept


cdef extern from "st_routing_try.h" nogil:
    struct st_route_run:
        pass
    struct st_route_try:
        const st_route_window *windows
        const uint8_t *tier
        const int64_t *alpha
        const double *rate
        const int64_t *plain
        uint64_t nwindows, cores, most, widest
        int64_t least
        uint32_t *pieces
        st_route_run *runs
        int64_t *loads
    void st_route_choose(st_route_try *q, st_route_limits *chosen, int64_t *average) noexcept
    int64_t st_route_apart(const st_route_try *q) noexcept


MAX_CHOICES = ST_ROUTE_CHOICES


cdef void *_given(object array, str name, char kind, int itemsize, int ndim) except? NULL:
    """Where a contiguous array of this layout lies."""
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{name} is a {type(array).__name__}, and an array is expected")
    cdef cnp.ndarray a = array
    cdef cnp.dtype d = a.dtype
    if (d.kind != kind or d.itemsize != itemsize or not d.isnative or cnp.PyArray_NDIM(a) != ndim
            or not cnp.PyArray_IS_C_CONTIGUOUS(a)):
        raise ValueError(f"{name} is {d} of shape {array.shape}; C-contiguous {chr(kind)}{itemsize} of {ndim} "
                         "dimensions is expected")
    return cnp.PyArray_DATA(a)


cdef int _size(object array, str name, Py_ssize_t size) except -1:
    if cnp.PyArray_SIZE(array) != size:
        raise ValueError(f"{name} has {cnp.PyArray_SIZE(array)} entries, and {size} are expected")
    return 0


cdef Py_ssize_t _choices(object array) except -1:
    """k of (t, k)."""
    cdef Py_ssize_t k = cnp.PyArray_DIM(array, 1)
    if k > <Py_ssize_t>ST_ROUTE_CHOICES:
        raise ValueError(f"{k} choices of a token, and {ST_ROUTE_CHOICES} are possible")
    if cnp.PyArray_DIM(array, 0) >= 1 << 31:
        raise ValueError(f"{cnp.PyArray_DIM(array, 0)} tokens are too many")
    return k


cdef object _no_slot(object slot, uint64_t at, uint64_t k, object slots):
    what = slot.reshape(-1)[at]
    return ValueError(f"token {at // k}, choice {at % k}: {what} is no slot; -1 (none) or 0 to {slots - 1} is expected")


def physical(topk, table, replicas, uint64_t rank):
    """slot i64[t, k]: a slot of each expert that ``topk`` i64[t, k] names, by the token's number and ``rank`` one of
    its ``replicas`` i32[E], which are in ``table`` i32[E, width]; -1 (none) stays.  ValueError: what is no expert."""
    cdef const int64_t *p = <const int64_t *>_given(topk, "topk_idx", c"i", 8, 2)
    cdef const int32_t *slots = <const int32_t *>_given(table, "table", c"i", 4, 2)
    cdef const int32_t *number = <const int32_t *>_given(replicas, "replicas", c"i", 4, 1)
    cdef uint64_t k = _choices(topk), t = cnp.PyArray_DIM(topk, 0), width = cnp.PyArray_DIM(table, 1), bad
    cdef int64_t experts = cnp.PyArray_SIZE(replicas)
    if cnp.PyArray_DIM(table, 0) != experts or (experts and int(replicas.max()) > <int64_t>width):
        raise ValueError(f"a table of shape {table.shape} for {experts} experts")
    made = np.empty((t, k), np.int64)
    cdef int64_t *to = <int64_t *>cnp.PyArray_DATA(<cnp.ndarray>made)
    with nogil:
        bad = st_route_physical(p, t, k, slots, width, number, experts, rank, to)
    if bad != t * k:
        e = topk.reshape(-1)[bad]
        why = "no die has it" if 0 <= e < experts else f"-1 (none) or 0 to {experts - 1} is expected"
        raise ValueError(f"token {bad // k}, choice {bad % k}: expert {e}: {why}")
    return made


def layout(slot, first):
    """(per_rank i32[n], per_slot i32[P], in_rank bool[t, n]) of ``slot`` i64[t, k]: tokens that go to a die, each once;
    choices of a slot; whether a token goes to a die.  Die d has slots ``first``[d] to first[d + 1], i32[n + 1]."""
    cdef const int64_t *p = <const int64_t *>_given(slot, "slot", c"i", 8, 2)
    cdef const int32_t *begin = <const int32_t *>_given(first, "first", c"i", 4, 1)
    cdef uint64_t k = _choices(slot), t = cnp.PyArray_DIM(slot, 0), bad, slots, n
    if cnp.PyArray_SIZE(first) < 2 or begin[cnp.PyArray_SIZE(first) - 1] < 0:
        raise ValueError("first has the first slot of each die and then their number, one die at least")
    n = cnp.PyArray_SIZE(first) - 1
    slots = begin[n]
    die = np.empty(slots, np.int32)
    cdef int32_t *of = <int32_t *>cnp.PyArray_DATA(<cnp.ndarray>die)
    if st_route_dies(begin, n, slots, of):
        raise ValueError("first falls, or does not begin with 0")
    per_rank, per_slot = np.zeros(n, np.int32), np.zeros(slots, np.int32)
    in_rank = np.zeros((t, n), np.bool_)
    cdef int32_t *ranks = <int32_t *>cnp.PyArray_DATA(<cnp.ndarray>per_rank)
    cdef int32_t *counts = <int32_t *>cnp.PyArray_DATA(<cnp.ndarray>per_slot)
    cdef uint8_t *inside = <uint8_t *>cnp.PyArray_DATA(<cnp.ndarray>in_rank)
    with nogil:
        bad = st_route_layout(p, t, k, of, slots, n, ranks, counts, inside)
    if bad != t * k:
        raise _no_slot(slot, bad, k, slots)
    return per_rank, per_slot, in_rank


cdef object _begins(cnp.ndarray counts):
    """Where each part of a list begins, u64, and how long the list is."""
    ends = np.cumsum(counts, dtype=np.uint64)
    return ends - counts, int(ends.max(initial=0))


def by_rank(in_rank):
    """(counts u32[n], list u32[sum], position i32[t, n]) of ``in_rank`` bool[t, n]: the tokens of each rank, rank by
    rank in the tokens' order, and which of a rank's a token is, or -1."""
    cdef const uint8_t *p = <const uint8_t *>_given(in_rank, "in_rank", c"b", 1, 2)
    cdef uint64_t t = cnp.PyArray_DIM(in_rank, 0), n = cnp.PyArray_DIM(in_rank, 1)
    if t >= 1 << 31:
        raise ValueError(f"{t} tokens are too many")
    counts, at, position = np.zeros(n, np.uint32), np.zeros(n, np.uint32), np.empty((t, n), np.int32)
    cdef uint32_t *number = <uint32_t *>cnp.PyArray_DATA(<cnp.ndarray>counts)
    with nogil:
        st_route_count(p, t, n, number)
    begin, total = _begins(counts)
    listed = np.empty(total, np.uint32)
    cdef const uint64_t *b = <const uint64_t *>cnp.PyArray_DATA(<cnp.ndarray>begin)
    cdef uint32_t *a = <uint32_t *>cnp.PyArray_DATA(<cnp.ndarray>at)
    cdef uint32_t *to = <uint32_t *>cnp.PyArray_DATA(<cnp.ndarray>listed)
    cdef int32_t *which = <int32_t *>cnp.PyArray_DATA(<cnp.ndarray>position)
    with nogil:
        st_route_by_rank(p, t, n, b, a, to, which)
    return counts, listed, position


def by_slot(slot, uint64_t slots):
    """(counts u32[P], list u32[sum], position i32[t, k]) of ``slot`` i64[t, k]: the tokens of each of ``slots``, slot
    by slot in the order of tokens and then of choices, duplicates too, and which of a slot's a choice is, or -1."""
    cdef const int64_t *p = <const int64_t *>_given(slot, "slot", c"i", 8, 2)
    cdef uint64_t k = _choices(slot), t = cnp.PyArray_DIM(slot, 0), bad
    counts, at, position = np.zeros(slots, np.uint32), np.zeros(slots, np.uint32), np.empty((t, k), np.int32)
    cdef uint32_t *number = <uint32_t *>cnp.PyArray_DATA(<cnp.ndarray>counts)
    with nogil:
        bad = st_route_slots(p, t * k, slots, number)
    if bad != t * k:
        raise _no_slot(slot, bad, k, slots)
    begin, total = _begins(counts)
    listed = np.empty(total, np.uint32)
    cdef const uint64_t *b = <const uint64_t *>cnp.PyArray_DATA(<cnp.ndarray>begin)
    cdef uint32_t *a = <uint32_t *>cnp.PyArray_DATA(<cnp.ndarray>at)
    cdef uint32_t *to = <uint32_t *>cnp.PyArray_DATA(<cnp.ndarray>listed)
    cdef int32_t *which = <int32_t *>cnp.PyArray_DATA(<cnp.ndarray>position)
    with nogil:
        st_route_by_slot(p, t, k, b, a, to, which)
    return counts, listed, position


def ht_entries(position, base):
    """rows u64[t, width]: ``base`` i64[n] + ``position`` i32[t, n] of each rank that a token went to, by rank; NO_ROW
    behind, and for ranks whose base is negative.  width: most such ranks of a token, at least 1."""
    cdef const int32_t *p = <const int32_t *>_given(position, "position", c"i", 4, 2)
    cdef const int64_t *b = <const int64_t *>_given(base, "base", c"i", 8, 1)
    cdef uint64_t t = cnp.PyArray_DIM(position, 0), n = cnp.PyArray_DIM(position, 1), width
    _size(base, "base", n)
    with nogil:
        width = st_route_width(p, t, n, b)
    rows = np.empty((t, width), np.uint64)
    cdef uint64_t *to = <uint64_t *>cnp.PyArray_DATA(<cnp.ndarray>rows)
    with nogil:
        st_route_ht_entries(p, t, n, b, width, to)
    return rows


def ll_entries(slot, position, base, order):
    """(rows u64[t, k], which i32[t, k]): ``base`` i64[P] + ``position`` i32[t, k] of each choice ``slot`` i64[t, k], by
    ``order`` i32[P] of its slot (the logical expert), then by choice; and which choice each is, or -1.  NO_ROW behind,
    and for slots whose base is negative."""
    cdef const int64_t *s = <const int64_t *>_given(slot, "slot", c"i", 8, 2)
    cdef const int32_t *p = <const int32_t *>_given(position, "position", c"i", 4, 2)
    cdef const int64_t *b = <const int64_t *>_given(base, "base", c"i", 8, 1)
    cdef const int32_t *o = <const int32_t *>_given(order, "order", c"i", 4, 1)
    cdef uint64_t k = _choices(slot), t = cnp.PyArray_DIM(slot, 0)
    _size(order, "order", cnp.PyArray_SIZE(base))
    if position.shape != slot.shape:
        raise ValueError(f"position has shape {position.shape}, slot {slot.shape}")
    if t * k and int(slot.max()) >= cnp.PyArray_SIZE(base):
        raise _no_slot(slot, int(slot.argmax()), k, cnp.PyArray_SIZE(base))
    rows, which = np.empty((t, k), np.uint64), np.empty((t, k), np.int32)
    cdef uint64_t *to = <uint64_t *>cnp.PyArray_DATA(<cnp.ndarray>rows)
    cdef int32_t *w = <int32_t *>cnp.PyArray_DATA(<cnp.ndarray>which)
    with nogil:
        st_route_ll_entries(s, p, t, k, b, o, to, w)
    return rows, which


def prices(rows, price, int64_t each=0):
    """sums i64[t + 1] of ``rows`` u64[t, width]: what all rows before each cost, ``each`` and their entries; ``price``
    i64: of a row of each operand, which is the upper half of an entry."""
    cdef const uint64_t *p = <const uint64_t *>_given(rows, "rows", c"u", 8, 2)
    cdef const int64_t *cost = <const int64_t *>_given(price, "price", c"i", 8, 1)
    cdef uint64_t t = cnp.PyArray_DIM(rows, 0), width = cnp.PyArray_DIM(rows, 1), operands = cnp.PyArray_SIZE(price)
    cdef uint64_t bad
    sums = np.empty(t + 1, np.int64)
    cdef int64_t *to = <int64_t *>cnp.PyArray_DATA(<cnp.ndarray>sums)
    with nogil:
        bad = st_route_prices(p, t, width, cost, operands, each, to)
    if bad != t * width:
        raise ValueError(f"row {bad // width} has an entry of operand {int(rows.reshape(-1)[bad]) >> 32} of {operands}")
    return sums


cdef const st_route_window *_windows(object windows, object tiers) except? NULL:
    """The windows, each of which is one: its peer a member at a known tier."""
    cdef const st_route_window *w = <const st_route_window *>_given(windows, "windows", c"i", 8, 2)
    cdef const uint8_t *t = <const uint8_t *>_given(tiers, "tiers", c"u", 1, 1)
    cdef uint64_t n = cnp.PyArray_DIM(windows, 0), members = cnp.PyArray_SIZE(tiers), i
    if cnp.PyArray_DIM(windows, 1) != 4:
        raise ValueError(f"windows of shape {windows.shape}: (number, 4) is expected")
    for i in range(members):
        if t[i] >= ST_NTIERS:
            raise ValueError(f"member {i} is at tier {t[i]} of {ST_NTIERS}")
    for i in range(n):
        if not 0 <= w[i].peer < <int64_t>members or not 0 < w[i].rows < 1 << 40 or w[i].entry < 0 or w[i].out < 0:
            raise ValueError(f"window {i} is {windows[i].tolist()}: a member, a row at least, no negative place")
    return w


def limits(windows, tiers, plain, int64_t least, alpha, rate, uint64_t cores, uint64_t most):
    """(big, small, tail, apart): what ``cut`` is to be told so that ``cores`` cores are done first, and picoseconds in
    which no partition is done that gives each peer cores of its own and cuts by ``plain``.

    ``windows``, ``tiers``: as of ``cut``.  By tier: ``plain`` i64, rows of a piece at most; ``alpha`` i64 and ``rate``
    f64, picoseconds of a piece and of a row.  ``least``: rows of the others at least; ``most``: pieces of another cut.
    """
    cdef st_route_try q
    cdef st_route_limits chosen
    cdef int64_t average
    cdef int t
    q.windows = _windows(windows, tiers)
    q.tier = <const uint8_t *>cnp.PyArray_DATA(tiers)
    q.plain = <const int64_t *>_given(plain, "plain", c"i", 8, 1)
    q.alpha = <const int64_t *>_given(alpha, "alpha", c"i", 8, 1)
    q.rate = <const double *>_given(rate, "rate", c"f", 8, 1)
    for array in (plain, alpha, rate):
        _size(array, "a figure by tier", ST_NTIERS)
    q.nwindows, q.cores, q.most, q.least, q.widest = cnp.PyArray_DIM(windows, 0), cores, most, least, 0
    for t in range(ST_NTIERS):
        if not 0 < least <= q.plain[t] < 1 << 20 or not q.rate[t] > 0:
            raise ValueError(f"pieces of {least} to {q.plain[t]} rows of {q.rate[t]} ps")
        q.widest = max(q.widest, <uint64_t>q.plain[t])
    if not 1 <= cores < 1 << 20:
        raise ValueError(f"{cores} cores")
    pieces, loads = np.zeros(ST_NTIERS * (q.widest + 1), np.uint32), np.empty(cores, np.int64)
    runs = np.empty(pieces.size * sizeof(st_route_run), np.uint8)
    q.runs = <st_route_run *>cnp.PyArray_DATA(<cnp.ndarray>runs)
    q.pieces = <uint32_t *>cnp.PyArray_DATA(<cnp.ndarray>pieces)
    q.loads = <int64_t *>cnp.PyArray_DATA(<cnp.ndarray>loads)
    with nogil:
        st_route_choose(&q, &chosen, &average)
    big, small, tail = np.empty(ST_NTIERS, np.int64), np.empty(ST_NTIERS, np.int64), np.empty(ST_NTIERS, np.float64)
    for t in range(ST_NTIERS):
        (<int64_t *>cnp.PyArray_DATA(<cnp.ndarray>big))[t] = chosen.big[t]
        (<int64_t *>cnp.PyArray_DATA(<cnp.ndarray>small))[t] = chosen.small[t]
        (<double *>cnp.PyArray_DATA(<cnp.ndarray>tail))[t] = chosen.tail[t]
    return big, small, tail, st_route_apart(&q)


def cut(windows, tiers, big, small, tail, uint64_t apart, slice_dtype):
    """Windows in pieces of whole rows: pulls for a scheduler, SLICE_DTYPE, a byte for each row, their destinations
    ``apart`` bytes from each other; and what ``units`` makes units of rows from.

    ``windows``: i64 (number, 4): peer, rows, first entry, first row of the receive buffer.  ``tiers``: u8, of each
    member.  ``big``, ``small`` i64 and ``tail`` f64, by tier: a window is cut into even pieces of at most ``big`` rows,
    its last ``tail`` (0 to 1) into pieces of at most ``small``.
    """
    cdef const st_route_window *w = _windows(windows, tiers)
    cdef const uint8_t *t = <const uint8_t *>cnp.PyArray_DATA(tiers)
    cdef const int64_t *most = <const int64_t *>_given(big, "big", c"i", 8, 1)
    cdef const int64_t *least = <const int64_t *>_given(small, "small", c"i", 8, 1)
    cdef const double *last = <const double *>_given(tail, "tail", c"f", 8, 1)
    cdef uint64_t n = cnp.PyArray_DIM(windows, 0), number
    cdef st_route_limits limits
    cdef int i
    if slice_dtype.itemsize != sizeof(st_slice):
        raise ValueError(f"slices of {slice_dtype.itemsize} bytes")
    for array in (big, small, tail):
        _size(array, "a limit by tier", ST_NTIERS)
    for i in range(ST_NTIERS):
        limits.big[i], limits.small[i], limits.tail[i] = most[i], least[i], last[i]
        if most[i] < 1 or least[i] < 1 or not 0 <= last[i] <= 1:
            raise ValueError("pieces have a row at least, and a tail is 0 to 1 of a window")
    number = st_route_pieces(w, n, t, &limits)
    slices, pieces = np.empty(number, slice_dtype), np.empty((number, 4), np.uint64)
    st_route_cut(w, n, t, &limits, apart, <st_route_piece *>cnp.PyArray_DATA(<cnp.ndarray>pieces),
                 <st_slice *>cnp.PyArray_DATA(<cnp.ndarray>slices))
    return slices, pieces


def units(pieces, uint32_t row, units, operands):
    """Makes units of rows of ``row`` bytes of what a scheduler made of ``cut``'s slices, in place."""
    cdef const st_route_piece *p = <const st_route_piece *>_given(pieces, "pieces", c"u", 8, 2)
    cdef st_unit *u = <st_unit *>_given(units, "units", c"V", sizeof(st_unit), 1)
    cdef st_operand *o = <st_operand *>_given(operands, "operands", c"V", sizeof(st_operand), 1)
    cdef uint64_t n = cnp.PyArray_SIZE(units)
    if n != <uint64_t>cnp.PyArray_DIM(pieces, 0) or cnp.PyArray_SIZE(operands) != 2 * <Py_ssize_t>n:
        raise AssertionError(f"{cnp.PyArray_DIM(pieces, 0)} pieces became {n} units: the scheduler has cut rows")
    st_route_units(p, row, u, n, o)
