"""Computes what each role of a stage needs on each of its devices, from the base model and from
what shares it.

As `engines/devices/sharing.py` has it: one side sleeps while the other works, both have their
weights while these are published, a server that was lost gets its weights while the others
generate, and a checkpoint is written beside the servers' weights.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from engines.families.common.registry import model_shape
from engines.megatron.spec import Parallel, TrainerSettings
from engines.memory.activations import recompute_of
from engines.memory.model_size import KNOWN, ModelSize, size_of
from engines.memory.server_memory import ServerMemory, ServerNeeds, server_memory, token_bytes
from engines.memory.trainer_memory import (
    TrainerMemory,
    TrainerNeeds,
    optimizer_state,
    trainer_memory,
)
from engines.sglang.spec import FleetSpec
from engines.weights.buckets import BUCKET_BYTES
from flows.checks.engines import model_config
from flows.plan import PlannedStage
from infra.errors import InputError, StorageError
from tasks.base.spec import BaseSettings
from tasks.mid_training.spec import MidTrainingSpec
from tasks.model_folder.model_files import ModelFiles
from tasks.served.body import config_of

ASLEEP_BYTES = 10**9
"""what stays on a GPU of a process that sleeps: CUDA's context and NCCL's buffers. An allowance: no
GPU was at hand to measure"""
Needs: TypeAlias = TrainerNeeds | ServerNeeds
Memory: TypeAlias = TrainerMemory | ServerMemory


@dataclass(frozen=True, slots=True)
class BaseModel:
    size: ModelSize
    max_positions: int
    known_by_name: str = ""
    """the model's name, where its folder is out of reach and its shape is taken from that name"""


def base_model(base: BaseSettings) -> BaseModel | None:
    """Describe the base; None for a model of which nothing is known, or that the engines cannot
    train."""
    return _model(model_config(base), base.folder or "")


def folder_model(folder: str) -> BaseModel | None:
    """Describe a model that is only served: one whose family the engines train, or that is known by
    its folder's name."""
    return _model(served_config(folder), folder)


def _model(config: Mapping[str, Any] | None, folder: str) -> BaseModel | None:
    """Where there is no configuration, the folder's name may be that of a known model."""
    name = ""
    if config is None:
        name = _name_of(folder)
        config = KNOWN.get(name)
    if config is None:
        return None
    try:
        shape = model_shape(config)
    except InputError:  # said elsewhere
        return None
    return BaseModel(size_of(shape), shape.max_positions, name)


@functools.cache  # one look a command: a store far away takes seconds
def served_config(folder: str) -> Mapping[str, Any] | None:
    """Read the folder's configuration; None for a folder that is out of reach."""
    try:
        return config_of(ModelFiles(folder))
    except (InputError, StorageError):
        return None


def _name_of(folder: str) -> str:
    """Example: "s3://models/Qwen3-4B/" -> "Qwen3-4B"."""
    return folder.rstrip("/").rpartition("/")[2].partition("@")[0]


def beside_trainer(trainer: TrainerMemory, server: ServerMemory) -> int:
    """Return what a server has beside a trainer at its largest moment, which is a step beside
    sleeping servers, or a checkpoint beside their weights: then gradients, activations and frozen
    models are not there."""
    made_room = trainer.gradients + trainer.activations + trainer.copies
    return ASLEEP_BYTES + max(server.weights - made_room, 0)


def beside_server(trainer: TrainerMemory, table_bytes: int) -> int:
    """Return what is beside a server while another one is repaired: the trainer's weights and the
    two buckets in which it sends them. A tensor that is larger than a bucket is one, as the
    embedding and the output layer are, of `table_bytes` each."""
    return ASLEEP_BYTES + trainer.weights + 2 * max(BUCKET_BYTES, table_bytes)


