"""The error family: what it carries, how it travels, and its table of status codes."""

import copy
import errno
import pickle
import re
from pathlib import Path

import pytest

from strata import errors

HEADER = Path(errors.__file__).parent / "_core" / "include" / "st_status.h"
CLASSES = [
    c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.StrataError)
]


def header_enum():
    """The names and values of enum st_status, read from the header itself."""
    body = re.search(r"enum st_status \{(.*?)\};", HEADER.read_text(), re.S).group(1)
    return {name: int(value) for name, value in re.findall(r"(ST_\w+) = (\d+)", body)}


@pytest.mark.skipif(not HEADER.exists(), reason="an installed package has no headers")
def test_table_is_the_headers_enum():
    enum = header_enum()
    assert enum.pop("ST_NSTATUS") == len(errors.STATUS)
    assert {status.name: code for code, status in enumerate(errors.STATUS)} == enum


def test_api_names_are_exported():
    names = "PeerDead CollectiveTimeout CollectiveMismatch FabricMemoryError RegistrationError"
    names += " GroupBroken NotInJob ConfigError StrataError"
    assert set(names.split()) <= set(errors.__all__)
    assert sorted(errors.__all__) == errors.__all__
    assert {c.__name__ for c in CLASSES} <= set(errors.__all__)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
@pytest.mark.parametrize("way", [pickle, copy.copy, copy.deepcopy], ids=["pickle", "copy", "deepcopy"])
def test_travels_whole(cls, way):
    error = cls("why", ranks=[3, 5], group="world/2", operation="all_reduce", number=1 << 40)
    error.extra = {"kept": [1]}
    if way is pickle:
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            check_same(error, pickle.loads(pickle.dumps(error, protocol)))
    else:
        check_same(error, way(error))


def check_same(a, b):
    assert type(a) is type(b)
    assert str(a) == str(b)
    assert a.args == b.args
    assert (b.ranks, b.group, b.operation, b.number) == ((3, 5), "world/2", "all_reduce", 1 << 40)
    assert b.extra == {"kept": [1]}


def test_text_names_group_operation_number_ranks():
    error = errors.PeerDead(ranks=(3,), group="world", operation="barrier", number=0)
    assert str(error) == "a peer died [barrier #0; group world; rank 3]"
    assert str(errors.PeerDead("gone", ranks=(3, 5))) == "gone [ranks 3, 5]"
    assert str(errors.NotInJob()) == "this process is not a die of a job"


def test_nothing_known_is_still_readable():
    error = errors.StrataError("x")
    assert (error.ranks, error.group, error.operation, error.number) == ((), "", "", None)
    assert str(error) == "x"


@pytest.mark.parametrize("code", range(len(errors.STATUS)))
def test_from_status(code):
    status = errors.STATUS[code]
    error = errors.from_status(
        code, "why", errno=errno.ENOSPC, ranks=(1,), group="g", operation="reduce", number=2
    )
    assert str(error).endswith("[reduce #2; group g; rank 1]")
    if status.error is None:
        assert type(error) is errors.StrataError and status.name in str(error)
    else:
        assert type(error) is status.error and str(error).startswith("why")
        assert errors.from_status(code).args[0].startswith(status.phrase or status.error.phrase)


@pytest.mark.parametrize("code", [-1, len(errors.STATUS), 1 << 40])
def test_unknown_status_is_an_error_too(code):
    assert str(code) in str(errors.from_status(code))


def test_host_error_keeps_errno():
    code = header_enum()["ST_ESYS"]
    error = errors.from_status(code, "fallocate", errno=errno.ENOSPC)
    assert error.errno == errno.ENOSPC and "No space left" in str(error)
    assert pickle.loads(pickle.dumps(error)).errno == errno.ENOSPC
    assert errors.from_status(code, "fallocate").errno is None


@pytest.mark.parametrize(
    ("cls", "builtin"),
    [
        (errors.FabricMemoryError, MemoryError),
        (errors.ConfigError, ValueError),
        (errors.InvalidArgument, ValueError),
        (errors.UnsupportedType, TypeError),
        (errors.HostError, OSError),
    ],
)
def test_also_the_builtin_that_callers_know(cls, builtin):
    with pytest.raises(builtin):
        raise cls("x")
