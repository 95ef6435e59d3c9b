"""The numpy records of the timing plane and their C twins are the same bytes and the same codes."""

import re

from layouts import INCLUDE, assert_twins

from strata.exec.timed import records

RECORDS = {
    "st_timing_link": records.LINK_DTYPE,
    "st_timing_use": records.USE_DTYPE,
    "st_timing_task": records.TASK_DTYPE,
    "st_timing_lane": records.LANE_DTYPE,
    "st_timing_flag": records.FLAG_DTYPE,
    "st_timing_member": records.MEMBER_DTYPE,
    "st_timing_rendezvous": records.RENDEZVOUS_DTYPE,
    "st_timing_times": records.TIMES_DTYPE,
}


def test_numpy_and_c_layouts_agree(tmp_path):
    assert_twins(tmp_path, "st_timing.h", RECORDS)


def test_codes_are_those_of_the_header():
    text = (INCLUDE / "st_timing.h").read_text()
    codes = {name: int(value) for name, value in re.findall(r"\b(ST_\w+)\s*=\s*(\d+)", text)}
    for prefix, names in (("ST_LINK", records.LINK_NAMES), ("ST_TASK", records.TASK_NAMES)):
        assert codes[f"{prefix}_KINDS"] == len(names)
        for number, name in enumerate(names):
            assert codes[f"{prefix}_{name.upper()}"] == number == getattr(records, name.upper())
