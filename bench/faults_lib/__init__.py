"""Parts of bench/faults.py: the worker, jobs and what is done to them, reports."""
