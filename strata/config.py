"""Every option of strata: its name, variable, type, default and meaning.

An option is one line of ``Config``.  ``STRATA_<NAME>`` sets it, unless the line
names another variable.  The environment is read once, into one frozen object; a
name that is not an option is an error that suggests the nearest, and a bad value
is an error that names the variable, the value, and what is allowed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, NamedTuple

from strata.errors import ConfigError

__all__ = ["AUTO", "Config", "Option", "get", "load", "options", "parse_size", "reset"]

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
FRAME = 2 * MIB  # unit of physical memory
AUTO = -1  # value of an option that is left to the library

# Read by setup.py when the core is built; at run time they mean nothing, but
# a shell that has them set must not break a job.
BUILD_VARIABLES = ("STRATA_SANITIZE", "STRATA_DEBUG", "STRATA_CHECKED_CORE")

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?b|)", re.IGNORECASE)


class _Type(NamedTuple):
    """Reads an option's text; raises ValueError if it is not allowed."""

    parse: Callable[[str], Any]
    allowed: str


def parse_size(text: str) -> int:
    """Bytes in "4096", "64G", "2MiB" (powers of 1024) or "64GB" (powers of 1000)."""
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{text!r} is not a size")
    number, prefix, suffix = match.groups()
    base = 1000 if prefix and suffix.lower() == "b" else 1024
    value = float(number) if "." in number else int(number)
    return int(value * base ** " kmgt".index(prefix.lower() or " "))


