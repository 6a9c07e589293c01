"""Baselines, on data whose answer is known."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from equipoise.lab.data import Data, Split, from_texts, images, load, pairs
from equipoise.lab.data.baselines import DISCOUNT, _Bigrams, bigram, frequency, linear, rows, unigram


def test_counts_by_hand() -> None:
    """Train abab abab a → b, a after each other; test a b c."""
    data = from_texts("x", ["ababababa"], ["abc"], tokens=None, length=2)
    # 8 predictions of training: b a b a b a b a; V = 256.
    p = {"a": 5 / 264, "b": 5 / 264, "c": 1 / 264}
    assert unigram(data)["test_loss"] == pytest.approx(-(math.log(p["b"]) + math.log(p["c"])) / 2)
    # after a: b four times, after b: a four times, one kind each.
    after_a = (4 - DISCOUNT + DISCOUNT * p["b"]) / 4
    after_b = DISCOUNT * p["c"] / 4
    assert bigram(data)["test_loss"] == pytest.approx(-(math.log(after_a) + math.log(after_b)) / 2)


def chain(size: int, states: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A walk by a random matrix of transitions, and the matrix."""
    random = np.random.default_rng(seed)
    matrix = random.dirichlet(np.full(states, 0.5), states)
    ends, draws = matrix.cumsum(1), random.random(size)
    walk = [0]
    for draw in draws:
        walk.append(min(int(np.searchsorted(ends[walk[-1]], draw)), states - 1))
    return np.array(walk), matrix


def test_a_markov_chain_has_its_entropy() -> None:
    walk, matrix = chain(200_000, 12, 0)
    values, vectors = np.linalg.eig(matrix.T)
    stationary = np.real(vectors[:, np.argmax(np.real(values))])
    stationary /= stationary.sum()
    rate = -(stationary[:, None] * matrix * np.log(matrix)).sum()
    text = bytes(walk.astype(np.uint8) + 65)
    data = from_texts("x", [text[:180_000]], [text[180_000:]], tokens=None, length=100)
    assert bigram(data)["test_loss"] == pytest.approx(rate, rel=0.01)
    assert unigram(data)["test_loss"] == pytest.approx(-(stationary * np.log(stationary)).sum(), rel=0.01)


def test_chances_add_up_to_one_in_small_and_large_vocabularies(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("to be or not to be, that is the question. " * 40)
    for tokens in (None, 300):
        data = load("text", path=tmp_path, length=8, tokens=tokens, validation=True)
        counts = _Bigrams(data)
        every = np.arange(data.outputs)
        for a in range(data.outputs):
            assert counts.chance(np.full_like(every, a), every).sum() == pytest.approx(1)
        found = rows(data)
        assert [row["baseline"] for row in found] == ["unigram", "bigram"]
        assert found[1]["test_loss"] < found[0]["test_loss"] < math.log(data.outputs)
        assert found[1].keys() == {"baseline", "test_loss", "validation_loss"}


def test_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    text = bytes(chain(5000, 20, 1)[0].astype(np.uint8))
    data = from_texts("x", [text[:4000]], [text[4000:]], tokens=None, length=50)
    whole = bigram(data), unigram(data)
    monkeypatch.setattr(sys.modules["equipoise.lab.data.baselines"], "CHUNK", 300)
    assert (bigram(data)["test_loss"], unigram(data)["test_loss"]) == pytest.approx(
        (whole[0]["test_loss"], whole[1]["test_loss"])
    )


def test_pairs_are_predicted_by_their_targets() -> None:
    data = pairs("x", [("q", "ab"), ("qq", "abab")], [("q", "ab")])
    # Targets a b END a b a b END; tokens are PAD, BEGIN, END, a, b: V = 5. Test: a b END.
    p = {"a": 4 / 13, "b": 4 / 13, "end": 3 / 13}
    assert unigram(data)["test_loss"] == pytest.approx(-sum(map(math.log, p.values())) / 3)
    first = (2 - DISCOUNT + DISCOUNT * p["a"]) / 2  # BEGIN → a twice
    second = (3 - DISCOUNT + DISCOUNT * p["b"]) / 3  # a → b three times
    third = (2 - DISCOUNT + 2 * DISCOUNT * p["end"]) / 3  # b → END twice, b → a once
    expected = -(math.log(first) + math.log(second) + math.log(third)) / 3
    assert bigram(data)["test_loss"] == pytest.approx(expected)


def test_frequency_by_hand() -> None:
    train = (torch.zeros(6, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 0, 0, 0, 1, 1]))
    test = (torch.zeros(2, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 2]))
    found = frequency(images("x", train, test, 3))
    assert found["test_loss"] == pytest.approx(-(math.log(5 / 9) + math.log(1 / 9)) / 2, rel=1e-6)
    assert found["test_accuracy"] == 0.5


@pytest.mark.parametrize("l2", [1e-2, 1e-1])
def test_the_linear_model_is_scikit_learns(l2: float) -> None:
    from sklearn.linear_model import LogisticRegression

    data = load("digits")
    assert isinstance(data.train, Split)
    assert data.test is not None
    (x, y), (x_test, y_test) = (
        (np.pad(x.flatten(1).double().numpy(), ((0, 0), (0, 1)), constant_values=1), y.numpy())
        for x, y in (part.take(slice(None)) for part in (data.train, data.test))
    )
    fit = LogisticRegression(C=1 / (l2 * len(x)), max_iter=5000, tol=1e-8, fit_intercept=False).fit(x, y)
    chances, y = fit.predict_proba(x_test), y_test
    expected = -np.log(chances[np.arange(len(y)), y]).mean()
    found = linear(data, l2=l2)
    assert found["test_loss"] == pytest.approx(expected, abs=1e-3)
    assert found["test_accuracy"] == pytest.approx((chances.argmax(1) == y).mean(), abs=0.005)


def test_what_has_no_baseline() -> None:
    with pytest.raises(ValueError, match=r"data\.task = 'regression': must be classes, tokens or pairs"):
        rows(load("regression", samples=10, inputs=2))
    with pytest.raises(ValueError, match="makes its samples by step"):
        frequency(load("facts", steps=4, windows=2))
    x = torch.zeros(4, 2)
    with pytest.raises(ValueError, match="has no test"):
        frequency(Data("x", "classes", Split(x, torch.zeros(4)), None, 2))
