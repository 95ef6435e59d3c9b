"""The launcher's side of --trace: switches it on before the dies are there, and writes what they have left."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from strata.bootstrap import Job
from strata.errors import ConfigError, StrataError
from strata.launch.options import Options

if TYPE_CHECKING:
    from strata.launch.sampling import Sampler

__all__ = ["MODES", "Traces"]

MODES = ("off", "ring", "stop")  # by their numbers


class Traces:
    """Of a job whose dies are traced from the first moment on, into ``options.trace``.

    ConfigError: the file cannot be written.
    """

    def __init__(self, options: Options, job: Job) -> None:
        self._options, self._job = options, job
        self._sampler: Sampler | None = None
        assert options.trace is not None
        self._file: str = options.trace
        try:  # before the job, not after
            with open(self._file, "a"):
                pass
        except OSError as error:
            raise ConfigError(f"--trace {self._file}: it cannot be written: {error.strerror}") from None
        job.trace(MODES.index(options.trace_mode))

    def begin(self) -> None:
        """The dies are there."""
        if self._options.trace_sample:
            from strata.launch.sampling import Sampler

            self._sampler = Sampler(self._job, self._options.trace_sample)

    def save(self) -> tuple[str, bool]:
        """What to say of the file, and whether it is there."""
        from strata._core.inspector import Inspector
        from strata.profile import recording

        samples = self._sampler.end() if self._sampler else {}
        try:
            taken = recording.take(Inspector(self._job.fd), self._job.ndies, samples=samples)
            program = os.path.basename(self._options.target[0]) if self._options.target else ""
            events = recording.save(taken, self._file, job=self._job.token, program=program)
        except (OSError, StrataError) as error:
            why = getattr(error, "strerror", None) or str(error)
            return f"strata-run: no trace, {self._file} cannot be written: {why}\n", False
        text = f"strata-run: {events} events are in {self._file} (strata trace {self._file})\n"
        lost = recording.lost(taken)
        if lost:
            which = "the first" if self._options.trace_mode == "ring" else "the last"
            each = ", ".join(f"{count} of die {rank}" for rank, count in sorted(lost.items()))
            text += f"strata-run: events are lost, {which} ones: {each} (--trace-events N holds more)\n"
        for rank, why in taken.refused.items():
            text += f"strata-run: the trace of die {rank} cannot be read: {why}\n"
        return text, True
