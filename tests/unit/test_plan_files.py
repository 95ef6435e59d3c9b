"""Plans as files: npz and JSON round trips, sets, differences, and files that are hostile or broken."""

import dataclasses
import io
import json

import numpy as np
import plan_cases as cases
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.plan import OPERATIONS, PlanError, build, diff, load, load_all, save, save_all
from strata.plan.plan import ARRAYS


def written(plans, format):
    out = io.BytesIO()
    save_all(plans, out, format) if isinstance(plans, list) else save(plans, out, format)
    return out.getvalue()


@pytest.mark.parametrize("operation", OPERATIONS)
def test_round_trips_keep_hash_and_arrays(operation, tmp_path):
    plans = cases.plans(cases.spec(operation, 1001, 4, root=0), cores=2)
    for name in ("a.npz", "a.json", "a.JSON", "plain"):
        plans[3].save(tmp_path / name)
        again = load(tmp_path / name)
        assert again.hash() == plans[3].hash() and not diff(again, plans[3])
        for array in ARRAYS:
            assert getattr(again, array).tobytes() == getattr(plans[3], array).tobytes()
        assert not again.units.flags.writeable
    for name in ("all.npz", "all.json"):
        save_all(plans, tmp_path / name)
        assert [p.hash() for p in load_all(tmp_path / name)] == [p.hash() for p in plans]
    with pytest.raises(PlanError, match="4 plans: load_all"):
        load(tmp_path / "all.json")
    assert load_all(tmp_path / "a.json")[0].hash() == plans[3].hash()


def test_the_hash_is_the_same_everywhere():
    found = build(cases.spec("all_reduce", 1000, 3), 1).hash()
    assert found == load(io.BytesIO(written(build(cases.spec("all_reduce", 1000, 3), 1), "json"))).hash()
    assert len(found) == 64 and int(found, 16)


def test_diff_names_what_differs():
    a = build(cases.spec("all_gather", 1000, 3), 0)
    assert diff(a, build(cases.spec("all_gather", 1000, 3), 0)) == ""
    text = diff(a, build(cases.spec("all_gather", 1001, 3), 0))
    assert "spec.count: 1000 -> 1001" in text and "bytes 4000 -> 4004" in text and "slices[0]" in text
    operands = a.operands.copy()
    operands["offset"][1] += 4
    one = diff(a, dataclasses.replace(a, operands=operands)).splitlines()
    assert len(one) == 1 and one[0].startswith("operands[1]: offset ")
    assert "rank: 0 -> 1" in diff(a, build(cases.spec("all_gather", 1000, 3), 1))
    uneven = [build(cases.spec("all_to_all_v", 9, 3), 0), build(cases.spec("all_to_all_v", 8, 3), 0)]
    assert "counts[0]" in diff(*uneven)
    assert len(diff(a, build(cases.spec("all_gather", 9, 30), 0), limit=1).splitlines()) < 16


def changed(change, operation="all_to_all_v"):
    """The error that a JSON file with a change gives."""
    values = json.loads(written(build(cases.spec(operation, 10, 3), 1), "json"))
    change(values)
    with pytest.raises(PlanError) as error:
        load(io.BytesIO(json.dumps(values).encode()))
    return str(error.value)


def test_errors_name_the_field():
    assert "build it again" in changed(lambda v: v.update(version=1))
    assert "version 3" in changed(lambda v: v.update(version=3))
    assert "'format'" in changed(lambda v: v.update(format="plan"))
    for name in ("spec", "rank", "cores", "units", "operands", "core_begin", "scratch"):
        assert name in changed(lambda v: v.pop(name))  # noqa: B023
        assert name in changed(lambda v: v.update({name: [[]]}))  # noqa: B023
    assert "surprise" in changed(lambda v: v.update(surprise=1))
    assert "spec.nranks" in changed(lambda v: v["spec"].update(nranks="3"))
    assert "spec.mode" in changed(lambda v: v["spec"].pop("mode"))
    assert "spec" in changed(lambda v: v["spec"].update(nranks=10**30))
    assert "cores" in changed(lambda v: v.update(cores=10**30))
    assert "units.dtype" in changed(lambda v: v["units"]["rows"][0].__setitem__(2, -1))
    assert "units.rows[0]" in changed(lambda v: v["units"]["rows"][0].pop())
    assert "units.fields" in changed(lambda v: v["units"]["fields"].reverse())
    assert "operands.offset" in changed(lambda v: v["operands"]["rows"][0].__setitem__(-1, 1e300))
    assert "core_begin" in changed(lambda v: v.update(core_begin=[0, True]))
    assert "counts" in changed(lambda v: v["counts"][0].append(1))
    assert "slice 0" in changed(lambda v: v["slices"]["rows"][0].__setitem__(v["slices"]["fields"].index("src_buf"), 9))


def test_an_archive_cannot_ask_for_memory_or_run_code():
    def archive(**arrays):
        out = io.BytesIO()
        np.savez(out, **arrays)
        return out.getvalue()

    out = io.BytesIO()
    np.savez_compressed(out, header=np.zeros(1 << 24, np.uint8))
    with pytest.raises(PlanError, match="packed"):
        load(io.BytesIO(out.getvalue()))
    with pytest.raises(PlanError, match="objects"):
        load(io.BytesIO(archive(header=np.array([print], object))))
    data = written(build(cases.spec("all_gather", 10, 3), 1), "npz")
    at = data.index(b"'shape': (") + 10
    huge = data[:at] + b"9" * 3 + data[at + 3 :]
    with pytest.raises(PlanError):
        load(io.BytesIO(huge))
    for wrong in (b"", b"PK", b"PK\x05\x06" + bytes(18), b"[" * 100_000, b"{}", b"null", b"\xff" * 100):
        with pytest.raises(PlanError):
            load(io.BytesIO(wrong))


PLANS = [build(cases.spec(o, 20, 3, root=0), 1, cores=2) for o in ("all_reduce", "all_to_all_v", "gather")]
FILES = [(p, written(p, f)) for p in PLANS for f in ("npz", "json")]


def survives(data):
    """The plans of a broken file, if it still has any: only PlanError may be raised."""
    try:
        found = load_all(io.BytesIO(data))
    except PlanError as error:
        assert str(error)
    else:
        for plan in found:
            assert plan.check() is plan and plan.pretty() and len(plan.hash()) == 64


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(FILES),
    st.lists(st.tuples(st.integers(0, 1 << 30), st.integers(1, 255)), min_size=1, max_size=4),
    st.integers(0, 1 << 30),
)
def test_flipped_bytes_and_truncated_files(file, flips, cut):
    data = bytearray(file[1])
    for at, mask in flips:
        data[at % len(data)] ^= mask
    survives(bytes(data))
    survives(bytes(data[: cut % len(data)]))


VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.just(10**400), st.floats(), st.text(max_size=5),
                   st.just([]), st.just({}), st.integers(-2, 1 << 64))  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(PLANS), st.data())
def test_wrong_values_anywhere(plan, data):
    top = json.loads(written(plan, "json"))
    place = top
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return
        key = data.draw(st.sampled_from(keys))
        if isinstance(place[key], (dict, list)) and data.draw(st.integers(0, 3)):
            place = place[key]
            continue
        break
    if data.draw(st.booleans()):
        place[key] = data.draw(VALUES)
    else:
        del place[key]
    survives(json.dumps(top).encode())
