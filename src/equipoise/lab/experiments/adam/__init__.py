"""Experiments about Adam itself: its betas, ε, bias correction, nesting, and switching to or from SGD.

Comes in: a preset. Goes out: trials, a table, claims, a figure. Read `betas` first; `epsilon`, `bias_correction`,
`nested_adam` and `switch` each test a section of [notepad]; `adam_walks` are the walks that two of them need.
"""
