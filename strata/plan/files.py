"""Plans as files: npz archives and JSON, one schema for both (docs/plan-format.md).

Reading trusts nothing: archives are read member by member with their sizes compared first,
nothing is unpickled or unpacked, and whatever is wrong is a PlanError that names the field.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Sequence
from os import PathLike, fspath
from typing import IO, TYPE_CHECKING, Any, NoReturn

import numpy as np

from strata.errors import StrataError, writing
from strata.plan.archive import WRONG, npy
from strata.plan.records import PLAN_VERSION
from strata.plan.spec import Spec, normal

if TYPE_CHECKING:
    from strata.plan.plan import Plan

File = str | PathLike[str] | IO[bytes]
ONE, MANY = "strata-plan", "strata-plans"
SPEC_FIELDS = {"operation": str, "count": int, "itemsize": int, "dtype": int, "redop": int, "root": int,
               "nranks": int, "mode": str, "in_place": bool}  # fmt: skip
PLAN_FIELDS = {"rank": int, "algorithm": str, "path": str, "policy": str, "cores": int, "needs_done": bool,
               "scratch": int, "makespan_ps": int, "bound_ps": int}  # fmt: skip
COUNTS_DTYPE, ROWS_DTYPE = np.dtype("<i8"), np.dtype("<u8")
HIDDEN = ("pad",)  # always zero, not written as JSON
OF_ROWS = ("row", "index")  # zero in plans without rows, and not written as JSON there
OLD = "build it again with this strata: the records of version 1 cannot say what version 2 must know"


def save(plan: Plan, file: File, format: str | None = None) -> None:
    """Writes one plan.  ``format``: "npz" or "json"; None goes by the name's end, .json or anything else."""
    _write(file, [plan], ONE, _format(file, format))


def save_all(plans: Sequence[Plan], file: File, format: str | None = None) -> None:
    """Writes several plans, as a rule those of all members, into one file; ``format`` as of ``save``."""
    _write(file, list(plans), MANY, _format(file, format))


def load(file: File) -> Plan:
    """Reads one plan; PlanError if the file is none, of another version, or not well formed; OSError as of open."""
    plans = load_all(file)
    if len(plans) != 1:
        _fail(f"the file holds {len(plans)} plans: load_all reads them")
    return plans[0]


def load_all(file: File) -> list[Plan]:
    """Reads all plans of a file, also of one that ``save`` wrote; errors as of ``load``."""
    if isinstance(file, (str, PathLike)):
        with open(file, "rb") as opened:
            data = opened.read()
    else:
        data = file.read()
    try:
        return _read_npz(data) if data[:2] == b"PK" else _read_json(data)
    except StrataError:
        raise
    except WRONG as error:
        _fail(f"not a plan: {error!r}"[:300], error)


def _fail(why: str, cause: BaseException | None = None) -> NoReturn:
    from strata.plan.plan import PlanError

    raise PlanError(why) from cause


def _format(file: File, format: str | None) -> str:
    if format is None:
        format = "json" if isinstance(file, (str, PathLike)) and fspath(file).lower().endswith(".json") else "npz"
    if format not in ("npz", "json"):
        _fail(f"format is {format!r}, not 'npz' or 'json'")
    return format


def _arrays(plan: Plan) -> dict[str, np.ndarray]:
    from strata.plan.plan import ARRAYS

    found = {name: getattr(plan, name) for name in ARRAYS}
    more = {"counts": plan.spec.counts, "rows": plan.rows}
    return {**found, **{name: array for name, array in more.items() if array is not None}}


def _write(file: File, plans: list[Plan], kind: str, format: str) -> None:
    out = io.BytesIO()
    if format == "json":
        written = [
            {**p.header(), **{n: _columns(a, p.rows is not None) for n, a in _arrays(p).items()}} for p in plans
        ]
        top = {"format": kind, "version": PLAN_VERSION}
        text = json.dumps({**top, **written[0]} if kind == ONE else {**top, "plans": written})
        out.write(text.encode())
    else:
        headers = [p.header() for p in plans]
        header = json.dumps(headers[0] if kind == ONE else {"version": PLAN_VERSION, "plans": headers})
        many = {f"{i}.{n}" if kind == MANY else n: a for i, p in enumerate(plans) for n, a in _arrays(p).items()}
        np.savez(out, header=np.frombuffer(header.encode(), np.uint8), **many)  # type: ignore[arg-type]
    if isinstance(file, (str, PathLike)):
        with writing(file), open(file, "wb") as opened:
            opened.write(out.getbuffer())
    else:
        file.write(out.getbuffer())


def _names(dtype: np.dtype, rows: bool) -> list[str]:
    """Fields of a record that are written as JSON.  ``rows``: of a plan that has rows."""
    return [name for name in dtype.names or () if name not in HIDDEN and (rows or name not in OF_ROWS)]


def _columns(array: np.ndarray, rows: bool) -> Any:
    """Records as {"fields": names, "rows": lists of integers}; plain arrays as nested lists."""
    if array.dtype.names is None:
        return array.tolist()
    fields = _names(array.dtype, rows)
    return {"fields": fields, "rows": list(map(list, zip(*(array[f].tolist() for f in fields), strict=True)))}


