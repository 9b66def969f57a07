"""One rank of a trainer: a policy in training behind a few methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from engines.algorithms.spec import Algorithm
from engines.batching import TokenSequence
from engines.megatron.began import Began
from engines.megatron.hf_folder import HfWeights, write_folder
from engines.megatron.model import PolicyModel
from engines.megatron.objectives import SftObjective
from engines.megatron.pack import FlatSequences
from engines.megatron.parallel import start_parallel, stop_parallel
from engines.megatron.reference import Reference
from engines.megatron.rl_step import agreement_of, token_rewards_of, train_on
from engines.megatron.teachers import Teachers
from engines.megatron.training import Training
from engines.types import Sample
from engines.weight_sync.report import PublishReport
from infra.errors import EngineError

__all__ = ["Trainer", "start_parallel", "stop_parallel"]


class Trainer(Training):
    """This process's share of one policy in training."""

    _reference: Reference | None = None
    teachers: Teachers | None = None
    """set by `load_teachers`"""

    @property
    def policy(self) -> PolicyModel:
        return cast("PolicyModel", self.network)

    # Training

    def sft_steps(self, batches: Sequence[Sequence[TokenSequence]]) -> list[dict[str, float]]:
        """One optimizer step for each batch, in order; returns the metrics of each."""
        return [self._sft_step(batch) for batch in batches]

    def _sft_step(self, batch: Sequence[TokenSequence]) -> dict[str, float]:
        began = Began.now()
        flat = FlatSequences.of([s.tokens for s in batch], [s.loss_mask for s in batch])
        indices = np.arange(len(batch))
        stats = self.forward_backward(flat, indices, SftObjective())
        norm = self.update()
        return {
            "loss": stats.mean("loss", "units"),
            "grad_norm": norm,
            **self.rates(flat, began),
        }

    def rl_step(
        self,
        samples: Sequence[Sample],
        algorithm: Algorithm,
        gate: bool,
        version: int | None = None,
        values: NDArray[np.float32] | None = None,
        token_rewards: NDArray[np.float32] | None = None,
    ) -> dict[str, float]:
        """Train on one batch of rollouts: `algorithm.mini_batches` optimizer steps.

        What becomes of samples that cannot be trained on: `engines.algorithms.sample_rules`. With
        `gate`, the mean difference between trainer and engine logprobs, before any update, must
        not pass `algorithm.agreement_gate`. `version` is the policy's; None: the newest sample's.
        `values` are the critic's, where the advantage asks for them, and `token_rewards` what the
        method of that name said, if it was asked. Raises AgreementError, TrainingStopped.
        """
        return train_on(
            self,
            samples,
            algorithm,
            gate=gate,
            version=version,
            values=values,
            token_rewards=token_rewards,
        )

    def token_rewards(self, samples: Sequence[Sample], algorithm: Algorithm) -> NDArray[np.float32]:
        """What the KL term adds to each token's reward, as flat as the trainable samples' tokens:
        a critic learns the same rewards. For `kl.place: reward`."""
        return token_rewards_of(self, samples, algorithm)

    def agreement(self, samples: Sequence[Sample], algorithm: Algorithm) -> dict[str, float]:
        """`engine_mismatch_*`: metrics of the engine against the present weights, which must have
        sampled all of it. One forward pass, no update. Raises AgreementError beyond the gate."""
        return agreement_of(self, samples, algorithm)

    # Scoring

    def logprobs(
        self, sequences: Sequence[Sequence[int]], temperature: float = 1.0
    ) -> list[list[float]]:
        """Log-probability of every token given those before it, at this temperature.

        Each list is as long as its sequence; the first entry, which nothing predicts, is 0.
        """
        flat = FlatSequences.of(sequences, [[1] * len(s) for s in sequences])
        whole = torch.from_numpy(self.score(flat, temperature))
        return [values.tolist() for values in whole.split(flat.lengths.tolist())]

    def score(
        self,
        flat: FlatSequences,
        temperature: float,
        indices: NDArray[np.int64] | None = None,
    ) -> NDArray[np.float32]:
        """Logprob of every trained token, as flat as the tokens; 0 for the others. No update.

        With `indices`, of these sequences only.
        """
        return self.read(flat, {"temperature": temperature}, indices)

    def reference_score(self, flat: FlatSequences, temperature: float) -> NDArray[np.float32]:
        """The same under the weights that this Trainer was made with."""
        if self._reference is None:
            self._reference = Reference(self.policy, self._load_model)
        with self._reference.in_place(self.policy):
            return self.score(flat, temperature)

    def load_teachers(self, folders: Mapping[str, Path]) -> None:
        """Hold a frozen model for each domain, for a step with the distillation advantage."""
        self.teachers = Teachers(self, folders)

    # Weights

    def publish(self, endpoints: Sequence[str], version: int) -> PublishReport | None:
        """Give the current weights to generation servers as `version`; rank 0 sends.

        Returns the report on rank 0, None elsewhere. A server that refuses is in the report: the
        ranks stay in step, and the publish can be repeated.
        """
        tensors = self.hf_tensors()
        try:
            if self.layout.rank != 0:
                return None
            from engines.weight_sync import publish

            return publish(tensors, endpoints, version)
        except EngineError as error:
            return PublishReport(version, "", 0, 0, 0.0, refused=str(error))
        finally:
            for _ in tensors:  # every rank takes part in gathering each of them
                pass

    def export(self, folder: Path, source: Path) -> None:
        """Write a HF folder like `source` with the current weights; rank 0 writes."""
        tensors = self.whole_weights()
        if tensors:
            weights = HfWeights(source)
            if self.shape.is_tied and "lm_head.weight" in weights.file_of:
                tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
            write_folder(folder, tensors, weights)
        dist.barrier()
