"""Experiments about memory: how long a batch is remembered, and schedules that remember all alike.

Comes in: a preset. Goes out: trials, a table, claims, a figure. Read `recall` (how facts are tested), `one_shot_facts`
(is a batch remembered as theory says), `equal_memory_schedules` (does equal memory pay).
"""
