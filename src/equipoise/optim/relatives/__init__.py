"""Single ideas from papers: optimizers that tie steps to the size of weights, or learn size and direction apart.

Comes in: what any rule × move takes. Goes out: `torch.optim` classes. Read `ratios` (LAMB, LARS, clipping, a floor, a
brake), `neurons` (AdamP, Nero) and `apart` (magnitudes and directions); those of matrices alone are in `matrices`.
"""
