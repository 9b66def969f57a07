"""Numbers that fit their field and still cannot mean what they say, each with its allowed range."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engines.megatron.spec import Optimizer
from flows.checks.engines import model_config
from flows.plan import PlannedStage
from flows.recipe import Recipe
from infra.secret_references import written_secrets
from tasks.stage import StageSpec

_RESERVE = 8
"""positions that SGLang keeps free at the end of its context"""


def value_problems(recipe: Recipe, plan: Sequence[PlannedStage]) -> Iterator[str]:
    """Each as `field.path: what it is; what is allowed`."""
    yield from _not_finite(recipe.model_dump(), ())
    yield from written_secrets(recipe.model_dump(mode="json"))
    yield from _vocabulary(recipe)
    for stage in plan:
        yield from _mini_batches(stage.where, stage.spec)
        for field, optimizer, updates in stage.spec.optimizers:
            yield from _fits(f"{stage.where}.{field}", optimizer, updates)
    yield from _context(recipe, plan)


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
    samples = spec.policy.problems_per_step * spec.policy.group_size
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


def _context(recipe: Recipe, plan: Sequence[PlannedStage]) -> Iterator[str]:
    """Answers that no context holds; how long the prompts are is seen when parts are tried."""
    own = (model_config(recipe.base) or {}).get("max_position_embeddings")
    placed = {
        e.domain.name: f"experts.{key}.domain" for key, e in recipe.experts.items() if e.domain
    }
    for stage in plan:
        if stage.spec.fleet is None:
            continue
        where, field = "the model's context", "base: the model's context"
        length = stage.spec.fleet.context_length or own
        if stage.spec.fleet.context_length is not None:
            where = field = f"{stage.where}.fleet.context_length"
        if not isinstance(length, int):
            continue
        most = length - _RESERVE - 1
        if most < 1:
            yield (
                f"{field} of {length} tokens holds no prompt and answer beside the {_RESERVE} that"
                f" SGLang keeps free; at least {_RESERVE + 2}, and the prompts' length"
            )
            continue
        for domain in stage.spec.sampled_domains:
            if domain.max_new_tokens > most:
                yield (
                    f"{placed[domain.name]}.max_new_tokens: is {domain.max_new_tokens}, but"
                    f" {where} has {length} tokens, of which SGLang keeps {_RESERVE} free; allowed:"
                    f" 1 to {most} minus the prompt's tokens"
                )
