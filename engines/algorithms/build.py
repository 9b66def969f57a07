"""From a spec's parts to the functions that compute them.

A part is found by the `module:attribute` that its class names, and imported when it is used: the
code of a stage is that of the parts that its spec names, and of no others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from engines.algorithms.inputs import CriticTarget, LossInputs, PolicyLoss, StepTokens
from engines.algorithms.statistics.whitening import whitened
from infra.config import Choice
from infra.hooks import check_options, resolve

if TYPE_CHECKING:
    from engines.algorithms import choices

LossFunction = Callable[[LossInputs], PolicyLoss]


def advantages(spec: choices.Advantage, tokens: StepTokens) -> Tensor:
    """[R] float64 advantage of every trained token of the step."""
    raw_R = _with_settings("advantage", spec)(tokens)
    return whitened(raw_R) if spec.whiten else raw_R


def critic_targets(target: CriticTarget, tokens: StepTokens) -> Tensor:
    """[R] float64 what a critic should have said of every trained token."""
    return our_part("engines.algorithms.advantages.critic:critic_targets")(target, tokens)


def policy_loss(spec: choices.Loss) -> LossFunction:
    """The loss of each token."""
    return _with_settings("loss", spec)


def custom(kind: str, path: str, options: Mapping[str, Any]) -> Callable[[Any], Any]:
    """The user's function with its options. Raises InputError for a wrong path or option."""
    function = resolve(kind, path, {})
    check_options(kind, path, function, options)
    return partial(function, **options)


def our_part(path: str) -> Callable[..., Any]:
    """One of our functions by `module:attribute`."""
    return resolve("part", path, {})


def _with_settings(kind: str, spec: choices.Advantage | choices.Loss) -> Callable[[Any], Any]:
    if not isinstance(spec, Choice):
        return custom(kind, spec.path, spec.options)
    # Whitening is the same for every advantage, so it is none of theirs.
    settings = {name: value for name, value in spec if name not in ("kind", "whiten")}
    return partial(our_part(spec.code), **settings)
