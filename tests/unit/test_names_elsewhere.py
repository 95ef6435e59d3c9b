"""Names of torch.distributed and mpi4py that strata has under others: the error says which."""

import re

import pytest

import strata
from strata.comm import Group


@pytest.mark.parametrize("name", [*strata._ELSEWHERE, *strata._OPERATIONS])
def test_a_name_from_elsewhere_is_told_with_ours(name):
    text = re.escape(f"module 'strata' has no attribute '{name}'; it is strata.")
    with pytest.raises(AttributeError, match=text) as caught:
        getattr(strata, name)
    found = re.search(r"it is strata\.(\w+)\(?\)?(?:\.(\w+))?", str(caught.value))
    assert hasattr(strata, found[1])
    assert found[2] is None or hasattr(Group, found[2]) or found[2] in ("rank", "size")


def test_a_name_that_nobody_has():
    with pytest.raises(AttributeError, match=r"has no attribute 'all_reduze'$"):
        strata.all_reduze  # noqa: B018
