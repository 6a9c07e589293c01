"""What optimizers want to know of a model: roles, parameter groups, scale invariance, gains and how to fold them.

Comes in: a module. Goes out: groups, or the module with gains. Read `roles` (what each parameter is for), `groups`,
`invariance` with `probes` and `restore`, `gains` and `folding`.
"""
