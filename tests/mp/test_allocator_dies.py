"""The caching allocator of several dies: what peers must map, what the library holds, pools."""

import numpy as np
from launching import environment, run, write

import strata

PAGE = 1 << 21


def remapped(group):
    strata.empty_cache()
    group.barrier()
    x = strata.full(3 * PAGE, group.rank, "u1")
    where = strata.address(x)
    group.barrier()  # all of it is mapped on all
    del x
    before = strata.stats()
    group.barrier()  # and all have looked
    y = strata.empty(8 * PAGE, "u1")
    assert strata.address(y) == where
    y[:] = group.rank + 1
    group.barrier()
    after = strata.stats()
    group.barrier()  # nobody allocates anything else before all have looked
    assert after["memory"]["remapped_bytes"] - before["memory"]["remapped_bytes"] == 5 * PAGE
    assert after["pages_mapped"] - before["pages_mapped"] == 5
    assert after["shadow_maps"] - before["shadow_maps"] == 5 * (group.size - 1)  # not the three from before
    got = group.all_gather(y[:: PAGE // 2].copy())
    assert (got == np.arange(1, group.size + 1)[:, None]).all()
    group.all_reduce(y)
    assert (y == group.size * (group.size + 1) // 2).all()
    del y
    strata.empty_cache()
    group.barrier()


def test_peers_map_only_what_an_extension_adds(dies):
    dies.run(remapped)


def grows(group):
    """Sizes change at each step, as of a mixture of experts: each byte comes from where it should."""
    strata.empty_cache()
    rng = np.random.default_rng(17)
    start = strata.memory_stats()
    for step in range(40 if group.size <= 4 else 12):
        n = int(rng.integers(1, 12 * PAGE // 8))
        x = strata.full(n, step * 100 + group.rank, "i8")
        y = group.all_gather(x)
        assert (y == step * 100 + np.arange(group.size)[:, None]).all()
        del x, y
    end = strata.memory_stats()
    assert end["remaps"] > start["remaps"] and end["unmap_errors"] == 0
    assert end["allocation.all.current"] <= start["allocation.all.current"] + 1
    strata.empty_cache()
    group.barrier()


def test_changing_sizes(dies):
    dies.run(grows)


def kinds():
    return {b["kind"] for s in strata.memory_snapshot() for b in s["blocks"] if "kind" in b}


def held_by_the_library(group):
    x, y = strata.ones(10), strata.ones(10)
    work = group.send(x, (group.rank + 1) % group.size, async_op=True)
    group.recv(y, (group.rank - 1) % group.size)
    work.wait()
    assert "channel" in kinds() and "array" in kinds()
    h = group.split(0)
    h.barrier()
    assert ("group memory" in kinds()) >= (h.rank == 0)
    h.barrier()


def test_what_the_library_holds_is_named(pair):
    pair.run(held_by_the_library)


def test_pools_of_several_dies(tmp_path):
    script = write(tmp_path / "pool.py", """
        import numpy as np
        import strata
        g = strata.world()
        for step in range(30):
            n = 1 + step * 30_011
            x, rows = strata.full(n, g.rank + step, "i4"), strata.empty((g.size, n), "i4")
            g.all_gather(x, rows)
            assert (rows == np.arange(step, step + g.size)[:, None]).all()
            g.all_reduce(x)
            assert (x == sum(range(step, step + g.size))).all()
            g.all_reduce(np.ones(n))                     # staged in the pool
        try:
            strata.empty(1 << 26, "u1")
        except strata.FabricMemoryError as error:
            assert "the pool of 32.00 MiB" in str(error), error
        stats = strata.memory_stats()
        print(stats["num_device_alloc"], stats["num_device_free"], stats["reserved_bytes.all.current"] >> 20)
    """)
    got = run("-n", 3, script, env=environment(STRATA_REGISTRATION="pool", STRATA_POOL="32M"))
    assert (got.returncode, got.stderr, got.stdout) == (0, b"", b"1 0 32\n" * 3)
