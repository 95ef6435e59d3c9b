"""Virtual memory management: addresses, physical memory and access apart, as the drivers of devices have it.

    from strata import vmm

    handle = vmm.create_handle(4 << 20)              # physical memory, without an address
    span = vmm.reserve_address(1 << 30)              # addresses, without memory
    vmm.map(span, handle)                            # no access yet
    vmm.set_access(span, "read_write", 0, 4 << 20)   # on this die and on all peers
    x = vmm.array(span, (1 << 20,), "f4")            # a plain numpy array; collectives take it as it lies

==================================  ==========================================  ==========================
here                                CUDA driver                                 CANN
==================================  ==========================================  ==========================
``reserve_address(n, alignment)``   ``cuMemAddressReserve``                     ``aclrtReserveMemAddress``
``free_address(range)``             ``cuMemAddressFree``                        ``aclrtReleaseMemAddress``
``create_handle(n)``                ``cuMemCreate``                             ``aclrtMallocPhysical``
``release(handle)``                 ``cuMemRelease``                            ``aclrtFreePhysical``
``map(range, handle, ...)``         ``cuMemMap``                                ``aclrtMapMem``
``unmap(range, ...)``               ``cuMemUnmap``                              ``aclrtUnmapMem``
``set_access(range, access, ...)``  ``cuMemSetAccess``                          (read and write from the start)
``export_handle(handle)``           ``cuMemExportToShareableHandle``            ``aclrtMemExportToShareableHandle``
``import_handle(token)``            ``cuMemImportFromShareableHandle``          ``aclrtMemImportFromShareableHandle``
``granularity()``                   ``cuMemGetAllocationGranularity``           ``aclrtMemGetAllocationGranularity``
``retain_handle(address)``          ``cuMemRetainAllocationHandle``
``query(address)``                  ``cuPointerGetAttribute``, ``cuMemGetAccess``
==================================  ==========================================  ==========================

What differs: sizes and offsets are in bytes, multiples of ``granularity()``; an offset into a handle, and parts of a
mapping, may be mapped, changed and unmapped; access is one for all dies, since an address is the same on every die;
memory is zero when it is made; a token is bytes that may travel in any way and stays good until its handle is
released; exporting an imported handle gives the token it came from.

Several handles may lie under one range, and a handle under several addresses (aliases; also of several dies, by
export and import): all see the same bytes.  Arrays keep the memory below them: while some are alive, ``unmap``,
``free_address`` and access below theirs are refused.  A collective whose input and output are one memory under two
addresses raises ValueError, one on memory without the access that it needs RegistrationError (the other members get
CollectiveMismatch, and the group stays usable).

Objects that are dropped let go of what they hold: an address range with all that is mapped in it, when the last
array over it has gone; a handle's memory when it is neither held nor mapped any more, here or on dies that import it.

Errors: ``InvalidArgument`` (a ValueError) for misuse, ``FabricMemoryError`` without room, ``RegistrationError`` for an
export that is over, or when the kernel refuses a mapping, ``NotInJob`` in a forked child.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from strata import bootstrap, errors
from strata._core import limits, memory
from strata._core import vmm as core
from strata.fabric import mappings
from strata.fabric.mappings import ACCESS, PAGE, AddressRange, Handle, new_handle, pages

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from strata._core.space import Context

__all__ = [
    "ACCESS", "AddressRange", "Attributes", "Handle", "TOKEN_BYTES", "array", "create_handle", "export_handle",
    "free_address", "granularity", "import_handle", "map", "query", "release", "reserve_address", "retain_handle",
    "set_access", "stats", "unmap",
]  # fmt: skip

TOKEN_BYTES = mappings.TOKEN.size


def granularity() -> int:
    """Bytes that sizes, offsets and alignments are multiples of: a page, 2 MiB."""
    return PAGE


# ---- addresses -----------------------------------------------------------------------


def reserve_address(nbytes: int, alignment: int = 0) -> AddressRange:
    """Addresses with nothing under them: ``nbytes`` of them, at a multiple of ``alignment`` bytes.

    ``alignment``: a power of two, or 0; at least a page is kept.  They cost no memory.  FabricMemoryError if this
    die's segment (twice its HBM or more) has no such range free.
    """
    npages = pages("reserve_address: nbytes", nbytes)
    if alignment < 0 or alignment & (alignment - 1):
        raise errors.InvalidArgument(f"reserve_address: alignment={alignment}: a power of two, or 0, is expected")
    context = bootstrap.context()
    _retry()
    with mappings.lock:
        va = core.reserve(context, npages, max(1, alignment // PAGE))
        if not va:
            raise errors.FabricMemoryError(
                f"no range of {limits.human(nbytes)} of addresses (alignment {alignment}) is free in this die's "
                f"segment of {limits.human(context.segment_bytes)}; free address ranges or arrays, or give the dies "
                "more (--hbm, STRATA_HBM)",
                ranks=(context.rank,),
            )
        return mappings.new_range(context, va, npages)


def _retry() -> None:
    """Gives back what could not be given back before."""
    while mappings.stuck:
        span = mappings.stuck.pop()
        try:
            span.clear()
        except errors.StrataError:
            mappings.stuck.append(span)
            return


def free_address(range: AddressRange) -> None:
    """Gives addresses back.  InvalidArgument if something is mapped there."""
    _check_range("free_address", range).free()


def _check_range(what: str, range: AddressRange) -> AddressRange:
    if not isinstance(range, AddressRange):
        raise TypeError(f"{what}: an AddressRange is expected, not {type(range).__name__}")
    return range


# ---- physical memory -----------------------------------------------------------------


def create_handle(nbytes: int) -> Handle:
    """Physical memory of this die's HBM, zero, without an address.  FabricMemoryError without room."""
    npages = pages("create_handle: nbytes", nbytes)
    context = bootstrap.context()
    heap = memory.heap_of(context)
    frames = None
    for attempt in range(2):
        group = limits.cgroup_free(limits.cgroups())
        if group is None or group.free >= nbytes:  # else the kernel would kill for it
            frames = core.create(context, npages)
        if frames is not None or attempt or not heap.stats()["cached_bytes"]:
            break
        heap.trim()  # pages that no array uses
    if frames is None:
        error = heap._shortage(nbytes)
        held = stats()["created_bytes"]
        error.args = (f"{error.args[0]}; {limits.human(held)} are in handles of strata.vmm", *error.args[1:])
        raise error
    return new_handle(frames, False)


