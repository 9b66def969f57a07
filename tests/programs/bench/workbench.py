"""What the rows share: a model and its domains. It is the demo's, briefly trained, or a real one.

Everything runs in the bench's own process and its children, without Ray, so that a figure is the
engine's own; only the stages' overhead is measured on the whole stack.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from engines.batching import TokenSequence
from engines.chat import Chat
from engines.megatron.rl.trainer import RlTrainer, start_parallel, stop_parallel
from engines.megatron.spec import Optimizer, Parallel, TrainerSettings
from engines.rollout.drivers.driver import LiveDomain
from flows.load import load_recipe
from flows.recipe import Recipe
from infra.processes.network import free_ports
from tasks.base.body import run as run_base
from tasks.base.spec import BaseSpec
from tasks.live_domain import build_curriculum, open_domain
from tasks.sft.spec import SftSettings
from tests.parts.recipe_parts import domain_of, settings_of
from tests.parts.stage_parts import stage_context
from tests.parts.tiny import without_end

COLD_START_STEPS = 300
_DEMONSTRATIONS = 600
CONSTANT = Optimizer(lr=1e-9)
"""slow enough that the last step of a measurement works on the same numbers as the first; 1e-6
moves a real model past the bound on how far trainer and engine may differ"""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much the rows work: a large model takes longer for each token."""

    prompts: int = 32
    group: int = 8
    new_tokens: int = 32
    grpo_steps: int = 8
    sft_steps: int = 40
    sft_batch: int = 16
    rl_samples: int = 256
    repeats: int = 7
    trl_limit_s: int = 240


OF_THE_REAL_MODEL = Sizes(
    prompts=6, group=6, new_tokens=24, grpo_steps=3, sft_steps=2, sft_batch=8, rl_samples=32,
    repeats=3, trl_limit_s=900,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Workbench:
    """A model that answers in its domains' format and is right now and then."""

    folder: Path
    recipe: Recipe
    model: Path
    endless: Path
    """the same weights, but no token ends a turn by itself: only what a request says"""
    chat: Chat
    demonstrations: list[TokenSequence]
    """solved problems of all domains, shuffled"""
    sizes: Sizes = Sizes()

    def domain(self, name: str) -> LiveDomain:
        return open_domain(domain_of(self.recipe.experts[name])).live

    def endless_chat(self) -> Chat:
        """For turns that take their whole budget."""
        chat = Chat.load(self.model)
        chat.stop_token_ids = ()
        return chat

    def trainer(self, model: Path | None = None, optimizer: Optimizer = CONSTANT) -> RlTrainer:
        return RlTrainer(
            TrainerSettings(), optimizer, Parallel(), model or self.model, 0, 1_000_000
        )

    def batches(self, count: int, start: int = 0) -> list[list[TokenSequence]]:
        """Batches of demonstrations, laid end to end."""
        size, batch = len(self.demonstrations), self.sizes.sft_batch
        return [
            [self.demonstrations[i % size] for i in range(n * batch, (n + 1) * batch)]
            for n in range(start, start + count)
        ]


@contextmanager
def workbench(folder: Path) -> Generator[Workbench]:
    """The model is made and trained here; this process is a trainer rank meanwhile."""
    recipe = load_recipe("cpu-demo")
    start = _base(recipe, folder)
    chat = Chat.load(start)
    start_parallel(0, 1, f"tcp://127.0.0.1:{free_ports(1)[0]}", Parallel())
    try:
        demonstrations = _demonstrations(recipe, chat)
        model, endless = folder / "model", folder / "endless"
        shared = Workbench(folder, recipe, model, endless, chat, demonstrations)
        settings = settings_of(recipe.experts["reasoning"].path, SftSettings).optimizer
        trainer = RlTrainer(TrainerSettings(), settings, Parallel(), start, 0, COLD_START_STEPS)
        trainer.sft_steps(shared.batches(COLD_START_STEPS))
        trainer.export(model, start)
        without_end(model, endless)
        yield shared
    finally:
        stop_parallel()


@contextmanager
def real_workbench(folder: Path) -> Generator[Workbench]:
    """SmolLM2-135M-Instruct as it is; this process is a trainer rank meanwhile."""
    recipe = load_recipe("smollm")
    model = _base(recipe, folder)
    chat = Chat.load(model)
    start_parallel(0, 1, f"tcp://127.0.0.1:{free_ports(1)[0]}", Parallel())
    try:
        endless = without_end(model, folder / "endless")
        demonstrations = _demonstrations(recipe, chat)
        yield Workbench(folder, recipe, model, endless, chat, demonstrations, OF_THE_REAL_MODEL)
    finally:
        stop_parallel()


def _base(recipe: Recipe, folder: Path) -> Path:
    curricula = [domain.curriculum for domain in recipe.domains]
    context = stage_context(folder, "base", {})
    spec = BaseSpec(settings=recipe.base, curricula=curricula)
    asyncio.run(run_base(spec, context))
    return context.out


def _demonstrations(recipe: Recipe, chat: Chat) -> list[TokenSequence]:
    found = [
        TokenSequence(*chat.training_ids(shown.problem, shown.turns))
        for domain in recipe.domains
        for shown in build_curriculum(
            domain.curriculum.name, domain.curriculum.options
        ).demonstrations(_DEMONSTRATIONS, 0)
    ]
    return random.Random(0).sample(found, len(found))
