"""Checks of layouts and of options that are passed through to the engines, before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from engines.megatron.options import STAGES, check_layout
from engines.megatron.spec import Parallel
from engines.sglang.options import check_options, check_parallel
from flows.checks.model_folders import model_report
from flows.plan import PlannedStage
from infra.errors import InputError
from tasks.base.random_model import hf_config
from tasks.base.spec import BaseSettings


def model_config(base: BaseSettings) -> Mapping[str, Any] | None:
    """The base model's `config.json`; None when it is out of reach or describes no model."""
    if base.random is None:
        report = model_report(str(base.folder))
        return report and report.config
    return hf_config(base.random)


def _fitting(layout: Parallel, options: Mapping[str, Any]) -> dict[str, Any]:
    """A model that any layout divides, for a base out of reach: its options can still be wrong."""
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


def trainer_problems(base: BaseSettings, stage: PlannedStage) -> Iterator[str]:
    """Layouts that the model does not divide into, and wrong Megatron options."""
    if stage.spec.trainer is None:
        return
    roles = [("", stage.spec.trainer, stage.resources.trainer)]
    of_critic = stage.spec.policy and stage.spec.policy.critic_trainer
    if stage.critic is not None and of_critic is not None:
        roles.append(("critic, ", of_critic, stage.critic))
    for role, trainer, layout in roles:
        try:
            config = model_config(base) or _fitting(layout, trainer.megatron)
            check_layout(config, layout, trainer.megatron, trainer.precision)
        except InputError as error:
            yield f"stage {stage.name}: {role}{error}"


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
