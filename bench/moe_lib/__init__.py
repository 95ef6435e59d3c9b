"""What bench/moe.py is made of."""