def release(handle: Handle) -> None:
    """Lets go of a handle.  Its memory stays for as long as it is mapped, or other dies have it imported.

    Its tokens are good no longer.  InvalidArgument if it has been released.
    """
    _check_handle("release", handle).release()


def export_handle(handle: Handle) -> bytes:
    """A token, ``TOKEN_BYTES`` long, for which other dies of the job get the memory: see ``import_handle``.

    The same each time.  RegistrationError if this die exports 64 handles already.
    """
    return _check_handle("export_handle", handle).export()


def import_handle(token: bytes) -> Handle:
    """Another die's memory, or (by a token of this die) one's own.

    It stays for as long as this handle or a mapping of it does, also when its exporter has released it, or has died.
    InvalidArgument for what is no token of this job, RegistrationError if the exporter has released the handle.
    """
    context = bootstrap.context()
    try:
        raw = memoryview(token).tobytes()
    except TypeError:
        raise TypeError(f"import_handle: a token, in bytes, is expected, not {type(token).__name__}") from None
    if len(raw) != TOKEN_BYTES or not raw.startswith(mappings.MAGIC):
        raise errors.InvalidArgument(f"import_handle: a token of export_handle() ({TOKEN_BYTES} bytes) is expected")
    _, job, die, slot, use, npages = mappings.TOKEN.unpack(raw)
    if job.hex() != context.token:
        raise errors.InvalidArgument("import_handle: the token is of another job")
    if die >= context.ndies or slot >= core.EXPORT_SLOTS or use >> 62 or not 0 < npages <= context.hbm_bytes // PAGE:
        raise errors.InvalidArgument("import_handle: the token is damaged")
    with mappings.lock:
        if die == context.rank:
            frames = mappings.offers.get((context.token, slot, use))
            if frames is not None and frames.npages != npages:
                raise errors.InvalidArgument("import_handle: the token is damaged")
            if frames is None or frames.offer != (slot, use):
                raise errors.RegistrationError("import_handle: the handle has been released", ranks=(die,))
        else:
            frames = core.take(context, die, slot, use, npages)
        return new_handle(frames, True)


