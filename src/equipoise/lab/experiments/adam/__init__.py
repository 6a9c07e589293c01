"""Experiments about Adam itself: its betas, ε, bias correction, nesting, and switching to or from SGD."""
