"""Experiments about matrices: Muon, and the singular values of weights, gradients and updates.

Comes in: a preset. Goes out: trials, a table, claims, a figure. Read `muon` (which variant ends lower), then `svd`
(what happens to singular values).
"""
