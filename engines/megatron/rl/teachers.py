"""Teachers: frozen models that score what the student sampled, each the samples of its domain.

    the student's weights are set aside → of each teacher: weights are read from its folder into
    their place, its samples are scored → the student's come back

So a teacher has the student's architecture and layout, and a rank never holds more than two sets of
weights, however many teachers there are. The files are mapped, so that a second reading comes from
the host's page cache. Axes: K teachers, N samples, R trained tokens, T all tokens of the samples to
train on.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engines.algorithms.aggregation import trains
from engines.algorithms.inputs import ComparedTokens
from engines.families.common.family import ModelShape
from engines.families.common.model_config import read_config
from engines.families.common.registry import model_shape
from engines.megatron.adapters import PARAMETERS, adapters_off
from engines.megatron.hf.folder import HfWeights
from engines.megatron.hf.layout import mapped_weights
from engines.megatron.model import PolicyModel
from engines.megatron.train.pack import Pack
from infra.errors import InputError, TrainingStopped

if TYPE_CHECKING:
    from engines.megatron.rl.rl_batch import RlBatch
    from engines.megatron.rl.trainer import RlTrainer
    from engines.step_inputs import StepInputs

Floats: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TopTokens:
    places: NDArray[np.int64]
    """[R] of the trained tokens among all of the step's sequences, ascending"""
    ids_RK: NDArray[np.int32]
    logprobs_RK: NDArray[np.float32]
    rest_R: NDArray[np.float32]
    """logprob of all other tokens together"""
    is_whole: bool
    """whether these K are the vocabulary"""

    @staticmethod
    def empty(places: NDArray[np.int64], count: int, vocab: int) -> TopTokens:
        size = (len(places), count)
        return TopTokens(
            places,
            np.zeros(size, np.int32),
            np.zeros(size, np.float32),
            np.zeros(len(places), np.float32),
            is_whole=count == vocab,
        )

    def fill(self, places: NDArray[np.int64], said: NDArray[np.float32]) -> None:
        """[2K + 1, places]: K logprobs, the rest's, K ids."""
        rows, count = np.searchsorted(self.places, places), self.ids_RK.shape[1]
        self.logprobs_RK[rows] = said[:count].T
        self.rest_R[rows] = said[count]
        self.ids_RK[rows] = said[count + 1 :].T

    def ids(self, pack: Pack) -> Tensor:
        """[rows of the pack, K]"""
        return torch.from_numpy(self.ids_RK[self._rows(pack)]).to(pack.labels)

    def compared(self, pack: Pack, student_logprobs_RK: Tensor) -> ComparedTokens:
        rows = self._rows(pack)
        logprobs, rest = (
            torch.from_numpy(values[rows]).to(student_logprobs_RK)
            for values in (self.logprobs_RK, self.rest_R)
        )
        return ComparedTokens(logprobs, student_logprobs_RK, None if self.is_whole else rest)

    def _rows(self, pack: Pack) -> NDArray[np.int64]:
        return np.searchsorted(self.places, pack.targets)


class Reference:
    """A second set of this rank's weights, put in place of the policy's for a forward pass."""

    def __init__(self, policy: PolicyModel, load: Callable[[], None]) -> None:
        """`load` writes the reference's weights into the policy; the policy's own come back."""
        own = _copies(policy)
        load()
        self.weights = _copies(policy)
        _put(policy, own)

    @contextmanager
    def in_place(self, policy: PolicyModel) -> Generator[None]:
        with _set_aside(policy):
            _put(policy, self.weights)
            yield


@contextmanager
def _set_aside(policy: PolicyModel) -> Generator[None]:
    """Others may take the place of the policy's weights, which come back; adapters are off."""
    own = _copies(policy)
    try:
        with adapters_off(policy):
            yield
    finally:
        _put(policy, own)


def _copies(policy: PolicyModel) -> list[Tensor]:
    return [weight.detach().clone() for weight in _weights(policy)]


@torch.no_grad()
def _put(policy: PolicyModel, weights: list[Tensor]) -> None:
    for own, weight in zip(_weights(policy), weights, strict=True):
        own.copy_(weight)


def _weights(policy: PolicyModel) -> Iterator[Tensor]:
    """Without adapters, which only the policy has. With what routers keep beside: where it
    changes, the reference has another one."""
    yield from (p for name, p in policy.named_parameters() if PARAMETERS not in name)
    yield from (b for name, b in policy.named_buffers() if name.endswith(".expert_bias"))


