"""The pages: a run, several runs, a plan, the geometry of a step; and their sections.

Comes in: what `gather` read. Goes out: figures and HTML for `page`.
"""
