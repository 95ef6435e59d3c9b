"""Other libraries' algorithm files: MSCCL XML, read and written; MSCCL++ JSON plans, read."""
