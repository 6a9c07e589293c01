"""What is seen while a forward pass runs: hooks on modules, and the torch functions that they call.

A function mode sees what is not a module: `functional.gelu`, `scaled_dot_product_attention`, the `topk` of a router.
Nothing that is computed here is in the graph of the backward pass, nothing uses random numbers, and no tensor of the
model is written to.
"""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import _python_dispatch

from equipoise.monitor.forward import formulas
from equipoise.monitor.forward.places import Places, tensor_in
from equipoise.monitor.forward.quantities import (
    DEAD,
    ENTROPY,
    LOAD,
    LOGIT,
    OUTPUT_MAX,
    OUTPUT_RMS,
    SATURATED,
    WRITTEN,
)
from equipoise.monitor.store.layout import Column

CONVOLUTIONS = (functional.conv1d, functional.conv2d, functional.conv3d)
CHANNELS = frozenset((*CONVOLUTIONS, functional.batch_norm, functional.group_norm))
"""Functions whose units are the second dimension."""

WEIGHTED = frozenset((functional.linear, *CONVOLUTIONS))
WITH_WEIGHTS = CHANNELS | WEIGHTED | {functional.layer_norm, functional.rms_norm}
DYING = (
    functional.relu, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_, functional.gelu, functional.silu,
    functional.mish, functional.relu6, functional.hardswish,
)  # fmt: skip
ENDS = {
    functional.tanh: (-1.0, 1.0), torch.tanh: (-1.0, 1.0), Tensor.tanh: (-1.0, 1.0), Tensor.tanh_: (-1.0, 1.0),
    functional.sigmoid: (0.0, 1.0), torch.sigmoid: (0.0, 1.0), Tensor.sigmoid: (0.0, 1.0),
    functional.hardtanh: (-1.0, 1.0), functional.softsign: (-1.0, 1.0),
}  # fmt: skip
SOFTMAX = (functional.softmax, torch.softmax, Tensor.softmax)
PICKS = (torch.topk, Tensor.topk, torch.argmax, Tensor.argmax)

MHA = functional.multi_head_attention_forward
SIGNATURE = inspect.signature(MHA)


