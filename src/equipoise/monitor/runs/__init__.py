"""Views of runs: lists, tags, final losses, settings, a snapshot for the terminal, exports.

Comes in: a `Run`, or a directory of them. Goes out: lines, columns and tables that the terminal and the board share.
Read `directory` and `lines` (the list), `snapshot` and `terminal` (the live table), `recorded` and `schedule_points`
(what a run knows of its optimizer), `export`. No file here imports torch.
"""
