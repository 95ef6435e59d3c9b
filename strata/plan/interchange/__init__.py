"""Other libraries' algorithm files: MSCCL XML."""
