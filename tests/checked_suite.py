"""pytest --checked: the jobs that a test begins are checked as by strata-run --check, and a report fails the test.

``@pytest.mark.reports("race", maybe=("leak",), why="...")``  breaks a rule on purpose: reports of these kinds
have to come, those of ``maybe`` may, since they depend on the timing, and no others.
``@pytest.mark.unchecked("why")``  its jobs are not checked: they cannot be, or are what checks.

One server in a thread serves the whole run.  Dies of pools stay up from test to test: they send what they have to say
before they answer a call, so that a report comes in the test whose it is.
"""

import functools
import os
import threading
from concurrent import futures

import pytest

from strata import testing
from strata.checking import recorder
from strata.checking.reports import text_of
from strata.checking.server import Server
from strata.testing import warden

PATIENCE = 60.0  # seconds for the analysis of what a test has done
SLOWER = 5  # times that a test, or a call of a pool, may take what it may else


class Suite:
    """Of one run of pytest."""

    def __init__(self):
        self.server = Server()
        self.checked = self.marked = 0  # tests
        self._thread = threading.Thread(target=self.server.run, name="strata-check", daemon=True)
        self._thread.start()
        os.environ["STRATA_CHECK"] = self.server.name
        warden._send = _telling(warden._send)
        hbm, timeout, stateful = testing.pool.__defaults__
        testing.pool.__defaults__ = hbm, SLOWER * timeout, stateful
        testing.Pool.__init__ = _patient(testing.Pool.__init__, timeout)

    def limit(self, seconds):
        """Of a test, in seconds."""
        return SLOWER * seconds

    @pytest.fixture(autouse=True)
    def reports_nothing(self, request):
        """Fails a test whose jobs are reported, unless it says so."""
        unchecked = request.node.get_closest_marker("unchecked")
        if unchecked:
            testing.close()  # pools of the one kind are of no use to the other
            del os.environ["STRATA_CHECK"]
        self._take()
        before = self.server.events
        yield
        if unchecked:
            testing.close()
            os.environ["STRATA_CHECK"] = self.server.name
            self.marked += 1
            return
        reports, problems = self._take()
        self.checked += self.server.events > before
        _judge(request.node.get_closest_marker("reports"), reports, problems)

    def _take(self):
        try:
            return self.server.take(PATIENCE)
        except futures.TimeoutError:
            pytest.fail(f"the analysis of the test's jobs did not end within {PATIENCE:g} s", pytrace=False)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session):
        """What only the end of the pools has shown, which are closed by now."""
        self.late = self._take()
        if any(self.late):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        self.server.stop()
        self._thread.join(PATIENCE)

    def pytest_terminal_summary(self, terminalreporter):
        reports, problems = self.late
        for line in [*text_of(reports).splitlines(), *problems]:
            terminalreporter.line(line)
        terminalreporter.line(
            f"checked: {self.checked} tests with {self.server.jobs_seen} jobs, which sent {self.server.events} events; "
            f"{self.marked} tests are marked as unchecked"
        )


def _telling(send):
    """What a die of a pool answers a call with, after what it has to say of it."""

    def told_and_sent(end, reply):
        told = recorder.current()
        if told is not None:
            told.flush()
        send(end, reply)

    return told_and_sent


def _patient(init, usual):
    """Of a Pool: one that a test makes for calls that take longer than usual has as much more time."""

    def made(self, n, hbm=None, timeout=usual, *args, **kwargs):
        init(self, n, hbm, max(timeout, SLOWER * usual) if timeout > usual else timeout, *args, **kwargs)

    return functools.wraps(init)(made)


def _judge(marker, reports, problems):
    __tracebackhide__ = True
    must = set(marker.args) if marker else set()
    may = must | set(marker.kwargs.get("maybe", ()) if marker else ())
    bad = [report for report in reports if report.kind not in may]
    if bad or problems:
        pytest.fail("\n".join([text_of(bad), *problems]), pytrace=False)
    missing = ", ".join(sorted(must - {report.kind for report in reports}))
    if missing:
        pytest.fail(f"the check has not found what the test is marked with: {missing}", pytrace=False)