def _read_json(data: bytes) -> list[Plan]:
    try:
        top = json.loads(data)
    except (ValueError, RecursionError) as error:
        _fail(f"not a plan: neither an npz archive nor JSON ({error})", error)
    if not isinstance(top, dict) or top.get("format") not in (ONE, MANY):
        _fail(f"not a plan: 'format' is not {ONE!r} or {MANY!r}")
    _version(top)
    if top["format"] == ONE:
        return [_plan({k: v for k, v in top.items() if k != "format"}, _from_json)]
    return [_plan(_object(p, "plans"), _from_json) for p in _list(top.get("plans"), "plans")]


def _from_json(name: str, value: Any, dtype: np.dtype) -> np.ndarray:
    if dtype.names is None:
        found = np.array(value if isinstance(value, list) else _fail(f"{name} is no list"), object)
        _integers(name, found, dtype)
        return found.astype(dtype)
    table = _object(value, name)
    fields = _names(dtype, table.get("fields") == _names(dtype, True))
    if table.get("fields") != fields:
        _fail(f"not a well-formed plan: {name}.fields is not {fields}")
    rows = _list(table.get("rows"), f"{name}.rows")
    made = np.zeros(len(rows), dtype)
    for i, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != len(fields):
            _fail(f"not a well-formed plan: {name}.rows[{i}] is no list of {len(fields)} numbers")
    for at, field in enumerate(fields):
        column = np.array([row[at] for row in rows], object)
        _integers(f"{name}.{field}", column, dtype[field])
        made[field] = column
    return made


def _integers(name: str, values: np.ndarray, dtype: np.dtype) -> None:
    limits = np.iinfo(dtype)
    for value in values.reshape(-1).tolist():
        if type(value) is not int or not limits.min <= value <= limits.max:
            _fail(f"not a well-formed plan: {name} has {str(value)[:40]}, no integer of {limits.min} to {limits.max}")


def _read_npz(data: bytes) -> list[Plan]:
    found: dict[str, np.ndarray] = {}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for entry in archive.infolist():
            name = entry.filename.removesuffix(".npy")
            if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > len(data):
                _fail(f"not a plan: {name[:40]} is packed, or longer than the file")
            found[name] = _npy(name, archive.read(entry))
    if "header" not in found:
        _fail("not a plan: it has no header")
    header = _object(json.loads(found.pop("header").tobytes()), "header")
    _version(header)
    if "plans" not in header:
        return [_plan({**header, **found}, _from_npz)]
    plans = []
    for i, one in enumerate(_list(header["plans"], "plans")):
        own = {n.removeprefix(f"{i}."): a for n, a in found.items() if n.startswith(f"{i}.")}
        plans.append(_plan({**_object(one, "plans"), **own}, _from_npz))
    return plans


def _npy(name: str, data: bytes) -> np.ndarray:
    try:
        return npy(name, data)
    except ValueError as error:
        _fail(f"not a plan: {error}", error)


def _from_npz(name: str, value: Any, dtype: np.dtype) -> np.ndarray:
    if not isinstance(value, np.ndarray) or value.dtype != dtype or (dtype.names and value.ndim != 1):
        _fail(f"not a well-formed plan: {name} are records of another layout")
    return value


def _version(header: dict) -> None:
    version = header.get("version")
    if type(version) is not int or version != PLAN_VERSION:
        cure = f"; {OLD}" if version == 1 else ""
        _fail(f"the plan has version {str(version)[:40]}, and this strata reads {PLAN_VERSION}{cure}")


def _object(value: Any, name: str) -> dict:
    return value if isinstance(value, dict) else _fail(f"not a well-formed plan: {name} is no object")


def _list(value: Any, name: str) -> list:
    return value if isinstance(value, list) else _fail(f"not a well-formed plan: {name} is no list")


def _fields(found: dict, wanted: dict[str, type], where: str) -> dict[str, Any]:
    for name, kind in wanted.items():
        if name not in found:
            _fail(f"not a well-formed plan: {where}{name} is missing")
        if type(found[name]) is not kind:
            _fail(f"not a well-formed plan: {where}{name} is {str(found[name])[:40]}, no {kind.__name__}")
    for name in found:
        if name not in wanted:
            _fail(f"not a well-formed plan: {where}{name[:40]} is unknown")
    return found


def _plan(found: dict[str, Any], array: Any) -> Plan:
    from strata.plan.plan import ARRAYS, Plan

    _version(found)
    spec = dict(_fields(_object(found.pop("spec", None), "spec"), SPEC_FIELDS, "spec."))
    counts, rows = (
        None if found.get(name) is None else array(name, found[name], dtype)
        for name, dtype in (("counts", COUNTS_DTYPE), ("rows", ROWS_DTYPE))
    )
    found.pop("counts", None), found.pop("rows", None)
    arrays = {}
    for name, dtype in ARRAYS.items():
        if name not in found:
            _fail(f"not a well-formed plan: {name} is missing")
        arrays[name] = array(name, found.pop(name), dtype)
    version = found.pop("version")
    scalars = _fields(found, PLAN_FIELDS, "")
    try:
        normalised = normal(Spec(**spec, counts=counts))
    except ValueError as error:
        _fail(f"not a well-formed plan: spec: {error}", error)
    return Plan(spec=normalised, **scalars, **arrays, version=version, rows=rows).check()
