from typing import Any

from numpy.typing import NDArray

from strata._core.casting import Casts

class Collectives(Casts):
    def barrier(self, *, timeout: float | None = None, async_op: bool = False) -> Any: ...
    def all_reduce(
        self,
        src: NDArray[Any],
        out: NDArray[Any] | None = None,
        op: str = "sum",
        *,
        timeout: float | None = None,
        async_op: bool = False,
        algorithm: str | None = None,
        path: str | None = None,
        cores: int | None = None,
        partition: str | None = None,
    ) -> Any: ...
    def all_gather(
        self,
        src: NDArray[Any],
        out: NDArray[Any] | None = None,
        *,
        timeout: float | None = None,
        async_op: bool = False,
        algorithm: str | None = None,
        path: str | None = None,
        cores: int | None = None,
        partition: str | None = None,
    ) -> Any: ...
    def reduce_scatter(
        self,
        src: NDArray[Any],
        out: NDArray[Any] | None = None,
        op: str = "sum",
        *,
        timeout: float | None = None,
        async_op: bool = False,
        algorithm: str | None = None,
        path: str | None = None,
        cores: int | None = None,
        partition: str | None = None,
    ) -> Any: ...
    def all_to_all(
        self,
        src: NDArray[Any],
        out: NDArray[Any] | None = None,
        *,
        timeout: float | None = None,
        async_op: bool = False,
        algorithm: str | None = None,
        path: str | None = None,
        cores: int | None = None,
        partition: str | None = None,
    ) -> Any: ...
    def broadcast(
        self,
        x: NDArray[Any],
        root: int = 0,
        *,
        timeout: float | None = None,
        async_op: bool = False,
        algorithm: str | None = None,
        path: str | None = None,
        cores: int | None = None,
        partition: str | None = None,
    ) -> Any: ...
    def reduce(
        self,
        src: NDArray[Any],
        out: NDArray[Any] | None = None,
        root: int = 0,
        op: str = "sum",
        *,
        timeout: float | None = None,
        async_op: bool = False,
        algorithm: str | None = None,
        path: str | None = None,
        cores: int | None = None,
        partition: str | None = None,
    ) -> Any: ...
    def gather(
        self,
        src: NDArray[Any],
        out: NDArray[Any] | None = None,
        root: int = 0,
        *,
        timeout: float | None = None,
        async_op: bool = False,
        algorithm: str | None = None,
        path: str | None = None,
        cores: int | None = None,
        partition: str | None = None,
    ) -> Any: ...
    def scatter_into(
        self,
        src: NDArray[Any] | None,
        out: NDArray[Any],
        root: int,
        timeout: float | None,
        async_op: bool,
        variant: int = 0,
    ) -> Any: ...
