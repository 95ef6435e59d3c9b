"""What STRATA_FAULT asks for: its text, and putting it into force in a die."""

from __future__ import annotations

import re
from typing import NamedTuple

from strata.errors import ConfigError

__all__ = ["Fault", "arm", "parse"]

_FORM = "[RANK@]POINT[:NTH[:kill|stop|sleep=MS]], such as 2@DONE_BEFORE:3:kill; POINT * is any"


class Fault(NamedTuple):
    """What happens where: ``action`` when ``point`` (None: any) is reached for the ``nth`` time, on die ``rank``
    (None: on each)."""

    rank: int | None
    point: str | None
    nth: int
    action: str
    sleep_ns: int


def parse(text: str, points: tuple[str, ...]) -> Fault:
    """The text of STRATA_FAULT.  ConfigError if it says nothing that can be done, with the nearest that can."""
    match = re.fullmatch(r"(?:(\d+)@)?(\*|\w+)(?::(\d+)(?::(kill|stop|sleep=\d+(?:\.\d+)?))?)?", text.strip())
    if not match or match[3] is not None and int(match[3]) < 1:
        raise ConfigError(f"STRATA_FAULT={text!r}: expected is {_FORM}; NTH counts from 1")
    rank, name, nth, action = match.groups()
    if name != "*" and name.upper() not in points:
        import difflib  # here, since most processes need it for nothing

        nearest = difflib.get_close_matches(name.upper(), points, n=1, cutoff=0.0)[0]
        raise ConfigError(
            f"STRATA_FAULT={text!r}: there is no fault point {name}; did you mean {nearest}?  "
            "docs/faults.md lists all"
        )
    action, _, ms = (action or "kill").partition("=")
    return Fault(int(rank) if rank else None, None if name == "*" else name.upper(), int(nth or 1), action,
                 int(float(ms or 0) * 1e6))  # fmt: skip


def arm(text: str, rank: int) -> None:
    """Puts STRATA_FAULT into force in the process of die ``rank``, if it means that die; "": nothing happens any more.

    ConfigError for a text that means nothing, and in a process that has the release core, which has no fault points.
    """
    from strata import _core

    if not _core.CHECKED:
        if not text:
            return
        raise ConfigError(
            f"STRATA_FAULT={text!r}: this process has loaded the release core, which has no fault points; set "
            "STRATA_FAULT, or STRATA_CORE=checked, before strata is imported (a forked die has its parent's core)"
        )
    from strata._core.checked import hooks

    fault = parse(text, hooks.POINTS) if text else None
    if fault is None or (fault.rank is not None and fault.rank != rank):
        hooks.arm(None, 1, "nothing")
    else:
        hooks.arm(fault.point, fault.nth, fault.action, fault.sleep_ns)