@dataclass(frozen=True, slots=True)
class RoleMemory:
    """One role of one stage."""

    stage: str
    role: str
    """trainer, critic, server, or the role of a model that rewards ask"""
    size: ModelSize
    needs: Needs
    num_devices: int
    """of all its ranks or servers together"""
    beside: int = 0
    """bytes that the stage's other side has on the same devices at this role's largest moment"""
    device: str = ""
    """the kind that it wants; empty: any"""
    sleeps: bool = False
    """whether it takes turns with the stage's other side on one device"""

    @property
    def host_bytes(self) -> int:
        """Return what each of its ranks takes of its host's memory at most, beside its process; 0
        of a server and on CPUs."""
        if not isinstance(self.needs, TrainerNeeds) or self.needs.place == "cpu":
            return 0
        return trainer_memory(self.size, self.needs).host_bytes(sleeps=self.sleeps)

    @property
    def total(self) -> int:
        """Bytes that it needs on each device."""
        return self.memory.total + self.beside

    @property
    def filled(self) -> int:
        """Bytes on each device that a server's cache takes beyond what it needs: all that is free,
        where the recipe does not say how large it is."""
        needs = self.needs
        if not isinstance(needs, ServerNeeds) or not needs.fills_device:
            return 0
        return max((needs.device_bytes or 0) - self.total, 0)

    @property
    def cached_tokens(self) -> int:
        """Tokens that a server's cache holds; 0 of a trainer."""
        if not isinstance(self.needs, ServerNeeds):
            return 0
        return self.needs.max_total_tokens + self.filled // token_bytes(self.size, self.needs)

    @property
    def memory(self) -> Memory:
        """Return the memory of this role on each device."""
        if isinstance(self.needs, TrainerNeeds):
            return trainer_memory(self.size, self.needs)
        return server_memory(self.size, self.needs)


def roles_of(stage: PlannedStage, base: BaseModel, device_bytes: int | None) -> list[RoleMemory]:
    """`device_bytes`: of a GPU; None on CPUs."""
    trained = list(_trained(stage, base.size, device_bytes))
    served = list(_served(stage, base, device_bytes))
    takes_turns = stage.resources.share and device_bytes is not None
    return _in_turns(trained, served) if takes_turns and trained and served else trained + served


def _in_turns(trained: Sequence[RoleMemory], served: Sequence[RoleMemory]) -> list[RoleMemory]:
    """Any rank may have any server beside it."""
    ranks = [role.memory for role in trained]
    servers = [role.memory for role in served]
    besides = [
        max(beside_trainer(rank, server) for server in servers if isinstance(server, ServerMemory))
        for rank in ranks
        if isinstance(rank, TrainerMemory)
    ]
    most = max(
        beside_server(rank, role.size.vocab * role.size.hidden * role.needs.value_bytes)
        for rank, role in zip(ranks, trained, strict=True)
        if isinstance(rank, TrainerMemory) and isinstance(role.needs, TrainerNeeds)
    )
    return [
        *(
            replace(role, beside=size, sleeps=True)
            for role, size in zip(trained, besides, strict=True)
        ),
        *(replace(role, beside=most, sleeps=True) for role in served),
    ]


def _served(stage: PlannedStage, base: BaseModel, device_bytes: int | None) -> Iterator[RoleMemory]:
    fleet, resources = stage.spec.fleet, stage.resources
    if fleet is None or fleet.external:
        return
    if stage.spec.trainer is not None:
        fleet = fleet.of_trainer(stage.spec.trainer.precision)
    needs = server_needs(fleet, base, resources.tp_per_server, device_bytes)
    num = resources.servers * resources.tp_per_server
    yield RoleMemory(stage.name, "server", base.size, needs, num)


def server_needs(
    fleet: FleetSpec, model: BaseModel, tp: int, device_bytes: int | None
) -> ServerNeeds:
    """Return a server's settings as they decide how much memory it needs."""
    return ServerNeeds(
        tp=tp,
        context_length=fleet.context_length or model.max_positions,
        max_total_tokens=fleet.least_tokens,
        options=fleet.sglang,
        device_bytes=device_bytes,
        fills_device=fleet.max_total_tokens is None and device_bytes is not None,
        in_fp8=fleet.quantization is not None,
    )


