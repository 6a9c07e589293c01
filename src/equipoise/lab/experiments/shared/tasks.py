"""Trials that more than one experiment varies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from equipoise.lab.train.trial import Trial

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
    data="cifar", data_options={"crop": 4, "flip": True}, model="resnet", model_options={"size": "resnet-20"},
    batch_size=128, schedule="cosine", steps=78_200, warmup=1955,
)  # fmt: skip
"""[kosson2024]'s ResNet-20, Table 4."""

WIKITEXT = Trial(
    data="wikitext", data_options={"path": "wikitext-103", "tokens": 50_304, "length": 512}, model="gpt",
    model_options={"size": "124M"}, batch_size=55, schedule="cosine", steps=15_000, warmup=300, precision="bfloat16",
    optimizer_options={"betas": [0.9, 0.95]},
)  # fmt: skip
"""[kosson2024]'s GPT, Table 4."""

TASKS = {"mlp": "vision", "resnet": "vision", "fast_resnet": "vision", "gpt": "text", "seq2seq": "pairs"}
METRICS = {"vision": "test_accuracy", "text": "test_perplexity", "pairs": "test_accuracy"}
NEAR = {"vision": 0.02, "text": 0.05, "pairs": 0.02}
"""How much worse, as a share, is still comparable. Ours: the sources say "comparable" or "no adverse effects"."""

CIFAR_MEDIUM = Trial(
    data="cifar", data_options={"validation": 5000, "crop": 4, "flip": True}, model="fast_resnet",
    model_options={"width": 8}, batch_size=128, schedule="cosine", steps=700, warmup=35, lr=1e-2, weight_decay=0.05,
)  # fmt: skip
"""The speedruns' ResNet an eighth as wide (0.1 of 6.6 M parameters), two epochs instead of 24."""

KIND = {"fast_resnet": "resnet"}
"""What statements call a model that has another name."""

ENWIK8_MEDIUM = Trial(
    data="enwik8", data_options={"size": 20_000_000, "length": 64, "held": 256_000}, model="gpt",
    model_options={"size": "0.4M", "tied": True, "std": 0.07}, batch_size=16, schedule="cosine", steps=3000, warmup=150,
    lr=3e-3, weight_decay=0.1, optimizer_options={"betas": [0.9, 0.95]},
)  # fmt: skip
"""A GPT of 0.43 M parameters ([kosson2024]: 124 M) that sees 3.1 million bytes of enwik8
([kosson2024]: 422 million tokens of Wikitext)."""

PHONEMES_MEDIUM = Trial(
    data="phonemes", data_options={"validation": 0.05}, model="seq2seq", model_options={"size": "small", "std": 0.1},
    batch_size=64, schedule="cosine", steps=1500, warmup=75, lr=3e-3, weight_decay=0.1,
)  # fmt: skip
"""An encoder and decoder of two layers and a width of 64 ([kosson2024]: six and 512), 96,000 words
([kosson2024]: IWSLT14)."""

FASHION_BRIEF = Trial(
    data="fashion", data_options={"validation": 5000}, model="mlp", model_options={"width": 64, "depth": 3},
    batch_size=64, schedule="cosine", steps=400, warmup=20, lr=1e-2, weight_decay=0.1,
)  # fmt: skip
"""An MLP with batch normalisation that sees less than half of Fashion-MNIST: 85 %, half a second of a core."""

ENWIK8_BRIEF = ENWIK8_MEDIUM.vary({
    "data_options": {"size": 4_000_000, "length": 32, "held": 64_000}, "steps": 600, "warmup": 30, "lr": 1e-2,
    "model_options": {"size": "tiny", "depth": 1, "width": 32, "tied": True, "std": 0.15},
})  # fmt: skip
"""A GPT of one layer and a width of 32 that sees 0.3 million bytes of enwik8: 2.5 nats where the bigram table has 2.71,
1.5 seconds of a core. For experiments of hundreds of trials, where many seeds decide more than one long run."""

ON = {"vision": "on images", "text": "on text", "pairs": "on pairs"}


def by_task(name: str, says: str, tasks: Sequence[str] = ("vision", "text")) -> dict[str, str]:
    """A statement for each kind of task, as what holds on images may not hold on text.

    >>> by_task("flat", "[kosson2024]: flat", ["text"])
    {'flat-text': '[kosson2024]: flat; on text'}
    """
    return {f"{name}-{task}": f"{says}; {ON[task]}" for task in tasks}


BOTH = {
    "smoke": (
        DIGITS.vary({"model_options.width": 16}),
        TEXT.vary({"steps": 12, "warmup": 2, "data_options": {"size": 20_000, "length": 32}}),
    ),
    "small": (DIGITS, TEXT), "medium": (FASHION_BRIEF, ENWIK8_BRIEF), "full": (CIFAR, WIKITEXT),
}  # fmt: skip
"""By preset a network on images and one on text, from seconds to the source's own."""


def on_both(preset: str, vision: Mapping[str, Any], text: Mapping[str, Any]) -> tuple[Trial, Trial]:
    """The two of a preset, with some fields changed.

    >>> [trial.lr for trial in on_both("small", {"lr": 0.1}, {"lr": 0.2})]
    [0.1, 0.2]
    """
    images, words = BOTH[preset]
    return images.vary(vision), words.vary(text)


MEDIUM = {"vision": CIFAR_MEDIUM, "text": ENWIK8_MEDIUM, "pairs": PHONEMES_MEDIUM}
"""Base trials of the preset `medium`: 1 to 6 minutes on one core, better than what needs no network, not saturated.
`benchmarks/medium.py` measures all three."""
