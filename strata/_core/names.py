"""Names of what the core numbers."""

# Codes of the fingerprint, in the order of front.pxd.
OPERATIONS = ("barrier", "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "all_to_all_v",
              "broadcast", "reduce", "gather", "scatter", "send", "nothing (it failed)")  # fmt: skip
