"""Runs on network file systems: written on a local disk, and copied whole to where they belong, again and again.

SQLite's WAL needs locks and memory that all processes share. NFS, Lustre and mounted object stores have neither for
several machines. There, a copy in one piece takes the place of the last one, by a new name and a rename: who reads has
the old file or the new one, and needs no lock.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import sqlite3
import tempfile
import time
from pathlib import Path

from equipoise.monitor.store import schema
from equipoise.monitor.store.schema import RunError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

CHOICE = "EQUIPOISE_STORE"
"""This variable decides where it is set: "direct" writes in place, "copy" copies."""

LOCAL = "EQUIPOISE_LOCAL"
"""This variable names the directory for runs that are copied. Default: that of temporary files."""

REMOTE = re.compile(
    r"nfs\d?|lustre|cifs|smb\d?|smbfs|afs|ceph|gpfs|mmfs|beegfs|glusterfs|panfs|wekafs|pvfs2|orangefs"
    r"|fuse\.(?!fuse-overlayfs|portal|gvfsd-fuse).*"
)
"""File systems that other machines may write, as Linux calls them. `fuseblk` is a local disk; what a virtual machine
shares with its host (9p, virtiofs) is written by one machine."""

EVERY, SHARE = 10.0, 0.05
"""Seconds between copies, and the share of time that they may take."""

OWNER = "run.owner"
"""Says who writes; made by a call that fails where it is there already."""

SILENT = 600.0
"""Seconds without a sign of life after which another machine's writer is taken to be gone."""


def needs_copy(directory: Path) -> bool:
    """Whether SQLite may not write in a directory: it is on a network, or a lock on a file in it fails.

    Raises:
        RunError: the variable that decides says neither.
    """
    said = os.environ.get(CHOICE, "")
    if said:
        if said not in ("direct", "copy"):
            raise RunError(f"{CHOICE} = {said!r}: must be direct or copy")
        return said == "copy"
    return REMOTE.fullmatch(file_system(directory)) is not None or not _locks(directory)


def file_system(path: Path) -> str:
    """The type of file system that a path is on; empty where it cannot be told."""
    try:
        lines = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape").splitlines()
        here = os.fspath(path.resolve())
    except OSError:
        return ""
    best, found = -1, ""
    for line in lines:  # id, parent, device, root, mount point, options, …, "-", type, …
        about, dash, more = line.partition(" - ")
        words = about.split()
        if not dash or len(words) < 5:
            continue
        point = re.sub(r"\\(\d{3})", lambda m: chr(int(m[1], 8)), words[4])
        inside = here == point or here.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:  # of two on one point, the later is on top
            best, found = len(point), more.split()[0]
    return found


