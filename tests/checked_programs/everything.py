"""All programs in one job, and what the analyser says of each of them."""

import importlib
import os
import sys
import threading
from pathlib import Path

import strata
from strata.checking.server import Server

HERE = Path(__file__).parent
OTHERS = ("common", "everything")


def names():
    return sorted(p.stem for p in HERE.glob("*.py") if p.stem not in OTHERS)


def play(chosen):
    """In a die: both twins of each, one after another."""
    sys.path.insert(0, str(HERE))
    g = strata.world()
    said = {}
    for name in chosen:
        module = importlib.import_module(name)
        for twin in (module.wrong, module.right):
            try:
                twin(g)
            except Exception as error:
                said[name, twin.__name__] = repr(error)
            g.barrier()
    return said


class Checked:
    """``with Checked() as found:`` jobs that begin in the block are checked; afterwards ``found.reports``."""

    def __enter__(self):
        self.server = Server()
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        os.environ["STRATA_CHECK"] = self.server.name
        return self

    def __exit__(self, *_):
        del os.environ["STRATA_CHECK"]
        self.server.stop()
        self.thread.join(30)
        self.reports = self.server.reports()
        self.problems = list(self.server.problems)
        self.server.close()


def of(reports, name):
    """The reports that a program got: (its, its twin's)."""
    found = {"wrong": [], "right": []}
    for report in reports:
        frames = [f for side in report.sides for f in side.place.stack if Path(f[0]).stem == name]
        for twin in {f[2] for f in frames} & set(found):
            found[twin].append(report)
    return found["wrong"], found["right"]


if __name__ == "__main__":
    chosen = sys.argv[1:] or names()
    with Checked() as found:
        said = strata.spawn(play, 2, chosen)
    for rank, errors in enumerate(said):
        for (name, twin), error in errors.items():
            print(f"rank {rank}: {name}.{twin}: {error}")
    for problem in found.problems:
        print(problem)
    for name in chosen:
        wrong, right = of(found.reports, name)
        kind = importlib.import_module(name).KIND
        marks = [any("BUG" in side.place.text for side in r.sides) for r in wrong]
        good = any(m and r.kind == kind for m, r in zip(marks, wrong, strict=True)) and not right
        print(f"{'ok  ' if good else 'BAD '} {name}: {kind}; {[r.kind for r in wrong]} {marks}; right {len(right)}")
        if not good or len(chosen) == 1:
            for r in wrong + right:
                print(r.text())
