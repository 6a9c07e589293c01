"""Facts that are shown once, each at a known step, among samples that follow a law."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import pairwise
from typing import final

import torch
from torch import Tensor

from equipoise import _check
from equipoise.lab.data.base import Batch, Batches, BatchSource, Data, Split, seeded

NEVER = "never"
"""The probe of facts that are never shown."""


@final
@dataclass(frozen=True, eq=False)
class Facts(BatchSource):
    """Batches of a law's samples, of which the first ones are the facts of the step: they come at no other.

    Attributes:
        law: the class of a sample x is that of the largest of x @ law; [inputs, classes].
        x: keys of facts, [steps, count, inputs].
        y: their values, [steps, count].
    """

    law: Tensor
    x: Tensor
    y: Tensor

    def batches(self, size: int, seed: int) -> Batches:
        """The batches of a seed, by step. The seed decides the law's samples; after the last facts there are no more.

        Args:
            size: samples of a batch, facts included.
            seed: of the law's samples.
        """
        steps, count = self.y.shape
        if _check.whole("batch_size", size, low=1) < count:
            raise ValueError(f"batch_size = {size}: must be ≥ {count}, the number of facts in a batch")

        def batch(step: int) -> Batch:
            shown = count if step <= steps else 0
            x, y = lawful(self.law, size - shown, seeded(seed, "law", step))
            if not shown:
                return x, y
            return torch.cat([self.x[step - 1], x]), torch.cat([self.y[step - 1], y])

        return batch

    def to(self, device: torch.device | str) -> Facts:
        """The same on a device; the numbers do not depend on it."""
        return Facts(self.law.to(device), self.x.to(device), self.y.to(device))

    def digest(self) -> bytes:
        """SHA-256 of the law and of all facts."""
        content = hashlib.sha256()
        for part in (self.law, self.x, self.y):
            content.update(f"{part.dtype}{tuple(part.shape)}".encode() + part.cpu().numpy().tobytes())
        return content.digest()


def facts(
    *, steps: int, windows: int = 24, count: int = 16, inputs: int = 256, classes: int = 32, never: int = 16_384,
    tests: int = 512, seed: int = 0,
) -> Data:  # fmt: skip
    """A law to learn, and exceptions from it to remember: random keys, each with a random value.

    Every batch has facts, each of which is shown once. The facts of a window, which is a stretch of steps, are a probe
    named by its first and last step, as "1-25"; those of the probe "never" are not shown, so they are what a model
    that remembers nothing knows. Keys are as the law's samples, so that nothing but memory can tell a fact.

    Args:
        steps: of the run.
        windows: stretches of as many steps, up to one.
        count: facts of a batch.
        inputs: numbers of a key, standard normal.
        classes: of the law, and values of facts.
        never: facts that are never shown.
        tests: samples of the law to test on.
        seed: of the law and the facts.

    >>> data = facts(steps=100, windows=4, count=2)
    >>> list(data.probes), len(data.probes["1-25"])
    (['1-25', '26-50', '51-75', '76-100', 'never'], 50)
    """
    sizes = {"steps": steps, "count": count, "inputs": inputs, "classes": classes, "never": never, "tests": tests}
    for name, value in sizes.items():
        _check.whole(name, value, low=1)
    if _check.whole("windows", windows, low=1) > steps:
        raise ValueError(f"windows = {windows}: must be ≤ steps = {steps}")
    g = seeded(seed, "facts")
    law = torch.randn(inputs, classes, generator=g)
    x = torch.randn(steps, count, inputs, generator=g)
    y = torch.randint(classes, (steps, count), generator=g)
    edges = [steps * i // windows for i in range(windows + 1)]
    probes = {f"{a + 1}-{b}": Split(x[a:b].flatten(0, 1), y[a:b].flatten()) for a, b in pairwise(edges)}
    probes[NEVER] = Split(
        torch.randn(never, inputs, generator=g), torch.randint(classes, (never,), generator=g)
    )  # fmt: skip
    test = Split(*lawful(law, tests, seeded(seed, "test")))
    return Data("facts", "classes", Facts(law, x, y), test, classes, probes=probes)


def lawful(law: Tensor, size: int, g: torch.Generator) -> Batch:
    """Samples that follow the law."""
    x = torch.randn(size, len(law), generator=g).to(law.device)
    return x, (x @ law).argmax(1)
