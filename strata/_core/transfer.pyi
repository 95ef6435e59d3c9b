from typing import Any

from numpy.typing import NDArray

from strata._core.group import CoreGroup

class Draft: ...

class Transfers(CoreGroup):
    def send(
        self,
        x: NDArray[Any],
        dst: int,
        tag: int = 0,
        *,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any: ...
    def recv(
        self,
        out: NDArray[Any],
        src: int,
        tag: int = 0,
        *,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any: ...
    def check_queued(self, *arrays: NDArray[Any] | None) -> None: ...
    def check_member(self, number: object, what: str) -> None: ...
    def check_frames(self, op: int, src: NDArray[Any] | None, out: NDArray[Any]) -> None: ...
