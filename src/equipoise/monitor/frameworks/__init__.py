"""Callbacks for trainers: Hugging Face and Lightning.

Comes in: a framework's Trainer. Goes out: a watch around its steps. Read `huggingface` or `lightning`; all measuring is
that of `eq.watch`.
"""
