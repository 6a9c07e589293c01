"""Callbacks that audit the optimizer of a framework's Trainer: `huggingface` and `lightning`.

Neither is imported with the package, as each needs its framework.
"""
