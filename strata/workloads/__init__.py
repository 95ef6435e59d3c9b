"""Whole workloads, asked of the timing plane: layers of kernels, collectives and registration on a die's streams."""

from strata.workloads.description import names
from strata.workloads.switches import LIBRARIES, Switches
from strata.workloads.workload import Figures, Report, Row, Workload, load

__all__ = ["LIBRARIES", "Figures", "Report", "Row", "Switches", "Workload", "load", "names"]
