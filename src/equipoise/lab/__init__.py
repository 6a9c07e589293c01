"""Experiments that test the theory on real networks, and tools for your own ablations."""
