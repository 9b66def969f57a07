"""Checks what engines get, before anything runs: model folders, layouts, options, algorithms,
numbers.
"""

from __future__ import annotations

import functools
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from engines.algorithms.combinations import refusals
from engines.families.common.model_config import usable_positions
from engines.families.common.registry import check_reward_model
from engines.megatron.options import (
    OFFLOAD_NEEDS_GPU,
    STAGES,
    check_effects,
    check_layout,
    check_lora,
    check_replay,
)
from engines.megatron.spec import Optimizer, Parallel
from engines.sglang.arguments import idle_options
from engines.sglang.server_options import check_options, check_parallel
from flows.plan import BASE, PlannedStage
from flows.recipe import Recipe
from infra.cuda import has_cuda
from infra.errors import InputError, StorageError
from infra.secret_references import written_secrets
from tasks.base.random_model import hf_config
from tasks.base.spec import BaseSettings, BaseSpec
from tasks.mid_training.spec import MidTrainingSpec
from tasks.model_folder.folder_report import ModelReport, report_model
from tasks.served.body import served_folder_problems
from tasks.stage import StageSpec

_HALF_TYPES = ("bfloat16", "float16", "half")
_PROCESSOR = Path("/proc/cpuinfo")
_HALF_INSTRUCTIONS = {"avx512bw", "amx_bf16", "bf16"}
"""as Linux names them; torch multiplies bf16 numbers fast by any of them"""
_HALF_GATE = 0.01
"""nats per token; the most that 16 bits were measured to cost is about this"""


def folder_problems(plan: list[PlannedStage]) -> Iterator[str]:
    """Yield each problem as `base.folder: FOLDER/FILE: what is wrong; what to do`."""
    for where, folder in _served(plan):
        found = _served_report(folder)
        if not isinstance(found, StorageError):
            yield from (f"{where}: {line}" for line in found)
    for where, folder, template in _folders(plan):
        report = _report(folder, template)
        if isinstance(report, ModelReport):
            yield from (f"{where}: {line}" for line in report.problems)


def folder_cautions(plan: list[PlannedStage]) -> Iterator[str]:
    """Yield what a folder holds that is not used, and folders that only their stage will see."""
    for where, folder in _served(plan):
        if isinstance(found := _served_report(folder), StorageError):
            yield f"{where}: its model is checked when its stage starts: {found}"
    for where, folder, template in _folders(plan):
        report = _report(folder, template)
        if isinstance(report, StorageError):
            yield f"{where}: its model is checked when its stage starts: {report}"
        else:
            yield from (f"{where}: {line}" for line in report.notes)


def model_report(folder: str, template: str | None = None) -> ModelReport | None:
    """Return what is known of a model folder; None for one that is out of reach."""
    report = _report(folder, template)
    return report if isinstance(report, ModelReport) else None


@functools.cache  # one look a command: a store far away takes seconds
def _report(folder: str, template: str | None) -> ModelReport | StorageError:
    try:
        return report_model(folder, template)
    except StorageError as error:
        return error


@functools.cache
def _served_report(folder: str) -> tuple[str, ...] | StorageError:
    try:
        return tuple(served_folder_problems(folder))
    except StorageError as error:
        return error


def _served(plan: list[PlannedStage]) -> Iterator[tuple[str, str]]:
    """Each folder of a model that only servers read."""
    for stage in plan:
        if stage.spec.served_folder is not None:
            yield stage.where, stage.spec.served_folder


def _folders(plan: list[PlannedStage]) -> Iterator[tuple[str, str, str | None]]:
    """Each folder to import, with its place in the recipe or in the flow's parameters, and the chat
    template that it gets."""
    for stage in plan:
        if isinstance(stage.spec, BaseSpec) and stage.spec.imported_folder is not None:
            where = f"{BASE}.folder" if stage.where == BASE else stage.where
            yield where, stage.spec.imported_folder, stage.spec.settings.template


def model_config(base: BaseSettings) -> Mapping[str, Any] | None:
    """The base model's `config.json`; None when it is out of reach or describes no model."""
    if base.random is None:
        report = model_report(str(base.folder), base.template)
        return None if report is None else report.config
    return hf_config(base.random)


def config_made(plan: Sequence[PlannedStage], name: str) -> Mapping[str, Any] | None:
    """The `config.json` of the model that a stage makes or imports; None where it is not known."""
    stage = {each.name: each for each in plan}.get(name)
    if stage is None:
        return None
    if isinstance(stage.spec, BaseSpec):
        return model_config(stage.spec.settings)
    config = config_made(plan, stage.inputs.get("model", ""))
    rope = stage.spec.settings.rope if isinstance(stage.spec, MidTrainingSpec) else None
    if config is None or rope is None:
        return config
    try:
        return rope.of(config)
    except InputError:  # said of that stage
        return {**config, "max_position_embeddings": rope.positions}


