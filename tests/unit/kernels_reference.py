"""What reductions must give, computed by other means: numpy, ml_dtypes, Python integers."""

import functools

import numpy as np

from strata import dtypes

PAIRS = [
    (code, op)
    for code in range(1, len(dtypes.DTYPES))
    for op in range(1, len(dtypes.OPS))
    if dtypes.supported(code, op)
]
SMALL = [dtypes.code_of(np.float16)] + [
    code for code, (name, _, _) in enumerate(dtypes.DTYPES) if name in ("bf16", "f8e4m3fn", "f8e5m2")
]


def pair_id(pair):
    return f"{dtypes.DTYPES[pair[0]][0]}-{dtypes.OPS[pair[1]]}"


def operands(code, nsrc, count, seed):
    """Operands that depend on rank and position: ordinary values, and every kind of odd bits."""
    rng = np.random.default_rng([seed, code, nsrc, count])
    dtype = dtypes.dtype_of(code)
    found = []
    for rank in range(nsrc):
        raw = rng.integers(0, 256, count * dtype.itemsize, dtype=np.uint8).view(dtype)
        if dtype.kind in "iu":
            found.append(raw)
            continue
        if dtype.kind == "b":
            bits = np.arange(count) * 7 + rank * 3 + rng.integers(0, 3, count)
            found.append((bits % np.array(2)).astype(bool))
            continue
        values = rng.normal(size=count) * 4 + rank + np.arange(count) % 5
        if dtype.kind == "c":
            values = values + 1j * rng.normal(size=count)
        plain = values.astype(dtype)
        # Random bits are infinities, NaNs of all kinds, subnormals and overflows.
        found.append(np.where(rng.random(count) < 0.25, raw, plain) if dtype.kind in "fc"
                     else np.array([r if odd else p for r, p, odd in
                                    zip(raw, plain, rng.random(count) < 0.25, strict=True)], dtype))
    return found


def canonical(array):
    """The same with every NaN the positive quiet one without payload, part by part."""
    array = np.array(array)
    if array.dtype.kind == "c":
        parts = array.view(f"f{array.dtype.itemsize // 2}")
        parts[np.isnan(parts)] = np.nan
    elif array.dtype.kind not in "iub":
        array[np.isnan(array.astype(np.float64))] = np.nan
    return array


def _minimum(a, b):
    return np.where((b < a) | np.isnan(b), b, a)


def _maximum(a, b):
    return np.where((b > a) | np.isnan(b), b, a)


def _complex_product(a, b):
    part = f"f{a.dtype.itemsize // 2}"
    (ar, ai), (br, bi) = (x.view(part).reshape(-1, 2).T for x in (a, b))
    both = np.stack([ar * br - ai * bi, ar * bi + ai * br], axis=1)
    return np.ascontiguousarray(both).view(a.dtype).reshape(-1)


def _fold_floats(name, srcs):
    if name in ("sum", "avg"):
        total = functools.reduce(np.add, srcs)
        part = total.real.dtype.type
        if name == "sum":
            return total
        return (total.view(part) / part(len(srcs))).view(total.dtype)
    if name == "prod":
        combine = _complex_product if srcs[0].dtype.kind == "c" else np.multiply
    else:
        combine = {"min": _minimum, "max": _maximum}[name]
    return functools.reduce(combine, srcs)


def _fold_integers(name, srcs):
    dtype = srcs[0].dtype
    if name == "avg":
        exact = functools.reduce(np.add, [s.astype(object) for s in srcs])
        return np.array([int(v) // len(srcs) for v in exact], dtype)
    combine = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum,
               "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}[name]
    return functools.reduce(lambda a, b: combine(a, b, dtype=dtype), srcs)


def _fold_bools(name, srcs):
    combine = {"sum": np.logical_or, "max": np.logical_or, "bor": np.logical_or,
               "prod": np.logical_and, "min": np.logical_and, "band": np.logical_and,
               "bxor": np.logical_xor}[name]
    return functools.reduce(combine, [s != 0 for s in srcs])


@np.errstate(all="ignore")
def fold(op, srcs):
    """The result, bit for bit, of folding two operands or more left to right."""
    name, dtype = dtypes.OPS[op], srcs[0].dtype
    if dtype.kind == "b":
        return _fold_bools(name, srcs)
    if dtype.kind in "iu":
        return _fold_integers(name, srcs)
    if dtypes.code_of(dtype) in SMALL:
        wide = [s.astype(np.float32) for s in srcs]
        return canonical(_fold_floats(name, wide)).astype(dtype)
    return canonical(_fold_floats(name, srcs))


def raw(array):
    """The bytes of an array as a writable view, whatever its dtype."""
    return array.view(np.uint8).reshape(-1) if array.size else array.reshape(-1).view(np.uint8)