@dataclass(frozen=True, slots=True)
class TeacherScores:
    """What the teachers say of a step's batch."""

    domains: tuple[str, ...]
    """of each teacher"""
    logprobs_KR: Tensor
    """float64; NaN where a teacher was not asked, which is at the samples of other domains"""
    weights_NK: Tensor
    """float64; 1 where the sample is of the teacher's domain, else 0"""
    top: TopTokens | None = None
    """each place's likeliest tokens, to the teacher of its sample; None if none were asked for"""

    def metrics(self, student_logprobs_R: Tensor) -> dict[str, float]:
        """Mean of student's - teacher's logprob: estimates KL(student || teacher) in nats a token.

        Of all tokens as `teacher_kl`; with several teachers, of each one's as `teacher_kl_NAME`.
        """
        gap_KR = student_logprobs_R - self.logprobs_KR
        values = {"teacher_kl": float(gap_KR.nanmean())}
        asked = (~gap_KR.isnan()).any(1).tolist()
        if len(self.domains) > 1:
            for domain, gap_R, has_samples in zip(self.domains, gap_KR, asked, strict=True):
                if has_samples:
                    values[f"teacher_kl_{domain}"] = float(gap_R.nanmean())
        return values


class Teachers:
    """One frozen model a domain: in an HF folder, of which at most one is in memory, or behind
    servers that somebody else asks."""

    def __init__(
        self, trainer: RlTrainer, folders: Mapping[str, Path], served: Sequence[str] = ()
    ) -> None:
        """`served`: the other domains. Raises InputError for a folder of another architecture, or
        one that lacks weights."""
        self._folders = dict(folders)
        self._domains = (*folders, *served)
        for domain, folder in folders.items():
            _check_shape(domain, model_shape(read_config(folder)), trainer.shape)
            stored = HfWeights(folder)
            for weight in mapped_weights(trainer.policy, trainer.shape, trainer.layout):
                stored.require(weight.names)

    def score(self, trainer: RlTrainer, batch: RlBatch, inputs: StepInputs) -> TeacherScores:
        """Score each sample under its domain's teacher, with the teacher's likeliest tokens of each
        place if the loss compares them. A collective.

        Raises TrainingStopped for a sample whose domain has no teacher.
        """
        domains = [s.domain for s in batch.samples]
        self._check_domains(domains)
        trained = batch.trained()
        vocab, num_top = trainer.shape.vocab, inputs.algorithm.compared_tokens
        count = vocab if num_top == "all" else min(num_top or 0, vocab)
        top = TopTokens.empty(trained, count, vocab) if count else None
        head = {"temperature": inputs.algorithm.temperature, "num_top": count}
        numbers = 2 + 2 * count if count else 1
        logprobs_KT = np.full((len(self._domains), batch.learned.num_tokens), np.nan, np.float32)
        with _set_aside(trainer.policy) if self._folders else nullcontext():
            for row, (domain, folder) in zip(logprobs_KT, self._folders.items(), strict=False):
                chosen = _places(domain, domains[: len(batch.num_trained)])
                if len(chosen):
                    trainer.load_folder(folder)
                    places = batch.trained(chosen)
                    said = trainer.read_all(batch.learned, head, chosen, places, numbers)
                    row[places] = said[0]
                    if top is not None:
                        top.fill(places, said[1:])
        self._put_served(logprobs_KT, batch, inputs)
        weights = [[float(domain == name) for name in self._domains] for domain in domains]
        return TeacherScores(
            domains=self._domains,
            logprobs_KR=torch.from_numpy(logprobs_KT[:, trained]).double(),
            weights_NK=torch.tensor(weights, dtype=torch.float64),
            top=top,
        )

    def _put_served(self, logprobs_KT: Floats, batch: RlBatch, inputs: StepInputs) -> None:
        """Put what servers said of each sample where the sample's tokens are."""
        rows = {domain: row for row, domain in enumerate(self._domains)}
        trained = (n for n, s in enumerate(inputs.samples) if trains(s, inputs.algorithm.truncated))
        for number, position in enumerate(trained):
            if (said := inputs.teacher_logprobs.get(position)) is not None:
                first = int(batch.learned.starts[number])
                row = rows[inputs.samples[position].domain]
                logprobs_KT[row, first : first + len(said)] = said

    def _check_domains(self, domains: list[str]) -> None:
        missing = sorted(set(domains) - set(self._domains))
        if missing:
            raise TrainingStopped(
                f"samples of {', '.join(missing)} have no teacher; there is one for each of"
                f" {', '.join(self._domains)}. Give the stage a teacher for every domain"
            )


def _places(domain: str, domains: list[str]) -> NDArray[np.int64]:
    return np.array([n for n, name in enumerate(domains) if name == domain], np.int64)


def _check_shape(domain: str, teacher: ModelShape, student: ModelShape) -> None:
    if teacher != student:
        raise InputError(
            f"the teacher of {domain} does not have the student's architecture: {teacher}, the"
            f" student is {student}. Teachers run in the student's trainer; use models"
            " that were trained from the same base"
        )
