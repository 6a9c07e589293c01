"""Read back what W&B wrote offline: a log of records in LevelDB's format, each one of W&B's own messages."""

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK = 32768
HEADER = struct.Struct("<IHB")


def records(folder: Path, patience: float = 300.0) -> list[Any]:
    """Every record of the one offline run in a folder that `wandb.init(dir=...)` was given.

    `finish()` returns before W&B's own process has written all; the record of the end is the last.
    """
    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    end = time.monotonic() + patience
    while time.monotonic() < end:
        found = list(_records(path.read_bytes()))
        if any(r.WhichOneof("record_type") == "exit" for r in found):
            return found
        time.sleep(0.05)
    raise TimeoutError(f"{path} has no end")


def _records(data: bytes) -> Iterator[Any]:
    from wandb.proto import wandb_internal_pb2

    at, whole = HEADER.size, b""
    while at + HEADER.size <= len(data):
        if BLOCK - at % BLOCK < HEADER.size:  # a header never crosses a block
            at += BLOCK - at % BLOCK
            continue
        _, size, kind = HEADER.unpack_from(data, at)
        if at + HEADER.size + size > len(data):
            return  # still being written
        whole += data[at + HEADER.size : at + HEADER.size + size]
        at += HEADER.size + size
        if kind in (1, 4):  # all of a record, or its last part
            yield wandb_internal_pb2.Record.FromString(whole)  # type: ignore[attr-defined]
            whole = b""


def history(folder: Path) -> dict[int, dict[str, Any]]:
    """What was logged, by W&B's step; a step twice is an error."""
    out: dict[int, dict[str, Any]] = {}
    for record in records(folder):
        if record.WhichOneof("record_type") == "history":
            row = {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
            assert row["_step"] not in out
            out[row["_step"]] = row
    return out


def summary(folder: Path) -> dict[str, Any]:
    """The last word of the summary, by name."""
    out = {}
    for record in records(folder):
        if record.WhichOneof("record_type") == "summary":
            out |= {"/".join(u.nested_key) or u.key: json.loads(u.value_json) for u in record.summary.update}
    return out
