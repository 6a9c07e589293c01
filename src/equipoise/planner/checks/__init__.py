"""The checks of a plan: each yields findings. `all_checks` has their order, `common` what they share."""