def positions_of(recipe: Recipe, plan: Sequence[PlannedStage], stage: PlannedStage) -> int | None:
    """Positions of the model that a stage begins with, or of those that it scores the most; None
    where the base's are not known."""
    begins = [stage.inputs["model"]] if "model" in stage.inputs else stage.inputs.values()
    configs = [model_config(recipe.base), *(config_made(plan, name) for name in begins)]
    own, *others = [usable_positions(config or {}) for config in configs]
    return None if own is None else max([own, *(n for n in others if n is not None)])


def _fitting(layout: Parallel, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model that any layout divides, for a base out of reach: its options can still be
    wrong.
    """
    uneven = [size for name in STAGES if isinstance(size := options.get(name), int)]
    return {
        "model_type": "qwen3",
        "hidden_size": layout.tp,
        "num_hidden_layers": max(sum(uneven) + layout.pp - len(uneven), 1),
        "num_attention_heads": layout.tp,
        "num_key_value_heads": layout.tp,
        "head_dim": 2,
        "intermediate_size": layout.tp,
        "vocab_size": layout.tp,
    }


def trainer_problems(recipe: Recipe, stage: PlannedStage) -> Iterator[str]:
    """Layouts and options that do not fit the model, Megatron or the machine."""
    if stage.spec.trainer is None:
        return
    roles = [("", stage.spec.trainer, stage.resources.trainer)]
    policy = stage.spec.policy
    of_critic = None if policy is None else policy.critic_trainer
    if stage.critic is not None and of_critic is not None:
        roles.append(("critic, ", of_critic, stage.critic))
    on_cpu = not has_cuda() and recipe.resources.devices is None
    for role, trainer, layout in roles:
        if on_cpu and trainer.megatron.get("optimizer_cpu_offload"):
            yield (
                f"stage {stage.name}: {role}{OFFLOAD_NEEDS_GPU}, or describe other hosts' GPUs in"
                " `resources.devices`"
            )
        if on_cpu and trainer.kernels == "fused" and shutil.which("g++") is None:
            yield (
                f"stage {stage.name}: {role}trainer.kernels: fused needs g++ on a CPU: install it,"
                " or write `auto`"
            )
        try:
            known = model_config(recipe.base)
            config = known or _fitting(layout, trainer.megatron)
            check_layout(config, layout, trainer.megatron, trainer.precision)
            if trainer is not stage.spec.trainer or not role:  # a critic may have the policy's
                check_effects(layout, trainer.megatron)
            is_valued = bool(role) or "reward" in stage.spec.trained_roles
            if known and "reward" in stage.spec.trained_roles:
                check_reward_model(known)
            if known and policy is not None and not role:
                check_replay(config, policy.algorithm.routing_replay)
            if known or is_valued:
                check_lora(config, trainer.lora, trainer.megatron, has_value_head=is_valued)
        except InputError as error:
            yield f"stage {stage.name}: {role}{error}"


def multiplies_half_numbers(description: Path) -> bool:
    """Return whether a processor, as Linux describes it, has instructions for numbers of 16 bits;
    also true where nothing describes it."""
    lines = description.read_text(errors="replace").splitlines() if description.exists() else []
    flags = {
        flag
        for name, _, value in (line.partition(":") for line in lines)
        if name.strip() in ("flags", "Features")
        for flag in value.split()
    }
    return not flags or bool(flags & _HALF_INSTRUCTIONS)


def processor_cautions(recipe: Recipe, stage: PlannedStage) -> Iterator[str]:
    """Numbers of 16 bits where a processor computes them that has no instructions for them."""
    if has_cuda() or recipe.resources.devices is not None or multiplies_half_numbers(_PROCESSOR):
        return
    fields: list[str] = []
    if stage.spec.trainer is not None and stage.spec.trainer.precision == "bf16":
        fields.append("trainer.precision: bf16")
    if stage.spec.fleet is not None and stage.spec.fleet.sglang.get("dtype") in _HALF_TYPES:
        fields.append(f"fleet.sglang.dtype: {stage.spec.fleet.sglang['dtype']}")
    for field in fields:
        yield (
            f"stage {stage.name}: {field}: this processor has no instructions for 16-bit numbers"
            " and takes 5 to 50 times as long as in fp32; leave it out"
        )


def fleet_problems(stage: PlannedStage) -> Iterator[str]:
    """Wrong SGLang options."""
    if stage.spec.fleet is None:
        return
    dtype = stage.spec.fleet.sglang.get("dtype")
    if stage.spec.trainer is not None and dtype in ("float16", "half"):
        precision = stage.spec.trainer.precision
        yield (
            f"stage {stage.name}: fleet.sglang.dtype: {dtype} cannot hold all values that a trainer"
            f" with precision: {precision} publishes; leave it out: servers take its type"
        )
    try:
        check_options(stage.spec.fleet.sglang)
        check_parallel(stage.spec.fleet.sglang, stage.resources.tp_per_server)
    except InputError as error:
        yield f"stage {stage.name}: {error}"
        return
    if not stage.spec.fleet.external:  # how many ranks those have is not known
        for idle in idle_options(stage.spec.fleet.sglang, stage.resources.tp_per_server):
            yield f"stage {stage.name}: fleet.sglang.{idle}; leave it out"


def algorithm_problems(stage: PlannedStage) -> Iterator[str]:
    """Yield each problem as `stage NAME: FIELD: reason; way out`."""
    yield from (f"stage {stage.name}: {line}" for line in stage.spec.problems())
    settings = stage.spec.policy
    if settings is None:
        return
    where, has_teachers = f"stage {stage.name}: algorithm", stage.spec.has_teachers
    for refusal in refusals(settings.algorithm, settings.group_size, has_teachers=has_teachers):
        yield f"{where}.{refusal}"
    num_rollouts = settings.problems_per_step * settings.group_size
    if num_rollouts == 1 and "batch" in settings.algorithm.needs:
        yield (
            f"{where}.advantage: its baseline is the step's batch, which is only one rollout; raise"
            " problems_per_step or group_size"
        )


def algorithm_cautions(stage: PlannedStage) -> Iterator[str]:
    """Yield what can run but hardly learns, or stops at its first step."""
    yield from (f"stage {stage.name}: {line}" for line in stage.spec.cautions())
    settings = stage.spec.policy
    if settings is None:
        return
    temperature = settings.algorithm.temperature
    if temperature != 1.0:
        yield (
            f"stage {stage.name}: algorithm.temperature: is {temperature:g}: rollouts are sampled,"
            " and trainer and engine compare probabilities, at this temperature; scores are still"
            " of temperature 1 and greedy answers"
        )
    dtype = settings.fleet.sglang.get("dtype")
    cache = settings.fleet.sglang.get("kv_cache_dtype", "auto")
    if str(cache).startswith("fp"):
        yield (
            f"stage {stage.name}: fleet.sglang.kv_cache_dtype: {cache} rounds keys and values, so"
            " the servers sample from other probabilities than the trainer computes; look at"
            " mismatch_k3 and use a correction"
        )
    gate = settings.algorithm.agreement_gate
    if gate < _HALF_GATE and (settings.trainer.precision == "bf16" or dtype in _HALF_TYPES):
        yield (
            f"stage {stage.name}: algorithm.agreement_gate: trainer and engine differ by 0.001 to"
            f" 0.01 nats per token if one of them computes in 16 bits; above {gate:g} the stage"
            " stops; set it to 0.05"
        )


def value_problems(recipe: Recipe, plan: Sequence[PlannedStage]) -> Iterator[str]:
    """Yield each problem as `field.path: what it is; what is allowed`."""
    yield from _not_finite(recipe.model_dump(), ())
    yield from written_secrets(recipe.model_dump(mode="json"))
    yield from _vocabulary(recipe)
    for stage in plan:
        yield from _mini_batches(stage.where, stage.spec)
        for field, optimizer, updates in stage.spec.optimizers:
            yield from _fits(f"{stage.where}.{field}", optimizer, updates)
            yield from _decays(f"{stage.where}.{field}", optimizer)


def _not_finite(value: Any, at: tuple[str, ...]) -> Iterator[str]:
    """Options of hooks and engines among them: no digest can hold infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        yield f"{'.'.join(at)}: is {value}; must be a finite number"
    items: Any = ()
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    for key, item in items:
        yield from _not_finite(item, (*at, str(key)))


def _vocabulary(recipe: Recipe) -> Iterator[str]:
    from tasks.base.tokenizer import SMALLEST

    made = recipe.base.random
    if made is not None and made.vocab_size < SMALLEST:
        yield (
            f"base.random.vocab_size: is {made.vocab_size}; bytes, special tokens and phrases alone"
            f" need {SMALLEST}; set it to at least that (512 is a good size)"
        )


def _mini_batches(where: str, spec: StageSpec) -> Iterator[str]:
    if spec.policy is None:
        return
    samples = spec.policy.problems_per_step * min(spec.policy.group_sizes)
    mini_batches = spec.policy.algorithm.mini_batches
    if mini_batches > samples:
        yield (
            f"{where}.algorithm.mini_batches: is {mini_batches}, but a step has {samples} samples"
            f" (problems_per_step x group_size); allowed: 1 to {samples}"
        )


def _fits(where: str, optimizer: Optimizer, updates: int) -> Iterator[str]:
    if optimizer.warmup_steps > updates:
        yield (
            f"{where}.warmup_steps: is {optimizer.warmup_steps}, longer than the stage, which has"
            f" {updates} optimizer steps; allowed: 0 to {updates}"
        )


def _decays(where: str, optimizer: Optimizer) -> Iterator[str]:
    """Yield whether a shape of decay and the rate that it ends with say the same."""
    ratio, shape = optimizer.min_lr_ratio, optimizer.decay
    if shape == "constant" and ratio != 1:
        yield (
            f"{where}.min_lr_ratio: is {ratio:g}, and has no effect with `decay: constant`;"
            " leave it out, or write `decay: linear` or `cosine`"
        )
    if shape != "constant" and ratio == 1:
        yield (
            f"{where}.decay: {shape} ends at min_lr_ratio times the peak learning rate, and that"
            " is 1 unless you write it: the rate would stay as it is. Add e.g. `min_lr_ratio: 0.1`,"
            " or leave `decay` out"
        )
