"""Experiments about balanced rotation: what imbalance costs, and what rotational variants change.

Comes in: a preset. Goes out: trials, a table, claims, a figure. Read `imbalance` (neurons slowed on purpose), then
where balance is lost (`adam_vs_adamw`, `poor_normalisation`) and what restoring it gives (`constrain`, `sensitivity`,
`warmup`).
"""
