"""How a step runs: eagerly, over many tensors at once, compiled, in low precision, on several ranks. No equation.

Comes in: a rule, a move and groups of parameters. Goes out: one step. Read `base` (`RuleOptimizer`), `validation` (what
is refused), `tensor_list` (one rule text for one tensor, many, and a compiler), `step_layout` and `packs` (who is
stepped with whom), `compiled` with `loops` (its C++), `chunks`, `clock` and `rate` (numbers that must not be read from
a device), `distributed`, `saved` (states), `holder` (optimizers round others).
"""
