"""The contract of custom advantages and losses: kept by ours, and broken ones are caught."""

from __future__ import annotations

import pytest
import torch

from engines.algorithms.advantages import (
    Advantage,
    DistillationAdvantage,
    GaeAdvantage,
    GroupAdvantage,
    ReinforcePlusPlusAdvantage,
    ReinforcePlusPlusBaselineAdvantage,
    RlooAdvantage,
    advantages,
)
from engines.algorithms.contract import (
    advantage_faults,
    example_micro_batch,
    example_step,
    loss_faults,
)
from engines.algorithms.inputs import LossInputs, PolicyLoss, StepTokens
from engines.algorithms.losses import (
    CispoLoss,
    ClipLoss,
    DisLoss,
    GspoLoss,
    Loss,
    ReinforceLoss,
    policy_loss,
)
from engines.algorithms.parts import Need
from engines.draws import Fault

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    "spec",
    [
        GroupAdvantage(kind="group"),
        GroupAdvantage(kind="group", std=False, whiten=True),
        RlooAdvantage(kind="rloo"),
        ReinforcePlusPlusAdvantage(kind="reinforce++", gamma=0.9),
        ReinforcePlusPlusBaselineAdvantage(kind="reinforce++-baseline"),
        GaeAdvantage(kind="gae", alpha=1.5),
        DistillationAdvantage(kind="distillation"),
    ],
    ids=lambda spec: spec.kind,
)
def test_our_advantages_keep_it(spec: Advantage) -> None:
    assert advantage_faults(lambda tokens: advantages(spec, tokens), spec.needs) == []


def of_the_values(tokens: StepTokens) -> torch.Tensor:
    assert tokens.trajectories is not None
    values_R = tokens.trajectories.values_S[tokens.trajectories.trained_S]
    return tokens.rewards_N[tokens.sequence_R] - values_R


def of_the_reference(tokens: StepTokens) -> torch.Tensor:
    assert tokens.reference_logprobs_R is not None
    closer_R = tokens.logprobs_R - tokens.reference_logprobs_R
    return tokens.rewards_N[tokens.sequence_R] - 0.1 * closer_R


def of_the_first_teacher(tokens: StepTokens) -> torch.Tensor:
    assert tokens.teacher_logprobs_KR is not None
    return tokens.teacher_logprobs_KR[0] - tokens.logprobs_R


@pytest.mark.parametrize(
    ("advantage", "need"),
    [
        (of_the_values, "critic"),
        (of_the_reference, "reference"),
        (of_the_first_teacher, "teachers"),
    ],
)
def test_an_advantage_that_does_not_say_what_it_needs_is_told_what_to_write(
    advantage, need: Need
) -> None:
    wanted = f"it cannot do without {need}; write `needs: [batch, {need}]`"
    assert advantage_faults(advantage, ["batch"]) == [Fault("says what it needs", wanted)]
    assert advantage_faults(advantage, ["batch", need]) == []


def test_who_changes_what_it_is_given_of_its_needs_is_found() -> None:
    def moves(tokens: StepTokens) -> torch.Tensor:
        assert tokens.trajectories is not None
        tokens.trajectories.values_S.add_(1)
        return tokens.rewards_N[tokens.sequence_R]

    said = [fault.check for fault in advantage_faults(moves, ["critic"])]
    assert said == ["leaves its inputs alone"]


@pytest.mark.parametrize(
    "spec",
    [
        ClipLoss(kind="clip", dual_clip=2.0),
        GspoLoss(kind="gspo"),
        CispoLoss(kind="cispo"),
        DisLoss(kind="dis"),
        ReinforceLoss(kind="reinforce"),
    ],
    ids=lambda spec: spec.kind,
)
def test_our_losses_keep_it(spec: Loss) -> None:
    assert loss_faults(policy_loss(spec)) == []


def by_position(tokens: StepTokens) -> torch.Tensor:
    """Groups of three in a row, whatever their numbers."""
    means = tokens.rewards_N.view(2, 3).mean(1).repeat_interleave(3)
    return (tokens.rewards_N - means)[tokens.sequence_R]


