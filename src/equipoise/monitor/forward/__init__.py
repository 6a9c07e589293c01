"""Measure the forward pass: outputs of blocks, dead units, attention, experts.

Comes in: a model and the steps that are measured. Goes out: rows of kind "forward". Read `collector` (which pass is
looked at, and where its numbers go), then `observer` (what is seen while it runs), `places` (which modules), `formulas`
(the numbers) and `quantities` (their names).
"""
