"""What all benchmarks share: their JSON lines, the machine they ran on, and noise."""
