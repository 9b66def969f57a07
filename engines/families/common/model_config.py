"""Rotary embedding: its settings in a config.json and the rotation speeds that follow. No torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.data_files.heads import HEAD_BYTES, other_text
from infra.errors import InputError

_ORIGINAL = "original_max_position_embeddings"
_NEEDED = {
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", _ORIGINAL),
    "yarn": ("factor", _ORIGINAL),
    "longrope": ("short_factor", "long_factor"),
}
_OTHER_YARN = frozenset(
    {"attention_factor", "attn_factor", "extrapolation_factor", "mscale", "mscale_all_dim"}
    | {"truncate"}
)


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's config.json; raises InputError if it is missing or unreadable."""
    try:
        return parse_config((folder / "config.json").read_bytes())
    except FileNotFoundError:
        raise InputError(f"{folder} is not an HF model folder: it has no config.json") from None
    except InputError as error:
        raise InputError(f"{folder}/{error}") from None


def parse_config(data: bytes) -> dict[str, Any]:
    """The content of a config.json. Raises InputError."""
    if said := other_text(data[:HEAD_BYTES]):
        raise InputError(f"config.json: {said}")
    try:
        config = json.loads(data)
    except (ValueError, RecursionError) as error:  # also bytes that are not UTF-8
        raise InputError(f"config.json: is not valid JSON: {error}; copy the file again") from error
    if not isinstance(config, dict):
        raise InputError("config.json: must hold a JSON object; copy the file again")
    return config


def stated_layers(
    config: Mapping[str, Any], layers: int, kind: str, other: str
) -> frozenset[int] | None:
    """Return the numbers, from 0, of the layers that `layer_types` calls `kind`, while the rest are
    `other`; None where it is left out. Raises InputError."""
    kinds = config.get("layer_types")
    if kinds is None:
        return None
    if not isinstance(kinds, list) or not {*kinds} <= {kind, other}:
        raise InputError(
            f"config.json: layer_types other than {kind} and {other} are not supported"
        )
    if len(kinds) != layers:
        raise InputError(
            f"config.json: layer_types of {len(kinds)} layers are not supported where"
            f" num_hidden_layers is {layers}"
        )
    return frozenset(number for number, each in enumerate(kinds) if each == kind)


def all_but_every(period: int, layers: int) -> frozenset[int]:
    """Return the numbers, from 0, of all layers but every `period`-th."""
    return frozenset(number for number in range(layers) if (number + 1) % period)


def positive_int(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = config.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(f"config.json: {key} must be a positive integer, got {value!r}")
    return value


def non_negative_int(config: Mapping[str, Any], key: str, default: int) -> int:
    """Return a number of things that there may be none of."""
    value = config.get(key, default)
    return 0 if type(value) is int and value == 0 else positive_int({key: value}, key)


def positive(config: Mapping[str, Any], key: str, default: float) -> float:
    """Return a finite number above 0, or `default` where the key is missing or null."""
    value = default if config.get(key) is None else config[key]
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 < value < math.inf  # false for NaN as well
    ):
        raise InputError(f"config.json: {key} must be a finite number above 0, got {value!r}")
    return float(value)


def flag(config: Mapping[str, Any], key: str) -> bool:
    value = config.get(key, False)
    if not isinstance(value, bool):
        raise InputError(f"config.json: {key} must be true or false, got {value!r}")
    return value


def refuse(config: Mapping[str, Any], features: Mapping[str, str]) -> None:
    """InputError if one of these fields is set; `features` says what each would switch on."""
    for key, what in features.items():
        if config.get(key):
            raise InputError(f"config.json: {key} is set: {what} is not supported")


