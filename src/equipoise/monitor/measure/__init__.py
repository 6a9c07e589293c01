"""Measure one step: inner products of weights, gradients, momentum and change, turned into a row of numbers.

Comes in: tensors before and after an optimizer's step. Goes out: a row of the run. Read in the order of a step:
`measurer` (the whole: begin, before, after, send, receive), `tensors` and `optimizer_state` (what is looked at),
`frame` (from tensors to sums: small models in `copies`, others in `blocks` and `workspace`), `step` (the sums on their
way), `rows` (the thread that writes makes rows, several at once), `assemble`, `sums` and `quantities` (what is
measured, and its formulas).
Beside that: `random_walk` (what `c_err` is measured by), `spectra` and `singular_values` (measured seldom).
"""
