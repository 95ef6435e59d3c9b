"""How a group carries out its operations: options, a table, the host's model, and what calls ask for."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from typing import TYPE_CHECKING, Any

from strata import config
from strata.errors import ConfigError, InvalidArgument
from strata.plan import algorithms
from strata.plan.select import Ask, Choice, Settings, check, choose
from strata.plan.spec import OPERATIONS, Spec
from strata.plan.table import Table
from strata.plan.topology import Topology

if TYPE_CHECKING:
    from strata.machine import Machine

__all__ = ["Selector", "clock_machine", "machine", "settings", "workers"]


def _options(options: config.Config) -> dict[str, Ask]:
    """What options ask for, by operation, "" for all; ``algorithm``: "ring", "all_reduce=ring,broadcast=binomial"."""
    found: dict[str, Ask] = {}
    for word in filter(None, (w.strip() for w in options.algorithm.split(","))):
        operation, _, name = word.rpartition("=")
        if operation and operation not in OPERATIONS:
            raise ConfigError(f"STRATA_ALGORITHM names operation {operation!r}; there are {', '.join(OPERATIONS)}")
        if not name or operation in found:
            what = "names two algorithms" if name else "names no algorithm"
            raise ConfigError(f"STRATA_ALGORITHM={options.algorithm!r} {what} for {operation or 'all operations'}")
        found[operation] = Ask(name)
    for operation in {"", *found}:
        path = None if options.path == "auto" else options.path
        found[operation] = found.get(operation, Ask()).over(Ask(path=path, partition=options.partition))
    return found


def topology(text: str) -> Topology:
    """A host taken for packages and nodes, such as "2x16"."""
    match = re.fullmatch(r"(\d{1,6})x(\d{1,6})", text.strip())
    try:
        if match is None:
            raise InvalidArgument("two numbers with an x between are expected")
        return Topology(int(match[1]), int(match[2]), flat=True)
    except InvalidArgument as error:
        what = "dies of a package and of a node, such as 2x16"
        raise ConfigError(f"STRATA_TOPOLOGY={text!r}: {what} ({error})") from error


@functools.lru_cache(4)
def _read(options: config.Config) -> Settings:
    table = None
    if options.table:
        try:
            table = Table.load(options.table)
        except (OSError, InvalidArgument) as error:
            raise ConfigError(f"STRATA_TABLE: {error}") from error
    found = _of(clock_machine(options)) if options.clock else Settings(cores=options.cores)
    place = topology(options.topology) if options.topology else found.topology
    cores = options.cores if options.cores > 1 or os.environ.get("STRATA_CORES") else found.cores
    return dataclasses.replace(found, topology=place, table=table, cores=cores, options=_options(options))


def clock_machine(options: config.Config) -> Machine:
    """The machine that option clock names.  ConfigError: there is none of that name, or its file is wrong."""
    try:
        from strata.machine import load  # with tomllib, and none without a clock

        return load(options.clock)
    except InvalidArgument as error:
        raise ConfigError(f"STRATA_CLOCK={options.clock!r}: {error}") from None


def settings() -> Settings:
    """What this process's options say; the same on all dies of a job that have the same environment.  With option
    clock it goes by that machine."""
    return _read(config.get())


def workers(ndies: int) -> int:
    """Threads of a die that run an operation's cores, by option ``workers``."""
    wanted = config.get().workers
    return wanted if wanted != config.AUTO else max(1, len(os.sched_getaffinity(0)) // ndies)


def machine(name: str | Machine) -> Settings:
    """"host": ``settings()``; else what selection goes by on a machine that ``strata.machine.load`` knows."""
    if name == "host":
        return settings()
    from strata.machine import load

    return _of(load(name))


@functools.lru_cache(16)
def _of(found: Machine) -> Settings:
    return Settings(topology=found.place, cost=found.cost, model=found.model, cores=found.die.cores)


class Selector:
    """What calls of a group ask for, as small numbers that the core keeps plans by.

    Number 0 asks for nothing.  Odd numbers name an algorithm that does not work from mailboxes.
    """

    def __init__(self, nranks: int) -> None:
        self.nranks = nranks
        self.settings = settings()
        self._asks = [Ask()]
        self._numbers: dict[tuple[Any, ...], int] = {}

    def number(self, operation: str, *ask: Any) -> int:
        """Of what is asked for; InvalidArgument (a ValueError) if there is no such thing."""
        wanted = Ask(*ask)
        key = operation, wanted, algorithms.find(wanted.algorithm or "")  # a user may give a name to another
        found = self._numbers.get(key)
        if found is None:
            wanted = check(wanted)
            direct = False
            if wanted.algorithm is not None:
                known = algorithms.get(wanted.algorithm, Spec(operation, nranks=self.nranks), self.settings.topology)
                direct = not known.mailbox
            self._asks.append(wanted)
            found = self._numbers[key] = (len(self._asks) - 1) << 1 | direct
        return found

    def ask(self, number: int) -> Ask:
        """What a number stands for."""
        return self._asks[number >> 1]

    def choose(self, spec: Spec, number: int, overlap: bool = False) -> Choice:
        """How ``spec`` is carried out; ``overlap``: the caller does other work meanwhile."""
        return choose(spec, self.ask(number), self.settings, overlap)
