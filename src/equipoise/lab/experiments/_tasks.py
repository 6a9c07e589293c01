"""Trials that more than one experiment varies."""

from __future__ import annotations

from equipoise.lab.config import Trial

DIGITS = Trial(
    data="digits", data_options={"test": 0.8}, model="mlp", model_options={"width": 64, "depth": 3}, batch_size=64,
    schedule="cosine", steps=300, warmup=8,
)  # fmt: skip
"""An MLP with batch normalisation on a fifth of the digits."""

TEXT = Trial(
    data="text", data_options={"size": 300_000, "length": 64}, model="gpt", model_options={"size": "tiny"},
    batch_size=16, schedule="cosine", steps=200, warmup=8,
)  # fmt: skip
"""A GPT of two layers on Python's sources."""

CIFAR = Trial(
    data="cifar", data_options={"path": "cifar-10-batches-bin"}, model="resnet", model_options={"size": "resnet-20"},
    batch_size=128, schedule="cosine", steps=78_200, warmup=1955,
)  # fmt: skip
"""[kosson2024]'s ResNet-20, Table 4."""

WIKITEXT = Trial(
    data="wikitext", data_options={"path": "wikitext-103", "tokens": 50_304, "length": 512}, model="gpt",
    model_options={"size": "124M"}, batch_size=55, schedule="cosine", steps=15_000, warmup=300, precision="bfloat16",
    optimizer_options={"betas": [0.9, 0.95]},
)  # fmt: skip
"""[kosson2024]'s GPT, Table 4."""

TASKS = {"mlp": "vision", "resnet": "vision", "gpt": "text", "seq2seq": "pairs"}
METRICS = {"vision": "test_accuracy", "text": "test_perplexity", "pairs": "test_accuracy"}
NEAR = {"vision": 0.02, "text": 0.05, "pairs": 0.02}
"""How much worse, as a share, is still comparable. Ours: the sources say "comparable" or "no adverse effects"."""
