"""What every advantage and loss must do, tried on small batches: ours in tests, yours by command.

    tributary test-hook my_algorithms:advantage

Each check says what it tried and what it saw; an empty list of faults is a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from engines.algorithms.inputs import (
    Components,
    LossInputs,
    PolicyLoss,
    StepTokens,
    Trajectories,
    Turns,
)
from engines.draws import Fault, guarded

if TYPE_CHECKING:
    from engines.algorithms.parts import Need

TOLERANCE = 1e-5
_GIVEN: tuple[Need, ...] = ("critic", "reference", "teachers", "turns", "components")
"""the needs that a step has to be given something for"""

# A user's function may return anything: that is what is tried here.
Advantages = Callable[[StepTokens], Any]
Losses = Callable[[LossInputs], Any]


def advantage_faults(advantage: Advantages, needs: Collection[Need] = ("spread",)) -> list[Fault]:
    """Checks of a `def advantage(tokens: StepTokens) -> Tensor` that is given what it needs: with
    `spread` it must compare the rollouts of a group, with `teachers` need not follow rewards."""
    undeclared = _undeclared(advantage, needs)
    if undeclared:
        written = f"`needs: [{', '.join([*needs, undeclared])}]`"
        return [Fault("says what it needs", f"it cannot do without {undeclared}; write {written}")]
    faults = list(guarded(advantage, partial(_advantage_checks, needs=needs)))
    return faults or list(guarded(advantage, partial(_signal_checks, needs=needs)))


def loss_faults(loss: Losses) -> list[Fault]:
    """Checks of a `def loss(tokens: LossInputs) -> PolicyLoss`."""
    return list(guarded(loss, _loss_checks))


def _undeclared(advantage: Advantages, needs: Collection[Need]) -> Need | None:
    """Return what would let it run, if it cannot with what it declares."""
    if _runs(advantage, needs):
        return None
    return next((need for need in _GIVEN if _runs(advantage, [*needs, need])), None)


def _runs(advantage: Advantages, needs: Collection[Need]) -> bool:
    try:
        advantage(example_step(needs))
    except (Exception, SystemExit):  # the user's code may raise anything
        return False
    return True


def _advantage_checks(advantage: Advantages, needs: Collection[Need]) -> Iterator[Fault]:
    tokens = example_step(needs)
    copies = [t.clone() for t in _tensors(tokens)]
    found_R = advantage(tokens)
    if not isinstance(found_R, Tensor) or found_R.shape != tokens.sequence_R.shape:
        shape = getattr(found_R, "shape", type(found_R).__name__)
        yield Fault("gives one number per trained token", f"{shape} for {len(tokens.sequence_R)}")
        return
    if not bool(found_R.isfinite().all()):
        yield Fault("is finite", f"{found_R.tolist()}")
    if found_R.requires_grad:
        yield Fault("carries no gradient", "a tensor that requires one: detach it")
    if any(not torch.equal(a, b) for a, b in zip(_tensors(tokens), copies, strict=True)):
        yield Fault("leaves its inputs alone", "an input changed")
    if not _same(advantage(tokens), found_R):
        yield Fault("gives the same result for the same input", "two calls differ")
    renamed = replace(tokens, group_N=2 - tokens.group_N)
    if not _same(advantage(renamed), found_R):
        yield Fault(
            "uses group numbers only to tell groups apart",
            "other numbers for the same groups change the result",
        )
    order_N = torch.tensor([3, 0, 4, 2, 1, 5])
    moved, places_R = _reordered(tokens, order_N)
    if not _same(advantage(moved), found_R[places_R]):
        yield Fault("follows its samples", "another order of the samples changes the result")
    equal = _rewarded(tokens, torch.ones_like)
    if not bool(advantage(equal).isfinite().all()):
        yield Fault("is finite where all rewards are equal", f"{advantage(equal).tolist()}")


def _signal_checks(advantage: Advantages, needs: Collection[Need]) -> Iterator[Fault]:
    """Yield whether anything can be learned from it."""
    if "teachers" in needs:
        return
    tokens = example_step(needs)
    found_R = advantage(tokens)
    changes = (lambda x: x.flip(0), lambda x: -x, lambda x: x.roll(1, 0))
    others = [advantage(_rewarded(tokens, change)) for change in changes]
    if all(_same(other_R, found_R) for other_R in others):
        zero = _same(found_R, torch.zeros_like(found_R))
        saw = "every advantage is 0" if zero else "other rewards give the same advantages"
        yield Fault("follows the rewards", saw)
        return
    regrouped = [torch.tensor(groups) for groups in ([0] * 6, [0, 1, 2, 0, 1, 2])]
    others = [advantage(replace(tokens, group_N=group_N)) for group_N in regrouped]
    if "spread" in needs and all(_same(other_R, found_R) for other_R in others):
        yield Fault(
            "compares the rollouts of a group",
            "other groups give the same advantages; where the whole batch is its baseline, write"
            " `needs: [batch]` (`--needs batch` of test-hook)",
        )


def _loss_checks(loss: Losses) -> Iterator[Fault]:
    tokens = example_micro_batch()
    made = loss(tokens)
    if not isinstance(made, PolicyLoss):
        yield Fault("gives a PolicyLoss", type(made).__name__)
        return
    for name, values in (("loss_R", made.loss_R), ("is_clipped_R", made.is_clipped_R)):
        if values.shape != tokens.logprobs_R.shape:
            yield Fault(f"gives one {name} a token", f"{tuple(values.shape)}")
            return
    if not bool(made.loss_R.isfinite().all()):
        yield Fault("is finite", f"{made.loss_R.tolist()}")
    gradient_R = _gradient(loss, tokens)
    if gradient_R is None:
        yield Fault("carries a gradient to logprobs_R", "none")
        return
    if not bool(gradient_R.isfinite().all()):
        yield Fault("has a finite gradient", f"{gradient_R.tolist()}")
    fresh = replace(tokens, old_logprobs_R=tokens.logprobs_R.detach())
    pushed_R = _gradient(loss, fresh)
    if pushed_R is None or float((pushed_R * fresh.advantages_R).sum()) >= 0:
        yield Fault(
            "raises the probability of tokens with a positive advantage",
            "at ratio 1 its gradient does not",
        )
    still = _gradient(loss, replace(tokens, advantages_R=torch.zeros_like(tokens.advantages_R)))
    if still is not None and not _same(still, torch.zeros_like(still)):
        yield Fault("leaves tokens of advantage 0 alone", f"gradient {still.tolist()}")
    halves = [loss(part).loss_R for part in _split(tokens)]
    if not _same(torch.cat(halves), made.loss_R):
        yield Fault("does not depend on packing", "two micro-batches differ from one")


def _rewarded(tokens: StepTokens, change: Callable[[Tensor], Tensor]) -> StepTokens:
    """The step with other rewards, and other scores of each."""
    made = tokens.components
    scored = made and replace(made, scores_NC=change(made.scores_NC))
    return replace(tokens, rewards_N=change(tokens.rewards_N), components=scored)


def example_step(needs: Collection[Need] = ()) -> StepTokens:
    """Six samples of two groups of different sizes and a lone one, 1 to 4 tokens each."""
    lengths = torch.tensor([2, 1, 3, 4, 1, 2])
    num = int(lengths.sum())
    return StepTokens(
        rewards_N=torch.tensor([1.0, 0.0, 0.5, 1.0, -1.0, 2.0], dtype=torch.float64),
        group_N=torch.tensor([0, 1, 0, 1, 1, 2]),
        rollout_N=torch.arange(6),
        sequence_R=torch.arange(6).repeat_interleave(lengths),
        logprobs_R=-torch.linspace(0.1, 3.0, num, dtype=torch.float64),
        token_rewards_R=torch.zeros(num, dtype=torch.float64),
        trajectories=_example_trajectories(lengths) if "critic" in needs else None,
        reference_logprobs_R=-torch.linspace(2.5, 0.3, num).double()
        if "reference" in needs
        else None,
        teacher_logprobs_KR=(
            -torch.linspace(0.2, 4.0, 2 * num).double().view(2, num)
            if "teachers" in needs
            else None
        ),
        teacher_weights_NK=(
            torch.linspace(0.1, 0.9, 6).double()[:, None] * torch.tensor([1.0, -1.0])
            + torch.tensor([0.0, 1.0])
            if "teachers" in needs
            else None
        ),
        turns=_example_turns(lengths) if "turns" in needs else None,
        components=_example_components() if "components" in needs else None,
    )


def _example_components() -> Components:
    """Two rewards whose weighted sum is the step's; only the first judges the lone sample, and the
    second counts for right rollouts alone."""
    scores = [[1.0, 0.0], [0.5, -1.0], [0.0, 1.0], [1.0, 0.0], [-1.0, 0.0], [2.0, 0.0]]
    weights = [[1.0, 0.5]] * 5 + [[1.0, 0.0]]
    return Components(
        torch.tensor(scores, dtype=torch.float64),
        torch.tensor(weights, dtype=torch.float64),
        torch.tensor([[True, score != 0] for _, score in scores]),
    )


def _example_turns(lengths: Tensor) -> Turns:
    """A sample's first token is a turn, the others are its second one; all first turns of a group
    are in one state, and those after it of the first two samples in another."""
    turns_N = lengths.clamp(max=2)
    sequence_U = torch.arange(len(lengths)).repeat_interleave(turns_N)
    is_first_R = torch.cat([torch.arange(n) == 0 for n in lengths.tolist()])
    is_second_R = torch.cat([torch.arange(n) == 1 for n in lengths.tolist()])
    return Turns(
        turn_R=(is_first_R | is_second_R).cumsum(0) - 1,
        sequence_U=sequence_U,
        shares_U=torch.linspace(0.1, 0.4, len(sequence_U), dtype=torch.float64),
        state_U=torch.tensor([0, 3, 1, 0, 3, 1, 4, 1, 2, 5]),
    )


def _example_trajectories(lengths: Tensor) -> Trajectories:
    """Every token is the model's own."""
    num = int(lengths.sum())
    return Trajectories(
        values_S=torch.linspace(-0.5, 1.0, num, dtype=torch.float64),
        sequence_S=torch.arange(len(lengths)).repeat_interleave(lengths),
        trained_S=torch.ones(num, dtype=torch.bool),
    )


