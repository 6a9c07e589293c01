"""Experiments about equilibrium: where norm and rotation settle, on random walks and in networks."""
