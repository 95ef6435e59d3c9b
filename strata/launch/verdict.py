"""Why a job is ended."""

from __future__ import annotations

import time


class Verdict:
    """Why the job is being ended: its exit status and what to say; the first one stands."""

    def __init__(self, code: int, text: str = "", number: int = 0) -> None:
        self.code = code
        self.text = text
        self.number = number  # the signal, if one is the reason
        self.time = time.monotonic()
