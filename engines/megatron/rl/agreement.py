"""How far the trainer's logprobs are from those of the engine that sampled, and when that is too
far. Of one sample after the other, so that a step of any size takes little memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from engines.algorithms.corrections import mismatch_metrics
from engines.algorithms.statistics import LOG_BOUND
from infra.errors import AgreementError

if TYPE_CHECKING:
    from engines.megatron.rl.rl_batch import RlBatch
    from engines.step_inputs import StepInputs


MISMATCH_TOKENS = 1 << 19
"""of how many tokens, evenly spread, the engines' mismatch is measured"""


@dataclass(frozen=True, slots=True)
class KnownTokens:
    """A sample's trained tokens whose logprobs the trainer knows."""

    places: NDArray[np.int64]
    """among all T"""
    trainer: NDArray[np.float32]
    engine: NDArray[np.float32]
    lags: NDArray[np.int64]
    """how many versions of the policy are between the token's and the present one"""


def known_tokens(
    batch: RlBatch,
    logprobs: NDArray[np.float32],
    indices: NDArray[np.int64],
    version: int | None,
) -> Iterator[KnownTokens]:
    """The trained tokens of these samples, of one sample after the other, with the trainer's
    logprobs [T]. `version`: the policy's; None: the newest token's."""
    numbers = np.sort(indices).tolist()
    newest = version
    if newest is None:
        newest = max(int(_versions(batch, n).max()) for n in numbers if batch.num_trained[n])
    for n in numbers:
        places = batch.trained_in(n)
        engine = batch.engine(n)[places - batch.learned.starts[n]]
        yield KnownTokens(places, logprobs[places], engine, newest - _versions(batch, n))


def shown_logprobs(
    batch: RlBatch,
    inputs: StepInputs,
    logprobs: NDArray[np.float32],
    indices: NDArray[np.int64],
) -> dict[int, NDArray[np.float32]]:
    """`TrainedStep.logprobs`, from those [T] that are known of the samples `indices`."""
    number_of = {id(batch.samples[number]): number for number in indices.tolist()}
    found = dict[int, NDArray[np.float32]]()
    for position in inputs.shown:
        number = number_of.get(id(inputs.samples[position]))
        if number is not None:
            places = batch.trained_in(number)
            its = np.zeros(int(batch.learned.lengths[number]), np.float32)
            its[places - batch.learned.starts[number]] = logprobs[places]
            found[position] = its
    return found


def _versions(batch: RlBatch, n: int) -> NDArray[np.int64]:
    """Return the versions of a sample's trained tokens."""
    places = batch.trained_in(n) - batch.learned.starts[n]
    return np.asarray(batch.samples[n].weight_versions.of_each(), np.int64)[places]


def check_agreement(known: Iterable[KnownTokens], gate: float, batch: RlBatch) -> None:
    """Raise AgreementError if the engine's logprobs of tokens that the present weights wrote are
    further than the gate from the trainer's, on average, each token's at most 20 nats; the message
    names the worst of them. Equal on all ranks.
    """
    total, count, worst, place, said = 0.0, 0, -1.0, 0, (0.0, 0.0)
    for tokens in known:
        now = tokens.lags == 0
        if not now.any():
            continue
        apart = np.abs(tokens.trainer[now].astype(np.float64) - tokens.engine[now])
        total, count = total + float(np.minimum(apart, LOG_BOUND).sum()), count + len(apart)
        apart = np.nan_to_num(apart, nan=np.inf)
        if apart.max() > worst:
            at = int(apart.argmax())
            worst, place = float(apart[at]), int(tokens.places[now][at])
            said = float(tokens.trainer[now][at]), float(tokens.engine[now][at])
    mean = total / count if count else 0.0
    if mean <= gate:
        return
    index = int(np.searchsorted(batch.learned.starts, place, side="right")) - 1
    position = place - int(batch.learned.starts[index])
    sample = batch.samples[index]
    version = sample.weight_versions.of_each()[position]
    raise AgreementError(
        f"trainer and engine disagree: mean |logprob difference| {mean:.2e} over the gate"
        f" {gate:.0e}. Worst at sample {sample.sample_index} of {sample.problem_id} (rollout"
        f" {sample.rollout_id}), token position {position} (id {sample.tokens[position]}, weight"
        f" version {version}): trainer {said[0]:.5f}, engine"
        f" {said[1]:.5f}. Nothing was trained on; check that the engine serves the"
        " trainer's weights and precision; `tributary align MODEL` names the module that differs"
    )


def mismatch_of(known: Iterable[KnownTokens], num_tokens: int) -> dict[str, float]:
    """`mismatch_metrics` of `num_tokens` tokens; of more than MISMATCH_TOKENS, of each second one,
    each third, and so on."""
    every = max(1, -(-num_tokens // MISMATCH_TOKENS))
    parts: list[tuple[NDArray[Any], ...]] = []
    first = 0
    for tokens in known:
        chosen = slice(first, None, every)
        told = (tokens.trainer, tokens.engine, tokens.lags)
        parts.append(tuple(values[chosen].copy() for values in told))  # and forget the others
        first = (first - len(tokens.places)) % every
    columns = [torch.from_numpy(np.concatenate(column)) for column in zip(*parts, strict=True)]
    return mismatch_metrics(*columns) if columns else {}
