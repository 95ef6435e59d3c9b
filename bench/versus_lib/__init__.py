"""Parts of bench/versus.py: cells and their data, the worker, contenders, jobs, reports."""
