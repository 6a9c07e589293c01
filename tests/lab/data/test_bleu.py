"""BLEU, against values computed by hand and, where it is installed, against sacreBLEU."""

import importlib.util
import math

import numpy as np
import pytest

from equipoise.lab.data.bleu import bleu, tokenize


def test_one_wrong_word() -> None:
    """Of 6, 5, 4, 3 n-grams 5, 3, 2, 1 are right: `the` is there twice and counts once."""
    found = bleu(["the cat sat on the mat"], ["the cat sat on a mat"])
    assert found.precisions == pytest.approx([100 * 5 / 6, 100 * 3 / 5, 100 * 2 / 4, 100 / 3])
    assert found.score == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)
    assert (found.brevity, found.length, found.wanted) == (1, 6, 6)


def test_too_short() -> None:
    """All n-grams are right, 5 words of 7: exp(1 − 7/5)."""
    found = bleu(["a b c d e"], ["a b c d e f g"])
    assert found.precisions == (100, 100, 100, 100)
    assert found.score == pytest.approx(100 * math.exp(-0.4))
    assert bleu(["a b c d e f g"], ["a b c d e"]).brevity == 1


def test_a_corpus_is_not_the_mean_of_its_lines() -> None:
    """Counts are summed: (4 + 1)/(4 + 4), (3 + 0)/(3 + 3), (2 + 0)/(2 + 2), (1 + 0)/(1 + 1)."""
    found = bleu(["a b c d", "x p q r"], ["a b c d", "x y z w"])
    assert found.precisions == pytest.approx([62.5, 50, 50, 50])
    assert found.score == pytest.approx(100 * (0.625 * 0.125) ** 0.25)


def test_zeros_are_smoothed_one_after_the_other() -> None:
    """Of 4, 3, 2, 1 n-grams 2, 0, 0, 0 are right: 2/4, then 1/(2·3), 1/(4·2), 1/(8·1)."""
    found = bleu(["a x b y"], ["a b c d"])
    assert found.precisions == pytest.approx([50, 100 / 6, 100 / 8, 100 / 8])
    assert found.score == pytest.approx(100 * (0.5 / 6 / 8 / 8) ** 0.25)


def test_nothing_is_right_or_too_short_for_four_words() -> None:
    assert bleu(["x"], ["a b c d"]).score == 0
    assert bleu([""], ["a"]).score == 0
    assert bleu(["a b c"], ["a b c"]).score == 0, "no n-gram of 4 words anywhere, as sacreBLEU"
    with pytest.raises(ValueError, match="2 translations and 1 references"):
        bleu(["a", "b"], ["a"])
    with pytest.raises(ValueError, match="tokenizer = 'x'"):
        bleu(["a"], ["a"], tokenizer="x")


def test_tokens() -> None:
    assert tokenize('He said: "3.14, or 2-3?" &amp; left.', "13a") == [
        "He", "said", ":", '"', "3.14", ",", "or", "2", "-", "3", "?", '"', "&", "left", ".",
    ]  # fmt: skip
    assert tokenize("well-known file_name a/b", "13a") == ["well-known", "file", "_", "name", "a", "/", "b"]
    assert tokenize("二 进制", "char") == ["二", "进", "制"]
    assert tokenize("a, b", "none") == ["a,", "b"]
    assert bleu(["二进制包"], ["二进制包"], tokenizer="char").score == pytest.approx(100)


@pytest.mark.skipif(importlib.util.find_spec("sacrebleu") is None, reason="sacrebleu is not installed")
@pytest.mark.parametrize("tokenizer", ["13a", "char", "none"])
def test_as_sacrebleu(tokenizer: str) -> None:
    sacrebleu = importlib.import_module("sacrebleu")
    random = np.random.default_rng(0)
    words = np.array(["the", "cat,", "1,000.5", "(a)", "end.", "it's", "2-3", "&lt;", "x/y", "{z}", "é!"])
    for count in (1, 2, 20):
        references = [" ".join(random.choice(words, random.integers(1, 12))) for _ in range(count)]
        ours = [" ".join(w if random.random() < 0.7 else "cat" for w in r.split()) for r in references]
        theirs = sacrebleu.corpus_bleu(ours, [references], tokenize=tokenizer)
        assert bleu(ours, references, tokenizer=tokenizer).score == pytest.approx(theirs.score, abs=1e-9)
