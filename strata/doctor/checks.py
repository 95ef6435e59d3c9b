"""All checks, in the order in which they are told."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator

from strata.doctor import leftovers, machine, memory
from strata.doctor.findings import Finding, error, note, ok
from strata.doctor.host import Host
from strata.errors import StrataError

__all__ = ["examine"]

SELF_TEST = 60.0  # seconds for what takes one
CHECKED = "strata._core.checked.hooks"


def examine(host: Host, ndies: int, hbm_bytes: int, self_test: bool = True) -> list[Finding]:
    """What there is to say for jobs of ``ndies`` dies with ``hbm_bytes`` each; a check that fails is a finding."""
    found: list[Finding] = []
    for name, check in (
        ("shared memory", memory.shared_memory(host, ndies, hbm_bytes)),
        ("memory cgroup", memory.cgroup(host)),
        ("huge pages", memory.huge_pages(host)),
        ("overcommit", memory.overcommit(host)),
        ("addresses", memory.addresses(host, ndies, hbm_bytes)),
        ("CPUs", machine.processors(host, ndies)),
        ("clock", machine.clocks(host)),
        ("process limits", machine.process_limits(host, ndies)),
        ("descriptors of others", machine.processes_of_others(host)),
        ("containment", machine.containment(host)),
        ("stale objects", leftovers.objects(host)),
        ("other jobs", leftovers.jobs(host)),
        ("builds", builds()),
        ("self-test", trial(host) if self_test else ()),
    ):
        found += _told(name, check)
    return found


def _told(name: str, check: Iterable[Finding]) -> Iterator[Finding]:
    try:
        yield from check
    except (OSError, ValueError, StrataError) as refused:
        yield error(name, f"could not be looked at: {refused}", "jobs may meet the same", "what the message names")


MODULES = ("numpy", "posix_ipc", "strata._core.group", "strata._core.inspector")


def builds(modules: Iterable[str] = MODULES) -> Iterator[Finding]:
    """What is installed, and whether it fits together."""
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as refused:
            yield error("builds", f"{name} cannot be imported: {refused}",
                        "strata is not built for this Python or numpy",
                        "pip install --force-reinstall --no-deps strata, or python setup.py build_ext --inplace")
            return
    import numpy

    version = getattr(sys.modules["strata"], "__version__", "?")
    python = ".".join(map(str, sys.version_info[:3]))
    yield ok("builds", f"strata {version}, numpy {numpy.__version__}, Python {python}")
    if importlib.util.find_spec(CHECKED.rpartition(".")[0]) is None or importlib.util.find_spec(CHECKED) is None:
        yield note("checked core", "it is not built", "fault injection and weak order (STRATA_CORE=checked) are "
                   "not there", "STRATA_CHECKED_CORE=1 python setup.py build_ext --inplace")
    else:
        yield ok("checked core", "built")


def trial(host: Host) -> Iterator[Finding]:
    """Two dies join, reduce, and leave."""
    launch = [sys.executable, "-m", "strata.launch", "-n", "2", "--timeout", str(int(SELF_TEST / 2))]
    command = [*launch, "-m", "strata.doctor.trial"]
    status, said = host.run(command, SELF_TEST)
    if status == 0 and "well" in said:
        yield ok("self-test", "two dies joined, reduced and left")
        return
    last = [line for line in said.splitlines() if line.strip()][-3:]
    yield error("self-test", f"a job of two dies ended with status {status}: " + " | ".join(last),
                "jobs fail on this host", " ".join(command) + " shows all of it")
