"""Experiments that test the theory on real networks, and a place for one's own ablations."""
