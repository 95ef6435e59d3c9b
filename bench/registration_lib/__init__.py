"""Parts of bench/registration.py: what dies run, the contenders, the workload, tables, the picture."""
