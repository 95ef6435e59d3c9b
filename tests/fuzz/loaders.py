"""Fuzzes all that reads files: valid files, changed at random, and files of odd shape.

A case may end well, or with the errors that the loader documents (StrataError, InvalidArgument among them).  Anything
else is a failure: another exception, more than SECONDS of CPU, or more than MEMORY bytes beyond what the process had.

Changes are of bytes, and of structure: JSON is parsed, changed in a node, and written; XML likewise; TOML line by line.

Usage: python tests/fuzz/loaders.py [--seed N] [--seconds S] [--cases N] [--keep DIR] [-k WORD] [FILE ...]

A FILE is run again: its name begins with the loader's, as it was kept.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import spaces
from readers import loaders

from strata.errors import StrataError

SECONDS = 5.0
MEMORY = 256 << 20
INTEGERS = [0, 1, -1, 2, 3, 7, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, 10**30]
ODD = [*INTEGERS, -(2**63), 1.5, -0.0, 1e308, float("inf"), float("nan"), True, None, "", "0", "a" * 300, [], {}, [[]]]
ALIASES = b"".join(b"%c: &%c [%s]\n" % (i + 1, i + 1, b",".join([b"*%c" % i] * 8)) for i in range(97, 108))
TEXTS = (
    b"", b"\0", b"{}", b"[]", b"\xff\xfe\0", b"[" * 50000, b'{"a":' * 20000, b"<a>" * 20000, b"PK\3\4" + b"\0" * 40,
    b"a = " + b"[" * 20000, b"a = " + b"9" * 5000, b"a = 0x" + b"f" * 9000,
    b'{"format": "strata-plan", "version": ' + b"9" * 5000 + b"}", b"a: &a [x,x]\n" + ALIASES,
    b"a: !!bool q", b"a: !!int ''", b"a: !!float ''", b"a: !!timestamp x",
)  # fmt: skip


class TooLong(BaseException):
    """A case has had SECONDS of CPU: no loader may catch that."""


# ---- changes -------------------------------------------------------------------------------


def _bytes(chance: random.Random, data: bytes) -> bytes:
    made = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 5, 20))):
        at = chance.randrange(len(made) + 1)
        how = chance.randrange(6)
        if how == 0 and at < len(made):
            made[at] ^= 1 << chance.randrange(8)
        elif how == 1:
            made[at:at] = chance.randbytes(chance.choice((1, 4, 40)))
        elif how == 2:
            del made[at : at + chance.choice((1, 4, 100, len(made)))]
        elif how == 3:
            end = chance.randrange(len(made) + 1)
            made[at:at] = made[end : end + chance.randrange(200)]
        elif how == 4:
            made[at : at + 8] = chance.choice(INTEGERS).to_bytes(32, "little", signed=True)[:8] if at else b"\xff" * 8
        else:
            digits = [i for i, b in enumerate(made) if 48 <= b < 58]
            if digits:
                i = chance.choice(digits)
                made[i : i + 1] = str(chance.choice(ODD)).encode()
    return bytes(made)


def _nodes(value: Any) -> list[tuple[Any, Any]]:
    """All (container, key) of a tree."""
    found, todo = [], [value]
    while todo:
        node = todo.pop()
        items: list[tuple[Any, Any]] = []
        if isinstance(node, (dict, list)):
            items = list(node.items() if isinstance(node, dict) else enumerate(node))
        found += [(node, key) for key, _ in items]
        todo += [child for _, child in items]
    return found


def _json(chance: random.Random, data: bytes) -> bytes:
    tree = json.loads(data)
    for _ in range(chance.choice((1, 1, 2, 4))):
        nodes = _nodes(tree)
        if not nodes:
            break
        node, key = chance.choice(nodes)
        other, theirs = chance.choice(nodes)
        how = chance.randrange(6)
        if how == 0:
            del node[key]
        elif how == 1:
            node[key] = json.loads(json.dumps(other[theirs]))
        elif how == 2 and isinstance(node, list):
            node[key:key] = json.loads(json.dumps([node[key]])) * chance.choice((1, 2, 50))
        elif how == 3 and isinstance(node, dict):
            node[chance.choice((str(key) + "x", "pad", "version", ""))] = copy.deepcopy(chance.choice(ODD))
        elif how == 4 and type(node[key]) is int:
            node[key] += chance.choice((-1, 1, 64, -64, 1 << 31, 1 << 63))
        else:
            node[key] = copy.deepcopy(chance.choice(ODD))
    return json.dumps(tree).encode()


def _xml(chance: random.Random, data: bytes) -> bytes:
    top = ElementTree.fromstring(data)
    for _ in range(chance.choice((1, 1, 2, 4))):
        every = list(top.iter())
        node, other = chance.choice(every), chance.choice(every)
        how = chance.randrange(5)
        if how == 0 and len(node):
            node.remove(chance.choice(list(node)))
        elif how == 1:
            node.append(ElementTree.fromstring(ElementTree.tostring(other)))
        elif how == 2 and node.attrib:
            del node.attrib[chance.choice(list(node.attrib))]
        elif how == 3:
            node.tag = chance.choice((other.tag, "x"))
        elif node.attrib:
            name = chance.choice(list(node.attrib))
            values = [str(v) for v in ODD] + list(other.attrib.values())
            node.attrib[name] = chance.choice(values)
    return ElementTree.tostring(top)


def _lines(chance: random.Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    for _ in range(chance.choice((1, 1, 3))):
        i, k = chance.randrange(len(lines)), chance.randrange(len(lines))
        how = chance.randrange(5)
        if how == 0:
            del lines[i]
        elif how == 1:
            lines.insert(i, lines[k])
        elif b"=" in lines[i] or b":" in lines[i]:
            sign = b"=" if b"=" in lines[i] else b":"
            value = json.dumps(chance.choice(ODD)) if chance.random() < 0.8 else "inf"
            if b"value =" in lines[i] and how < 4:
                head, _, rest = lines[i].partition(b"value =")
                lines[i] = head + b"value = " + value.encode() + b"," + rest.partition(b",")[2]
            else:
                lines[i] = lines[i].partition(sign)[0] + sign + b" " + value.encode()
        lines = lines or [b""]
    return b"\n".join(lines)


def changed(chance: random.Random, name: str, data: bytes) -> bytes:
    """A valid file, changed."""
    if chance.random() < 0.02:
        return chance.choice(TEXTS)
    kind = data.lstrip()[:1]
    if name == "space":
        return spaces.pokes(chance, data)
    how = {b"{": _json, b"[": _json, b"<": _xml, b"\x93": _bytes}.get(kind, _bytes if data[:2] == b"PK" else _lines)
    try:
        return how(chance, data) if chance.random() < 0.7 else _bytes(chance, data)
    except ValueError:  # JSON has no way to say what was put in
        return _bytes(chance, data)


# ---- running -------------------------------------------------------------------------------


def _too_long(*_: Any) -> None:
    raise TooLong


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def run(name: str, load: Callable[[bytes], Any], data: bytes) -> str:
    """"" if the case ended as it may, else what is wrong."""
    before = peak()
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        load(data)
    except StrataError:
        pass
    except OSError:
        if name != "space":
            return traceback.format_exc()
    except TooLong:
        return f"more than {SECONDS} s of CPU\n{traceback.format_exc()}"
    except Exception:
        return traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    grown = peak() - before
    return f"{grown >> 20} MiB of memory" if grown > MEMORY else ""


def again(names: list[str]) -> int:
    """Runs kept cases; how many fail."""
    known, failed = loaders(), 0
    for name in names:
        kind = Path(name).name.split("-")[0]
        wrong = run(kind, known[kind][0], Path(name).read_bytes())
        if wrong:
            failed += 1
            print(f"{name}: {wrong}")
    return failed


def found() -> list[str]:
    """What once failed."""
    return [str(p) for p in sorted((Path(__file__).parent / "found" / "loaders").glob("*"))]


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--cases", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=Path(".fuzz/kept"))
    parser.add_argument("-k", dest="word", default="")
    parser.add_argument("files", nargs="*")
    args = parser.parse_args(argv)
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, resource.getrlimit(resource.RLIMIT_AS)[1]))
    signal.signal(signal.SIGPROF, _too_long)
    if args.files:
        return 1 if again(args.files) else 0
    if again(found()):
        return 1
    print(f"seed {args.seed}", flush=True)
    chance = random.Random(args.seed)
    known = {name: it for name, it in loaders().items() if args.word in name}
    for name, (load, seeds) in known.items():
        for data in seeds:
            assert load(data) is not None, name  # without a change all goes well
    end, done, failed = time.monotonic() + args.seconds, 0, 0
    while time.monotonic() < end and (not args.cases or done < args.cases):
        name = chance.choice(list(known))
        load, seeds = known[name]
        data = changed(chance, name, chance.choice(seeds))
        wrong = run(name, load, data)
        done += 1
        if wrong:
            failed += 1
            args.keep.mkdir(parents=True, exist_ok=True)
            file = args.keep / f"{name}-{args.seed}-{done}"
            file.write_bytes(data)
            print(f"FAIL {file}\n{wrong}", flush=True)
            if failed > 20:
                break
    print(f"{len(found())} found before, {done} cases, {failed} failures")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
