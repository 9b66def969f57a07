"""Random steps and micro-batches, as the reference's lists and as the product's tensors.

Axes: N replies, R trained tokens, S steps, K teachers.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, get_args

import torch
from torch import Tensor

from engines.algorithms.advantages import Advantage
from engines.algorithms.inputs import LossInputs, StepTokens, Trajectories
from engines.algorithms.losses import Loss
from tests.programs.proof import reference
from tests.programs.proof.estimators import kinds
from tests.programs.proof.reference import Reply, Rows


def _by_length(num_trained: int) -> float:
    return max(0.0, 1 - 1 / (0.4 * num_trained))


ADVANTAGES: dict[str, list[tuple[dict[str, Any], Callable[[Sequence[Reply]], Rows]]]] = {
    "group": [
        ({"std": True}, partial(reference.group_advantage, std=True)),
        ({"std": False}, partial(reference.group_advantage, std=False)),
    ],
    "rloo": [({}, reference.leave_one_out)],
    "reinforce++": [({"gamma": 0.9}, partial(reference.reinforce_plus_plus, gamma=0.9))],
    "reinforce++-baseline": [({}, reference.reinforce_plus_plus_baseline)],
    "gae": [
        (
            {"gamma": 0.95, "lam": 0.8},
            partial(reference.generalised, gamma=0.95, lam=lambda _: 0.8, skip=True),
        ),
        (
            {"lam": 0.6, "skip_observations": False},
            partial(reference.generalised, gamma=1.0, lam=lambda _: 0.6, skip=False),
        ),
        (
            {"alpha": 0.4},
            partial(reference.generalised, gamma=1.0, lam=_by_length, skip=True),
        ),
    ],
    "distillation": [
        ({"clip": 1.5}, partial(reference.distillation, clip=1.5)),
        ({"clip": None}, partial(reference.distillation, clip=None)),
    ],
}
"""kind -> knobs, and the same written anew"""
LOSSES: dict[str, list[tuple[dict[str, Any], Callable[..., list[float]]]]] = {
    "clip": [
        (
            {"clip_low": 0.2, "clip_high": 0.28},
            partial(reference.clip, low=0.2, high=0.28, dual=None),
        ),
        (
            {"clip_low": 0.3, "clip_high": 0.3, "dual_clip": 1.5},
            partial(reference.clip, low=0.3, high=0.3, dual=1.5),
        ),
    ],
    "gspo": [({"clip_low": 0.1, "clip_high": 0.15}, partial(reference.gspo, low=0.1, high=0.15))],
    "cispo": [({"clip_low": 0.4, "clip_high": 0.9}, partial(reference.cispo, low=0.4, high=0.9))],
    "dis": [({"clip_low": 0.4, "clip_high": 0.8}, partial(reference.dis, low=0.4, high=0.8))],
    "reinforce": [({}, reference.reinforce)],
}


def advantage_cases() -> list[Any]:
    """(row, spec, reference) of each kind and knobs."""
    classes = _classes(Advantage)
    return [
        (f"advantage {kind}", classes[kind](kind=kind, whiten=whiten, **knobs), anew)
        for kind, forms in ADVANTAGES.items()
        for knobs, anew in forms
        for whiten in (False, True)
    ]


def loss_cases() -> list[Any]:
    """(row, spec, reference) of each kind and knobs."""
    classes = _classes(Loss)
    return [
        (f"loss {kind}", classes[kind](kind=kind, **knobs), anew)
        for kind, forms in LOSSES.items()
        for knobs, anew in forms
    ]


def _classes(union: Any) -> dict[str, Any]:
    return dict(zip(kinds(union), get_args(get_args(union)[0]), strict=True))


# Steps


def replies(draw: random.Random, num: int = 14) -> list[Reply]:
    """Groups of several sizes, one alone, one of equal rewards; rollouts of one or two replies;
    observations between tokens; a teacher that did not score."""
    made: list[Reply] = []
    for rollout in range(num):
        group = rollout % 4 if rollout < num - 1 else 9
        reward = 0.1 if group == 3 else draw.choice([0.0, 1.0, draw.uniform(-1, 2)])
        for _ in range(draw.choice([1, 1, 2])):
            made.append(_reply(draw, reward, group, rollout))
    return made


def _reply(draw: random.Random, reward: float, group: int, rollout: int) -> Reply:
    num = draw.randrange(1, 7)
    trained = [True]
    while sum(trained) < num:
        trained.append(draw.random() < 0.7)
    unheard = draw.random() < 0.3
    share = 1.0 if unheard else draw.uniform(0.2, 0.8)
    scored = [[-draw.uniform(0.1, 4) for _ in range(num)] for _ in range(2)]
    return Reply(
        reward=reward,
        group=group,
        rollout=rollout,
        logprobs=[-draw.uniform(0.1, 4) for _ in range(num)],
        token_rewards=[0.0 if group == 3 else draw.uniform(-0.2, 0.1) for _ in range(num)],
        values=[draw.uniform(-1, 1) for _ in trained],
        trained=trained,
        teachers=[scored[0], [math.nan] * num if unheard else scored[1]],
        listens=[share, 1 - share],
    )


def step_of(made: Sequence[Reply]) -> StepTokens:
    """The same as tensors."""
    lengths = torch.tensor([len(r.logprobs) for r in made])
    steps = torch.tensor([len(r.values) for r in made])
    places = torch.arange(len(made))
    return StepTokens(
        rewards_N=doubles([r.reward for r in made]),
        group_N=torch.tensor([r.group for r in made]),
        rollout_N=torch.tensor([r.rollout for r in made]),
        sequence_R=places.repeat_interleave(lengths),
        logprobs_R=flat([r.logprobs for r in made]),
        token_rewards_R=flat([r.token_rewards for r in made]),
        trajectories=Trajectories(
            values_S=flat([r.values for r in made]),
            sequence_S=places.repeat_interleave(steps),
            trained_S=torch.tensor([own for r in made for own in r.trained]),
        ),
        teacher_logprobs_KR=torch.stack([flat([r.teachers[k] for r in made]) for k in range(2)]),
        teacher_weights_NK=doubles([r.listens for r in made]),
    )


# Micro-batches


@dataclass(frozen=True, slots=True)
class Micro:
    """Sequences of logprobs and advantages."""

    new: Rows
    old: Rows
    advantages: Rows

    def inputs(self, which: Sequence[int] | None = None) -> LossInputs:
        """The chosen sequences packed in one micro-batch; the leaf needs a gradient."""
        chosen = range(len(self.new)) if which is None else which
        lengths = torch.tensor([len(self.new[i]) for i in chosen], dtype=torch.long)
        return LossInputs(
            logprobs_R=flat([self.new[i] for i in chosen]).requires_grad_(),
            old_logprobs_R=flat([self.old[i] for i in chosen]),
            advantages_R=flat([self.advantages[i] for i in chosen]),
            segment_R=torch.arange(len(lengths)).repeat_interleave(lengths),
            num_trained_B=lengths,
        )


def micro(draw: random.Random, num: int = 9, spread: float = 0.6) -> Micro:
    """One advantage a sequence; ratios around 1 and far from it."""
    old = [[-draw.uniform(0.1, 3) for _ in range(draw.randrange(1, 7))] for _ in range(num)]
    new = [[o + draw.gauss(0, spread) for o in row] for row in old]
    signs = [draw.choice([-2.0, -0.5, 0.0, 0.7, 1.5]) for _ in range(num)]
    return Micro(new, old, [[a] * len(row) for a, row in zip(signs, old, strict=True)])


def flat(rows: Sequence[Sequence[float]]) -> Tensor:
    return torch.tensor(list(chain.from_iterable(rows)), dtype=torch.float64)


def doubles(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def unrolled(rows: Sequence[Sequence[Any]]) -> list[Any]:
    return list(chain.from_iterable(rows))
