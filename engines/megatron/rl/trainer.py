"""One rank of a policy in reinforcement learning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from engines.devices.device_kinds import TrainerPart
from engines.megatron import device
from engines.megatron.adapters import adapters_off
from engines.megatron.hf.layout import served_weights
from engines.megatron.model import PolicyModel
from engines.megatron.options import REPLAY_NEEDS_EXPERTS
from engines.megatron.parallel import control_group, start_parallel, stop_parallel
from engines.megatron.rl.rl_step import token_rewards_of, train_on
from engines.megatron.rl.teachers import Reference, Teachers
from engines.megatron.train.pack import FlatSequences
from engines.megatron.train.routes import Routes
from engines.megatron.train.sft_trainer import SftTrainer
from engines.step_inputs import StepInputs, TrainedStep
from engines.weights.buckets import TrainedWeights
from engines.weights.choice import transport_to
from engines.weights.cuda_ipc import gpu_of
from engines.weights.ranks import Ranks
from engines.weights.spec import WeightTransport
from engines.weights.transport import PublishReport, Transport, as_taken, find_targets
from infra.errors import EngineError, InputError

__all__ = ["RlTrainer", "start_parallel", "stop_parallel"]
_AUTO = WeightTransport()


class RlTrainer(SftTrainer):
    """This process's share of one policy in training."""

    _reference: Reference | None = None
    teachers: Teachers | None = None
    """set by `load_teachers`"""
    _transport: Transport | None = None
    """made by the first publish, which knows where the servers are"""

    @property
    def policy(self) -> PolicyModel:
        return cast("PolicyModel", self.network)

    # Training

    def rl_step(self, inputs: StepInputs) -> TrainedStep:
        """Train on one batch of rollouts: `algorithm.mini_batches` optimizer steps.

        What becomes of samples that cannot be trained on: `engines.algorithms.aggregation`. With
        `gate`, the mean difference between trainer and engine logprobs of tokens that the present
        weights wrote, before any update, must not pass `algorithm.agreement_gate`. Raises
        AgreementError, TrainingStopped.
        """
        return train_on(self, inputs)

    def token_rewards(self, inputs: StepInputs) -> NDArray[np.float32]:
        """What the KL term adds to each token's reward, as flat as `RlBatch.flat`: a critic learns
        the same rewards. For `kl.place: reward`."""
        return token_rewards_of(self, inputs)

    # Scoring

    def routes(self, num_tokens: int) -> Routes:
        """Where the experts of so many tokens can be noted. Raises InputError for a dense model."""
        if self.shape.mixture is None:
            raise InputError(REPLAY_NEEDS_EXPERTS)
        numbers = (router.layer_number for router in self._routers.each)
        layers = [number - 1 for number in numbers if number is not None]
        return Routes(num_tokens, layers, self.shape.num_layers, self.shape.mixture)

    def reference_score(
        self, flat: FlatSequences, temperature: float | NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """The same under the weights that this Trainer was made with."""
        if self.spec.lora is not None:
            with adapters_off(self.policy):
                return self.score(flat, temperature)
        if self._reference is None:
            self._reference = Reference(self.policy, partial(self.load_folder, self._model))
        with self._reference.in_place(self.policy):
            return self.score(flat, temperature)

    def read_all(
        self,
        flat: FlatSequences,
        head: Mapping[str, Any],
        indices: NDArray[np.int64],
        places: NDArray[np.int64],
        numbers: int,
    ) -> NDArray[np.float32]:
        """[numbers, places] the first ones that the head says of each trained token of these
        sequences. The tokens are at these ascending `places`. A collective."""
        whole = torch.zeros(numbers, len(places), device=device.device())
        said = self.said(flat, head, indices)
        for pack, each in said if self.layout.is_loss_rank else []:
            whole[:, torch.from_numpy(np.searchsorted(places, pack.targets))] = each[:numbers]
        if self.layout.world > 1:
            dist.all_reduce(whole)
        return whole.cpu().numpy()

    def load_teachers(self, folders: Mapping[str, Path], served: Sequence[str] = ()) -> None:
        """Remember where each domain's frozen model is, for steps that ask for teachers; what those
        of the domains `served` say is given with each step."""
        self.teachers = Teachers(self, folders, served)

    # Weights

    def tensors_of(self, part: TrainerPart) -> Iterator[Tensor]:
        yield from super().tensors_of(part)
        if part == "frozen" and self._reference is not None:
            yield from self._reference.weights

    def trained_weights(self) -> TrainedWeights:
        """This rank's share of the weights as a transport takes them."""
        layout, parallel = self.layout, self.layout.parallel
        ranks = Ranks(
            rank=layout.rank,
            world=layout.world,
            stage=layout.pp_rank,
            num_stages=parallel.pp,
            shard=layout.tp_rank,
            num_shards=parallel.tp,
            replica=layout.dp_rank * parallel.cp + layout.cp_rank,
            num_replicas=parallel.dp * parallel.cp,
            shard_group=layout.tp_group,
            control_group=control_group(),
        )
        if parallel.ep > 1:
            # Experts lie across data-parallel ranks: none of these is a replica.
            number, count = ranks.replica * parallel.tp + ranks.shard, layout.world // parallel.pp
            ranks = replace(
                ranks,
                shard=number,
                num_shards=count,
                replica=0,
                num_replicas=1,
                shard_group=layout.stage_group,
            )
        return TrainedWeights(served_weights(self.network, self.shape, layout), ranks)

    def publish(
        self, endpoints: Sequence[str], version: int, how: WeightTransport = _AUTO
    ) -> PublishReport:
        """Give the current weights to generation servers as `version`; all ranks take part.
        `how` counts at the first publish.

        A server that refuses is in the report: the ranks stay in step, and the publish can be
        repeated.
        """
        weights = self.trained_weights()
        try:
            targets = weights.ranks.from_leader(lambda: find_targets(endpoints))
            self._transport = self._transport or transport_to(
                targets, weights.ranks, how, gpu_of(weights)
            )
            return self._transport.push(as_taken(weights, targets), targets, version)
        except EngineError as error:
            return PublishReport(version, "", 0, 0, 0.0, refused=str(error))

    def close(self) -> None:
        super().close()
        if self._transport is not None:
            self._transport.close()
