"""The simulator in plain Python stands in where the core has none yet."""

import importlib.util

import pytest


@pytest.fixture(autouse=True)
def simulator(monkeypatch):
    if importlib.util.find_spec("strata._core.simulator") is None:
        import timing_reference

        from strata.exec.timed import program

        monkeypatch.setattr(program, "simulate", timing_reference.run)
