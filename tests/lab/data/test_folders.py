"""Loaders of users' own copies, on tiny files in those formats."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from equipoise.lab.data import Split, load
from equipoise.lab.data.packages import where

RANDOM = np.random.default_rng(0)


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def test_fashion(tmp_path: Path) -> None:
    x, y = RANDOM.integers(256, size=(20, 28, 28), dtype=np.uint8), RANDOM.integers(10, size=20, dtype=np.uint8)
    for name, part in (("train", slice(0, 15)), ("t10k", slice(15, 20))):
        (tmp_path / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(x[part])))
        (tmp_path / f"{name}-labels-idx1-ubyte").write_bytes(idx(y[part]))
    data = load("fashion", path=tmp_path)
    assert isinstance(data.train, Split)
    assert data.test is not None
    got, labels = data.train.take(slice(0, 15))
    expected = (x[:15].astype(np.float64) - x[:15].mean()) / x[:15].std()
    assert np.abs(got[:, 0].numpy() - expected).max() < 1e-5
    assert labels.tolist() == y[:15].tolist()
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx(y[15:])[:-1])
    with pytest.raises(ValueError, match="is no whole IDX file"):
        load("fashion", path=tmp_path)
    with pytest.raises(ValueError, match="equipoise lab data get fashion-mnist"):
        load("fashion", path=tmp_path / "none")


@pytest.mark.skipif(not where("fashion-mnist").is_dir(), reason="dataset-fashion-mnist is not installed")
def test_fashion_of_debian() -> None:
    data = load("fashion")
    assert isinstance(data.train, Split)
    assert (len(data.train), data.train.y.bincount().tolist()) == (60_000, [6000] * 10)


@pytest.mark.parametrize("classes", [10, 100])
def test_cifar(classes: int, tmp_path: Path) -> None:
    labels = 1 if classes == 10 else 2
    rows = RANDOM.integers(256, size=(12, labels + 3072), dtype=np.uint8)
    rows[:, labels - 1] %= classes
    names = ["data_batch_1.bin", "data_batch_2.bin", "test_batch.bin"] if classes == 10 else ["train.bin", "test.bin"]
    for name, part in zip(names, np.array_split(rows, len(names)), strict=True):
        (tmp_path / name).write_bytes(part.tobytes())
    data = load("cifar", path=tmp_path)
    assert isinstance(data.train, Split)
    assert data.test is not None
    assert (len(data.train), len(data.test), data.outputs) == ((8, 4, 10) if classes == 10 else (6, 6, 100))
    few = load("cifar", path=tmp_path, size=5, validation=2)
    assert isinstance(few.train, Split)
    assert len(few.train) == 3
    # A row is the label, then 1024 bytes of red, green, blue, each row by row.
    assert data.train.x[1, 2, 3, 4] == rows[1, labels + 2 * 1024 + 3 * 32 + 4]
    assert data.train.y[1] == rows[1, labels - 1]
    (tmp_path / names[-1]).write_bytes(b"12345")
    with pytest.raises(ValueError, match="has 5 bytes"):
        load("cifar", path=tmp_path)


def picture(file: Path, colour: tuple[int, int, int], size: tuple[int, int] = (40, 20)) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(file)


@pytest.mark.parametrize("tiny", [False, True], ids=["imagenet", "tiny"])
def test_folders(tiny: bool, tmp_path: Path) -> None:
    colours = {"n01": (250, 0, 0), "n02": (0, 0, 250)}
    for name, colour in colours.items():
        for i in range(3):
            picture(tmp_path / "train" / name / ("images" if tiny else "") / f"{i}.png", colour)
        picture(tmp_path / "val" / ("images" if tiny else name) / f"val_{name}.png", colour)
    if tiny:
        lines = [f"val_{name}.png\t{name}\t0\t0\t9\t9\n" for name in reversed(colours)]
        (tmp_path / "val" / "val_annotations.txt").write_text("".join(lines))
    data = load("folders", path=tmp_path, side=8, size=2)
    assert isinstance(data.train, Split)
    assert data.test is not None
    assert data.train.x.shape == (4, 3, 8, 8)
    assert data.train.y.tolist() == [0, 0, 1, 1]
    assert data.test.y.tolist() == ([1, 0] if tiny else [0, 1])
    for part in (data.train, data.test):
        for x, y in zip(part.x, part.y.tolist(), strict=True):
            assert x[:, 0, 0].tolist() == list(colours[data.info["names"][y]])
    with pytest.raises(ValueError, match="must have a folder train"):
        load("folders", path=tmp_path / "train")


def test_the_middle_of_an_image_is_taken(tmp_path: Path) -> None:
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = 200
    for part in ("train", "val"):
        (tmp_path / part / "a").mkdir(parents=True)
        Image.fromarray(wide).save(tmp_path / part / "a" / "x.png")
    data = load("folders", path=tmp_path, side=5)
    assert isinstance(data.train, Split)
    assert (data.train.x == 200).all()


def test_parallel_sentences_of_iwslt(tmp_path: Path) -> None:
    for language, lines in (("de", ["Guten Tag.", "Ja."]), ("en", ["Good day.", "Yes."])):
        text = "<url>http://example</url>\n<title>x</title>\n" + "".join(f" {line} \n" for line in lines)
        (tmp_path / f"train.tags.de-en.{language}").write_text(text)
        segments = f'<doc><seg id="1"> {lines[1]} </seg>\n<seg id="2"> {lines[0]}</seg></doc>'
        (tmp_path / f"IWSLT14.TED.tst2012.de-en.{language}.xml").write_text(segments)
    data = load("parallel", path=tmp_path)
    assert isinstance(data.train, Split)
    assert data.test is not None

    def text_of(row: torch.Tensor, symbols: list[str]) -> str:
        return "".join(symbols[i - 3] for i in row.tolist() if i > 2)

    assert [text_of(r, data.info["in"]) for r in data.train.x] == ["Guten Tag.", "Ja."]
    assert [text_of(r, data.info["out"]) for r in data.train.y] == ["Good day.", "Yes."]
    assert [text_of(r, data.info["out"]) for r in data.test.y] == ["Yes.", "Good day."]
    (tmp_path / "train.tags.de-en.en").write_text("One line.\n")
    with pytest.raises(ValueError, match="has 2 and 1 sentences"):
        load("parallel", path=tmp_path)
