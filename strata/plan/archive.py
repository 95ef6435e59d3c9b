"""Arrays in files from anywhere: sizes are compared first, nothing is unpickled, nothing grows without bound."""

from __future__ import annotations

import io
import tokenize
import warnings
import zipfile
import zlib

import numpy as np

from strata.errors import InvalidArgument

__all__ = ["WRONG", "integers", "members", "npy"]

# What reading an archive that is none may raise.
WRONG = (ValueError, TypeError, KeyError, ArithmeticError, RecursionError, MemoryError, EOFError, OSError, SyntaxError,
         AttributeError, NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error,
         tokenize.TokenError)  # fmt: skip


def members(data: bytes, most: int) -> dict[str, np.ndarray]:
    """The arrays of an archive by name, packed or not; ValueError, or another of WRONG, if it is none, or if they are
    longer than ``most`` bytes together."""
    found: dict[str, np.ndarray] = {}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = archive.infolist()
        total = sum(entry.file_size for entry in entries)
        if total > most:
            raise ValueError(f"its arrays are {total} bytes, of {len(data)} packed: at most {most} are read")
        for entry in entries:
            name = entry.filename.removesuffix(".npy")
            found[name] = npy(name, archive.read(entry))
    return found


def integers(file: str) -> np.ndarray:
    """A matrix of integers, from .npy or text.  OSError, or InvalidArgument if it is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an empty file: it is an error here
            found = np.load(file, allow_pickle=False) if file.endswith(".npy") else np.loadtxt(file, np.int64, ndmin=2)
        if not isinstance(found, np.ndarray):
            raise ValueError("it is an archive of several arrays")
        found = found[None] if found.ndim == 1 else found
        if found.ndim != 2 or found.dtype.kind not in "iu" or not found.size:
            raise ValueError(f"it has {found.dtype} of shape {found.shape}")
    except OSError:
        raise
    except WRONG as error:
        raise InvalidArgument(f"{file} is no matrix of integers: {error}") from None
    return found


def npy(name: str, data: bytes) -> np.ndarray:
    """An array whose bytes are all there; numpy would make room for whatever the shape says.  ValueError."""
    stream = io.BytesIO(data)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError(f"{name[:40]} is no array of npy version 1.0")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    if fortran and len(shape) > 1 or dtype.hasobject:
        raise ValueError(f"{name[:40]} is stored by columns, or has objects")
    rest = data[stream.tell() :]
    size = dtype.itemsize
    for extent in shape:
        size *= extent
    if size != len(rest) or not dtype.itemsize or any(extent < 0 for extent in shape):
        raise ValueError(f"{name[:40]} has {len(rest)} bytes, not those of its shape")
    return np.frombuffer(rest, dtype).reshape(shape)