def of_names(tokens: StepTokens) -> torch.Tensor:
    return (tokens.rewards_N * tokens.group_N)[tokens.sequence_R]


def of_the_first_name(tokens: StepTokens) -> torch.Tensor:
    return (tokens.rewards_N * (tokens.group_N == tokens.group_N.min()))[tokens.sequence_R]


def changes_inputs(tokens: StepTokens) -> torch.Tensor:
    tokens.rewards_N.sub_(1)
    return tokens.rewards_N[tokens.sequence_R]


def of_the_batch(tokens: StepTokens) -> torch.Tensor:
    """Rewards minus the mean of the whole batch: groups change nothing."""
    return (tokens.rewards_N - tokens.rewards_N.mean())[tokens.sequence_R]


def divides_by_spread(tokens: StepTokens) -> torch.Tensor:
    centred = tokens.rewards_N - tokens.rewards_N.mean()
    return (centred / centred.std())[tokens.sequence_R]


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (by_position, "follows its samples"),
        (of_names, "uses group numbers only to tell groups apart"),
        (of_the_first_name, "uses group numbers only to tell groups apart"),
        (changes_inputs, "leaves its inputs alone"),
        (divides_by_spread, "is finite where all rewards are equal"),
        (lambda tokens: tokens.rewards_N, "gives one number per trained token"),
        (lambda tokens: tokens.logprobs_R.requires_grad_(), "carries no gradient"),
        (
            lambda tokens: torch.randn(len(tokens.sequence_R)),
            "gives the same result for the same input",
        ),
        (lambda tokens: tokens.logprobs_R / 0, "is finite"),
        (lambda tokens: tokens.nothing, "runs without raising"),
        (lambda tokens: exit(3), "runs without raising"),
        (lambda tokens: torch.zeros_like(tokens.logprobs_R), "follows the rewards"),
        (lambda tokens: torch.ones_like(tokens.logprobs_R), "follows the rewards"),
        (of_the_batch, "compares the rollouts of a group"),
    ],
)
def test_a_broken_advantage_is_caught(broken, check: str) -> None:
    assert check in [fault.check for fault in advantage_faults(broken)]


def plain(tokens: LossInputs) -> torch.Tensor:
    return -tokens.advantages_R * tokens.logprobs_R


def no_clip(tokens: LossInputs) -> torch.Tensor:
    return torch.zeros_like(tokens.advantages_R, dtype=torch.bool)


def pushes_all(tokens: LossInputs) -> PolicyLoss:
    return PolicyLoss(plain(tokens) - tokens.logprobs_R, no_clip(tokens))


def of_the_micro_batch(tokens: LossInputs) -> PolicyLoss:
    return PolicyLoss(plain(tokens) / tokens.logprobs_R.sum(), no_clip(tokens))


def pushes_nothing(tokens: LossInputs) -> PolicyLoss:
    return PolicyLoss(tokens.logprobs_R * 0, no_clip(tokens))


def pushes_small_advantages_only(tokens: LossInputs) -> PolicyLoss:
    """Gradient 1 where the advantage is 2 and 2 where it is -0.5: 2 x 2 - 3 x 1 > 0."""
    slope = torch.where(tokens.advantages_R > 1.5, 1.0, torch.where(tokens.advantages_R < 0, 2, 0))
    return PolicyLoss(tokens.logprobs_R * slope, no_clip(tokens))


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (
            lambda t: PolicyLoss(-plain(t), no_clip(t)),
            "raises the probability of tokens with a positive advantage",
        ),
        (
            lambda t: PolicyLoss(t.logprobs_R * 0, no_clip(t)),
            "raises the probability of tokens with a positive advantage",
        ),
        (
            pushes_small_advantages_only,
            "raises the probability of tokens with a positive advantage",
        ),
        (of_the_micro_batch, "does not depend on packing"),
        (lambda t: PolicyLoss(plain(t).detach(), no_clip(t)), "carries a gradient to logprobs_R"),
        (lambda t: PolicyLoss(plain(t).sum(), no_clip(t)), "gives one loss_R a token"),
        (pushes_all, "leaves tokens of advantage 0 alone"),
        (lambda t: PolicyLoss(plain(t) / 0, no_clip(t)), "is finite"),
        (plain, "gives a PolicyLoss"),
    ],
)
def test_a_broken_loss_is_caught(broken, check: str) -> None:
    assert check in [fault.check for fault in loss_faults(broken)]


