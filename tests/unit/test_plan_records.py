"""The numpy records of a plan and their C twins are the same bytes and the same codes."""

import re

from layouts import INCLUDE, assert_twins

from strata.plan import records

RECORDS = {
    "st_slice": records.SLICE_DTYPE,
    "st_operand": records.OPERAND_DTYPE,
    "st_unit": records.UNIT_DTYPE,
}


def test_numpy_and_c_layouts_agree(tmp_path):
    assert_twins(tmp_path, "st_plan.h", RECORDS)


def _enums(header: str) -> dict[str, int]:
    text = re.sub(r"/\*.*?\*/", "", (INCLUDE / header).read_text(), flags=re.S)
    return {name: int(value) for name, value in re.findall(r"\b(ST_\w+)\s*=\s*(\d+)", text)}


def test_codes_are_those_of_the_headers():
    plan = _enums("st_plan.h")
    assert (plan["ST_BUF_SRC"], plan["ST_BUF_OUT"], plan["ST_BUF_SCRATCH"]) == (
        records.SRC,
        records.OUT,
        records.SCRATCH,
    )
    assert plan["ST_NBUFS"] == records.NBUFS == len(records.BUFFER_NAMES)
    for code, name in records.SLICE_NAMES.items():
        assert plan[f"ST_SLICE_{name.upper()}"] == code
    for name in ("TRANSIENT", "ATOMIC", "PARTIAL_SRC", "PARTIAL_DST"):
        assert plan[f"ST_SLICE_{name}"] == getattr(records, name)
    for code, name in records.UNIT_NAMES.items():
        assert plan[f"ST_UNIT_{name.upper()}"] == code
    assert plan["ST_OPERAND_PARTIAL"] == records.PARTIAL
    assert plan["ST_NTIERS"] == records.NTIERS == len(records.TIER_NAMES)
    for code, name in enumerate(records.TIER_NAMES):
        assert plan[f"ST_TIER_{name.upper()}"] == code
    types = _enums("st_types.h")
    assert types["ST_NDTYPES"] == len(records.DTYPE_NAMES) == len(records.DTYPE_BYTES)
    for code, name in enumerate(records.DTYPE_NAMES):
        assert types[f"ST_{name.upper()}"] == code
    assert types["ST_NOPS"] == len(records.OP_NAMES)
    for code, name in enumerate(records.OP_NAMES):
        assert types[f"ST_{'OP_' if name == 'none' else ''}{name.upper()}"] == code
    version = re.search(r"#define ST_PLAN_VERSION (\d+)", (INCLUDE / "st_plan.h").read_text())
    assert int(version.group(1)) == records.PLAN_VERSION


def test_every_offset_is_asserted_in_c():
    text = (INCLUDE / "st_plan.h").read_text()
    for struct, dtype in RECORDS.items():
        assert f"sizeof(struct {struct}) == {dtype.itemsize}" in text
        for name in dtype.names:
            assert f"offsetof(struct {struct}, {name}) == {dtype.fields[name][1]}," in text
