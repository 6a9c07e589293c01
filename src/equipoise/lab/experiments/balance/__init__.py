"""Experiments about balanced rotation: what imbalance costs, and what rotational variants change."""
