"""Attach to a training loop: which steps are measured, what is printed, how a run ends.

Comes in: a model, its optimizers, the numbers that a loop logs. Goes out: measured steps, to `store`, and findings.
Read `watcher` first (what a user calls), then `steps` (the way of a step, from top to bottom; `measure` goes on there),
`registry` (the optimizers), `cadence` and `backlog` (which steps), `review` (a look at the run while it is written),
`endings`, `faults` and `messages`.
"""
