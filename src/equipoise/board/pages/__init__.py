"""The pages: a run, several runs, a plan, the geometry of a step; and their sections.

Comes in: what `gather` read. Goes out: figures and HTML for `page`. Read `run_page`, then its sections: `heatmap`,
`layers` (a line for each layer), `findings_view`, `forward_view`, `memory_view`, `geometry_page`. `compare_page` lays
runs beside each other, `plan_page` has the sliders of a plan.
"""
