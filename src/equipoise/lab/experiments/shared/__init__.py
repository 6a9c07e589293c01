"""What experiments share: sweeps and their statistics, checks of trials, tasks, readings of watched runs.

Comes in: results and runs of trials. Goes out: rows, differences and points for an experiment's table and figure. Read
`tasks` (trials to vary), `sweep` and `checks`, `watched` and `measured` (what is read of a run), `figures`.
"""
