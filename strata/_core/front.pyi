from collections.abc import Callable
from typing import Any

from numpy import int64
from numpy.typing import NDArray

from strata._core.planned import PlanHandle
from strata._core.transfer import Draft, Transfers

OPERATIONS: tuple[str, ...]
BINDS: int

def fingerprint(desc: int, digest: int) -> int: ...
def digest_of(desc: int) -> int: ...
def mailbox_fits(operation: str, nbytes: int, n: int, mailbox_bytes: int) -> bool: ...

class Front(Transfers):
    def variant(self, operation: str, algorithm: Any, path: Any, cores: Any, partition: Any) -> int: ...
    def exchange(
        self, op: int, dtype: int, root: int, record: NDArray[int64], timeout: float | None
    ) -> NDArray[int64]: ...
    def run_plan(
        self,
        op: int,
        handle: PlanHandle,
        src: NDArray[Any],
        out: NDArray[Any],
        count: int,
        timeout: float | None,
        async_op: bool,
        told: int = 0,
    ) -> Any: ...
    def describe_plan(
        self,
        d: Draft,
        op: int,
        handle: PlanHandle,
        by: Callable[[bool], Any],
        src: NDArray[Any],
        out: NDArray[Any],
        count: int,
        timeout: float | None,
        told: int,
    ) -> None: ...
    def abstain(self, timeout: float | None) -> None: ...
    def add_staged(self, nbytes: int) -> None: ...
