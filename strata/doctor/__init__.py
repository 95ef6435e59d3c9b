"""Whether this host can run jobs: what was looked at, what it means, and what to do about it."""

from strata.doctor.checks import examine
from strata.doctor.findings import SEVERITIES, Finding
from strata.doctor.host import Host

__all__ = ["SEVERITIES", "Finding", "Host", "examine"]
