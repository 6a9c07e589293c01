"""Experiments about settings: learning rate against weight decay, and moving a setting to another size."""
