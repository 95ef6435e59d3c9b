"""Element types and operators: the table, its twin in C, and what is said when a pair does not fit."""

import re
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from strata import dtypes, errors
from strata._core import kernels

HEADER = Path(__file__).resolve().parents[2] / "strata" / "_core" / "include" / "st_types.h"


def test_codes_are_those_of_the_header():
    text = HEADER.read_text()
    block = re.search(r"enum st_dtype \{(.*?)\};", text, re.S)[1]
    codes = {name.lower(): int(v) for name, v in re.findall(r"ST_(\w+) = (\d+)", block)}
    assert codes.pop("ndtypes") == len(dtypes.DTYPES)
    assert codes == {name: code for code, (name, _, _) in enumerate(dtypes.DTYPES)}
    block = re.search(r"enum st_op \{(.*?)\};", text, re.S)[1]
    ops = {name.removeprefix("OP_").lower(): int(v) for name, v in re.findall(r"ST_(\w+) = (\d+)", block)}
    assert ops.pop("nops") == len(dtypes.OPS)
    assert ops == {name: code for code, name in enumerate(dtypes.OPS)}


def test_sizes_and_pairs_are_those_of_the_kernels():
    for code in range(-1, len(dtypes.DTYPES) + 2):
        if 0 <= code < len(dtypes.DTYPES):
            assert kernels.itemsize(code) == dtypes.DTYPES[code][2] == dtypes.dtype_of(code).itemsize
        else:
            assert kernels.itemsize(code) == 0
        for op in range(-1, len(dtypes.OPS) + 2):
            assert dtypes.supported(code, op) == kernels.supported(code, op), (code, op)


def test_every_code_comes_back():
    for code in range(1, len(dtypes.DTYPES)):
        assert dtypes.code_of(dtypes.dtype_of(code)) == code
    for code in (-1, len(dtypes.DTYPES)):
        with pytest.raises(errors.InvalidArgument):
            dtypes.dtype_of(code)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        ("f4", "f32"), (float, "f64"), (complex, "c128"), (bool, "bool"), (np.int8, "i8"),
        (np.longlong, "i64"), (np.ulonglong, "u64"), (np.intp, "i64"), (np.half, "f16"),
        (ml_dtypes.bfloat16, "bf16"), (ml_dtypes.float8_e4m3fn, "f8e4m3fn"), (ml_dtypes.float8_e5m2, "f8e5m2"),
        (">f4", "raw"), (">u2", "raw"), (">u1", "u8"), (np.longdouble, "raw"), (np.clongdouble, "raw"),
        ("S5", "raw"), ("U3", "raw"), ("V7", "raw"), ("M8[ns]", "raw"), ("m8[s]", "raw"),
        ([("a", "f4"), ("b", "i2")], "raw"), (("f4", (2,)), "raw"),
        (ml_dtypes.float8_e4m3, "raw"), (ml_dtypes.float8_e4m3fnuz, "raw"), (ml_dtypes.int4, "raw"),
    ],
    ids=str,
)  # fmt: skip
def test_code_of(dtype, name):
    assert dtypes.DTYPES[dtypes.code_of(dtype)][0] == name


@pytest.mark.parametrize("dtype", [object, [("a", "O")], "S0", "V0"], ids=str)
def test_what_cannot_move(dtype):
    with pytest.raises(TypeError, match="dtype"):
        dtypes.code_of(dtype)


def test_operators():
    assert [dtypes.op_code(name) for name in dtypes.OPS[1:]] == list(range(1, len(dtypes.OPS)))
    for bad in ("none", "SUM", "", 1, None, b"sum"):
        with pytest.raises(ValueError, match="allowed are sum, prod, min, max, avg, band, bor, bxor"):
            dtypes.op_code(bad)
    with pytest.raises(errors.InvalidArgument, match="did you mean 'sum'"):
        dtypes.op_code("summ")


def test_reduction_names_what_does_not_fit():
    assert dtypes.reduction("f4", "avg") == (dtypes.code_of("f4"), dtypes.op_code("avg"))
    with pytest.raises(TypeError, match=r"'band'.*float32.*sum, prod, min, max, avg$") as caught:
        dtypes.reduction(np.dtype("f4"), "band")
    assert isinstance(caught.value, errors.StrataError)
    with pytest.raises(TypeError, match=r"'min'.*complex64.*sum, prod, avg$"):
        dtypes.reduction("c8", "min")
    with pytest.raises(TypeError, match=r"'avg'.*bool.*sum, prod, min, max, band, bor, bxor$"):
        dtypes.reduction(bool, "avg")
    with pytest.raises(TypeError, match=r"'sum'.*datetime64.*can be reduced.*bfloat16"):
        dtypes.reduction("M8[s]", "sum")
    with pytest.raises(ValueError, match="no reduction"):
        dtypes.reduction("f4", "mean")


def test_ml_dtypes_is_imported_only_when_seen():
    program = (
        "import sys, numpy as np\n"
        "from strata import dtypes\n"
        "codes = [dtypes.code_of(d) for d in ('f4', 'V2', 'V1', [('bfloat16', 'f4')])]\n"
        "dtypes.dtype_of(12)\n"
        "assert 'ml_dtypes' not in sys.modules\n"
        "dtypes.dtype_of(11)\n"
        "assert 'ml_dtypes' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=HEADER.parents[3])