def test_only_at_ratio_one_must_a_loss_push_the_right_way() -> None:
    def elsewhere_wrong(tokens: LossInputs) -> PolicyLoss:
        sign = torch.where(tokens.log_ratio_R == 0, 1.0, -1.0)
        return PolicyLoss(plain(tokens) * sign, no_clip(tokens))

    assert loss_faults(elsewhere_wrong) == []


def test_sequence_statistics_do_not_depend_on_packing() -> None:
    def of_sequence(tokens: LossInputs) -> PolicyLoss:
        mean = tokens.sequence_mean(tokens.log_ratio_R)
        return PolicyLoss(-tokens.advantages_R * mean.exp(), no_clip(tokens))

    assert loss_faults(of_sequence) == []


# What is tried, and what is said


def test_the_step_that_advantages_are_tried_on() -> None:
    step = example_step()
    assert step.rewards_N.tolist() == [1, 0, 0.5, 1, -1, 2]
    # Groups of 2 and 3, and a lone one; 1 to 4 tokens each.
    assert step.group_N.tolist() == [0, 1, 0, 1, 1, 2]
    assert step.rollout_N.tolist() == [0, 1, 2, 3, 4, 5]
    assert step.sequence_R.tolist() == [0, 0, 1, 2, 2, 2, 3, 3, 3, 3, 4, 5, 5]
    assert step.logprobs_R.tolist() == pytest.approx([-0.1 - 2.9 * i / 12 for i in range(13)])
    assert step.token_rewards_R.tolist() == [0] * 13
    floats = (step.rewards_N, step.logprobs_R, step.token_rewards_R)
    assert {values.dtype for values in floats} == {torch.float64}


def test_the_micro_batch_that_losses_are_tried_on() -> None:
    tokens = example_micro_batch()
    ratios = [0.05, -0.1, 0.9, -0.9, 0.02, 2]
    assert tokens.log_ratio_R.tolist() == pytest.approx(ratios)
    assert tokens.old_logprobs_R.tolist() == [-0.5, -1, -2, -0.1, -3, -0.7]
    assert tokens.advantages_R.tolist() == [1, -0.5, -0.5, -0.5, 2, 2]
    assert tokens.segment_R.tolist() == [0, 1, 1, 1, 2, 2]
    assert tokens.num_trained_B.tolist() == [1, 3, 2]
    assert tokens.logprobs_R.requires_grad
    floats = (tokens.logprobs_R, tokens.old_logprobs_R, tokens.advantages_R)
    assert {values.dtype for values in floats} == {torch.float64}


@pytest.mark.parametrize(
    ("broken", "fault"),
    [
        (
            by_position,
            Fault("follows its samples", "another order of the samples changes the result"),
        ),
        (
            of_names,
            Fault(
                "uses group numbers only to tell groups apart",
                "other numbers for the same groups change the result",
            ),
        ),
        (changes_inputs, Fault("leaves its inputs alone", "an input changed")),
        (
            lambda tokens: tokens.rewards_N,
            Fault("gives one number per trained token", "torch.Size([6]) for 13"),
        ),
        (lambda _: 3, Fault("gives one number per trained token", "int for 13")),
        (
            lambda tokens: tokens.logprobs_R.requires_grad_(),
            Fault("carries no gradient", "a tensor that requires one: detach it"),
        ),
        (
            lambda tokens: torch.randn(len(tokens.sequence_R)),
            Fault("gives the same result for the same input", "two calls differ"),
        ),
    ],
)
def test_what_an_advantage_is_told(broken, fault: Fault) -> None:
    assert fault in advantage_faults(broken)


