"""Which dies of a job are started again: ``strata-run --restarts``."""

from __future__ import annotations


class Restarts:
    """At most ``most`` in all.  ``due``: dies that are to be started again; ``done``: those that were, in order."""

    def __init__(self, most: int, ndies: int) -> None:
        self.most = most
        self.due: list[tuple[int, int]] = []  # rank, the status with which it had ended
        self.done: list[tuple[int, int]] = []
        self._ndies = ndies

    def ask(self, rank: int, status: int) -> bool:
        """Whether a die that has failed is started again: it is due then."""
        left = len(self.done) + len(self.due) < self.most
        if left:
            self.due.append((rank, status))
        return left

    def next(self) -> tuple[int, int, int]:
        """The die that is started now: rank, status, and how many processes were it before."""
        rank, status = self.due.pop(0)
        self.done.append((rank, status))
        return rank, status, sum(r == rank for r, _ in self.done)

    def text(self) -> str:
        """What the launcher says of the last one."""
        from strata.launch.report import status_text

        rank, status = self.done[-1]
        return (
            f"strata-run: rank {rank} of {self._ndies} is started again "
            f"({len(self.done)} of {self.most}): {status_text(status)}\n"
        )