class Observer(TorchFunctionMode):
    """Looks at one forward pass, from `__enter__` to `__exit__`.

    Args:
        places: the modules.
        weights: names of parameters by their id.
    """

    def __init__(self, places: Places, weights: dict[int, str]) -> None:
        super().__init__()
        self._places, self._weights = places, weights
        self.error: Exception | None = None
        """What went wrong; nothing more is looked at then."""
        self.seconds = 0.0
        """What looking took."""
        self.found: list[tuple[list[Column], Tensor]] = []
        """Columns, and a tensor with as many numbers."""
        self._known: set[tuple[str, str]] = set()
        self._handles: list[Any] = []
        self._stack: list[nn.Module] = []
        self._last_weight: tuple[str, int] | None = None
        self._units = -1
        self._handlers: dict[Any, Callable[..., None]] = {functional.scaled_dot_product_attention: self._attention}
        self._handlers |= dict.fromkeys(DYING, self._activation)
        self._handlers |= dict.fromkeys(ENDS, self._bounded) | dict.fromkeys(SOFTMAX, self._softmax)
        self._handlers |= dict.fromkeys(PICKS, self._routing) | {MHA: self._multi_head}

    def __enter__(self) -> Observer:
        root, *others = dict.fromkeys((*self._places.names, *self._places.blocks))
        self._stack = [root]
        for module in others:  # the model itself is running
            self._handles += [
                module.register_forward_pre_hook(self._enter),
                module.register_forward_hook(self._leave, with_kwargs=True, always_call=True),
            ]
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for handle in self._handles:
            handle.remove()

    # What runs

    def _enter(self, module: nn.Module, args: Any) -> None:
        if not torch.compiler.is_compiling():
            self._stack.append(module)

    def _leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        while self._stack and self._stack.pop() is not module:  # those that something raised in
            pass
        name = self._places.blocks.get(module)
        if name is not None and output is not None:
            self._look(self._block, module, name, args or kwargs, output)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch, and look at what it did."""
        result = func(*args, **(kwargs or {}))
        handler = self._layer if func in WITH_WEIGHTS else self._handlers.get(func)
        if handler is None or torch.compiler.is_compiling():
            return result
        given = dict(kwargs or {})
        if "input" in given:
            args = (given.pop("input"),)
        if func in WITH_WEIGHTS:
            self._layer(func, *args, **given)
        else:
            self._look(handler, func, result, *args, **given)
        return result

    def _look(self, look: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        if self.error is not None:
            return
        start = time.perf_counter()
        try:
            with aside():
                look(*args, **kwargs)
        except Exception as error:
            self.error = error
        self.seconds += time.perf_counter() - start

    # What is measured

    def _add(self, quantity: str, place: str, value: Tensor, parts: Tensor | None = None) -> None:
        """Keep a number of a module, and those of its heads or experts; the first in a pass counts."""
        if (quantity, place) in self._known:
            return
        self._known.add((quantity, place))
        columns, numbers = [Column(quantity, place)], value.reshape(1)
        if parts is not None:
            columns += [Column(quantity, place, neuron=i) for i in range(len(parts))]
            numbers = torch.cat([numbers, parts])
        self.found.append((columns, numbers.float()))

    def _block(self, module: nn.Module, name: str, given: Any, output: Any) -> None:
        y, x = tensor_in(output), tensor_in(given)
        if not _plain(y):
            return
        rms, largest = formulas.rms_and_largest(y)
        self._add(OUTPUT_RMS, name, rms)
        self._add(OUTPUT_MAX, name, largest)
        if module in self._places.names and _plain(x) and x.shape == y.shape:
            self._add(WRITTEN, name, formulas.rms(y - x))

    @property
    def _here(self) -> str:
        """The name of the innermost module that runs and has modules inside."""
        return next((self._places.names[m] for m in reversed(self._stack) if m in self._places.names), "")

    def _layer(self, func: Any, x: Any = None, *args: Any, **kwargs: Any) -> None:
        """A layer with weights: the next activation has its units."""
        self._units = 1 if func in CHANNELS else -1
        if func in WEIGHTED:
            weight = args[0] if args else kwargs.get("weight")
            name = self._weights.get(id(weight))
            self._last_weight = None if name is None or weight is None else (name, int(weight.shape[0]))

    def _unit_place(self, y: Tensor) -> tuple[str, int]:
        """The name of an activation (that of the weights whose neurons they are, if so), and the units' dimension."""
        units = self._units if y.ndim > 2 else -1
        if self._last_weight is not None and self._last_weight[1] % y.shape[units] == 0:
            return self._last_weight[0], units
        return self._here, units

    def _activation(self, func: Any, y: Any, *args: Any, **kwargs: Any) -> None:
        if _plain(y) and y.ndim > 1:
            place, units = self._unit_place(y)
            self._add(DEAD, place, formulas.dead_share(y, units))

    def _bounded(self, func: Any, y: Any, *args: Any, **kwargs: Any) -> None:
        if _plain(y) and y.ndim > 1:
            place, units = self._unit_place(y)
            self._add(SATURATED, place, formulas.saturated_share(y, units, *ENDS[func]))

    def _attention(
        self, func: Any, y: Any, query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> None:  # fmt: skip
        if not (_plain(query) and _plain(key)) or query.ndim != 4 or (LOGIT, self._here) in self._known:
            return
        self._heads(*formulas.attention_of(query, key, mask=attn_mask, causal=is_causal, scale=scale))

    def _heads(self, largest: Tensor, entropy: Tensor) -> None:
        self._add(LOGIT, self._here, largest.max(), largest)
        self._add(ENTROPY, self._here, entropy.mean(), entropy)

    def _softmax(self, func: Any, y: Any, x: Any, dim: Any = None, *args: Any, **kwargs: Any) -> None:
        """Attention that is written out: a softmax over the last of four dimensions."""
        if _plain(x) and x.ndim == 4 and dim in (-1, 3) and (LOGIT, self._here) not in self._known:
            samples, queries = formulas.looked_at(*x.shape)
            self._heads(*formulas.attention_logits(formulas.spread(x[:samples], queries)))

    def _multi_head(self, func: Any, result: Any, *args: Any, **kwargs: Any) -> None:
        """`nn.MultiheadAttention`: queries and keys are computed once more, as its inside is not seen."""
        given = SIGNATURE.bind(*args, **kwargs)
        given.apply_defaults()
        a = given.arguments
        query, key, heads, place = a["query"], a["key"], a["num_heads"], self._here
        unusual = a["bias_k"] is not None or a["static_k"] is not None or a["add_zero_attn"]
        if not (_plain(query) and _plain(key)) or query.ndim != 3 or unusual or (LOGIT, place) in self._known:
            return
        samples, _ = formulas.looked_at(query.shape[1], heads, len(query), len(key))
        width, bias = query.shape[-1], a["in_proj_bias"]
        if a["use_separate_proj_weight"]:
            weights = a["q_proj_weight"], a["k_proj_weight"]
        else:
            weights = a["in_proj_weight"][:width], a["in_proj_weight"][width : 2 * width]
        biases = (None, None) if bias is None else (bias[:width], bias[width : 2 * width])

        def split(x: Tensor, i: int) -> Tensor:
            own = biases[i]
            y = functional.linear(x[:, :samples].float(), weights[i].float(), None if own is None else own.float())
            return y.reshape(len(x), samples, heads, -1).permute(1, 2, 0, 3)

        q, k = split(query, 0), split(key, 1)
        bias = torch.zeros(samples, heads, len(query), len(key), device=q.device)
        mask, hidden = a["attn_mask"], a["key_padding_mask"]
        if mask is not None:
            if mask.ndim == 3:
                mask = mask.view(-1, heads, *mask.shape[1:])[:samples]
            bias = bias.masked_fill(mask, -torch.inf) if mask.dtype == torch.bool else bias + mask
        if hidden is not None:
            hidden = hidden[:samples, None, None]
            bias = bias.masked_fill(hidden, -torch.inf) if hidden.dtype == torch.bool else bias + hidden
        self._heads(*formulas.attention_of(q, k, mask=bias))

    def _routing(self, func: Any, result: Any, x: Any, *args: Any, **kwargs: Any) -> None:
        """A router's choice: among as many as the module, or one around it, has experts."""
        if not _plain(x) or x.ndim < 2:
            return
        for module in reversed(self._stack[-3:]):
            if self._places.experts.get(module) == x.shape[-1]:
                chosen = result if isinstance(result, Tensor) else result[1]
                if chosen.shape[:-1] == x.shape[:-1] or chosen.shape == x.shape[:-1]:
                    load = formulas.loads(chosen, x.shape[-1])
                    self._add(LOAD, self._places.names[module], load.max(), load)
                return


def _plain(x: Any) -> TypeGuard[Tensor]:
    """Whether a tensor is one of numbers that are all here."""
    return type(x) in (Tensor, nn.Parameter) and x.is_floating_point() and x.numel() > 0


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """Compute without a trace: no graph, no autocast, no function of torch overridden, no mode that records calls."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch._C.DisableTorchFunction())
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        if _python_dispatch._get_current_dispatch_mode() is not None:
            stack.enter_context(_python_dispatch._disable_current_modes())
        yield
