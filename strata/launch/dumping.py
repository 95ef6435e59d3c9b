"""Where the dies were when a job went wrong: read from their flight recorders, which this process holds."""

from __future__ import annotations

import os
from typing import Any

from strata.bootstrap import Job
from strata.launch.options import TIMED_OUT, Options, say
from strata.launch.traces import Traces

__all__ = ["Recorders", "where"]

_GAVE_UP = ("ST_EDEAD", "ST_EBROKEN")  # of those that waited for one that died


class Recorders:
    """Takes one look, when the first thing goes wrong; says at the end what it saw, and saves it if that was asked."""

    def __init__(self, options: Options, job: Job) -> None:
        self._options = options
        self._job = job
        self._seen: dict[str, Any] | None = None
        self._traces = Traces(options, job) if options.trace else None
        self.failed = False  # a file that was asked for is not there

    def begin(self) -> None:
        """The dies are there."""
        if self._traces:
            self._traces.begin()

    def look(self, why: str) -> None:
        """Something has gone wrong.  The first look counts: what follows are consequences."""
        if self._seen is not None:
            return
        try:
            from strata._core.inspector import Inspector
            from strata.inspection import snapshot

            name = os.path.basename(self._options.target[0]) if self._options.target else ""
            self._seen = snapshot.take(Inspector(self._job.fd), name, os.getppid())
            self._seen["why"] = f"strata-run: {why}"
        except Exception as error:  # an extra of an error report must never be the error
            self._seen = {}
            self._refused(str(error))

    def ended(self, code: int, why: str) -> None:
        """The job is ended for another reason than a die's failure; not worth a look, unless it hung."""
        if code == TIMED_OUT or self._options.dump or self._options.dump_dir:
            self.look(why or "the job was ended")

    def _refused(self, text: str) -> None:
        if self._options.dump or self._options.dump_dir:
            say(f"no dump: {text}")

    def lines(self, failed: int | None) -> list[str]:
        """What to add to the report of a rank's failure, or (None) of a job that was ended otherwise."""
        if not self._seen:
            return []
        from strata.inspection import text

        try:
            found = text.waits(self._seen)[:3] if failed is None else where(self._seen, failed)
        except Exception:
            return []
        return [f"strata-run: {line}" for line in found]

    def save(self, code: int) -> str:
        """Writes the dump, and the trace; what to say about them, and about a job that ran out of time."""
        said = self._dump(code)
        if self._traces:
            traced, there = self._traces.save()
            said, self.failed = said + traced, not there
        return said

    def _dump(self, code: int) -> str:
        if not self._seen:
            return ""
        from strata.inspection import saving

        paths = [self._options.dump] if self._options.dump else []
        if self._options.dump_dir:
            paths.append(os.path.join(self._options.dump_dir, f"strata.{self._job.token[:8]}.json"))
        said = "".join(f"{line}\n" for line in self.lines(None)) if code == TIMED_OUT else ""
        for path in paths:
            try:
                os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
                saving.save(self._seen, path)
                said += f"strata-run: what the dies did last is in {path} (strata dump {path})\n"
            except OSError as error:
                said += f"strata-run: cannot write {path}: {error.strerror}\n"
        return said


def where(seen: dict[str, Any], failed: int) -> list[str]:
    """At most one line: in what a rank died, and who was there, or waited for it elsewhere."""
    from strata.inspection.text import ranks
    from strata.inspection.waiting import operation

    groups = {group["id"]: group for group in seen["groups"]}
    die = seen["dies"][failed]
    inside = [record for record in die.get("operations", ()) if not record["async"]] if die["state"] == "dead" else []
    left: dict[tuple[Any, ...], list[int]] = {}
    texts: dict[tuple[Any, ...], str] = {}
    for other in seen["dies"]:
        if other["rank"] == failed:
            continue
        for record in other.get("records", ())[-8:]:
            if record["status"] in ("", *_GAVE_UP) and _concerns(record, failed, groups):
                key = (record["kind"], record["group"], record["number"])
                left.setdefault(key, []).append(other["rank"])
                texts[key] = operation(record, groups)
    if inside:
        here = (inside[-1]["kind"], inside[-1]["group"], inside[-1]["number"])
        there = left.get(here)
        text = f"rank {failed} died in {operation(inside[-1], groups)}"
        return [text + (f"; {ranks(there)} {'were' if len(there) > 1 else 'was'} there, too" if there else "")]
    last = die.get("records", ())[-1:]
    if not left or any(record["status"] not in ("", "ST_OK") for record in last):
        return []  # or it has said itself in what it failed
    key = max(left, key=lambda k: len(left[k]))
    return [f"rank {failed} was in no operation; {ranks(left[key])} waited for it in {texts[key]}"]


def _concerns(record: dict[str, Any], failed: int, groups: dict[int, dict[str, Any]]) -> bool:
    """Whether an operation has a rank to wait for."""
    if record["kind"] in ("send", "recv", "group"):
        return bool(record["peer"] == failed)
    if record["kind"] not in ("collective", "posts", "drain", "shrink") or record["group"] not in groups:
        return False
    return failed in groups[record["group"]]["ranks"]
