"""Parts of bench/collectives.py: options, data, operations, the table."""
