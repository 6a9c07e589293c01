"""What to set for a run: optimizer, lr, weight decay, betas, schedule and groups, each with its reason.

Comes in: a model and the length of its run, or a `Setting`; and a function that trains short runs, where a pilot is
wanted. Goes out: a `Suggestion` with a complete setting. Read `suggestion` (`suggest`), `rules` (each number and its
reason), `pilot` (short runs that move lr), `text` (the setting as Python, TOML and a command). `suggested.json` says
what suggested settings cost on the workloads; `equipoise.lab.workloads.suggested` writes it.
"""
