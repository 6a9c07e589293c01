"""BLEU of translations, as sacreBLEU computes it."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from equipoise import _check

ORDER = 4
TOKENIZERS = ("13a", "char", "none")

_UNESCAPED = (
    ("<skipped>", ""),
    ("-\n", ""),
    ("\n", " "),
    ("&quot;", '"'),
    ("&amp;", "&"),
    ("&lt;", "<"),
    ("&gt;", ">"),
)
_RULES = (
    (re.compile(r"([{-~\[-` -&(-+:-@/])"), r" \1 "),  # symbols and punctuation, but not ' , - .
    (re.compile(r"([^0-9])([.,])"), r"\1 \2 "),  # . and , unless after a digit
    (re.compile(r"([.,])([^0-9])"), r" \1 \2"),  # . and , unless before a digit
    (re.compile(r"([0-9])(-)"), r"\1 \2 "),  # - after a digit
)


@final
@dataclass(frozen=True)
class Bleu:
    """A score and what it is made of.

    Attributes:
        score: from 0 to 100.
        precisions: of n-grams for n = 1, …, 4, from 0 to 100.
        brevity: the penalty for translations that are too short, from 0 to 1.
        length: tokens of all translations.
        wanted: tokens of all references.
    """

    score: float
    precisions: tuple[float, ...]
    brevity: float
    length: int
    wanted: int


def bleu(translations: Sequence[str], references: Sequence[str], *, tokenizer: str = "13a") -> Bleu:
    """BLEU of a corpus: BP · exp(mean of ln p_n over n = 1, …, 4), BP = min(1, exp(1 − wanted/length)).

    p_n is the share of the translations' n-grams that their references have, each as often at most. The k-th p_n of
    zero is replaced by 1/(2ᵏ · n-grams), as sacreBLEU's smoothing "exp" does. One reference a translation, upper and
    lower case apart.

    Args:
        translations: of a model.
        references: what they should be.
        tokenizer: "13a" splits off punctuation, as usual; "char" takes characters, as for Chinese and Japanese;
            "none" splits at spaces alone.

    Reference:
        [papineni2002]; [post2018].

    >>> round(bleu(["the cat sat on the mat"], ["the cat sat on a mat"]).score, 2)
    53.73
    """
    _check.choice("tokenizer", tokenizer, TOKENIZERS)
    if len(translations) != len(references):
        raise ValueError(
            f"there are {len(translations)} translations and {len(references)} references: must be as many"
        )
    right, total, length, wanted = [0] * ORDER, [0] * ORDER, 0, 0
    for translation, reference in zip(translations, references, strict=True):
        ours, theirs = tokenize(translation, tokenizer), tokenize(reference, tokenizer)
        length, wanted = length + len(ours), wanted + len(theirs)
        for n in range(ORDER):
            found = _grams(ours, n + 1)
            right[n] += (found & _grams(theirs, n + 1)).total()
            total[n] += found.total()
    if not any(right) or not all(total):
        return Bleu(0.0, (0.0,) * ORDER, 0.0 if not length else min(1.0, math.exp(1 - wanted / length)), length, wanted)
    precisions, zeros = [], 0
    for n in range(ORDER):
        zeros += right[n] == 0
        precisions.append(100 * right[n] / total[n] if right[n] else 100 / (2**zeros * total[n]))
    brevity = min(1.0, math.exp(1 - wanted / length))
    score = brevity * math.exp(sum(map(math.log, precisions)) / ORDER)
    return Bleu(score, tuple(precisions), brevity, length, wanted)


def tokenize(text: str, tokenizer: str) -> list[str]:
    """A line as tokens.

    >>> tokenize("It's 1,000.5 €, (about).", "13a")
    ["It's", '1,000.5', '€', ',', '(', 'about', ')', '.']
    """
    if tokenizer == "none":
        return text.split()
    if tokenizer == "char":
        return [c for c in text if not c.isspace()]
    for old, new in _UNESCAPED:
        text = text.replace(old, new)
    text = f" {text} "
    for pattern, new in _RULES:
        text = pattern.sub(new, text)
    return text.split()


def _grams(tokens: list[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))
