"""strata.vmm in one die: what each call does, and every misuse."""

import pickle

import numpy as np
import pytest
from vmmlib import M, handle, nothing_stays, span, wrong  # noqa: F401

import strata
from strata import bootstrap, errors, vmm

# Fixtures are names of this module, too.
# ruff: noqa: F811


# ---- the calls, as they are meant ------------------------------------------------------


def test_example_of_the_documentation():
    handle = vmm.create_handle(4 << 20)
    span = vmm.reserve_address(1 << 30)
    vmm.map(span, handle)
    vmm.set_access(span, "read_write", 0, 4 << 20)
    x = vmm.array(span, (1 << 20,), "f4")
    assert (x == 0).all() and strata.is_fabric(x) and strata.address(x) == span.address
    strata.world().all_reduce(x)


@pytest.mark.parametrize("alignment", [0, 1, M // 2, M, 8 * M, 1 << 30])
def test_alignment(alignment):
    kept = [vmm.reserve_address(M), vmm.reserve_address(3 * M, alignment), vmm.reserve_address(M, alignment)]
    assert all(s.address % max(alignment, M) == 0 for s in kept[1:])
    ends = sorted((s.address, s.address + s.nbytes) for s in kept)
    assert all(a[1] <= b[0] for a, b in zip(ends, ends[1:], strict=False))


def test_several_handles_under_one_range(span):
    parts = [vmm.create_handle(n * M) for n in (1, 3, 2)]
    at = 0
    for part in parts:
        span.map(part, at)
        at += part.nbytes
    span.set_access("read_write", 0, at)
    x = span.array(6 * M, "u1")
    x[:] = np.arange(6).repeat(M)
    for number, part in enumerate(parts):  # each lies where it was put
        with vmm.reserve_address(part.nbytes) as other:
            other.map(part)
            other.set_access("read")
            seen = other.array(part.nbytes, "u1")
            assert seen[0] == (0, 1, 4)[number] and seen[-1] == (0, 3, 5)[number]
            del seen


def test_aliases_show_the_same_bytes(span, handle):
    span.map(handle, 0)
    span.map(handle, 8 * M)
    span.map(handle, 4 * M, handle_offset=2 * M, nbytes=M)
    assert vmm.stats()["alias_bytes"] == 5 * M
    span.set_access("read_write")
    a, b, c = span.array(4 * M, "u1"), span.array(4 * M, "u1", 8 * M), span.array(M, "u1", 4 * M)
    a[2 * M : 3 * M] = 7
    assert (b == a).all() and (c == 7).all()
    c[5] = 9
    assert a[2 * M + 5] == b[2 * M + 5] == 9


def test_access(span, handle):
    span.map(handle)
    wrong("no access", span.array, 4)
    assert vmm.query(span.address).access == "none"
    span.set_access("read", 0, 2 * M)
    span.set_access("read_write", 2 * M)
    x, y, z = span.array(4, "i4"), span.array(4, "i4", 2 * M), span.array(3 * M, "u1", M // 2)
    assert not x.flags.writeable and y.flags.writeable and not z.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        x[0] = 1
    with pytest.raises(ValueError):
        x.flags.writeable = True
    y[:] = 5
    del x, y, z
    span.set_access("read_write")
    span.array(4, "i4")[:] = 6
    assert (span.array(4, "i4", 2 * M) == 5).all()
    span.set_access("none")
    wrong("no access", span.array, 4)
    span.set_access("read")
    assert (span.array(4, "i4") == 6).all()


def test_handle_lives_as_long_as_its_mapping(span, handle):
    span.map(handle)
    vmm.release(handle)
    assert handle.released and vmm.stats()["created_bytes"] == 4 * M and vmm.stats()["handles"] == 0
    span.set_access("read_write")
    span.array(4, "u1")[:] = 1
    again = vmm.retain_handle(span.address + 3 * M)
    span.unmap()
    assert vmm.stats()["created_bytes"] == 4 * M
    span.map(again)
    span.set_access("read")
    assert (span.array(4, "u1") == 1).all()
    span.unmap()
    again.release()
    assert vmm.stats()["created_bytes"] == 0


def test_fresh_memory_is_zero(span):
    for _ in range(3):
        with vmm.create_handle(6 * M) as handle:
            span.map(handle)
        span.set_access("read_write")
        x = span.array(6 * M, "u1")
        assert not x.any()
        x[:] = 255
        del x
        span.unmap()


def test_parts_are_unmapped_and_mapped_again(span, handle):
    span.map(handle, 2 * M)
    span.set_access("read_write")
    x = span.array(4 * M, "u1", 2 * M)
    x[:] = np.arange(4).repeat(M)
    del x
    span.unmap(3 * M, 2 * M)
    wrong("nothing is mapped", span.array, 2, offset=3 * M)
    span.map(handle, 3 * M, 0, M)
    span.set_access("read", 3 * M, M)
    assert vmm.query(span.address + 3 * M).handle_offset == 0
    assert span.array(1, "u1", 3 * M)[0] == 0 and span.array(1, "u1", 5 * M)[0] == 3
    span.unmap(0)  # all that is left, with holes
    assert vmm.stats()["mapped_bytes"] == 0


def test_query(span, handle):
    span.map(handle, 4 * M, M, 2 * M)
    span.set_access("read", 5 * M, M)
    seen = vmm.query(span.address + 5 * M + 10)
    assert seen.range is span and seen.offset == 5 * M + 10 and seen.access == "read" and seen.mapped
    assert seen.handle is handle and seen.handle_offset == 2 * M + 10 and seen.owner == seen.rank == 0
    assert seen.physical % M == 10 and 0 <= seen.physical < bootstrap.context().hbm_bytes
    empty = vmm.query(span.address)
    assert vmm.query(span) == empty
    assert empty.range is span and not empty.mapped and empty.access == "none"
    assert empty.handle is None and empty.physical is None and empty.rank is None
    ordinary = vmm.query(strata.zeros(4))
    assert ordinary.range is None and ordinary.access == "read_write" and ordinary.mapped
    handle.release()
    assert vmm.query(span.address + 5 * M).handle is None
    wrong("not in the fabric", vmm.query, 4096)
    wrong("not in the fabric", vmm.query, np.zeros(4))
    wrong("expected", vmm.query, "there", error=TypeError)
    wrong("no handle is mapped", vmm.retain_handle, span.address)
    wrong("no handle is mapped", vmm.retain_handle, span)
    wrong("no handle is mapped", vmm.retain_handle, strata.zeros(4))


def test_arrays_of_all_kinds(span, handle):
    span.map(handle)
    span.set_access("read_write")
    assert span.array((), "f8").shape == () and span.array(3).dtype == np.float64
    assert span.array((2, 0, 5), "f4").size == 0 and span.array((0,), "u1", 16 * M).size == 0
    record = np.dtype([("a", "i4"), ("b", "f8")])
    assert span.array((2, 3), record, 16).nbytes == 72 and span.array(2, "S").dtype == "S1"
    x = span.array((3, 4), "f4", M - 8)
    assert x.flags.c_contiguous and x.flags.aligned and x.ctypes.data == span.address + M - 8
    wrong("do not lie", span.array, 4 * M + 1, "u1", 12 * M)
    wrong("nothing is mapped", span.array, 4 * M + 1, "u1")
    wrong("do not lie", span.array, 1, "f8", 4)
    wrong("do not lie", span.array, 1, "u1", -1)
    wrong("references", span.array, 1, object, error=TypeError)
    wrong("negative", span.array, (2, -1), "u1", error=ValueError)


def test_token():
    handle = vmm.create_handle(2 * M)
    token = vmm.export_handle(handle)
    assert type(token) is bytes and len(token) == vmm.TOKEN_BYTES and token == handle.export()
    assert pickle.loads(pickle.dumps({token: 1})) == {token: 1}
    same = vmm.import_handle(np.frombuffer(token, "u1"))
    assert same.nbytes == 2 * M and same.imported and same.export() == token and same.rank == 0
    handle.release()
    assert vmm.import_handle(token).nbytes == 2 * M  # another handle of it is alive
    same.release()
    wrong("released", vmm.import_handle, token, error=errors.RegistrationError)
    wrong("token", vmm.import_handle, token[:-1])
    wrong("token", vmm.import_handle, b"x" * vmm.TOKEN_BYTES)
    for other in ("text", 48, 1 << 60, None):
        with pytest.raises(TypeError, match=f"a token, in bytes, is expected, not {type(other).__name__}"):
            vmm.import_handle(other)
    wrong("another job", vmm.import_handle, token[:8] + bytes(16) + token[24:])
    wrong("damaged", vmm.import_handle, token[:24] + b"\xff" * 4 + token[28:])
    wrong("damaged", vmm.import_handle, token[:28] + b"\xff" * 4 + token[32:])
    wrong("damaged", vmm.import_handle, token[:39] + b"\x80" + token[40:])
    wrong("damaged", vmm.import_handle, token[:40] + bytes(8))
    with vmm.create_handle(2 * M) as one, pytest.raises(errors.InvalidArgument, match="damaged"):
        token = one.export()
        vmm.import_handle(token[:40] + b"\x03" + token[41:])  # another size


def test_exports_are_limited_and_reused():
    kept = [vmm.create_handle(M) for _ in range(65)]
    tokens = [h.export() for h in kept[:64]]
    assert len(set(tokens)) == 64
    before = vmm.stats()
    wrong("64 exports", kept[64].export, error=errors.RegistrationError)
    assert vmm.stats() == before
    kept[3].release()
    again = kept[64].export()
    assert again not in tokens
    wrong("released", vmm.import_handle, tokens[3], error=errors.RegistrationError)


# ---- misuse ---------------------------------------------------------------------------


def test_bad_sizes(span, handle):
    for bad in (0, -M, 1, M + 1, M - 1, 1 << 70, True):
        wrong("multiple of", vmm.reserve_address, bad)
        wrong("multiple of", vmm.create_handle, bad)
        wrong("multiple of", span.map, handle, nbytes=bad)
        wrong("multiple of", span.unmap, 0, bad)
        wrong("multiple of", span.set_access, "read", 0, bad)
    for bad in (-M, 1, M + 1, 1 << 70):
        wrong("multiple of", span.map, handle, bad)
        wrong("multiple of", span.map, handle, 0, bad)
        wrong("multiple of", span.unmap, bad)
    for bad in (1.5, "2", None):
        wrong("whole number", vmm.reserve_address, bad, error=TypeError)
        wrong("whole number", vmm.create_handle, bad, error=TypeError)
    for bad in (3, -M, 3 * M):
        wrong("power of two", vmm.reserve_address, M, bad)


def test_bad_objects(span, handle):
    for call in (vmm.map, vmm.free_address, vmm.unmap):
        wrong("AddressRange is expected", call, *([handle, handle] if call is vmm.map else [handle]), error=TypeError)
    wrong("AddressRange is expected", vmm.set_access, handle, "read", error=TypeError)
    wrong("AddressRange is expected", vmm.array, handle, 4, error=TypeError)
    wrong("Handle is expected", vmm.map, span, span, error=TypeError)
    wrong("Handle is expected", vmm.release, span, error=TypeError)
    wrong("Handle is expected", vmm.export_handle, span, error=TypeError)
    for kind in (vmm.Handle, vmm.AddressRange):
        with pytest.raises(TypeError, match="use vmm"):
            kind()


def test_bad_places(span, handle):
    wrong("do not lie", span.map, handle, 13 * M)
    wrong("do not lie", span.map, handle, 16 * M)
    wrong("do not lie", span.map, handle, 0, 4 * M)
    wrong("do not lie", span.map, handle, 0, M, 4 * M)
    wrong("do not lie", span.unmap, 0, 17 * M)
    wrong("do not lie", span.set_access, "read", 16 * M)
    assert vmm.stats()["mapped_bytes"] == 0
    span.map(handle, 4 * M)
    for at in (1, 4, 7):
        wrong("mapped already", span.map, handle, at * M)
    span.map(handle, 0)
    span.map(handle, 8 * M)
    wrong("only", span.unmap, 8 * M, 5 * M)
    wrong("nothing", span.unmap, 12 * M)
    wrong("nothing", span.set_access, "read", 12 * M, M)
    wrong("only", span.set_access, "read", 0, 16 * M)
    wrong("one of", span.set_access, "write")
    assert vmm.query(span.address).access == "none" and vmm.stats()["mapped_bytes"] == 12 * M


def test_use_after_the_end(span, handle):
    span.map(handle)
    wrong("still mapped", span.free)
    handle.release()
    for call in (handle.release, handle.export, lambda: span.map(handle, 4 * M)):
        wrong("has been released", call)
    span.unmap()
    span.free()
    assert span.freed and "freed" in repr(span)
    for call in (span.free, span.unmap, lambda: span.set_access("read"), lambda: span.array(0)):
        wrong("has been freed", call)
    with vmm.create_handle(M) as other:
        wrong("has been freed", span.map, other)
        assert "own" in repr(other)
    assert "released" in repr(other)


def test_memory_under_arrays_is_not_taken_away(span, handle):
    span.map(handle)
    span.set_access("read_write")
    x = span.array((M,), "u1", M)
    part = x[10:20]
    del x
    wrong("alive", span.unmap)
    wrong("alive", span.unmap, M, M)
    wrong("alive", span.set_access, "none")
    wrong("writable arrays", span.set_access, "read", M, M)
    span.unmap(2 * M, M)  # nobody has an array there
    span.set_access("read", 0, M)
    part[:] = 3
    del part
    span.set_access("read", M, M)
    readers = span.array((4,), "u1", M + 10)
    span.set_access("read", M, M)
    wrong("alive", span.set_access, "none", M, M)
    assert (readers == 3).all()
    del readers
    span.unmap()


def test_closed_range_lives_as_long_as_its_arrays(handle):
    with vmm.reserve_address(4 * M) as span, handle:
        span.map(handle)
        span.set_access("read_write")
        x = span.array(4 * M, "u1")
    assert span.freed and handle.released
    x[:] = 5
    assert vmm.stats()["ranges"] == 1 and vmm.query(x).range is None
    y = x[M:].reshape(3, M)[1:]
    del x
    assert (y == 5).all() and vmm.stats()["created_bytes"] == 4 * M
    del y
    assert vmm.stats()["ranges"] == 0
