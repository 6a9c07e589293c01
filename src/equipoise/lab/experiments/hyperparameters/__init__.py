"""Experiments about settings: learning rate against weight decay, and moving a setting to another size.

Comes in: a preset. Goes out: trials, a table, claims, a figure. Read `lr_vs_wd`, then `transfer`.
"""
