"""Teachers: frozen models that score what the student sampled, each the samples of its domain.

A teacher is a second set of this rank's weights (`Reference`), put in place of the student's for
one forward pass: so it has the student's architecture and layout, and costs one more copy of the
weights. Axes: K teachers, N samples, R trained tokens, T all tokens of the samples to train on.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engines.families.common.family import ModelShape
from engines.families.common.model_config import read_config
from engines.families.common.registry import model_shape
from engines.megatron.adapters import PARAMETERS, adapters_off
from engines.megatron.hf.folder import HfWeights
from engines.megatron.hf.layout import load_weights
from engines.megatron.model import PolicyModel
from infra.errors import InputError, TrainingStopped

if TYPE_CHECKING:
    from engines.megatron.rl.rl_batch import RlBatch
    from engines.megatron.rl.trainer import RlTrainer


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
        own = _copies(policy)
        _put(policy, self.weights)
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
    """One frozen model a domain."""

    def __init__(self, trainer: RlTrainer, folders: Mapping[str, Path]) -> None:
        """Load the HF folders' weights, by domain. Raises InputError for another architecture."""
        self._models: dict[str, Reference] = {}
        for domain, folder in folders.items():
            _check_shape(domain, model_shape(read_config(folder)), trainer.shape)
            weights = HfWeights(folder)
            fill = partial(
                *(load_weights, trainer.policy, trainer.shape, trainer.layout),
                *(weights.read, weights.file_of),
            )
            self._models[domain] = Reference(trainer.policy, fill)

    def weights(self) -> Iterator[Tensor]:
        """Of all teachers."""
        for model in self._models.values():
            yield from model.weights

    def score(self, trainer: RlTrainer, batch: RlBatch, temperature: float) -> TeacherScores:
        """Each sample under its domain's teacher. A collective.

        Raises TrainingStopped for a sample whose domain has no teacher.
        """
        domains = [s.domain for s in batch.samples]
        self._check_domains(domains)
        trained = batch.trained()
        logprobs_KT = np.full((len(self._models), batch.learned.num_tokens), np.nan, np.float32)
        for row, (domain, model) in zip(logprobs_KT, self._models.items(), strict=True):
            chosen = _places(domain, domains[: len(batch.num_trained)])
            if len(chosen):
                with model.in_place(trainer.policy):
                    scored = trainer.score(batch.learned, temperature, chosen)
                places = batch.trained(chosen)
                row[places] = scored[places]
        weights = [[float(domain == name) for name in self._models] for domain in domains]
        return TeacherScores(
            domains=tuple(self._models),
            logprobs_KR=torch.from_numpy(logprobs_KT[:, trained]).double(),
            weights_NK=torch.tensor(weights, dtype=torch.float64),
        )

    def _check_domains(self, domains: list[str]) -> None:
        missing = sorted(set(domains) - self._models.keys())
        if missing:
            raise TrainingStopped(
                f"samples of {', '.join(missing)} have no teacher; there is one for each of"
                f" {', '.join(self._models)}. Give the stage a teacher for every domain"
            )


def _places(domain: str, domains: list[str]) -> NDArray[np.int64]:
    return np.array([n for n, name in enumerate(domains) if name == domain], np.int64)


def _check_shape(domain: str, teacher: ModelShape, student: ModelShape) -> None:
    if teacher != student:
        raise InputError(
            f"the teacher of {domain} does not have the student's architecture: {teacher}, the"
            f" student is {student}. Teachers run in the student's trainer; use experts"
            " that were trained from the same base"
        )
