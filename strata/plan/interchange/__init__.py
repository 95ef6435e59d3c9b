"""Other libraries' algorithm files: MSCCL XML, read and (copies in one step) written."""
