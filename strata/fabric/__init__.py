"""Fabric memory: arrays at the same address on every die."""
