"""Measure one step: inner products of weights, gradients, momentum and change, turned into a row of numbers.

Comes in: tensors before and after an optimizer's step. Goes out: a row of the run. Read in the order of a step:
`measurer` (the whole), `tensors` and `frame` (what is looked at), `workspace` and `blocks` (the memory it happens in),
`sums` (the inner products), `in_flight` and `received` (on their way from the device), `assemble` and `quantities` (the
formulas), `random_walk` (what `c_err` is measured by), `spectra` and `singular_values` (measured seldom).
"""