def _locks(directory: Path) -> bool:
    """Whether a file in a directory can be locked: a new one, so that nobody else has."""
    if fcntl is None:
        return True
    try:
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".lock-") as file:
            fcntl.lockf(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.filename is not None  # it is no file that can be made: not the locks' fault
    return True


class Copies:
    """The local directory of a run, and its copies.

    Args:
        directory: where the run belongs.

    Raises:
        RunError: somebody else writes it.
        OSError: there is no local disk, or the directory cannot be written.
    """

    def __init__(self, directory: Path) -> None:
        self._home, self._wait, self._last = directory, EVERY, -EVERY
        self._kept = True  # what a killed process left here is kept
        self._own()
        name = hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()[:16]
        user = os.getuid() if hasattr(os, "getuid") else 0
        self.local = Path(os.environ.get(LOCAL) or tempfile.gettempdir()) / f"equipoise-run-{user}-{name}"
        try:
            self.local.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self.local.is_symlink() or self.local.stat().st_uid != user:
                raise RunError(f"{self.local}: belongs to somebody else; set {LOCAL} to a directory of your own")
            if not _locks(self.local):
                raise OSError(f"{self.local}: files cannot be locked there; set {LOCAL} to a directory on a local disk")
            self._take_in()
        except BaseException:
            self._disown()
            raise

    def _take_in(self) -> None:
        """Begin with the run as it is there; with what a killed process left here, if that is the same run and more."""
        there, here = self._home / schema.FILE, self.local / schema.FILE
        if there.exists() and _began(here) == _began(there) and _extent(here) >= _extent(there):
            return
        self._kept = False
        for part in (schema.FILE, f"{schema.FILE}-wal", f"{schema.FILE}-shm"):
            (self.local / part).unlink(missing_ok=True)
        if there.exists():
            shutil.copyfile(there, here)

    def due(self) -> bool:
        """Whether it is time for another copy."""
        return time.monotonic() - self._last >= self._wait

    @property
    def ahead(self) -> float:
        """Seconds until the next copy comes: what a sign of life must last for."""
        return self._wait

    def publish(self, db: sqlite3.Connection) -> None:
        """Put a whole copy in the place of the last one.

        Args:
            db: the local run.
        """
        began = time.monotonic()
        whole = self.local / "whole.sqlite"
        whole.unlink(missing_ok=True)
        copy = sqlite3.connect(whole, isolation_level=None)
        try:
            db.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")  # its header says that there is nothing beside the file
        finally:
            copy.close()
        part = self._home / f".{schema.FILE}.{os.getpid()}"
        try:
            with whole.open("rb") as source, part.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
                target.flush()
                os.fsync(target.fileno())
            os.replace(part, self._home / schema.FILE)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink()
            raise
        finally:
            self._last = time.monotonic()
            self._wait = max(EVERY, (self._last - began) / SHARE)
            whole.unlink(missing_ok=True)
        os.utime(self._home / OWNER)

    def close(self, whole: bool) -> None:
        """Let go of the run.

        Args:
            whole: everything was copied, so that nothing need stay here.
        """
        if whole or (not self._kept and self._last < 0):
            shutil.rmtree(self.local, ignore_errors=True)
        self._disown()

    def _own(self) -> None:
        """Make the file that says who writes, or refuse."""
        said = json.dumps({"host": schema.host(), "pid": os.getpid()})
        file = self._home / OWNER
        for last in (False, True):
            try:
                with file.open("x") as made:
                    made.write(said)
                return
            except FileExistsError:
                if last or not _gone(file):
                    raise RunError(
                        f"{self._home}: is being written{_whom(file)}; close that writer, choose another directory, or "
                        f"remove {OWNER} if it has ended"
                    ) from None
            with contextlib.suppress(FileNotFoundError):
                file.unlink()

    def _disown(self) -> None:
        with contextlib.suppress(OSError):
            (self._home / OWNER).unlink()


def _said(file: Path) -> tuple[str, int] | None:
    try:
        said = json.loads(file.read_text())
        return str(said["host"]), int(said["pid"])
    except (OSError, ValueError, TypeError, LookupError):
        return None


def _gone(file: Path) -> bool:
    """Whether the writer that a file names has ended, as far as can be told from here."""
    said = _said(file)
    alive = None if said is None else schema.alive(*said)
    if alive is not None:
        return not alive
    try:
        return time.time() - file.stat().st_mtime > SILENT
    except FileNotFoundError:
        return True


def _whom(file: Path) -> str:
    said = _said(file)
    return "" if said is None else f" by process {said[1]} on {said[0].partition('/')[0]}"


def _ask(file: Path, question: str) -> tuple[object, ...]:
    """A line of a run's file; nothing where there is none."""
    if not file.is_file():
        return ()
    how = "mode=ro" if file.with_name(f"{schema.FILE}-wal").exists() else "immutable=1"
    try:
        schema.check_plain(file)
        with contextlib.closing(sqlite3.connect(f"{file.absolute().as_uri()}?{how}", uri=True)) as db:
            return db.execute(question).fetchone()
    except sqlite3.Error:
        return ()


def _extent(file: Path) -> tuple[int, ...]:
    """Sessions and rows of a run: a later one has more."""
    found = _ask(file, "SELECT (SELECT max(life) FROM lives), (SELECT max(id) FROM rows)")
    return tuple(n if isinstance(n, int) else 0 for n in found)


def _began(file: Path) -> object:
    found = _ask(file, "SELECT started FROM lives ORDER BY life LIMIT 1")
    return found[0] if found else None