def _size(low: int, high: int, multiple: int = 1) -> _Type:
    """A size in [low, high], rounded up to whole multiples."""

    def parse(text: str) -> int:
        value = -(-parse_size(text) // multiple) * multiple
        if not low <= value <= high:
            raise ValueError
        return value

    step = f", rounded up to a multiple of {_human(multiple)}" if multiple > 1 else ""
    return _Type(parse, f"a size such as 64G or 2MiB, {_human(low)} to {_human(high)}{step}")


def _human(size: int) -> str:
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return str(size)


def _integer(low: int, high: int | None = None, auto: bool = False) -> _Type:
    def parse(text: str) -> int:
        if auto and text.lower() == "auto":
            return AUTO
        value = int(text, 0)
        if value < low or (high is not None and value > high):
            raise ValueError
        return value

    span = f"an integer from {low} to {high}" if high is not None else f"an integer, {low} or more"
    return _Type(parse, f'"auto" or {span}' if auto else span)


def _power(low: int, high: int) -> _Type:
    def parse(text: str) -> int:
        value = int(text, 0)
        if not low <= value <= high or value & (value - 1):
            raise ValueError
        return value

    return _Type(parse, f"a power of two from {low} to {high}")


def _number(low: float, what: str) -> _Type:
    def parse(text: str) -> float:
        value = float(text)
        if not low <= value < float("inf"):
            raise ValueError
        return value

    return _Type(parse, f"{what}, finite, {low:g} or more")


def _choice(*names: str) -> _Type:
    def parse(text: str) -> str:
        if text.lower() not in names:
            raise ValueError
        return text.lower()

    return _Type(parse, "one of " + ", ".join(names))


def _flag(text: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True}
    words |= {"0": False, "false": False, "no": False, "off": False}
    if text.lower() not in words:
        raise ValueError
    return words[text.lower()]


_FLAG = _Type(_flag, "1 or 0 (or true, yes, on; false, no, off)")
_TEXT = _Type(str, "any text")


def _option(default: Any, kind: _Type, doc: str, *, env: str | None = None, internal: bool = False) -> Any:
    return field(default=default, metadata={"kind": kind, "doc": doc, "env": env, "internal": internal})


@dataclass(frozen=True, slots=True)
class Config:
    """The options of this process.  None: not set, and the library finds it out itself."""

    # fmt: off
    rank: int | None = _option(None, _integer(0), "World rank of this die.", internal=True)
    world_size: int | None = _option(None, _integer(1), "Dies in the job.", internal=True)
    incarnation: int = _option(0, _integer(0), "How many processes of this rank strata-run has started before; not 0: this one may take over what they left.", internal=True)
    job: str | None = _option(None, _TEXT, "Random name of the job.", internal=True)
    job_fd: int | None = _option(None, _integer(0), "Inherited file descriptor of the UB space.", internal=True)
    job_socket: str | None = _option(None, _TEXT, "Abstract socket that hands the UB space to a die that did not inherit it.", internal=True)
    hbm_bytes: int = _option(64 * GIB, _size(FRAME, 1 << 44, FRAME), "HBM of a die, sparse: address space, reserved only as arrays are made.", env="STRATA_HBM")
    backing: str = _option("shm", _choice("shm", "memfd"), "What holds the UB space: shm, an object in /dev/shm; memfd, memory that no mount limits (a container with a small /dev/shm).")
    timeout: float = _option(300.0, _number(0.0, "seconds"), "Seconds that an operation waits for its peers before CollectiveTimeout.")
    registration: str = _option("on_allocation", _choice("on_allocation", "just_in_time", "pool"), "When peers map a die's memory: as it is allocated, at first use, or one pool at start-up.")
    quarantine: float = _option(10.0, _number(0.001, "seconds"), "Seconds that freed memory is kept for a peer that does not answer (a stopped process) before it is used again.")
    window_base: int = _option(0, _integer(0, (1 << 57) - 1), "First address of the VA window; 0: the dies agree on a free one.")
    mailbox_bytes: int = _option(8 * KIB, _size(0, MIB), "Largest payload of a die that travels in a mailbox instead of by a plan.")
    spin: int = _option(AUTO, _integer(0, 1 << 30, auto=True), "Pauses of a waiter before it yields the CPU; auto: some only if each die has a CPU.")
    yield_ms: float = _option(5.0, _number(0.0, "milliseconds"), "Milliseconds that a waiter yields before it sleeps on a futex.")
    spread: bool = _option(True, _FLAG, "A waiting die moves off a CPU that it shares with other dies while another has fewer; its affinity mask stays.")
    poll_ms: float = _option(20.0, _number(1.0, "milliseconds"), "Milliseconds between a waiter's looks at signals and at the liveness of its peers.")
    huge_pages: bool = _option(True, _FLAG, "Make frames huge pages where the kernel can (Linux 6.1 and later).")
    cache_bytes: int = _option(256 * MIB, _size(0, 1 << 44), "Free fabric memory that a die keeps for reuse before it gives frames back.")
    memory_limit: int = _option(1 << 44, _size(0, 1 << 44), "Most fabric memory that a die reserves, its cache included; its HBM is a limit anyway.")
    pool_bytes: int = _option(GIB, _size(FRAME, 1 << 44, FRAME), "All the fabric memory of a die, mapped at start-up, if registration is pool.", env="STRATA_POOL")
    cores: int = _option(1, _integer(1, 4096), "Emulated cores of a die that an operation may use.")
    workers: int = _option(1, _integer(1, 64, auto=True), "Threads of a die that run an operation's cores, the caller included; auto: the host's CPUs for each die.")
    algorithm: str = _option("", _TEXT, 'Algorithm of all operations ("ring"), or of some ("all_reduce=ring,broadcast=binomial"); else the library chooses.')
    path: str = _option("auto", _choice("auto", "mte", "sdma"), "Who moves an operation's bytes: mte, its cores; sdma, the die's DMA thread where it can; auto: the library chooses.")
    partition: str = _option("balanced", _choice("balanced", "naive"), "How an operation's units are shared among cores; naive gives each peer its own cores.")
    sdma_depth: int = _option(1024, _power(2, 1 << 20), "Descriptors that a ring of the DMA engine holds.")
    sdma_block: int = _option(MIB, _size(64, 64 * MIB, 64), "Largest copy of one descriptor; larger ones are split.")
    table: str = _option("", _TEXT, "File of measured times (strata tune) that the choice of algorithms goes by, in place of the cost model.")
    topology: str = _option("", _TEXT, 'Dies of a package and of a node that hierarchical algorithms go by, such as "2x16".')
    clock: str = _option("", _TEXT, 'Machine whose time a job is to tell beside its results ("cm384", or a .toml file): docs/clock.md.')
    clock_trace: str = _option("", _TEXT, "File that gets what happened by that clock, for Perfetto and chrome://tracing.")
    clock_json: str = _option("", _TEXT, "File that gets what that clock has counted, of every die.")
    trace_events: int = _option(1 << 14, _power(64, 1 << 20), "Events of 32 bytes that the trace of each thread of a die holds; memory only as a job is traced.")
    core: str = _option("release", _choice("release", "checked"), "Which build of the C core: checked has hooks for faults and weak order, and is slower; read at the first import.")
    fault: str = _option("", _TEXT, 'What happens at a fault point of the checked core: "[RANK@]POINT[:NTH[:ACTION]]", such as "2@DONE_BEFORE:3:kill" (docs/faults.md).')
    weak_order: int = _option(0, _integer(0, (1 << 63) - 1), "Seed (not 0) of a job whose stores, flags and DMA completions are delayed and reordered as the memory model allows (checked core).")
    weak_break: str = _option("", _TEXT, "Function of the C core of which weak_order takes the memory orders out, to see that the mode finds it.")
    check: str = _option("", _TEXT, "Abstract Unix socket of the server that checks the job (strata-run --check, strata check-server): docs/checking.md.")
    intercept: bool = _option(False, _FLAG, "Make numpy's own arrays fabric memory, in all threads, from init() to finalize().")
    intercept_min_bytes: int = _option(KIB, _size(0, 1 << 44), "Bytes of the smallest numpy array that interception makes fabric memory.")
    # fmt: on


class Option(NamedTuple):
    """One option, as a document or a tool prints it."""

    name: str
    env: str
    default: Any
    allowed: str
    doc: str
    internal: bool  # set by the launcher, not by users


def _env(item: Field[Any]) -> str:
    return item.metadata["env"] or f"STRATA_{item.name.upper()}"


def options() -> Iterator[Option]:
    """All options, in the order of ``Config``."""
    for item in fields(Config):
        meta = item.metadata
        yield Option(item.name, _env(item), item.default, meta["kind"].allowed, meta["doc"], meta["internal"])


def _unknown(name: str, names: list[str]) -> ConfigError:
    import difflib  # here, since a die that starts well does not need it

    nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.0)[0]
    return ConfigError(f"{name} is not an option; did you mean {nearest}?")


