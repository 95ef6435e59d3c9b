"""The emulated clock: real results and predicted time in one run.

    strata-run --clock cm384 -n 8 script.py

gives every die a virtual clock, in microseconds of the named machine.  Operations run for real, and move the clocks of
their members by what the simulator of the machine says their plans take, from when each member has come to them; a
program says itself what it computes:

    strata.clock.compute(flops=2 * m * n * k)    # the die computes so long
    work = g.all_reduce(grads, async_op=True)
    strata.clock.compute(flops=4 * m * n * k)    # meanwhile
    work.wait()                                  # the clock goes on to its end, if that is later
    print(strata.clock.now())

Without a clock (no --clock, STRATA_CLOCK not set) these calls do nothing, and ``now()`` is 0.0: the same script runs
with it and without.  ``docs/clock.md`` has the rules.
"""

from __future__ import annotations

import atexit
import math
import sys
import threading
from typing import TYPE_CHECKING, Any

from strata import bootstrap, config, errors, selection
from strata._core.space import Context
from strata.clock.track import Lane, Replays, Step, Track
from strata.errors import ConfigError, InvalidArgument

if TYPE_CHECKING:
    from strata.clock.die import Clock

__all__ = [
    "Lane", "Replays", "Step", "Track", "advance", "close", "compute", "enabled", "lane", "now", "of", "replays",
    "report", "track",
]  # fmt: skip

MOST_US = 9e9  # that a die is busy for at once: the simulator takes no longer delays
MOST = 1e24  # operations or bytes

_lock = threading.Lock()
_clock: Clock | None = None


def enabled() -> bool:
    """Whether this process's dies have a clock: option clock (strata-run --clock MACHINE, STRATA_CLOCK)."""
    return bool(config.get().clock)


def now() -> float:
    """When this die is, in microseconds since it began; 0.0 without a clock."""
    clock = _mine()
    return 0.0 if clock is None else clock.now_ps / 1e6


def advance(us: float) -> None:
    """The die is busy for so many microseconds.  InvalidArgument: not a finite number, 0 or more.

    Without a clock nothing happens.
    """
    clock = _mine()
    ps = _ps("advance: us", us)
    if clock is not None:
        clock.spend("advance", ps)


def compute(*, flops: float = 0.0, bytes: float = 0.0, dtype: Any = "bf16", us: float | None = None) -> float:
    """The die computes: ``flops`` operations of ``dtype`` (bf16, f16, f32, int8) and ``bytes`` read and written in
    HBM, whichever takes longer on the machine; or ``us`` microseconds.  Returns microseconds.

    Launching is not included.  Without a clock nothing happens, and it returns 0.0.  InvalidArgument: a number that is
    not finite or below 0, a dtype without a peak, ``us`` together with the others.
    """
    clock = _mine()
    for name, value in (("flops", flops), ("bytes", bytes)):
        _number(f"compute: {name}", value, MOST)
    if us is not None and (flops or bytes):
        raise InvalidArgument("compute: us says how long, and flops and bytes say how much; give one or the other")
    ps = None if us is None else _ps("compute: us", us)
    if clock is None:
        return 0.0
    if ps is None:
        ps = clock.predictor.compute(flops, bytes, dtype)
        if ps > MOST_US * 1e6:
            raise InvalidArgument(f"compute: it takes {ps / 1e6:g} us on {clock.machine.name}; {MOST_US:g} at most are "
                                  "expected")  # fmt: skip
    clock.spend("compute", ps)
    return ps / 1e6


def report() -> dict[str, Any]:
    """What this die has counted so far, microseconds: ``time_us`` (now), ``compute_us``, ``advance_us``, ``exposed_us``
    (blocked by operations), ``operations_us`` (from begin to end, added up), ``overlapped_us`` (of that, what was not
    exposed), ``failed`` operations, and ``operations``: by name calls, bytes, time_us, exposed_us.  {} without a clock.
    """
    clock = _mine()
    if clock is None:
        return {}
    with clock.lock:
        return {"machine": clock.machine.name, **clock.books.summary(clock.now_ps)}


def _ps(what: str, value: Any) -> int:
    """Microseconds in whole picoseconds."""
    return round(_number(what, value, MOST_US) * 1e6)


def _number(what: str, value: Any, most: float) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 <= number <= most:
        raise InvalidArgument(f"{what}={value!r}: a finite number, 0 or more, at most {most:g}, is expected")
    return number


# ---- for other parts of the library --------------------------------------------------------------


def _mine() -> Clock | None:
    """This die's, which joins the job first; None: there is none."""
    return of(bootstrap.context()) if config.get().clock else None


def of(context: Context) -> Clock | None:
    """A die's clock, or None.  ConfigError: there is no such machine, or it has too few dies."""
    global _clock
    if not context.config.clock:
        return None
    with _lock:
        if _clock is None or _clock.context is not context:
            from strata.clock.die import Clock

            machine = selection.clock_machine(context.config)
            check(machine.name, machine.topology.dies, context.ndies)
            _clock = Clock(context, machine, selection.settings())
            atexit.register(close)  # a program may never import what else leaves the job at its end
        return _clock


def check(name: str, dies: int, wanted: int) -> None:
    """ConfigError if a machine has too few dies."""
    if wanted > dies:
        raise ConfigError(f"STRATA_CLOCK={name}: the machine has {dies} dies, and the job {wanted}")


def track(context: Context, name: str, key: bytes, ranks: tuple[int, ...]) -> Track:
    """What a group tells of its operations; the die has a clock."""
    clock = of(context)
    assert clock is not None
    return Track(clock, name, key, ranks)


def lane(context: Context, name: str) -> Lane | None:
    """What a stream tells of its items; None: the die has no clock."""
    clock = of(context)
    return None if clock is None else Lane(clock, name)


def replays(context: Context, steps: list[Step]) -> Replays | None:
    """What a graph tells of its replays; None: the die has no clock."""
    clock = of(context)
    return None if clock is None else Replays(clock, steps)


def close() -> None:
    """The die leaves the job: what its clock has counted goes to the launcher, once."""
    clock = _clock
    if clock is None or not clock.context.here:
        return
    from strata.clock import sending

    try:
        clock.close()
        state = clock.now_ps, clock.books.seen, clock.books.failed
        if state != clock.sent:
            clock.sent = state
            sending.send(clock)
    except (errors.StrataError, OSError) as error:
        print(f"strata clock: rank {clock.rank} cannot report: {error}", file=sys.stderr)