def retain_handle(address: Any) -> Handle:
    """Another handle of the memory that is mapped at an address of this die's ranges (or at an array, or a range)."""
    found = _find(bootstrap.context(), _address("retain_handle", address))
    if found is None or found[2] is None:
        raise errors.InvalidArgument(f"retain_handle: no handle is mapped at {_address('retain_handle', address):#x}")
    with mappings.lock:
        return new_handle(found[2].frames, found[2].frames.imported)


def _check_handle(what: str, handle: Handle) -> Handle:
    if not isinstance(handle, Handle):
        raise TypeError(f"{what}: a Handle is expected, not {type(handle).__name__}")
    return handle


# ---- mappings ----------------------------------------------------------------------------


def map(
    range: AddressRange, handle: Handle, offset: int = 0, handle_offset: int = 0, nbytes: int | None = None
) -> None:
    """Puts a handle's memory, from ``handle_offset`` on, under a range's addresses, from ``offset`` on.

    ``nbytes``: None maps the rest of the handle.  There is no access before ``set_access``.  InvalidArgument if
    either does not have so much, or something is mapped there.
    """
    _check_range("map", range).map(handle, offset, handle_offset, nbytes)


def set_access(range: AddressRange, access: str, offset: int = 0, nbytes: int | None = None) -> None:
    """Gives or takes access, "none", "read" or "read_write", on this die and on all peers.

    ``nbytes``: that many bytes, all mapped; None: what is mapped from ``offset`` on.  On peers it holds from their
    next operation on such memory, or from the next barrier.  InvalidArgument if nothing is mapped, or arrays are
    alive that have more; RegistrationError if the kernel refuses another mapping.
    """
    _check_range("set_access", range).set_access(access, offset, nbytes)


def unmap(range: AddressRange, offset: int = 0, nbytes: int | None = None) -> None:
    """Takes what is mapped away; the addresses stay reserved, and may be mapped again at once.

    ``nbytes`` as in ``set_access``.  InvalidArgument if nothing is mapped, or arrays over it are alive.
    """
    _check_range("unmap", range).unmap(offset, nbytes)


def array(range: AddressRange, shape: Any, dtype: DTypeLike = None, offset: int = 0) -> NDArray[Any]:
    """A plain numpy array over a range's memory, from ``offset`` (in bytes) on, in C order; read-only if a part of
    it is.  Nothing is written.  It keeps the range, and the memory below.  ``dtype=None`` is float64.

    InvalidArgument if the range does not reach so far, or a part is not mapped, or without access.
    """
    return _check_range("array", range).array(shape, dtype, offset)


# ---- what is where -------------------------------------------------------------------------


class Attributes(NamedTuple):
    """What ``query`` tells of an address.

    ``owner``     world rank of the die in whose segment of addresses it lies
    ``access``    "none", "read" or "read_write"
    ``mapped``    whether there is memory under it
    ``physical``  address in the UB space, and ``rank``, of whose HBM it is; None if it is not of the UB space
    ``range``, ``offset``          the AddressRange of this die, and where in it; None: of ``strata.empty`` or a peer
    ``handle``, ``handle_offset``  a Handle of this die that is mapped there; None: there is none any more
    """

    address: int
    owner: int
    access: str
    mapped: bool
    physical: int | None
    rank: int | None
    range: AddressRange | None
    offset: int | None
    handle: Handle | None
    handle_offset: int | None