def _reject_unknown(environ: Mapping[str, str]) -> None:
    names = [_env(item) for item in fields(Config)]
    known = {*names, *BUILD_VARIABLES}
    for name in sorted(environ):
        if name.startswith("STRATA_") and name not in known:
            raise _unknown(name, names)


def load(environ: Mapping[str, str] | None = None, **overrides: Any) -> Config:
    """The options in ``environ`` (default: the process's), with ``overrides`` on top.

    An override is a value, or text that is read as the variable would be; None
    leaves the option alone.  A variable set to nothing counts as not set.
    Raises ConfigError for an unknown name and for a value that is not allowed.
    """
    environ = os.environ if environ is None else environ
    _reject_unknown(environ)
    values: dict[str, Any] = {}
    for item in fields(Config):
        env, kind = _env(item), item.metadata["kind"]
        value, source = overrides.pop(item.name, None), item.name
        if value is None:
            value, source = environ.get(env, ""), env
            if not value.strip():
                continue
        try:
            # str() of a value reads back as the same value, so that an override
            # passes the same checks as a variable.
            is_auto = value == AUTO and kind.allowed.startswith('"auto"')
            values[item.name] = kind.parse("auto" if is_auto else str(value).strip())
        except (ValueError, OverflowError):
            raise ConfigError(f"{source}={value!r}: allowed is {kind.allowed}") from None
    if overrides:
        raise _unknown(sorted(overrides)[0], [item.name for item in fields(Config)])
    config = Config(**values)
    if config.check and config.clock:
        raise ConfigError("STRATA_CHECK and STRATA_CLOCK: a run tells what is wrong (strata-run --check) or what it would "
                          "take (--clock), not both; leave one out")
    if config.rank is not None and config.world_size is not None and config.rank >= config.world_size:
        raise ConfigError(
            f"STRATA_RANK={config.rank}: allowed is 0 to {config.world_size - 1}, "
            f"since STRATA_WORLD_SIZE={config.world_size}"
        )
    return config


_current: Config | None = None


def get() -> Config:
    """The options of this process, read from the environment at the first call."""
    global _current
    if _current is None:
        _current = load()
    return _current


def reset(config: Config | None = None) -> None:
    """Forget what get() read (a forked die has its own environment), or set it."""
    global _current
    _current = config
