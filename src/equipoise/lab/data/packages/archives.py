"""Files inside of packages: those of npm and PyPI are tar archives, those of Debian have one inside an ar archive."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

Members = Iterator[tuple[str, IO[bytes]]]
"""Path inside the archive, and its content; to be read before the next one."""

AR, HEADER = b"!<arch>\n", 60


@contextmanager
def members(archive: Path) -> Iterator[Members]:
    """The plain files of a .tgz, .tar.gz or .deb, one after the other."""
    try:
        with (
            archive.open("rb") as file,
            _stream(archive, file) as stream,
            tarfile.open(fileobj=stream, mode="r|") as tar,
        ):
            yield _files(tar)
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, lzma.LZMAError) as error:
        raise ValueError(f"{archive} is no whole archive ({error}): remove it and get it again") from None


def _files(tar: tarfile.TarFile) -> Members:
    for member in tar:
        if member.isfile() and (content := tar.extractfile(member)) is not None:
            yield member.name.removeprefix("./"), content


def _stream(archive: Path, file: IO[bytes]) -> IO[bytes]:
    """The tar archive, unpacked; that of a Debian package is the member data.tar of its ar archive."""
    if archive.suffix != ".deb":
        return cast(IO[bytes], gzip.GzipFile(fileobj=file))
    if file.read(len(AR)) != AR:
        raise ValueError(f"{archive} is no Debian package: remove it and get it again")
    while len(header := file.read(HEADER)) == HEADER:
        name, size = header[:16].decode("ascii", "replace").strip().rstrip("/"), int(header[48:58])
        if not name.startswith("data.tar"):
            file.seek(size + size % 2, io.SEEK_CUR)
            continue
        openers = {".xz": lzma.open, ".gz": gzip.open, ".bz2": bz2.open, ".tar": lambda plain: plain}
        ending = Path(name).suffix
        if ending not in openers:
            raise ValueError(f"{archive} is packed as {ending}: must be one of {', '.join(openers)}")
        return openers[ending](io.BytesIO(file.read(size)))
    raise EOFError("it ends before its files")