def _trained(
    stage: PlannedStage, size: ModelSize, device_bytes: int | None
) -> Iterator[RoleMemory]:
    trainer = stage.spec.trainer
    if trainer is None or not stage.spec.trained_roles:
        return
    layout = stage.resources.trainer
    needs = _trainer_needs(stage, trainer, layout, device_bytes)
    num_top, places = _likeliest_tokens(stage, size)
    policy = replace(
        needs,
        copies=_references(stage, trainer),
        has_teachers=stage.spec.has_teachers
        and len(stage.spec.served_teachers) < len(stage.spec.sampled_domains),
        num_top=num_top,
        places=places,
    )
    valued = replace(size, has_value_head=True, is_tied=False)
    trained = valued if "reward" in stage.spec.trained_roles else size
    yield RoleMemory(stage.name, "trainer", trained, policy, layout.world_size)
    policy = stage.spec.policy
    of_critic = None if policy is None else policy.critic_trainer
    if stage.critic is not None and of_critic is not None:
        needs = _trainer_needs(stage, of_critic, stage.critic, device_bytes)
        yield RoleMemory(stage.name, "critic", valued, needs, stage.critic.world_size)


def _trainer_needs(
    stage: PlannedStage, trainer: TrainerSettings, layout: Parallel, device_bytes: int | None
) -> TrainerNeeds:
    return TrainerNeeds(
        layout=layout,
        precision=trainer.precision,
        # A longer sequence is a micro-batch by itself.
        tokens=max(trainer.most_tokens, -(-longest_sequence(stage) // layout.cp)),
        recompute=recompute_of(trainer.megatron),
        state=optimizer_state(trainer.precision, trainer.megatron),
        lora=trainer.lora,
        place="cpu" if device_bytes is None else "cuda",
    )


def longest_sequence(stage: PlannedStage) -> int:
    """Tokens of a sequence that the stage samples or packs, or of both rollouts of a pair; 0 where
    its settings do not bound them."""
    if isinstance(stage.spec, MidTrainingSpec):
        return stage.spec.settings.sequence_length
    fleet, policy = stage.spec.fleet, stage.spec.policy
    together = 2 if policy is not None and policy.algorithm.compares_pairs else 1
    if fleet is not None and fleet.context_length is not None:
        return together * fleet.context_length
    domains = stage.spec.sampled_domains
    return together * max((domain.max_new_tokens for domain in domains), default=0)


def _references(stage: PlannedStage, trainer: TrainerSettings) -> int:
    # Without its adapters a policy itself is the reference.
    policy = stage.spec.policy if trainer.lora is None else None
    return int(policy is not None and "reference" in policy.algorithm.needs)


def _likeliest_tokens(stage: PlannedStage, size: ModelSize) -> tuple[int, int]:
    """Return how many its teachers name of each place, and how many places a step has at most."""
    policy = stage.spec.policy
    wanted = policy and policy.algorithm.compared_tokens
    if policy is None or not wanted:
        return 0, 0
    longest = max(domain.max_new_tokens for domain in stage.spec.sampled_domains)
    places = policy.problems_per_step * max(policy.group_sizes) * longest
    return size.vocab if wanted == "all" else min(wanted, size.vocab), places


def parts_of(role: RoleMemory) -> Mapping[str, int]:
    """Return the memory's parts in bytes, by what they are for; the parts sum up to the total and
    what the cache fills."""
    parts = {**_own_parts(role.memory), "other side": role.beside}
    return parts | {"KV cache": parts["KV cache"] + role.filled} if role.filled else parts


def _own_parts(memory: Memory) -> Mapping[str, int]:
    if isinstance(memory, TrainerMemory):
        return {
            "weights": memory.weights,
            "gradients": memory.gradients,
            "optimizer": memory.optimizer,
            "frozen models": memory.copies,
            "activations": memory.activations,
            "runtime": memory.runtime,
        }
    return {
        "weights": memory.weights,
        "KV cache": memory.cache + memory.requests,
        "runtime": memory.runtime,
    }
