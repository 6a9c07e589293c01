"""Fetch data: package → its file → the data's own files, checked, and put in place in one move."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from equipoise import _check
from equipoise._extras import require
from equipoise.lab.data.packages import clients
from equipoise.lab.data.packages.archives import members
from equipoise.lab.data.packages.catalogue import PACKAGES, Package
from equipoise.lab.data.packages.places import data_folder
from equipoise.monitor.store.schema import lock

ABOUT = "ABOUT.json"
"""Where data came from, with the SHA-256 of each of its files."""

Report = Callable[[str, int, int], None]
"""What is being done, how many bytes of it are done, and of how many."""


def get(name: str | Package, to: str | os.PathLike[str] | None = None, report: Report | None = None) -> Path:
    """Fetch data by its name, unless it is there; the folder that it is in.

    What an interrupted call has fetched whole is used by the next one. The folder appears when all of it is there.

    Args:
        name: one of `PACKAGES`, or a package of one's own.
        to: the data folder. Default: `data_folder()`.
        report: is told how far it is.
    """
    package = name if isinstance(name, Package) else PACKAGES[_check.choice("name", name, PACKAGES)]
    root = data_folder() if to is None else Path(to).expanduser()
    final, work = root / package.name, root / f".{package.name}"
    if final.is_dir():
        return final
    if package.module is not None:
        require(package.module, "lab")  # before anything is fetched, not after
    work.mkdir(parents=True, exist_ok=True)
    held = lock(work)
    if held is None:
        raise ValueError(f"{package.name} is being fetched by another process into {root}: wait for it")
    try:
        if not final.is_dir():
            _get(package, work, final, report or (lambda *_: None))
    finally:
        held.close()
    shutil.rmtree(work, ignore_errors=True)
    return final


def digest(sums: dict[str, str]) -> str:
    """SHA-256 of many files, from the path and the SHA-256 of each."""
    return hashlib.sha256("".join(f"{sums[path]}  {path}\n" for path in sorted(sums)).encode()).hexdigest()


def _get(package: Package, work: Path, final: Path, report: Report) -> None:
    free, wanted = shutil.disk_usage(work).free, package.size + package.unpacked
    if free < wanted:
        raise ValueError(f"{final.parent} has {free / 1e6:.0f} MB free: {package.name} needs {wanted / 1e6:.0f} MB")
    archive = _archive(package, work, report)
    version = clients.version_of(package, archive)
    part = work / "files"
    shutil.rmtree(part, ignore_errors=True)  # of a conversion that was interrupted
    part.mkdir()
    sums, done = dict[str, str](), 0
    with members(archive) as files:
        for path, content in package.convert(files):
            place = part / path
            if not place.resolve().is_relative_to(part.resolve()):
                raise ValueError(f"{archive} has a file {path!r}, outside of its folder")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
            sums[path] = hashlib.sha256(content).hexdigest()
            done += len(content)
            report("unpacking", done, max(done, package.unpacked))
    known = package.contents.get(version)
    if not sums or (known is not None and digest(sums) != known):
        archive.unlink()
        raise ValueError(f"{package.name} {version} has not the files that it should have: get it again")
    about = {
        "name": package.name, "about": package.about, "licence": package.licence, "client": package.client,
        "package": package.package, "version": version, "checked": known is not None, "sha256": digest(sums),
        "files": sums,
    }  # fmt: skip
    (part / ABOUT).write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    part.replace(final)


def _archive(package: Package, work: Path, report: Report) -> Path:
    """The package's file, whole: the one that is there already, or a fetched one."""
    folder, scratch = work / "package", work / "scratch"
    wanted = clients.expected_file(package)
    found = clients.archive_in(package, folder)
    if found is not None and wanted.sha256 is not None and _sha256(found) == wanted.sha256:
        return found
    for old in (folder, scratch):  # half a file, or another version
        shutil.rmtree(old, ignore_errors=True)
        old.mkdir()
    found = clients.fetch(
        package, folder, scratch, lambda size: report("fetching", min(size, wanted.size), wanted.size)
    )
    shutil.rmtree(scratch, ignore_errors=True)
    if wanted.sha256 is not None and (got := _sha256(found)) != wanted.sha256:
        found.unlink()
        raise ValueError(f"{found.name} has SHA-256 {got}: must be {wanted.sha256}; get it again")
    return found


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
