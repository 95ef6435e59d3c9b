"""Interception on top of a program's own handler, and its look ahead at cgroups."""

import ctypes

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from intercepting import big, gives_all_back, job  # noqa: F401

import strata
from strata._core import intercept as core
from strata._core import limits

KIB = 1 << 10


# ---- a handler of the program's own -----------------------------------------------------------


class Allocator(ctypes.Structure):
    MALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    CALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
    REALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    _fields_ = [("name", ctypes.c_char * 127), ("version", ctypes.c_uint8), ("ctx", ctypes.c_void_p),
                ("malloc", MALLOC), ("calloc", CALLOC), ("realloc", REALLOC), ("free", FREE)]  # fmt: skip


class Own:
    """A handler in Python that remembers what it has given out."""

    def __init__(self):
        libc = ctypes.CDLL(None)
        for name in ("malloc", "calloc", "realloc"):
            getattr(libc, name).restype = ctypes.c_void_p
        libc.malloc.argtypes, libc.free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]
        libc.calloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
        libc.realloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self.live, self.strange = {}, []
        kinds = Allocator
        self.table = Allocator(
            b"own", 1, None,
            kinds.MALLOC(lambda _, n: self.give(libc.malloc(n), n)),
            kinds.CALLOC(lambda _, c, n: self.give(libc.calloc(c, n), c * n)),
            kinds.REALLOC(lambda _, p, n: self.give(libc.realloc(self.back(p), n), n)),
            kinds.FREE(lambda _, p, n: libc.free(self.back(p))),
        )  # fmt: skip
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        self.name = b"mem_handler"
        self.capsule = new(ctypes.addressof(self.table), self.name, None)

    def give(self, p, n):
        self.live[p] = n
        return p

    def back(self, p):
        if self.live.pop(p, None) is None:
            self.strange.append(p)
        return p


def set_handler(capsule):
    """PyDataMem_SetHandler, which numpy offers to C only: function 304 of its table."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    table = ctypes.cast(get(np._core._multiarray_umath._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))
    call = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(table[304])
    return call(capsule)


def test_a_programs_own_handler_below_ours():
    own = Own()
    ordinary = set_handler(own.capsule)
    try:
        with strata.intercept(KIB):
            small, large, grown = np.zeros(10), np.zeros(1000), np.ones(50)
            assert len(own.live) == 2 and strata.is_fabric(large)
            grown.resize(500, refcheck=False)
            assert strata.is_fabric(grown) and grown.sum() == 50 and len(own.live) == 1
            grown.resize(20, refcheck=False)
            assert not strata.is_fabric(grown) and grown.sum() == 20 and len(own.live) == 2
            with strata.intercept(16 * KIB):  # what is below is the program's, not the block around
                middle = np.ones(1000)
                assert not strata.is_fabric(middle) and len(own.live) == 3
        assert core.handler_name() == "own"
        with strata.intercept(process=True):
            mine = np.ones(10_000)  # what a program sets goes before
            assert not strata.is_fabric(mine) and len(own.live) == 4
        del small, large, grown, middle, mine
        assert not own.live and not own.strange
    finally:
        set_handler(ordinary)


def test_a_program_that_sets_a_handler_inside_the_block_keeps_it():
    own, ordinary = Own(), None
    with strata.intercept():
        ours = set_handler(own.capsule)
        assert not big()
    assert core.handler_name() == "own"  # it is not ours to take away
    ordinary = set_handler(ours)
    assert ordinary is own.capsule
    inner = strata.intercept(0)
    with inner:
        pass
    assert core.handler_name() == "default_allocator"  # a block that is over is not gone back to


# ---- looking ahead at cgroups ----------------------------------------------------------------


NUMBER = st.one_of(st.integers(0, 1 << 62).map(str), st.sampled_from(["max", "", "x", "12 \n", "9223372036854771712"]))
STAT = st.dictionaries(
    st.sampled_from(["anon", "file", "inactive_file", "total_inactive_file", "active_file"]), st.integers(0, 1 << 40)
)


@given(st.lists(st.tuples(NUMBER, NUMBER, STAT, st.integers(0, 7)), max_size=3))
def test_room_below_cgroups_is_what_limits_says(tmp_path_factory, groups):
    folder, paths = tmp_path_factory.mktemp("cgroup"), []
    for i, (limit, used, stat, there) in enumerate(groups):
        texts = {"limit": limit + "\n", "used": used + "\n",
                 "stat": "".join(f"{k} {v}\n" for k, v in stat.items())}  # fmt: skip
        for bit, (name, text) in enumerate(texts.items()):
            if there >> bit & 1 or i == 0:
                (folder / f"{name}{i}").write_text(text)
        paths.append(limits.Cgroup(*(str(folder / f"{name}{i}") for name in texts)))
    want = limits.cgroup_free(paths)
    assert core.cgroup_free(paths) == (None if want is None else want.free)
