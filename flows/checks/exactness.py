"""Which stages of a plan cannot promise that a disturbed run ends with the same bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flows.checks.engines import model_config
from flows.checks.served import inexact_roles
from flows.plan import PlannedStage
from flows.recipe import Recipe
from infra.cuda import has_cuda

# The only values with which a request's bits were measured to be independent of its batch.
_MEASURED = {
    "attention_backend": ("torch_native",),
    "device": ("cpu",),
    "dtype": ("float32", "bfloat16"),
    "enable_deterministic_inference": (True,),
    "sampling_backend": ("pytorch",),
}
_NEVER_MEASURED = ("speculative_", "quantization", "kv_cache_dtype", "enable_torch_compile")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


NOT_HERE = (
    "determinism: auto is `close` here: this host has a GPU, and no GPU kernel was tested to give"
    " the same bits again"
)


def determinism_problems(recipe: Recipe, plan: list[PlannedStage]) -> Iterator[str]:
    """Why the recipe cannot promise the bits that it does promise."""
    is_exact = recipe.determinism == "exact" or (recipe.determinism == "auto" and not has_cuda())
    if is_exact:
        yield from (f"{line}; set `determinism: close`" for line in inexact(recipe, plan))


def determinism_notes(recipe: Recipe) -> Iterator[str]:
    if recipe.determinism == "auto" and has_cuda():
        yield NOT_HERE


def inexact(recipe: Recipe, plan: list[PlannedStage]) -> Iterator[str]:
    """A line for each reason why a stage that was killed may not end bit-identical.

    The promise is for stages that run where there is no GPU: no kernel of one was measured.
    """
    if has_cuda():
        yield (
            "this host has a GPU, and no GPU kernel was tested (an empty CUDA_VISIBLE_DEVICES"
            " keeps everything on the CPU)"
        )
    config = model_config(recipe.base) or {}
    routed = any(config.get(name) for name in _EXPERTS)
    for stage in plan:
        if stage.spec.fleet is None:
            continue
        if stage.spec.samples_beside_training:
            yield (
                f"stage {stage.name}: with max_staleness above 0 the clock decides which rollouts a"
                " step takes"
            )
        if routed:
            yield f"stage {stage.name}: products of routed experts depend on the batch"
        for fleet in (stage.spec.fleet, *(role.fleet for role in stage.roles.values())):
            for name in _unproven(fleet.sglang):
                yield (
                    f"stage {stage.name}: fleet.sglang.{name} was not tested to be batch-invariant"
                )
        yield from inexact_roles(stage)


def _unproven(options: Mapping[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        is_other = name in _MEASURED and value not in _MEASURED[name]
        is_lossy = name.startswith(_NEVER_MEASURED) and value not in (None, False, "auto")
        if is_other or is_lossy:
            yield name