def test_one_broken_promise_is_one_fault() -> None:
    assert [f.check for f in advantage_faults(of_names)] == [
        "uses group numbers only to tell groups apart"
    ]
    assert [f.check for f in advantage_faults(lambda tokens: tokens.rewards_N)] == [
        "gives one number per trained token"
    ]
    by_size = [
        f.check for f in loss_faults(lambda t: PolicyLoss(plain(t) / len(t.segment_R), no_clip(t)))
    ]
    assert by_size == ["does not depend on packing"]
    assert [f.check for f in loss_faults(pushes_all)] == ["leaves tokens of advantage 0 alone"]


@pytest.mark.parametrize("name", ["rewards_N", "rollout_N", "logprobs_R", "token_rewards_R"])
def test_an_advantage_of_any_input_follows_its_samples(name: str) -> None:
    """Each input moves with its sample when the order changes."""

    def advantage(tokens: StepTokens) -> torch.Tensor:
        values = getattr(tokens, name).double()
        by_sample = values if len(values) == len(tokens.rewards_N) else None
        if by_sample is None:
            return values.detach().clone()
        return by_sample[tokens.sequence_R]

    assert advantage_faults(advantage, ["teachers"]) == []


def test_who_compares_with_the_batch_need_not_look_at_groups() -> None:
    assert advantage_faults(of_the_batch, ["batch"]) == []
    zero = advantage_faults(lambda tokens: torch.zeros_like(tokens.logprobs_R), ["batch"])
    assert zero == [Fault("follows the rewards", "every advantage is 0")]


@pytest.mark.parametrize(("difference", "is_found"), [(1.5e-5, True), (5e-7, False)])
def test_a_difference_between_calls_is_found_from_1e_5_on(difference, is_found) -> None:
    calls = iter(range(99))

    def drifts(tokens: StepTokens) -> torch.Tensor:
        return tokens.rewards_N[tokens.sequence_R] + difference * next(calls)

    said = [f.check for f in advantage_faults(drifts)]
    assert ("gives the same result for the same input" in said) == is_found


@pytest.mark.parametrize("name", ["old_logprobs_R", "advantages_R", "segment_R"])
def test_a_loss_of_any_input_may_be_packed(name: str) -> None:
    """Each input moves with its token when the micro-batch is cut."""

    def loss(tokens: LossInputs) -> PolicyLoss:
        lengths = tokens.num_trained_B[tokens.segment_R]
        weight = getattr(tokens, name).double().abs() if name != "segment_R" else lengths
        return PolicyLoss(plain(tokens) * (1 + weight), no_clip(tokens))

    assert loss_faults(loss) == []


@pytest.mark.parametrize(
    ("broken", "fault"),
    [
        (
            lambda t: PolicyLoss(-plain(t), no_clip(t)),
            Fault(
                "raises the probability of tokens with a positive advantage",
                "at ratio 1 its gradient does not",
            ),
        ),
        (
            of_the_micro_batch,
            Fault("does not depend on packing", "two micro-batches differ from one"),
        ),
        (
            lambda t: PolicyLoss(plain(t).detach(), no_clip(t)),
            Fault("carries a gradient to logprobs_R", "none"),
        ),
        (
            lambda t: PolicyLoss(plain(t).sum(), no_clip(t)),
            Fault("gives one loss_R a token", "()"),
        ),
        (
            lambda t: PolicyLoss(plain(t), no_clip(t)[:2]),
            Fault("gives one is_clipped_R a token", "(2,)"),
        ),
        (plain, Fault("gives a PolicyLoss", "Tensor")),
        (
            lambda t: PolicyLoss(plain(t) * t.logprobs_R.exp().sub(1e9).sqrt(), no_clip(t)),
            Fault("is finite", "[nan, nan, nan, nan, nan, nan]"),
        ),
        (
            lambda t: PolicyLoss(plain(t) + (t.logprobs_R - t.logprobs_R).sqrt(), no_clip(t)),
            Fault("has a finite gradient", "[nan, nan, nan, nan, nan, nan]"),
        ),
    ],
)
def test_what_a_loss_is_told(broken, fault: Fault) -> None:
    assert fault in loss_faults(broken)
