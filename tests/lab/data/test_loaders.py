"""Loaders as training has them: crops and flips, parts that never overlap, label smoothing."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests import forked
from torch import Tensor

from equipoise.lab.data import CropFlip, Data, Split, images, load, seeded
from equipoise.lab.train import task
from equipoise.lab.train.training import train
from equipoise.lab.train.trial import Trial


def some(count: int = 40, side: int = 6, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = seeded(seed, "images")
    x = torch.randint(256, (count, 3, side, side), generator=g, dtype=torch.uint8)
    return x, torch.randint(10, (count,), generator=g, dtype=torch.uint8)


def split_of(data: Data) -> Split:
    assert isinstance(data.train, Split)
    return data.train


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_each_image_is_cropped_and_flipped_as_by_hand(dtype: torch.dtype) -> None:
    x = some(60)[0].to(dtype)
    got = CropFlip(crop=2, flip=True)(x, torch.Generator().manual_seed(5))
    g = torch.Generator().manual_seed(5)
    down, right = (torch.randint(5, (60, 1), generator=g).flatten().tolist() for _ in range(2))
    mirrored = (torch.rand(60, 1, generator=g) < 0.5).flatten().tolist()
    assert len(set(zip(down, right, mirrored, strict=True))) > 25
    for i in range(60):
        border = np.zeros((3, 10, 10), x.numpy().dtype)
        border[:, 2:8, 2:8] = x[i].numpy()
        cut = border[:, down[i] : down[i] + 6, right[i] : right[i] + 6]
        assert (got[i].numpy() == (cut[:, :, ::-1] if mirrored[i] else cut)).all()


def test_every_place_and_side_is_as_likely() -> None:
    x = torch.zeros(30_000, 1, 3, 3, dtype=torch.uint8)
    x[:, :, 1, 0] = 1
    got = CropFlip(crop=1, flip=True)(x, torch.Generator().manual_seed(0))
    # The one pixel may be in 3 rows and 3 columns (of which one is outside), or mirrored.
    share = got.double().mean((0, 1))
    expected = torch.tensor([[1, 1, 0]], dtype=torch.double).expand(3, 3) / 9
    expected = (expected + expected.flip(1)) / 2
    assert (share - expected).abs().max() < 5 * math.sqrt(0.11 / 30_000)


def test_batches_are_augmented_by_step_and_tests_are_not() -> None:
    train_part, test_part = some(), some(seed=1)
    data = images("x", train_part, test_part, 10, crop=2, flip=True)
    plain = images("x", train_part, test_part, 10)
    assert data.checksum != plain.checksum
    assert data.test is not None
    assert plain.test is not None
    assert torch.equal(data.test.take(slice(None))[0], plain.test.take(slice(None))[0])
    assert torch.equal(split_of(data).take(slice(None))[0], split_of(plain).take(slice(None))[0])
    batch, again, other = (data.train.batches(8, seed) for seed in (0, 0, 1))
    found = {step: batch(step) for step in range(1, 16)}
    for step in (14, 3, 9, 1):
        assert torch.equal(found[step][0], again(step)[0]), "whoever asks, and when"
        assert torch.equal(found[step][1], plain.train.batches(8, 0)(step)[1])
        assert not torch.equal(found[step][0], other(step)[0])
    scale = split_of(data).scale
    assert scale is not None
    bytes_of = [(x * scale[1] + scale[0]).round().to(torch.uint8) for x, _ in found.values()]
    order = torch.randperm(40, generator=seeded(0, "order", 1))
    expected = CropFlip(2, True)(train_part[0][order[8:16]], seeded(0, "augment", 7))
    assert torch.equal(bytes_of[6], expected), "a border of black pixels, before they are scaled"


CHILD = """
import hashlib, sys, torch
from equipoise.lab.data import images
torch.set_num_threads(int(sys.argv[1]))
g = torch.Generator().manual_seed(0)
x = torch.randint(256, (600, 3, 32, 32), generator=g, dtype=torch.uint8)
y = torch.randint(10, (600,), generator=g, dtype=torch.uint8)
batch = images("x", (x, y), (x, y), 10, crop=4, flip=True, validation=100).train.batches(128, 0)
print(hashlib.sha256(b"".join(batch(s)[0].numpy().tobytes() for s in (1, 5, 9))).hexdigest())
"""
KNOWN = "7d7cfe4e2457268f2586cea13f0178ae361d317873ceda52f01bb975a6c69db9"


@pytest.mark.parametrize("threads", ["1", "3"])
def test_batches_are_the_same_with_any_number_of_threads_and_on_any_machine(threads: str) -> None:
    done = forked.run("-c", CHILD, threads, check=True)
    assert done.stdout.strip() == KNOWN


def test_validation_is_neither_trained_on_nor_the_test() -> None:
    (x, y), test = some(50), some(seed=1)
    data = images("x", (x, y), test, 10, validation=12)
    assert data.validation is not None
    assert data.test is not None
    sides = [{part.tobytes() for part in s.x.numpy()} for s in (split_of(data), data.validation, data.test)]
    assert [len(s) for s in sides] == [38, 12, 40]
    assert len(set.union(*sides)) == 90
    assert sides[0] | sides[1] == {part.tobytes() for part in x.numpy()}
    kept = split_of(data)
    assert kept.scale is not None
    by_hand = kept.x.double().permute(1, 0, 2, 3).flatten(1)
    assert torch.allclose(kept.scale[0].flatten().double(), by_hand.mean(1), atol=1e-5)
    again = images("x", (x, y), test, 10, validation=12)
    assert again.checksum == data.checksum != images("x", (x, y), test, 10).checksum
    with pytest.raises(ValueError, match="validation = 50: must be < 50"):
        images("x", (x, y), test, 10, validation=50)


def lines_of(split: Split | None, length: int) -> bytes:
    assert split is not None
    assert split.x.shape[1] == length
    return bytes(split.x.flatten().tolist())


def test_enwik8_is_cut_as_in_the_literature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["equipoise.lab.data.text"], "ENWIK8", 20_000)
    content = "".join(f"line {i} with é\n" for i in range(2000)).encode()[:20_000]
    (tmp_path / "enwik8").write_bytes(content)
    data = load("enwik8", path=tmp_path / "enwik8", length=10)
    parts = [lines_of(s, 10) for s in (split_of(data), data.validation, data.test)]
    ends = (0, 18_000, 19_000, 20_000)
    for part, first, last in zip(parts, ends[:-1], ends[1:], strict=True):
        assert part == content[first : last - 10], "the last sample has no next token for its last one"
    assert data.info["bytes_per_token"] == {"train": 1, "test": 1, "validation": 1}
    pairs = load("enwik8", path=tmp_path / "enwik8", length=10, tokens=300)
    assert pairs.outputs == 300
    assert pairs.info["bytes_per_token"]["validation"] > 1.5
    few = load("enwik8", path=tmp_path / "enwik8", length=10, held=300)
    assert few.validation is not None
    assert few.test is not None
    assert data.test is not None
    assert (len(few.validation), len(few.test)) == (29, 29)
    assert torch.equal(few.test.x, data.test.x[:29])
    short = load("enwik8", path=tmp_path / "enwik8", length=10, size=900)
    assert lines_of(split_of(short), 10) == content[:890]
    assert short.test is not None
    assert data.test is not None
    assert torch.equal(short.test.x, data.test.x)


def test_byte_pairs_of_large_texts_are_learnt_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.txt"
    file.write_text("to be or not to be, that is the question. " * 40 + "é")
    plain = load("text", path=file, length=8, tokens=300)
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(sys.modules["equipoise.lab.data.tokens"], "KEPT", 1000)
    first = load("text", path=file, length=8, tokens=300)
    (kept,) = (tmp_path / "data" / "tokens").iterdir()
    monkeypatch.setitem(sys.modules, "tokenizers", None)  # as if it were not installed
    again = load("text", path=file, length=8, tokens=300)
    assert plain.checksum == first.checksum == again.checksum
    assert (plain.outputs, plain.info) == (again.outputs, again.info)
    for changed in ({"tokens": 290}, {"validation": True}):
        with pytest.raises(ModuleNotFoundError, match="tokenizers is not installed"):
            load("text", path=file, **({"length": 8, "tokens": 300} | changed))
    assert list((tmp_path / "data" / "tokens").iterdir()) == [kept]


def test_text_has_three_parts_of_its_own(tmp_path: Path) -> None:
    for i in range(30):
        (tmp_path / f"{i:02}.txt").write_text(f"<{i:02}>" * 10)
    data = load("text", path=tmp_path, length=4, validation=True)
    marks = [{bytes(r.tolist()) for r in s.x} for s in (split_of(data), data.validation, data.test) if s is not None]
    numbers = [{m[1:3] for m in part if m[:1] == b"<" and m[-1:] == b">"} for part in marks]
    assert {b"08", b"18", b"28"} >= numbers[1] > set()
    assert {b"09", b"19", b"29"} >= numbers[2] > set()
    assert not numbers[0] & (numbers[1] | numbers[2])
    whole = tmp_path / "one"
    whole.mkdir()
    text = "".join(chr(65 + i % 26) + str(i) for i in range(1000))
    (whole / "a.txt").write_text(text)
    data = load("text", path=whole, length=1, validation=True)
    held = len(text) // 10
    cuts = [text[: -2 * held], text[-2 * held : -held], text[-held:]]
    for split, cut in zip((split_of(data), data.validation, data.test), cuts, strict=True):
        assert lines_of(split, 1) == cut[:-1].encode()
    assert load("text", path=whole, length=1).validation is None


def test_wikitext_is_tested_on_its_test(tmp_path: Path) -> None:
    for part in ("train", "valid", "test"):
        (tmp_path / f"wiki.{part}.tokens").write_text(f" = {part} = \n" * 30)
    data = load("wikitext", path=tmp_path, length=8)
    assert lines_of(data.test, 8).startswith(b" = test ")
    assert lines_of(data.validation, 8).startswith(b" = valid")


def test_iwslt_is_tested_on_its_tests_and_validated_on_its_dev(tmp_path: Path) -> None:
    for language in ("de", "en"):
        (tmp_path / f"train.tags.de-en.{language}").write_text("a\nb\n")
        for part in ("dev2010", "tst2011", "tst2012"):
            text = f'<seg id="1"> {part} {language} </seg>'
            (tmp_path / f"IWSLT14.TED.{part}.de-en.{language}.xml").write_text(text)
    from equipoise.lab.data import texts

    data = load("parallel", path=tmp_path)
    assert data.test is not None
    assert data.validation is not None
    assert texts(data.test.y, data.info["out"]) == ["tst2011 en", "tst2012 en"]
    assert texts(data.validation.x, data.info["in"]) == ["dev2010 de"]


def test_label_smoothing_is_in_the_loss_of_training_alone(tmp_path: Path) -> None:
    g = torch.Generator().manual_seed(0)
    scores, y = torch.randn(7, 5, generator=g), torch.tensor([0, 1, 2, 3, 4, 0, 1])
    logs = scores.double().log_softmax(1)
    wanted = torch.full((7, 5), 0.2 / 5, dtype=torch.double)
    wanted[range(7), y] += 0.8
    found = task.loss("classes", torch.nn.Identity(), scores, y, 0.2)
    assert float(found) == pytest.approx(float(-(wanted * logs).sum(1).mean()), rel=1e-6)
    trial = Trial(lr=3e-3, steps=40)
    plain, smooth = (train(one, tmp_path / one.key) for one in (trial, trial.vary({"data_options.smoothing": 0.3})))
    assert smooth.data == plain.data, "the samples are the same"
    entropy = -0.73 * math.log(0.73) - 9 * 0.03 * math.log(0.03)  # no model has a lower smoothed loss
    assert smooth.metrics["train_loss"] > entropy > smooth.metrics["test_loss"]
    assert plain.metrics["train_loss"] < entropy
    with pytest.raises(ValueError, match=r"smoothing = 0\.1: must be 0"):
        load("regression", samples=10, inputs=2, smoothing=0.1)


def test_a_trial_has_the_metrics_of_its_validation(tmp_path: Path) -> None:
    from equipoise.lab import data as lab_data

    def own(**options: Any) -> Data:
        return images("own", some(64, 8), some(seed=1, side=8), 10, **options)

    lab_data.LOADERS["own"] = own
    try:
        options = {"validation": 16, "crop": 1}
        result = train(Trial(data="own", data_options=options, steps=20, batch_size=16), tmp_path)
    finally:
        del lab_data.LOADERS["own"]
    assert {"validation_loss", "validation_accuracy", "test_loss"} <= result.metrics.keys()
    assert result.metrics["validation_loss"] != result.metrics["test_loss"]
    assert json.loads((tmp_path / "result.json").read_text())["metrics"]["validation_loss"]
