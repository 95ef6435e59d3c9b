from typing import Any

from strata._core.collective import Collectives
from strata._core.work import Work

class TimedWork(Work):
    def wait(self, timeout: float | None = None) -> Any: ...
    def outcome(self) -> str | None: ...

class Clocked(Collectives):
    track: Any