def example_micro_batch() -> LossInputs:
    """Three sequences of 1, 3 and 2 tokens; ratios near 1 and far from it, both signs."""
    old_R = -torch.tensor([0.5, 1.0, 2.0, 0.1, 3.0, 0.7], dtype=torch.float64)
    log_ratio_R = torch.tensor([0.05, -0.1, 0.9, -0.9, 0.02, 2.0], dtype=torch.float64)
    return LossInputs(
        logprobs_R=(old_R + log_ratio_R).requires_grad_(),
        old_logprobs_R=old_R,
        advantages_R=torch.tensor([1.0, -0.5, -0.5, -0.5, 2.0, 2.0], dtype=torch.float64),
        segment_R=torch.tensor([0, 1, 1, 1, 2, 2]),
        num_trained_B=torch.tensor([1, 3, 2]),
    )


def _tensors(tokens: StepTokens | Trajectories | Turns | Components) -> list[Tensor]:
    values = [getattr(tokens, field.name) for field in fields(tokens)]
    inner = [
        tensor
        for value in values
        if isinstance(value, Trajectories | Turns | Components)
        for tensor in _tensors(value)
    ]
    return [value for value in values if isinstance(value, Tensor)] + inner


def _reordered(tokens: StepTokens, order_N: Tensor) -> tuple[StepTokens, Tensor]:
    """The samples in another order, and where each of their tokens was."""
    places_R = torch.cat([(tokens.sequence_R == n).nonzero()[:, 0] for n in order_N])
    back_N = order_N.argsort()
    moved = replace(
        tokens,
        rewards_N=tokens.rewards_N[order_N],
        group_N=tokens.group_N[order_N],
        rollout_N=tokens.rollout_N[order_N],
        sequence_R=back_N[tokens.sequence_R[places_R]],
        logprobs_R=tokens.logprobs_R[places_R],
        token_rewards_R=tokens.token_rewards_R[places_R],
        trajectories=tokens.trajectories and _moved(tokens.trajectories, back_N, places_R),
        reference_logprobs_R=_at(tokens.reference_logprobs_R, places_R),
        teacher_logprobs_KR=_at(tokens.teacher_logprobs_KR, (slice(None), places_R)),
        teacher_weights_NK=_at(tokens.teacher_weights_NK, order_N),
        turns=tokens.turns and _turns_moved(tokens.turns, order_N, places_R),
        components=tokens.components
        and Components(
            tokens.components.scores_NC[order_N],
            tokens.components.weights_NC[order_N],
            _at(tokens.components.counts_NC, order_N),
        ),
    )
    return moved, places_R


