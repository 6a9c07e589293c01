"""Counts the bytes of storages that are alive, on any device: also of meta tensors, which take none."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """While it is on, `now` is the bytes of all storages made under it and not freed yet, and `peak` their most."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {_key(x) for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, torch.Tensor) and _key(x) not in given | self._known:
                self._take(x)
        return out

    def _take(self, x: torch.Tensor) -> None:
        storage = x.untyped_storage()
        key, size = _key(x), storage.nbytes()
        self._known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


class NoSync(TorchDispatchMode):
    """Refuses what would make a host wait for its device: a number read, a count of entries, a copy between them."""

    REFUSED = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "unique")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in self.REFUSED, f"{name}: the host waits for the device"
        return func(*args, **(kwargs or {}))


def _key(x: torch.Tensor) -> int:
    return x.untyped_storage()._cdata
