"""Experiments about matrices: Muon, and the singular values of weights, gradients and updates."""
