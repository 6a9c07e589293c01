"""The checks of a plan: each yields findings. `all_checks` has their order, `common` what they share.

Comes in: a `Plan`. Goes out: findings. A finding's text stands where its condition is: to change what one says, change
the check that yields it. Read `all_checks` and `common`, then `rates` (what lr and decay do over the run), `settings`
(single settings: decay, schedule, betas, precision), `finetune`, `paying` (advice that paid on the lab's workloads) and
`alike` (which optimizer paid on a workload like this one). `choices.json` and `paid.json` are made from those trials by
`equipoise lab workloads payoff`.
"""
