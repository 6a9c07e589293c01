"""Callbacks that audit the optimizer of a framework's Trainer: `huggingface` and `lightning`.

Neither is imported with the package, as each needs its framework.

Comes in: a framework's Trainer. Goes out: an `Audit` around its first steps. Read `huggingface` or `lightning`; all
inference is that of `eq.audit`.
"""
