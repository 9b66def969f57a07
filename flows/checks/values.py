"""Numbers that fit their field and still cannot mean what they say, each with its allowed range."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from engines.megatron.spec import Optimizer
from flows.checks.engines import model_config
from flows.recipe import Recipe
from tasks.opd.spec import OpdSettings
from tasks.rl.spec import RlSettings
from tasks.sft.spec import SftSettings

_RESERVE = 8
"""positions that SGLang keeps free at the end of its context"""

Trained = SftSettings | RlSettings | OpdSettings


def value_problems(recipe: Recipe) -> Iterator[str]:
    """Each as `field.path: what it is; what is allowed`."""
    yield from _not_finite(recipe.model_dump(), ())
    yield from _vocabulary(recipe)
    for where, settings in _trained(recipe):
        yield from _mini_batches(where, settings)
        yield from _warmup(where, settings)
    yield from _context(recipe)


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


def _trained(recipe: Recipe) -> Iterator[tuple[str, Trained]]:
    for name, expert in recipe.experts.items():
        yield f"experts.{name}.sft", expert.sft
        yield f"experts.{name}.rl", expert.rl
    if recipe.unified is not None:
        if recipe.unified.sft is not None:
            yield "unified.sft", recipe.unified.sft
        if recipe.unified.opd is not None:
            yield "unified.opd", recipe.unified.opd
        yield "unified.rl", recipe.unified.rl


def _mini_batches(where: str, settings: Trained) -> Iterator[str]:
    if isinstance(settings, SftSettings):
        return
    samples = settings.problems_per_step * settings.group_size
    mini_batches = settings.algorithm.mini_batches
    if mini_batches > samples:
        yield (
            f"{where}.algorithm.mini_batches: is {mini_batches}, but a step has {samples} samples"
            f" (problems_per_step x group_size); allowed: 1 to {samples}"
        )


def _warmup(where: str, settings: Trained) -> Iterator[str]:
    updates = settings.steps
    if not isinstance(settings, SftSettings):
        updates *= settings.algorithm.mini_batches
    yield from _fits(f"{where}.optimizer", settings.optimizer, updates)
    critic = settings.critic_role if isinstance(settings, RlSettings) else None
    if critic is not None and critic.optimizer is not None:
        own = updates * critic.steps_per_policy_step
        yield from _fits(f"{where}.critic.optimizer", critic.optimizer, own)


def _fits(where: str, optimizer: Optimizer, updates: int) -> Iterator[str]:
    if optimizer.warmup_steps > updates:
        yield (
            f"{where}.warmup_steps: is {optimizer.warmup_steps}, longer than the stage, which has"
            f" {updates} optimizer steps; allowed: 0 to {updates}"
        )


def _context(recipe: Recipe) -> Iterator[str]:
    """Answers that no context holds; how long the prompts are is seen when parts are tried."""
    own = (model_config(recipe.base) or {}).get("max_position_embeddings")
    for name, expert in recipe.experts.items():
        where, length = "the model's context", expert.rl.fleet.context_length or own
        if expert.rl.fleet.context_length is not None:
            where = f"experts.{name}.rl.fleet.context_length"
        if not isinstance(length, int):
            continue
        most = length - _RESERVE - 1
        if most < 1:
            field = where if expert.rl.fleet.context_length else "base: the model's context"
            yield (
                f"{field} of {length} tokens holds no prompt and answer beside the {_RESERVE} that"
                f" SGLang keeps free; at least {_RESERVE + 2}, and the prompts' length"
            )
        elif expert.domain.max_new_tokens > most:
            yield (
                f"experts.{name}.domain.max_new_tokens: is {expert.domain.max_new_tokens}, but"
                f" {where} has {length} tokens, of which SGLang keeps {_RESERVE} free; allowed: 1"
                f" to {most} minus the prompt's tokens"
            )
