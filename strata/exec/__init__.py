"""Executors: each takes a plan."""