def only(config: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """InputError if one of these fields has another value than the only one that we have."""
    for key, value in values.items():
        if config.get(key, value) != value:
            raise InputError(f"config.json: {key} {config[key]!r} is not supported, only {value!r}")


@dataclass(frozen=True, slots=True)
class Yarn:
    """YaRN (Peng et al. 2023): speeds that turn fewer than `beta_slow` times within the positions
    of before are divided by `factor`, those of more than `beta_fast` kept."""

    factor: float
    original_max_positions: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    is_rounded: bool = field(default=True, kw_only=True)
    """whether the bounds are whole numbers"""

    def __post_init__(self) -> None:
        if self.beta_fast < self.beta_slow:
            raise InputError(
                f"config.json: beta_fast ({self.beta_fast:g}) of rope type 'yarn' must not be below"
                f" beta_slow ({self.beta_slow:g})"
            )

    @property
    def scale(self) -> float:
        """Factor of cosines and sines, so that attention is as sharp as before."""
        return 0.1 * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0

    def speeds(self, plain: list[float], theta: float) -> list[float]:
        """Between the two bounds, numbers of speeds, the share kept falls."""
        most = 2 * len(plain) - 1
        first = self._place(self.beta_fast, theta, len(plain))
        last = self._place(self.beta_slow, theta, len(plain))
        low = max(math.floor(first) if self.is_rounded else first, 0)
        high = min(math.ceil(last) if self.is_rounded else last, most)
        kept = [1 - min(max((i - low) / max(high - low, 1e-3), 0), 1) for i in range(len(plain))]
        return [
            speed * keep + speed / self.factor * (1 - keep)
            for speed, keep in zip(plain, kept, strict=True)
        ]

    def _place(self, turns: float, theta: float, count: int) -> float:
        """Return which of the speeds turns so often within the positions of before."""
        return (
            count * math.log(self.original_max_positions / (2 * math.pi * turns)) / math.log(theta)
        )


@dataclass(frozen=True, slots=True)
class LongRope:
    """LongRoPE (Ding et al. 2024): each speed is divided by a factor of its own.

    A model has two sets of factors; these are of texts within the positions of before, the only
    ones that are trained. In a longer one SGLang takes the other set for all requests of its batch,
    and leaves the keys that it has cached.
    """

    factors: tuple[float, ...]
    stretch: float
    """the model's positions, of those of before"""
    original_max_positions: int

    @property
    def scale(self) -> float:
        """Factor of cosines and sines, so that attention is as sharp as before."""
        if self.stretch <= 1:
            return 1.0
        return math.sqrt(1 + math.log(self.stretch) / math.log(self.original_max_positions))


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding: its base, and YaRN, LongRoPE, or where `factor` is not 1 another scaling of
    its frequencies: that of Llama 3, or the same for all of them."""

    theta: float
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192
    share: float = 1.0
    """of each head that is rotated: its first part"""
    is_linear: bool = False
    yarn: Yarn | None = None
    long: LongRope | None = None

    @property
    def scale(self) -> float:
        """Factor of cosines and sines."""
        scaling = self.yarn or self.long
        return scaling.scale if scaling else 1.0

    def inverse_frequencies(self, head_dim: int) -> list[float]:
        """Half as many rotation speeds in radians a position as a head has rotated numbers, fastest
        first."""
        rotated = int(head_dim * self.share)
        plain = [self.theta ** (-2 * i / rotated) for i in range(rotated // 2)]
        if self.yarn is not None:
            return self.yarn.speeds(plain, self.theta)
        if self.long is not None:
            return [a / b for a, b in zip(plain, self.long.factors, strict=True)]
        return plain if self.factor == 1.0 else [self._scaled(speed) for speed in plain]

    def _scaled(self, speed: float) -> float:
        """Slow rotations are slowed by `factor`, fast ones kept, those between interpolated."""
        turns = self.original_max_positions * speed / (2 * math.pi)
        if self.is_linear or turns < self.low_freq_factor:
            return speed / self.factor
        if turns > self.high_freq_factor:
            return speed
        keep = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        return (1 - keep) * speed / self.factor + keep * speed


SCALINGS = ("linear", "llama3", "yarn")
"""types of rotary embedding beside `default` that most families have"""


def read_rope(
    config: Mapping[str, Any],
    share: float | None = None,
    scalings: Sequence[str] = SCALINGS,
) -> Rope:
    """Both spellings: `rope_parameters` (transformers 5) and `rope_theta` + `rope_scaling`.

    `share` of each head is rotated where the config does not say it; None: every family but those
    that rotate a part refuses one. Raises InputError for a scaling that is not among `scalings`.
    """
    stated = stated_rope(config)
    theta = positive({**config, **stated}, "rope_theta", 10000.0)
    known = {"partial_rotary_factor": share or 1.0, **config, **stated}
    if share is not None and known["partial_rotary_factor"] is None:
        # transformers takes 1 for it.
        raise InputError("config.json: partial_rotary_factor is null; write the number")
    written = positive(known, "partial_rotary_factor", 1.0)
    if written > 1 or (share is None and written != 1.0):
        most = "only 1" if share is None else "at most 1"
        raise InputError(f"config.json: partial_rotary_factor {written} is not supported, {most}")
    kind = kind_of_rope(stated)
    if kind == "default":
        return Rope(theta, share=written)
    if kind not in scalings:
        known = " and ".join(("default", *scalings))
        raise InputError(f"config.json: rope type {kind!r} is not supported, only {known}")
    if kind == "linear":
        return Rope(theta, factor=positive(stated, "factor", 1.0), share=written, is_linear=True)
    for name in _NEEDED[kind]:
        if stated.get(name) is None:
            raise InputError(f"config.json: rope type {kind!r} lacks {name}")
    if kind == "yarn":
        # Engines read some of these under other names, or not at all.
        for name in _OTHER_YARN & stated.keys():
            raise InputError(f"config.json: {name} of rope type 'yarn' is not supported")
        yarn = Yarn(
            positive(stated, "factor", 1.0),
            positive_int(stated, "original_max_position_embeddings"),
            positive(stated, "beta_fast", 32.0),
            positive(stated, "beta_slow", 1.0),
        )
        return Rope(theta, share=written, yarn=yarn)
    if kind == "longrope":
        return Rope(theta, share=written, long=_long_rope(config, stated))
    return Rope(
        theta,
        factor=positive(stated, "factor", 1.0),
        low_freq_factor=positive(stated, "low_freq_factor", 1.0),
        high_freq_factor=positive(stated, "high_freq_factor", 1.0),
        original_max_positions=positive_int(stated, "original_max_position_embeddings"),
        share=written,
    )


def _long_rope(config: Mapping[str, Any], stated: Mapping[str, Any]) -> LongRope:
    """Raises InputError for fields that one engine reads and another does not."""
    if config.get(_ORIGINAL) is None:
        raise InputError(f"config.json: rope type 'longrope' needs {_ORIGINAL} beside it")
    original = positive_int(config, _ORIGINAL)
    stretch = positive_int(config, "max_position_embeddings") / original
    if not math.isclose(positive(stated, "factor", stretch), stretch):
        raise InputError(
            f"config.json: factor {stated['factor']} of rope type 'longrope' is not supported, only"
            f" {stretch:g}: max_position_embeddings by {_ORIGINAL}"
        )
    for name in ("attention_factor", "short_mscale", "long_mscale"):
        if stated.get(name) is not None:
            raise InputError(f"config.json: {name} of rope type 'longrope' is not supported")
    factors = stated["short_factor"]
    if not isinstance(factors, list):
        raise InputError("config.json: short_factor of rope type 'longrope' must be a list")
    read = [positive({"short_factor": each}, "short_factor", 1.0) for each in factors]
    return LongRope(tuple(read), stretch, original)


def usable_positions(config: Mapping[str, Any]) -> int | None:
    """Return how many tokens a text may have, trained or served: with LongRoPE those of before it;
    None where a config.json, of any family, does not say it."""
    parts = [config.get(key) for key in ("rope_scaling", "rope_parameters")]
    stretched = any(isinstance(p, dict) and kind_of_rope(p) == "longrope" for p in parts)
    said = config.get(_ORIGINAL if stretched else "max_position_embeddings")
    return said if isinstance(said, int) else None


def stated_rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what config.json says under either spelling. Raises InputError."""
    stated: dict[str, Any] = {}
    for key in ("rope_scaling", "rope_parameters"):
        part = config.get(key) or {}
        if not isinstance(part, dict):
            raise InputError(f"config.json: {key} must be an object, got {part!r}")
        if stated and part and part != stated:
            # transformers would take all of the first and nothing of the second.
            raise InputError(
                f"config.json: rope_scaling is {stated!r}, rope_parameters {part!r}; write all in"
                " rope_parameters, and leave rope_scaling out"
            )
        stated |= part
    outer, inner = config.get(_ORIGINAL), stated.get(_ORIGINAL)
    if outer is not None and inner not in (None, outer):
        # Which one transformers takes depends on the spelling; SGLang takes the first.
        raise InputError(
            f"config.json: {_ORIGINAL} is {outer!r}, and {inner!r} among the settings of rope;"
            " write the same in both"
        )
    return stated


def kind_of_rope(stated: Mapping[str, Any]) -> Any:
    """Either spelling of its type."""
    return stated.get("rope_type") or stated.get("type") or "default"


def with_positions(
    config: Mapping[str, Any], positions: int, *, theta: float | None, yarn: bool
) -> dict[str, Any]:
    """The config of the same weights with more positions, by another base of the rotary angles, by
    YaRN, or by both, in the config's own spelling. Raises InputError where that cannot be."""
    had, stated = positive_int(config, "max_position_embeddings"), stated_rope(config)
    if positions <= had:
        raise InputError(f"positions: {positions} is not more than the {had} that the model has")
    if "rope_local_base_freq" in config or any(isinstance(s, dict) for s in stated.values()):
        raise InputError("positions: layers of two kinds of rotary angles cannot have more")
    kind = kind_of_rope(stated)
    if kind != "default" and not (yarn and kind == "yarn"):
        raise InputError(
            f"yarn: the model has rope type {kind!r}; only one of type 'default' can have more"
            " positions, or one of type 'yarn' by `yarn: true`; leave `rope` out"
        )
    own = positive({**config, **stated}, "rope_theta", 10000.0)
    if theta is not None and theta <= own:
        raise InputError(f"theta: {theta:g} is not more than the {own:g} that the model has")
    changed = {} if theta is None else {"rope_theta": theta}
    scaling: dict[str, Any] = {}
    if yarn:
        original = positive_int(stated, _ORIGINAL) if kind == "yarn" else had
        scaling = {"rope_type": "yarn", "factor": positions / original, _ORIGINAL: original}
    made = {**config, "max_position_embeddings": positions}
    if config.get("rope_parameters"):
        made["rope_parameters"] = {**config["rope_parameters"], **changed, **scaling}
        changed = changed if "rope_theta" in config else {}
    elif scaling:
        had_scaling = config.get("rope_scaling") or {}
        if "type" in had_scaling:  # the older name, which readers believe before the newer one
            scaling["type"] = scaling["rope_type"]
        made["rope_scaling"] = {**had_scaling, **scaling}
    return made | changed
