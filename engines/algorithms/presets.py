"""Named algorithms as compositions: what differs from `Algorithm`'s defaults, which are GRPO's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from engines.algorithms.parts import is_unwritten

Preset = Literal[
    "grpo",
    "dapo",
    "dr-grpo",
    "gspo",
    "cispo",
    "rloo",
    "reinforce++",
    "reinforce++-baseline",
    "ppo",
    "icepop",
    "dis",
    "sao",
    "opd",
    "online-dpo",
]

_SYMMETRIC = {"kind": "clip", "clip_high": 0.2}
_ICEPOP = {"weight": {"high": None}, "reject": [{"kind": "ratio", "low": 0.5, "high": 2.0}]}

PRESETS: Mapping[Preset, Mapping[str, Any]] = {
    "grpo": {},
    "dapo": {"overlong": {}},
    "dr-grpo": {
        "advantage": {"kind": "group", "std": False},
        "loss": _SYMMETRIC,
        "aggregation": {"kind": "constant"},
    },
    # Its clip range is narrower than the rounding between two engines at half precision.
    "gspo": {
        "loss": {"kind": "gspo"},
        "aggregation": {"kind": "sequence_mean"},
        "old_logprobs": "trainer",
    },
    "cispo": {"loss": {"kind": "cispo"}},
    "rloo": {"advantage": {"kind": "rloo"}, "loss": _SYMMETRIC},
    "reinforce++": {"advantage": {"kind": "reinforce++"}, "loss": _SYMMETRIC},
    "reinforce++-baseline": {
        "advantage": {"kind": "reinforce++-baseline"},
        "loss": _SYMMETRIC,
    },
    "ppo": {"advantage": {"kind": "gae"}, "loss": _SYMMETRIC},
    "icepop": {
        "correction": _ICEPOP,
        "aggregation": {"kind": "sequence_mean"},
        "old_logprobs": "trainer",
    },
    "dis": {"advantage": {"kind": "group", "std": False}, "loss": {"kind": "dis"}},
    "sao": {"advantage": {"kind": "gae", "alpha": 1.5}, "loss": {"kind": "dis"}},
    "opd": {
        "advantage": {"kind": "distillation"},
        "correction": _ICEPOP,
        "aggregation": {"kind": "sequence_mean"},
        "old_logprobs": "trainer",
    },
    "online-dpo": {
        "advantage": {"kind": "pairs"},
        "loss": {"kind": "dpo"},
        "aggregation": {"kind": "rollout_mean"},
    },
}


def composed(written: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """What a person wrote, laid over its preset, laid over the defaults; without `preset`.

    What is None counts as not written. A part of the preset's kind, or without a kind, changes
    single fields of the preset's; without a preset one of another kind replaces the default. A
    part's name alone stands for it: `loss: gspo`. An unknown preset stays for the schema to refuse.
    Raises ValueError for a part of another kind than the preset's.
    """
    written = {key: value for key, value in written.items() if value is not None}
    preset = written.pop("preset", None)
    presets: Mapping[str | None, Mapping[str, Any]] = {None: {}, **PRESETS}
    known = presets.get(preset) if isinstance(preset, str | None) else None
    below = _laid_over(defaults, known or {})
    if preset is not None and known is not None:
        _require_same_kinds(written, below, preset)
    whole = _laid_over(below, written)
    return whole if known is not None else {**whole, "preset": preset}


def _require_same_kinds(
    written: Mapping[str, Any], composition: Mapping[str, Any], preset: str
) -> None:
    for name, value in written.items():
        part = composition.get(name)
        theirs = part.get("kind") if isinstance(part, Mapping) else None
        mine = value.get("kind") if isinstance(value, Mapping) else value
        if theirs is not None and isinstance(mine, str) and mine != theirs:
            raise ValueError(
                f"{name} is {mine}, but preset {preset} has {name} {theirs}; leave `{name}` out, or"
                " leave `preset` out and write the fields that should differ from grpo"
            )


def _laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    written = {k: v for k, v in above.items() if not is_unwritten(v, below.get(k))}
    return {**below, **{key: _part(below.get(key), value) for key, value in written.items()}}


def _part(below: Any, above: Any) -> Any:
    if not isinstance(below, Mapping):
        return above
    if isinstance(above, str) and "kind" in below:
        above = {"kind": above}
    if not isinstance(above, Mapping):
        return above
    if "kind" in below and above.get("kind", below["kind"]) != below["kind"]:
        return above
    return _laid_over(below, above)
