"""Numbers without measure and names of any letters, as words of commands: an answer, or one line that says why not.

More cases: EQUIPOISE_DRILLS=50 pytest tests/fuzz/test_commands.py, as for the optimizers.
"""

import json
import re
from typing import Any

import hypothesis.strategies as st
from hypothesis import given
from tests.fuzz.draw import cases
from tests.fuzz.test_files import command, said_in_a_line

EXTREME = [
    "0", "-0.0", "-1", "1e-320", "1e-300", "1e-155", "1e-30", "1e-8", "3e-4", "0.1", "0.999999999999", "1", "1.5", "30",
    "1e9", "1e30", "1e100", "1e155", "1e300", "1e308", "nan", "inf", "x",
]  # fmt: skip
COUNTS = ["0", "-1", "1", "2", "17", "300", "2e3", "1.5", "1e18", "1e19", "1e300", "inf", "x"]
STEPS = ["0", "-1", "1", "2", "3", "17", "2e3", "1.5", "nan"]
SHAPES = ["64x64", "1x1", "1", "0x3", "3x0", "-2x3", "1e9x1e9", "x", "2x3x4x5", "99999999999x99999999999"]
OPTIMIZERS = ["adamw", "adam", "adam_l2", "sgdm", "lion", "muon", "signsgdm", "rmsprop", "adam_nested", "ngd", "x"]
SCHEDULES = ["constant", "cosine", "linear", "wsd", "inverse_sqrt", "exponential", "polynomial", "one_cycle",
             "equal_memory", "step", "x"]  # fmt: skip
MORE = ["power=3", "power=1e300", "power=-1", "period=0", "period=100", "milestones=1,2", "milestones=", "tail=1-sqrt",
        "final=inf", "decay=1e-300", "x=1", "=", "", "gamma=0"]  # fmt: skip

number, count = st.sampled_from(EXTREME), st.sampled_from(COUNTS)
flag = st.just(None)
SETTING: dict[str, st.SearchStrategy[Any]] = {
    "--optimizer": st.sampled_from(OPTIMIZERS),
    "--lr": number,
    "--wd": number,
    "--beta1": number,
    "--beta2": number,
    "--nesterov": flag,
    "--decay": st.sampled_from(["lr", "independent", "corrected", "cautious", "x"]),
    "--lr-max": number,
    "--timescale": number,
    "--schedule": st.sampled_from(SCHEDULES),
    "--schedule-option": st.sampled_from(MORE),
    "--warmup": count,
    "--final": number,
    "--batch-size": count,
    "--dataset-size": count,
    "--tokens-per-sample": count,
    "--parameters": count,
    "--shape": st.sampled_from(SHAPES),
    "--init-rms": number,
    "--finetune": flag,
}


@st.composite
def words(draw: Any) -> list[str]:
    """`plan` with a few options that are out of the way, and the others as people have them."""
    options = {"--lr": "3e-4", "--wd": "0.1", "--steps": "300"}
    for name in draw(st.lists(st.sampled_from([*SETTING, "--steps"]), min_size=1, max_size=3, unique=True)):
        options[name] = draw(st.sampled_from(STEPS) if name == "--steps" else SETTING[name])
    if "--timescale" in options:
        del options["--wd"]
    told = [f"{name}={value}" if value is not None else name for name, value in options.items()]
    return ["plan", *told, *draw(st.sampled_from([[], [], ["--json"], ["--toml"]]))]


def refused(name: str) -> None:
    raise AssertionError(f"{name} is no number of JSON")


def test_plans_of_extreme_numbers() -> None:
    codes: list[int] = []

    @cases(80)
    @given(line=words())
    def fuzz(line: list[str]) -> None:
        code, out, err = command(*line)
        said_in_a_line(code, err)
        codes.append(code)
        if code == 0 and "--json" in line:
            json.loads(out, parse_constant=refused)
        elif code == 0 and "--toml" not in line:
            assert not re.search(r"\b(nan|inf)\b", out.replace("--", "")), out

    fuzz()
    assert 0.2 < codes.count(0) / len(codes) < 0.9
