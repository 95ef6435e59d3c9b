"""strata.vmm in one die: collectives on such memory, no room, and what objects leave behind."""

import ctypes
import gc
import subprocess
import sys
import threading

import numpy as np
import pytest
from vmmlib import M, handle, nothing_stays, span, wrong  # noqa: F401

import strata
from strata import bootstrap, errors, vmm

# Fixtures are names of this module, too.
# ruff: noqa: F811


# ---- collectives ------------------------------------------------------------------------


def test_collectives_refuse_one_memory_under_two_addresses(span, handle):
    g = strata.world()
    span.map(handle)
    span.map(handle, 8 * M)
    span.set_access("read_write")
    a, b = span.array(M, "u1"), span.array(M, "u1", 8 * M)
    a[:] = 1
    half = span.array(M, "u1", 8 * M + M // 2)
    for out in (b, half):
        for call in (g.all_reduce, g.all_to_all, g.reduce, lambda s, o: g.all_to_all_v(s, [M], o),
                     lambda s, o: g.reduce_scatter(s, o), lambda s, o: g.all_gather(s, o), g.scatter):  # fmt: skip
            wrong("same physical memory", call, a, out, error=ValueError)
    assert (half[: M // 2] == 1).all() and (half[M // 2 :] == 0).all()


def test_output_that_has_a_frame_twice(span, handle):
    g = strata.world()
    span.map(handle, 0, 0, 2 * M)
    span.map(handle, 2 * M, M, 2 * M)
    span.set_access("read_write")
    x = span.array(4 * M, "u1")
    wrong("parts of the output", g.all_reduce, x, error=ValueError)
    wrong("parts of the output", g.all_reduce, strata.zeros(4 * M, "u1"), x, error=ValueError)
    g.all_reduce(x, strata.zeros(4 * M, "u1"))  # as input it harms nobody
    g.all_reduce(x[: 2 * M])
    g.all_reduce(x[: M + M // 2], x[2 * M + M // 2 :])  # other frames


def test_operations_on_memory_without_access(span, handle):
    """Also through arrays that vmm does not know of: an error, and no signal."""
    g = strata.world()
    span.map(handle)
    span.set_access("read", 0, 2 * M)
    at = [np.frombuffer((ctypes.c_ubyte * M).from_address(span.address + i * M), "u1") for i in (0, 2, 6)]
    good = strata.ones(M, "u1")
    for x, reads in zip(at, (True, False, False), strict=True):
        for size in (8, M):
            part, strided = x[:size], x[:size:2]
            for call in (lambda p=part: g.all_reduce(p), lambda p=part, n=size: g.all_reduce(good[:n], p),
                         lambda p=part, n=size: g.all_to_all_v(good[:n], [n], p), lambda s=strided: g.all_reduce(s),
                         lambda s=strided: g.all_to_all(s, s), lambda p=part: g.recv(p, 0)):  # fmt: skip
                wrong("may (not )?be", call, error=errors.RegistrationError)
            if reads:
                g.all_reduce(part, good[:size])
                g.send(part, 0)
                assert (g.recv(good[:size], 0) == 0).all()
            else:
                wrong("may (not )?be read", g.all_reduce, part, good[:size], error=errors.RegistrationError)
                wrong("may (not )?be read", g.send, part, 0, error=errors.RegistrationError)
    work = g.all_reduce(good, at[1], async_op=True)
    wrong("output array is fabric memory that may not be written", work.wait, error=errors.RegistrationError)
    assert (g.all_reduce(good) == good).all()
    del at, x, part, strided, call, work


# ---- no room -----------------------------------------------------------------------------


def test_no_room():
    context = bootstrap.context()
    before = vmm.stats()
    with pytest.raises(errors.FabricMemoryError, match="no room for") as info:
        vmm.create_handle(context.hbm_bytes + M)
    assert info.value.needed_bytes == context.hbm_bytes + M and info.value.ranks == (0,)
    assert "handles of strata.vmm" in str(info.value)
    with pytest.raises(errors.FabricMemoryError, match="no range of") as info:
        vmm.reserve_address(context.segment_bytes + M)
    wrong("no range of", vmm.reserve_address, M, 1 << 60, error=errors.FabricMemoryError)
    assert vmm.stats() == before


def test_all_addresses_may_be_reserved():
    """Memory can be made, though it has no address then."""
    context = bootstrap.context()
    spans, size = [], context.segment_bytes
    while size >= M:
        try:
            spans.append(vmm.reserve_address(size))
        except errors.FabricMemoryError:
            size //= 2
    handle = vmm.create_handle(8 * M)
    wrong("no free range", handle.export, error=errors.FabricMemoryError)
    spans[0].map(handle)
    spans[0].set_access("read_write", 0, 8 * M)
    assert not spans[0].array(8 * M, "u1").any()


def test_cached_pages_of_the_heap_make_room(monkeypatch):
    from strata._core import vmm as core

    strata.ones(4 * M, "u1")  # and gone: in the cache
    assert strata.memory_stats()["cached_bytes"] or strata.memory_stats()["reserved_bytes"] == 0
    real, tries = core.create, []

    def create(context, npages):
        tries.append(npages)
        return None if len(tries) == 1 else real(context, npages)

    monkeypatch.setattr(core, "create", create)
    if strata.memory_stats()["cached_bytes"]:
        vmm.create_handle(M)
        assert tries == [1, 1] and strata.memory_stats()["cached_bytes"] == 0


# ---- what objects leave behind --------------------------------------------------------------


def test_dropped_objects_leak_nothing():
    for _ in range(50):
        span, handle = vmm.reserve_address(8 * M), vmm.create_handle(2 * M)
        span.map(handle)
        span.map(handle, 4 * M)
        span.set_access("read_write")
        handle.export()
        loop = [span, handle]
        loop.append(loop)
    del span, handle, loop
    gc.collect()
    assert vmm.stats()["reserved_bytes"] == 0


def test_after_finalize(span, handle):
    span.map(handle)
    span.set_access("read_write")
    x = span.array(4, "u1")
    x[:] = 2
    token = handle.export()
    strata.finalize()
    assert (x == 2).all()
    del x
    span.unmap()
    vmm.release(handle)
    with vmm.reserve_address(M) as other:  # joins again
        assert strata.initialized() and other.nbytes == M
    wrong("released", vmm.import_handle, token, error=errors.RegistrationError)


def run_python(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr == "", done
    return done.stdout


def test_objects_that_are_there_at_exit():
    assert run_python(
        "from strata import vmm\n"
        "M = vmm.granularity()\n"
        "h, r = vmm.create_handle(M), vmm.reserve_address(2 * M)\n"
        "r.map(h); r.set_access('read_write'); x = r.array(5); t = h.export()\n"
        "loop = [h, r, x]; loop.append(loop)\n"
        "print('over')"
    ) == "over\n"


def test_forked_children():
    code = (
        "import os, sys, gc, strata\n"
        "from strata import vmm, errors\n"
        "M = vmm.granularity()\n"
        "h, r = vmm.create_handle(M), vmm.reserve_address(2 * M)\n"
        "r.map(h); r.set_access('read_write'); x = r.array(5); x[:] = 3; t = h.export()\n"
        "before = vmm.stats()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    assert (x == 3).all()\n"
        "    for call in (lambda: vmm.create_handle(M), lambda: vmm.reserve_address(M), lambda: vmm.import_handle(t),\n"
        "                 lambda: r.map(h, M), lambda: r.set_access('read_write'), lambda: vmm.query(x), vmm.stats):\n"
        "        try:\n"
        "            call()\n"
        "        except errors.NotInJob as error:\n"
        "            assert 'forked from a die' in str(error) and 'strata-run' in str(error), error\n"
        "            continue\n"
        "        os._exit(1)\n"
        "    del x; h.release(); r.close(); gc.collect()\n"
        "    sys.exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "assert vmm.stats() == before and (x == 3).all()\n"
        "assert vmm.import_handle(t).nbytes == M\n"
        "print('over')"
    )
    assert run_python(code) == "over\n"


def test_threads():
    failures = []

    def work(seed):
        rng = np.random.default_rng(seed)
        try:
            for _ in range(60):
                n = int(rng.integers(1, 5))
                with vmm.create_handle(n * M) as handle, vmm.reserve_address(8 * M) as span:
                    span.map(handle, int(rng.integers(0, 4)) * M)
                    span.set_access("read_write")
                    at = vmm.query(span.address)
                    assert at.range is span
                    x = span.array(8, "i8", next(p.begin for p in span._span.pieces) * M)
                    x[:] = seed
                    assert (x == seed).all()
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


def test_stats_are_in_stratas(span, handle):
    span.map(handle)
    assert strata.stats()["vmm"] == vmm.stats()
    assert vmm.stats() == {
        "ranges": 1, "reserved_bytes": 16 * M, "handles": 1, "created_bytes": 4 * M, "mapped_bytes": 4 * M,
        "alias_bytes": 0, "exports": 0, "exports_closing": 0, "imports": 0, "imported_bytes": 0,
    }  # fmt: skip


def test_too_many_mappings():
    """vm.max_map_count: an error that says so, nothing half done that is not told, and a way on."""
    code = (
        "import ctypes, mmap, os, strata\n"
        "from strata import vmm, errors\n"
        "M, size = vmm.granularity(), 100\n"
        "h, r = vmm.create_handle(M), vmm.reserve_address(2 * size * M)\n"
        "for i in range(size):\n"
        "    r.map(h, 2 * i * M)\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "most = int(open('/proc/sys/vm/max_map_count').read())\n"
        "filler = mmap.mmap(-1, 4096 * (most + 100), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
        "at = ctypes.addressof(ctypes.c_char.from_buffer(filler))\n"
        "page = 0\n"
        "while libc.mprotect(ctypes.c_void_p(at + 4096 * page), 4096, 1) == 0:\n"
        "    page += 2\n"
        "for i in range(1, 21):\n"
        "    libc.mprotect(ctypes.c_void_p(at + 4096 * (page - 2 * i)), 4096, 3)\n"
        "done = 0\n"
        "try:\n"
        "    for i in range(size):\n"
        "        r.set_access('read_write', 2 * i * M, M)\n"
        "        done += 1\n"
        "except errors.RegistrationError as error:\n"
        "    assert 'vm.max_map_count' in str(error), error\n"
        "assert 0 < done < size, done\n"
        "assert vmm.query(r.address + 2 * done * M).access == 'none'\n"
        "assert vmm.query(r.address + 2 * (done - 1) * M).access == 'read_write'\n"
        "r.array(4, 'u1', 2 * (done - 1) * M)[:] = 1\n"
        "try:\n"
        "    r.set_access('read_write')\n"
        "    raise SystemExit('there was room')\n"
        "except errors.RegistrationError as error:\n"
        "    pass\n"
        "for i in range(0, done, 2):\n"
        "    r.unmap(2 * i * M, M)\n"
        "r.set_access('read_write', 2 * done * M, M)\n"
        "assert r.array(4, 'u1', 2 * done * M)[0] == 1\n"
        "r.close(); del r, h\n"
        "assert vmm.stats()['reserved_bytes'] == 0, vmm.stats()\n"
        "print('over')"
    )
    most = int(open("/proc/sys/vm/max_map_count").read())
    if most > 200_000:
        pytest.skip(f"vm.max_map_count is {most}: too many to fill")
    assert run_python(code) == "over\n"
