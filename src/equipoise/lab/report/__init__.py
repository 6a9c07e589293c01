"""Reports: claims compared with measurements, the ledger of statements, pages and tables.

Comes in: outcomes. Goes out: `docs/evidence.md`, pages in Markdown, tables in the terminal. Read `claims`, `ledger`,
`page`, `terminal`.
"""
