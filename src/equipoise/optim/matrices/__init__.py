"""Optimizers that see a whole matrix: Muon and its relatives, and steepest descent in a norm.

Comes in: gradients of matrices, stacks of them, and convolutions. Goes out: new weights. Read `rules` (the equations),
`muon` (groups split into matrices and the rest; Muon, and Muon on the sphere), `steepest_descent` (each layer in a norm
of its own), `relatives` (NorMuon, and Muon with brakes and floors). Polar factor and norms are in `geometry`.
"""
