"""What optimizers need to know about a model: roles, parameter groups, scale invariance, gains and folding.

Comes in: a module. Goes out: groups, or the module with gains. Read `roles` (what each parameter is for), `groups`,
`invariance` with `probes` and `restore`, `gains` and `folding`, `averaging` and `schedule_free`.
"""
