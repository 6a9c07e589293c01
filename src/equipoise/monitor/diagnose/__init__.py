"""Compare a run with its forecast, and say what is wrong with it.

Comes in: a `Run`. Goes out: comparisons and findings. Read `diagnosis` (the order of the checks), `evidence` (what they
look at), `compare` and `attribute` (measured beside forecast), `ranking` (the worst layers), then `checks_…`, one file
a family of findings.
"""