def query(address: Any) -> Attributes:
    """What is at an address of the fabric, of this die or a peer; an array or a range is its first address."""
    context = bootstrap.context()
    va = _address("query", address)
    access, physical = core.look(context, va)
    mapped = access != "free"
    found = _find(context, va)
    span_range = handle = offset = handle_offset = None
    if found is not None:
        span, offset, piece = found
        span_range = span.face() if span.face is not None else None
        if piece is not None:
            handle_offset = (piece.first - piece.begin) * PAGE + offset
            alive = [h for h in list(mappings.handles) if h._frames is piece.frames]
            handle = alive[0] if alive else None
    return Attributes(
        va, context.owner(va), access if mapped else "none", mapped, physical,
        None if physical is None else physical // context.hbm_bytes, span_range, offset, handle, handle_offset,
    )  # fmt: skip


def _address(what: str, x: Any) -> int:
    if isinstance(x, AddressRange):
        x._get(what)  # it has not been freed
        va: int | None = x.address
    else:
        va = x if isinstance(x, int) else memory.pointer(x)
    if va is None:
        raise TypeError(f"{what}: an address, an array or an AddressRange is expected, not {type(x).__name__}")
    if va < 0 or va >> 64 or bootstrap.context().owner(va) < 0:
        raise errors.InvalidArgument(f"{what}: {va:#x} is not in the fabric")
    return va


def _find(context: Context, va: int) -> tuple[mappings.Span, int, mappings.Piece | None] | None:
    """Span of this die that holds the address, the offset in it, and what is mapped there."""
    with mappings.lock:
        for span in list(mappings.spans):
            if span.context is context and span.address and 0 <= va - span.address < span.npages * PAGE:
                page = (va - span.address) // PAGE
                part = next(span.between(page, page + 1), None)
                return span, va - span.address, part[2] if part else None
    return None


def stats() -> dict[str, int]:
    """Counters of this die, in bytes where not said otherwise.

    ``ranges``, ``reserved_bytes``  address ranges (also closed ones that arrays keep), and their addresses
    ``handles``         handles, own and imported, that have not been released
    ``created_bytes``   memory made here that handles or mappings keep
    ``mapped_bytes``    addresses with memory under them
    ``alias_bytes``     of them, those over memory that lies under another address of this die, too
    ``exports``         handles that other dies may import; ``exports_closing``: released ones that others still have
    ``imports``, ``imported_bytes``  memory of other dies that handles or mappings keep, by handles and in bytes
    """
    context = bootstrap.context()
    with mappings.lock:
        live = [s for s in list(mappings.spans) if s.context is context and s.address]
        frames = [f for f in list(mappings.physical) if f.of(context)]
        over: dict[Any, list[tuple[int, int]]] = defaultdict(list)
        for span in live:
            for p in span.pieces:
                over[p.frames.identity].append((p.first, p.first + p.end - p.begin))
        return {
            "ranges": len(live),
            "reserved_bytes": sum(s.npages for s in live) * PAGE,
            "handles": sum(h._frames is not None and h._frames.of(context) for h in list(mappings.handles)),
            "created_bytes": sum(f.npages for f in frames if not f.imported) * PAGE,
            "mapped_bytes": sum(end - begin for parts in over.values() for begin, end in parts) * PAGE,
            "alias_bytes": sum(_repeats(parts) for parts in over.values()) * PAGE,
            "exports": sum(f.offer is not None and not f.imported for f in frames),
            "exports_closing": core.closing(context),
            "imports": sum(f.imported for f in frames),
            "imported_bytes": sum(f.npages for f in frames if f.imported) * PAGE,
        }


def _repeats(parts: list[tuple[int, int]]) -> int:
    """Pages of intervals that another one has, too."""
    total, reach = 0, 0
    for begin, end in sorted(parts):
        total += max(0, min(end, reach) - begin)
        reach = max(reach, end)
    return total
