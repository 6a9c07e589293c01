"""Experiments on linear and logistic regression, where the noise and the condition number are known."""
