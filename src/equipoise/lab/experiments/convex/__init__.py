"""Experiments on linear and logistic regression, where the noise and the condition number are known.

Comes in: a preset. Goes out: trials, a table, claims, a figure. Read `regression`, which `linear_regression` and
`logistic_regression` are made from.
"""
