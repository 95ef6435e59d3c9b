from typing import Any

import numpy as np

def scratch(dtype: np.dtype, number: int) -> np.ndarray: ...
def run(
    links: np.ndarray,
    uses: np.ndarray,
    tasks: np.ndarray,
    lanes: np.ndarray,
    flags: np.ndarray,
    members: np.ndarray,
    rendezvous: np.ndarray,
    *,
    package: int = 1,
    node: int = 1,
    flat: bool = False,
    window_ps: int = 0,
    check: bool = False,
) -> dict[str, Any]: ...
