"""Short names leave out what layers share, and never what tells them apart."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.monitor.runs.short_names import ELLIPSIS, short_names

PART = st.sampled_from(["transformer", "h", "0", "1", "10", "attn", "mlp", "weight", "bias", "up", "down", "", "…"])
MODEL = st.lists(st.lists(PART, min_size=1, max_size=6).map(".".join), max_size=20, unique=True)
ANY = st.lists(st.text(alphabet="ab.…1", max_size=12), max_size=12, unique=True)


@given(MODEL | ANY, st.none() | st.integers(1, 20))
def test_different_layers_have_different_short_names(names: list[str], width: int | None) -> None:
    short = short_names(names, width)
    assert list(short) == names
    assert len(set(short.values())) == len(names)


@given(MODEL, st.none() | st.integers(1, 20))
def test_what_is_left_stands_in_the_name(names: list[str], width: int | None) -> None:
    for name, short in short_names(names, width).items():
        assert name == "" or short != ""
        assert len(short) <= len(name)
        at = 0
        for piece in short.replace(f".{ELLIPSIS}.", ELLIPSIS).split(ELLIPSIS):  # in the same order
            at = name.index(piece, at) + len(piece)


@given(MODEL.filter(lambda names: not any(ELLIPSIS in n for n in names)), st.integers(1, 20))
def test_a_middle_that_tells_layers_apart_stays(names: list[str], width: int) -> None:
    whole, fitted = short_names(names), short_names(names, width)
    for name in names:
        if fitted[name] == whole[name]:
            continue
        parts, others = fitted[name].split("."), [n for n in whole.values() if n != whole[name]]
        assert len(fitted[name]) <= width
        if ELLIPSIS in parts:
            at, after = parts.index(ELLIPSIS), len(parts) - parts.index(ELLIPSIS) - 1
            cuts = [(p[:at], p[-after:]) for o in others if len(p := o.split(".")) >= at + after]
            assert (parts[:at], parts[-after:]) not in cuts
        else:
            head, tail = fitted[name].split(ELLIPSIS)
            assert not any(o.startswith(head) and o.endswith(tail) for o in others)


GPT = [f"transformer.h.{i}.{part}.weight" for i in range(12) for part in ("attn.c_attn", "attn.c_proj", "mlp.c_fc")]
LLAMA = [f"model.layers.{i}.{part}.weight" for i in range(3) for part in ("self_attn.q_proj", "input_layernorm")]


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        ([*GPT, "transformer.wte.weight", "lm_head.weight"], {GPT[0]: "0.attn.c_attn", "lm_head.weight": "lm_head"}),
        (
            [*LLAMA, "model.norm.weight", "lm_head.weight"],
            {LLAMA[0]: "0.self_attn.q_proj", "model.norm.weight": "norm"},
        ),
        ([*GPT, *(n.replace("weight", "bias") for n in GPT)], {GPT[0]: "0.attn.c_attn"}),
        (["a.0.up.weight", "a.0.down.weight"], {"a.0.up.weight": "up"}),
        (["encoder.0.up", "decoder.0.up"], {"encoder.0.up": "encoder", "decoder.0.up": "decoder"}),
        (["encoder.0.up", "decoder.0.up", "decoder.0.down"], {"decoder.0.up": "decoder.0.up"}),
        (["0.weight", "1.weight"], {"0.weight": "0"}),
        (["0.weight", "0.bias", "1.weight"], {"0.weight": "0", "0.bias": "0.bias"}),
        (["only.weight"], {"only.weight": "only.weight"}),
        ([], {}),
    ],
)
def test_short_names_of_known_models(names: Sequence[str], wanted: dict[str, str]) -> None:
    found = short_names(names)
    assert {name: found[name] for name in wanted} == wanted


def test_a_name_that_is_too_long_keeps_both_ends() -> None:
    names = [f"{i}.block_sparse_moe.experts.{kind}" for i in range(2) for kind in ("gate_proj", "up_proj")]
    assert short_names(names, 16) == {n: f"{n[0]}.….{n.split('.')[-1]}" for n in names}
    apart = [f"{i}.{side}.attention.{end}" for i in (0, 1) for side in ("encoder", "decoder") for end in ("qkv", "out")]
    assert list(short_names(apart, 15).values()) == [f"{n[:9]}.….{n[-3:]}" for n in apart]
    assert short_names(["x" * 40, "y" * 40], 11)["x" * 40] == "xxxx…xxxxxx"
    alike = ["x" * 40, "x" * 41]
    assert short_names(alike, 11) == {n: n for n in alike}
