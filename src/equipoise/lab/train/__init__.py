"""Train: a trial as a value, one training run, and many of them here, in processes or on Ray.

Comes in: a `Trial` or an experiment. Goes out: a `Result`, or an outcome. Read `trial`, `training` (from top to
bottom), `task`, `optimizers`, `schedules`, `start`; then `run_trial`, `run_experiment`, `processes`, `on_ray`,
`sweep`, and `result` and `trial_store` for what is kept.
"""
