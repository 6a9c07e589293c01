"""The checks of a plan: each yields findings. `all_checks` has their order, `common` what they share.

Comes in: a `Plan`. Goes out: findings, each with its text where its condition is. To change what a finding says,
change the check that yields it: `rates`, `settings`, `finetune`.
"""
