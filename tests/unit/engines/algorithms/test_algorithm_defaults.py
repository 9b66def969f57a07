"""The vetted defaults, the presets in one line each, and the bounds of every knob.

A default that moves by accident trains worse and says nothing: so they are written down twice.
"""

from __future__ import annotations

from typing import Any, get_args

import pytest
from pydantic import TypeAdapter, ValidationError

from engines.algorithms.advantages import Advantage
from engines.algorithms.aggregation import Aggregation
from engines.algorithms.combinations import describe, refusals
from engines.algorithms.corrections import Correction, Rejection, Weight
from engines.algorithms.losses import Kl, Loss, Overlong
from engines.algorithms.spec import Algorithm, Keep

pytestmark = pytest.mark.unit

UNIONS = (Advantage, Loss, Rejection, Aggregation)
DEFAULTS: dict[str, dict[str, Any]] = {
    "group": {"std": True, "whiten": False},
    "rloo": {"whiten": False},
    "reinforce++": {"gamma": 1.0, "whiten": True},
    "reinforce++-baseline": {"whiten": True},
    "gae": {
        "gamma": 1.0,
        "lam": 0.95,
        "critic_lam": 1.0,
        "alpha": None,
        "skip_observations": True,
        "whiten": True,
    },
    "distillation": {"clip": 5.0, "whiten": False},
    "clip": {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": None},
    "gspo": {"clip_low": 3e-4, "clip_high": 4e-4},
    "cispo": {"clip_low": 1.0, "clip_high": 4.0},
    "dis": {"clip_low": 0.3, "clip_high": 5.0},
    "reinforce": {},
    "divergence": {"direction": "reverse", "top_k": 64},
    "ratio": {"level": "token", "low": 0.5, "high": 2.0},
    "veto": {"floor": 1e-4},
    "opsm": {"delta": 1e-4},
    "token_mean": {},
    "sequence_mean": {},
    "rollout_mean": {},
    "constant": {"length": None},
}
STD, PLAIN = "advantage group (std True, whiten False)", "advantage group (std False, whiten False)"
WIDE, EVEN = "loss clip (clip_low 0.2, clip_high 0.28)", "loss clip (clip_low 0.2, clip_high 0.2)"
ICEPOP = "correction weight by token [0, inf] + reject ratio (level token, low 0.5, high 2.0)"
DIS = "loss dis (clip_low 0.3, clip_high 5.0)"
GAE = "advantage gae (gamma 1.0, lam 0.95, critic_lam 1.0, "
PRESETS = {
    "grpo": (STD, WIDE, "no correction", "token_mean", "", "engine"),
    "dapo": (
        *(STD, WIDE, "no correction", "token_mean", " x overlong margin 0.2 weight 1"),
        "engine",
    ),
    "dr-grpo": (PLAIN, EVEN, "no correction", "constant", "", "engine"),
    "gspo": (
        *(STD, "loss gspo (clip_low 0.0003, clip_high 0.0004)", "no correction"),
        *("sequence_mean", "", "trainer"),
    ),
    "cispo": (
        *(STD, "loss cispo (clip_low 1.0, clip_high 4.0)", "no correction"),
        *("token_mean", "", "engine"),
    ),
    "rloo": ("advantage rloo (whiten False)", EVEN, "no correction", "token_mean", "", "engine"),
    "reinforce++": (
        *("advantage reinforce++ (gamma 1.0, whiten True)", EVEN, "no correction"),
        *("token_mean", "", "engine"),
    ),
    "reinforce++-baseline": (
        *("advantage reinforce++-baseline (whiten True)", EVEN, "no correction"),
        *("token_mean", "", "engine"),
    ),
    "ppo": (
        *(f"{GAE}skip_observations True, whiten True)", EVEN, "no correction"),
        *("token_mean", "", "engine"),
    ),
    "icepop": (STD, WIDE, ICEPOP, "sequence_mean", "", "trainer"),
    "dis": (PLAIN, DIS, "no correction", "token_mean", "", "engine"),
    "sao": (
        *(f"{GAE}alpha 1.5, skip_observations True, whiten True)", DIS, "no correction"),
        *("token_mean", "", "engine"),
    ),
    "opd": (
        *("advantage distillation (clip 5.0, whiten False)", WIDE, ICEPOP),
        *("sequence_mean", "", "trainer"),
    ),
}


def made(union: Any, **written: object) -> Any:
    return TypeAdapter(union).validate_python(written)


@pytest.mark.parametrize("union", UNIONS)
def test_the_defaults_of_every_choice(union) -> None:
    for member in get_args(get_args(union)[0]):
        (kind,) = get_args(member.model_fields["kind"].annotation)
        if kind in DEFAULTS:  # a later kind has its defaults in its own test
            assert made(union, kind=kind).model_dump(exclude={"kind"}) == DEFAULTS[kind]


@pytest.mark.parametrize("union", UNIONS)
def test_what_is_wrong_is_told_of_the_kind_that_was_meant(union) -> None:
    for member in get_args(get_args(union)[0]):
        (kind,) = get_args(member.model_fields["kind"].annotation)
        with pytest.raises(ValidationError) as caught:
            made(union, kind=kind, path="a:b", no_such_field=1)
        assert {error["loc"][0] for error in caught.value.errors()} == {kind}


def test_the_defaults_of_the_other_parts() -> None:
    for union in (Advantage, Loss):
        custom = made(union, kind="custom", path="a:b").model_dump(exclude={"whiten"})
        assert custom.pop("needs", ("spread",)) == ("spread",)
        assert custom == {"kind": "custom", "path": "a:b", "options": {}}
    assert not made(Advantage, kind="custom", path="a:b").whiten
    weight = {"level": "token", "low": 0.0, "high": 2.0, "normalize": False}
    assert Weight().model_dump() == weight
    assert Correction().model_dump() == {"weight": None, "reject": []}
    assert Overlong().model_dump() == {"margin": 0.2, "weight": 1.0, "budget": None}
    assert Algorithm().model_dump() == {
        "temperature": 1.0,
        "advantage": {"kind": "group", **DEFAULTS["group"]},
        "loss": {"kind": "clip", **DEFAULTS["clip"]},
        "correction": {"weight": None, "reject": []},
        "aggregation": {"kind": "token_mean"},
        "kl": {"coef": 0.0, "estimator": "k3", "place": "loss", "unbiased": False},
        "entropy_bonus": 0.0,
        "overlong": None,
        "truncated": "train",
        "old_logprobs": "engine",
        "routing_replay": "none",
        "mini_batches": 2,
        "agreement_gate": 1e-3,
    }


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_in_one_line(preset: str) -> None:
    advantage, loss, correction, mean, overlong, old = PRESETS[preset]
    wanted = (
        f"{advantage} x {loss} x {correction} x aggregation {mean} x no kl{overlong};"
        f" old logprobs of the {old}, truncated: train, 2 mini-batches"
    )
    assert describe(Algorithm.model_validate({"preset": preset})) == wanted


def test_everything_else_in_one_line() -> None:
    algorithm = Algorithm.model_validate(
        {
            "kl": {"coef": 0.001, "estimator": "k2"},
            "entropy_bonus": 0.01,
            "overlong": {"margin": 0.5, "weight": 2},
            "old_logprobs": "trainer",
            "correction": {
                "weight": {"level": "sequence", "low": 0.5, "high": 3, "normalize": True},
                "reject": [{"kind": "veto"}],
            },
            "truncated": "mask",
            "mini_batches": 3,
        }
    )
    assert describe(algorithm) == (
        f"{STD} x {WIDE} x correction weight by sequence [0.5, 3], normalised + reject veto"
        " (floor 0.0001) x aggregation token_mean x kl 0.001 k2 in loss x overlong margin 0.5"
        " weight 2 x entropy bonus 0.01; old logprobs of the trainer, truncated: mask, 3"
        " mini-batches"
    )
    plain = Algorithm.model_validate({"correction": {"reject": [{"kind": "opsm"}]}})
    assert "x correction reject opsm (delta 0.0001) x" in describe(plain)


ON_THE_BOUND = [
    (Advantage, {"kind": "gae", "lam": 0.0, "critic_lam": 0.0, "gamma": 1.0}),
    (Advantage, {"kind": "gae", "lam": 1.0, "critic_lam": 1.0, "alpha": 1e-9}),
    (Advantage, {"kind": "reinforce++", "gamma": 1e-9}),
    (Loss, {"kind": "clip", "clip_low": 1.0, "dual_clip": 1.0001}),
    (Loss, {"kind": "gspo", "clip_low": 1e-9, "clip_high": 1e-9}),
    (Rejection, {"kind": "ratio", "low": 0.0}),
    (Rejection, {"kind": "veto", "floor": 1.0}),
    (Weight, {"low": 0.0, "high": None}),
    (Aggregation, {"kind": "constant", "length": 1}),
    (Kl, {"coef": 0.0}),
    (Overlong, {"margin": 1.0, "budget": 1}),
    (Algorithm, {"entropy_bonus": 0.0, "mini_batches": 1}),
]
BEYOND = [
    (Advantage, {"kind": "gae", "lam": -0.01}),
    (Advantage, {"kind": "gae", "lam": 1.01}),
    (Advantage, {"kind": "gae", "critic_lam": 1.01}),
    (Advantage, {"kind": "gae", "gamma": 0.0}),
    (Advantage, {"kind": "gae", "alpha": 0.0}),
    (Advantage, {"kind": "reinforce++", "gamma": 1.01}),
    (Advantage, {"kind": "distillation", "clip": 0.0}),
    (Loss, {"kind": "clip", "clip_low": 0.0}),
    (Loss, {"kind": "clip", "clip_low": 1.01}),
    (Loss, {"kind": "clip", "clip_high": 0.0}),
    (Loss, {"kind": "clip", "dual_clip": 1.0}),
    (Rejection, {"kind": "ratio", "low": -0.1}),
    (Rejection, {"kind": "ratio", "low": 2.0, "high": 2.0}),
    (Rejection, {"kind": "veto", "floor": 0.0}),
    (Rejection, {"kind": "opsm", "delta": 0.0}),
    (Weight, {"low": -0.1}),
    (Weight, {"low": 2.0}),
    (Aggregation, {"kind": "constant", "length": 0}),
    (Kl, {"coef": -0.1}),
    (Overlong, {"margin": 0.0}),
    (Overlong, {"weight": 0.0}),
    (Overlong, {"budget": 0}),
    (Algorithm, {"entropy_bonus": -0.1}),
    (Algorithm, {"mini_batches": 0}),
    (Algorithm, {"temperature": 0.0}),
]


@pytest.mark.parametrize(("part", "written"), ON_THE_BOUND)
def test_a_knob_on_its_bound_is_read(part, written: dict[str, object]) -> None:
    read = made(part, **written).model_dump()
    assert {key: read[key] for key in written} == written


@pytest.mark.parametrize(("part", "written"), BEYOND)
def test_a_knob_beyond_its_bound_is_refused(part, written: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        made(part, **written)


def test_what_sampling_keeps_is_bounded_and_beside_no_teacher() -> None:
    assert Algorithm(keep={"top_p": 0.95}).keep == Keep(top_k=256, top_p=0.95, min_p=0.0)
    assert "keep" not in Algorithm().model_dump(), "digests of stages without it stay"
    assert "tokens within" in describe(Algorithm(keep=Keep()))
    assert list(refusals(Algorithm(keep=Keep(top_p=0.95)), 8)) == []
    with pytest.raises(ValidationError, match="less than or equal to 1024"):
        Keep(top_k=1025)
    found = list(refusals(Algorithm(preset="opd", keep=Keep()), 8, has_teachers=True))
    assert len(found) == 1
    assert "a teacher's logprobs are over all tokens" in found[0]
