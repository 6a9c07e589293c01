"""Experiments that test the theory on real networks, and tools for your own ablations.

Comes in: a trial (data, model, optimizer, seed) or an experiment made of trials. Goes out: results, claims with a
verdict, the ledger and its pages. Read `train` (one trial from top to bottom, then sweeps), `data` and `models` (what
is trained), `experiments` (what is tried), `statistics` (when a claim is decided), `report` (pages and the ledger),
`workloads` (what a setting costs).
"""
