"""Full memory: an error of the die that has none, never a signal, and never a wait of the others."""

import os
import time

import faultlib
import numpy as np
import pytest
from faultlib import BOUND, CLONE_NEWNS, LIBC, Job, check_group

import strata
from strata import bootstrap, errors
from strata.fabric import allocator


def _full_hbm(die):
    g = strata.world()
    x = strata.ones(1 << 20, "u1")
    if die.rank == 1:
        hoard = [strata.empty(16 << 20, "u1")]
        for attempt in (lambda: strata.empty(64 << 20, "u1"), lambda: strata.zeros(1 << 40, "u1")):
            caught = die.catch(attempt)
            assert caught.kind == "FabricMemoryError", caught
        with pytest.raises(errors.FabricMemoryError):
            while True:
                hoard.append(strata.empty(2 << 20, "u1"))
        hoard.pop()
    # What the die itself cannot take part in: all hear of it, and the group stays in step.
    rows = [200_000] * g.size
    out = None if die.rank == 1 else strata.zeros(400_000)
    caught = None
    try:
        g.all_to_all_v(strata.ones(400_000) if die.rank == 0 else np.ones(400_000), rows, out)
    except errors.StrataError as error:
        caught = faultlib.Caught.of(error)
    kinds = ("CollectiveMismatch", "FabricMemoryError")
    assert caught is not None and caught.kind == kinds[die.rank], caught
    if die.rank == 1:
        del hoard
    assert g.all_reduce(x)[0] == 2
    check_group(g, [0, 1])
    h = g.split(0, key=-die.rank)
    check_group(h, [1, 0])


def test_full_hbm_is_an_error_of_that_die_alone():
    with Job(_full_hbm, 2, hbm=32 << 20) as job:
        assert [job.reap(r) for r in range(2)] == [0, 0]


def _no_room_for_a_group(die):
    g = strata.world()
    hoard = []
    if die.rank == 0:
        with pytest.raises(errors.FabricMemoryError):
            for size in (2 << 20, 1 << 19, 1 << 17, 1 << 15, 1 << 13):
                try:
                    while True:
                        hoard.append(strata.empty(size, "u1"))
                except errors.FabricMemoryError:
                    if size == 1 << 13:
                        raise
    g.barrier()
    caught = die.catch(g.split, 0)
    assert caught.kind == "FabricMemoryError", caught
    hoard.clear()
    check_group(g, [0, 1])
    check_group(g.split(0), [0, 1])


def test_no_room_for_a_group_is_the_same_error_on_all():
    with Job(_no_room_for_a_group, 2, hbm=4 << 20) as job:
        assert [job.reap(r) for r in range(2)] == [0, 0]


def _small_shm(die):
    g = strata.world()
    hoard = []
    if die.rank == 1:
        with pytest.raises(errors.FabricMemoryError) as info:
            while True:
                hoard.append(strata.ones(4 << 20, "u1"))
        assert "/dev/shm" in str(info.value)
        for a in hoard:
            a[:] = 7  # what was given is really there: no SIGBUS
    g.barrier()
    # Needs memory where there is none, on the die that has some hoarded or on both: nobody waits
    # for one that cannot come.
    wanted = [lambda: g.all_reduce(np.ones(1 << 20)), lambda: g.all_gather(np.ones(1 << 20)),
              lambda: g.scatter(np.ones(1 << 21) if die.rank == 0 else None)]  # fmt: skip
    for attempt in wanted:
        caught = die.catch(attempt)
        assert caught.kind in ("FabricMemoryError", "CollectiveMismatch"), caught
        g.barrier()
    hoard.clear()
    allocator.empty_cache()
    end = time.monotonic() + BOUND
    while strata.stats()["quarantined_bytes"]:  # the other die finds room when this one's frames are free
        assert time.monotonic() < end
    g.barrier()
    check_group(g, [0, 1])


def test_full_shm_never_kills():
    """A /dev/shm of 48 MiB, in a mount namespace."""

    def inside():
        assert LIBC.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=48m") == 0
        with Job(_small_shm, 2) as job:
            codes = [job.reap(r) for r in range(2)]
            assert codes == [0, 0], codes
        with Job(_plain, 2) as job:
            assert [job.reap(r) for r in range(2)] == [0, 0]
        assert faultlib.shm_bytes() == 0
        assert LIBC.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=64k") == 0
        with pytest.raises(errors.FabricMemoryError, match="/dev/shm has no room"):
            bootstrap.create_job(4)
        assert not os.listdir("/dev/shm")

    faultlib.in_namespace(CLONE_NEWNS, inside)


def _exactly_full(die, fits):
    g = strata.world()
    die.say("ready")
    die.hear()
    if die.rank == 0 and fits:
        strata.empty(4 << 20, "u1")[:] = 1  # its frames are the last pages that there are
    elif die.rank == 0:
        assert die.catch(strata.empty, 4 << 20, "u1").kind == "FabricMemoryError"
    die.say("first")
    die.hear()
    g.barrier()  # follows the others' tables
    hoard = []
    with pytest.raises(errors.FabricMemoryError):
        while True:
            hoard.append(strata.ones(2 << 20, "u1"))
    g.barrier()


@pytest.mark.parametrize("fits", [False, True])
def test_last_page_of_shm(fits):
    """Page tables need memory too: an allocation that takes the last page is an error, or all of
    it is there, and nobody gets SIGBUS."""

    def inside():
        assert LIBC.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=48m") == 0
        with Job(_exactly_full, 2, fits) as job:
            job.all("ready")
            st = os.statvfs("/dev/shm")
            spare = (4 << 20) + fits * 4096
            with open("/dev/shm/filler", "ab") as f:
                os.posix_fallocate(f.fileno(), 0, st.f_bfree * st.f_frsize - spare)
            job.tell(0)
            job.all("first", [0])
            job.tell(1)
            job.all("first", [1])
            job.tell()
            codes = [job.reap(r) for r in range(2)]
            assert codes == [0, 0], codes

    faultlib.in_namespace(CLONE_NEWNS, inside)


def _plain(die):
    check_group(strata.world(), range(strata.world().size), rounds=1)
