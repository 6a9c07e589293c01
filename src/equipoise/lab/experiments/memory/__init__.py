"""Experiments about memory: how long a batch is remembered, and schedules that remember all alike."""