def _turns_moved(turns: Turns, order_N: Tensor, places_R: Tensor) -> Turns:
    places_U = torch.cat([(turns.sequence_U == n).nonzero()[:, 0] for n in order_N])
    return Turns(
        turn_R=places_U.argsort()[turns.turn_R[places_R]],
        sequence_U=order_N.argsort()[turns.sequence_U[places_U]],
        shares_U=turns.shares_U[places_U],
        state_U=turns.state_U[places_U],
    )


def _moved(trajectories: Trajectories, back_N: Tensor, places_S: Tensor) -> Trajectories:
    return Trajectories(
        values_S=trajectories.values_S[places_S],
        sequence_S=back_N[trajectories.sequence_S[places_S]],
        trained_S=trajectories.trained_S[places_S],
    )


def _at(values: Tensor | None, places: Any) -> Tensor | None:
    return None if values is None else values[places]


def _split(tokens: LossInputs) -> list[LossInputs]:
    """The first sequence, and the others, as micro-batches of their own."""
    parts: list[LossInputs] = []
    for low, high in ((0, 1), (1, 3)):
        mine_R = (tokens.segment_R >= low) & (tokens.segment_R < high)
        parts.append(
            replace(
                tokens,
                logprobs_R=tokens.logprobs_R[mine_R],
                old_logprobs_R=tokens.old_logprobs_R[mine_R],
                advantages_R=tokens.advantages_R[mine_R],
                segment_R=tokens.segment_R[mine_R] - low,
                num_trained_B=tokens.num_trained_B[low:high],
            )
        )
    return parts


def _gradient(loss: Losses, tokens: LossInputs) -> Tensor | None:
    """Return the gradient of the summed loss in the logprobs; None if it has none."""
    leaf_R = tokens.logprobs_R.detach().requires_grad_()
    total = loss(replace(tokens, logprobs_R=leaf_R)).loss_R.sum()
    if not total.requires_grad:
        return None
    total.backward()
    return leaf_R.grad


def _same(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a.double(), b.double(), rtol=TOLERANCE, atol=TOLERANCE)
