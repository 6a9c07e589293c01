"""Experiments about equilibrium: where norm and rotation settle, on random walks and in networks.

Comes in: a preset. Goes out: trials, a table, claims, a figure. Read `random_walk`, the simplest of all; then networks:
`assumptions` (how far they are from a walk), `scale_sensitive`, `norms`.
"""
