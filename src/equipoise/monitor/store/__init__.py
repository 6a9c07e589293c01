"""Write and read a run: one SQLite file, appended to while training goes on, readable at any time.

Comes in: rows, logged numbers, findings. Goes out: tables, series and what is new. Read, of writing: `writer` (what a
loop calls), `worker` (the thread), `staging` (one transaction), `pyramid` (summaries of long runs), `schedule_changes`,
`network` (runs where locks do not work). Of reading: `run` (what a user calls), `archive` (records, damage left out),
`reading`, `follow`, `rescue` with `leaves` (damaged files). Shared: `schema` (the file), `layout` (what the numbers
mean), `tables`. Reading imports no torch.
"""
