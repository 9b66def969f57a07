"""What to lower in a recipe when a stage ran out of memory: from what, to what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from engines.megatron.spec import MICRO_BATCH_TOKENS
from engines.sglang.spec import CPU_TOKENS
from tasks.stage import Resources, StageResources

Whose = Literal["trainer", "server", "job"]
_FEWEST_TOKENS = 256
_DEFAULT_FRACTION = 0.9
"""about what SGLang takes of a GPU where nothing is said"""


def memory_advice(
    stage: str,
    settings: Mapping[str, Any],
    resources: StageResources,
    pool: Resources,
    whose: Whose | None = None,
) -> str:
    """Lines to append to an error's message; `settings` are those of the stage's spec.

    `whose`: the process that ran out, if it is known.
    """
    lines = [
        *(_trainer(settings, resources) if whose in ("trainer", None) else ()),
        *(_servers(settings, resources) if whose in ("server", None) else ()),
    ]
    if pool.concurrent_stages > 1:
        lines.append(
            f"resources.concurrent_stages: {pool.concurrent_stages} -> {pool.concurrent_stages - 1}"
        )
    listed = (
        "".join(f"\n  {line}" for line in lines)
        or "\n  no setting of the recipe helps: free memory on the machine"
    )
    return (
        f"The stage is not retried with the same settings. Lower one of these for {stage},"
        " then run the "
        f"recipe again:{listed}"
    )


def _trainer(settings: Mapping[str, Any], resources: StageResources) -> Iterator[str]:
    trainer = settings.get("trainer")
    if trainer is None:
        return
    tokens = int(trainer["micro_batch_tokens"] or MICRO_BATCH_TOKENS)
    if tokens // 2 >= _FEWEST_TOKENS:
        yield (
            f"trainer.micro_batch_tokens: {tokens} -> {tokens // 2} (the result stays the same, so "
            "the stage continues from its checkpoints)"
        )
    tp = resources.trainer.tp
    yield f"more ranks to share the model: resources, trainer.tp: {tp} -> {tp * 2}"


def _servers(settings: Mapping[str, Any], resources: StageResources) -> Iterator[str]:
    fleet = settings.get("fleet")
    if fleet is None:
        return
    tokens = fleet["max_total_tokens"]
    yield f"fleet.max_total_tokens: {tokens or 'unset'} -> {(tokens or CPU_TOKENS) // 2}"
    fraction = fleet["sglang"].get("mem_fraction_static")
    lower = round((_DEFAULT_FRACTION if fraction is None else float(fraction)) - 0.1, 2)
    if lower > 0:
        yield f"on a GPU, fleet.sglang.mem_fraction_static: {fraction or 'unset'} -> {lower}"
    if resources.servers > 1:
        yield f"resources, servers: {resources.servers} -> {resources.servers - 1}"
