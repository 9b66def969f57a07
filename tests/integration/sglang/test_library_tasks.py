"""Environments of verifiers and a task of Inspect, asked by their own library of a real model: the
tokens that SGLang sampled are those that are trained."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from engines.chat import Chat
from engines.rollout.drivers.session_host import sampling_seed
from engines.rollout.roller import Roller
from engines.sglang.client import GenerationClient
from engines.types import Generation, Sampling, Status, TokenIds
from tasks.base.tokenizer import TEMPLATE
from tasks.domain import Domain
from tasks.live_domain import open_domain
from tests.integration.conftest import SglangPair
from tests.parts.clients import library

pytestmark = pytest.mark.integration

TASKS = {
    "several turns": ("verifiers", {"environment": "guess_env"}, 3),
    "a tool": ("verifiers", {"environment": "lookup_env"}, 1),
    "inspect": ("inspect", {"task": "inspect_tasks:sums"}, 1),
}


@pytest.mark.parametrize(
    "which",
    [name if name == "a tool" else pytest.param(name, marks=pytest.mark.long) for name in TASKS],
)
async def test_what_the_server_sampled_is_trained(
    sglang_pair: SglangPair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, which: str
) -> None:
    name, options, turns = TASKS[which]
    folder = shutil.copytree(sglang_pair.model, tmp_path / "model")
    (folder / "chat_template.jinja").write_text(TEMPLATE)  # the demo's, which writes tool calls
    library(monkeypatch, "verifiers" if name == "verifiers" else "inspect_ai")
    opened = open_domain(_domain(name, options))
    sampled: dict[int | None, list[int]] = {}
    async with GenerationClient(sglang_pair.router.url) as client:

        async def generate(prompt_ids: TokenIds, sampling: Sampling) -> Generation:
            made = await client.generate(prompt_ids, sampling)
            sampled[sampling.seed] = made.token_ids.tolist()
            return made

        roller = Roller(generate=generate, chat=Chat.load(folder), context_length=512, seed=3)
        try:
            problem = opened.live.curriculum.problems("heldout", 1, seed=0)[0]
            rollouts = await roller.roll_group(
                opened.live, problem, 2, temperature=1.0, group_id="g", seed_name="g"
            )
        finally:
            for process in opened.processes:
                await process.close()
    for index, rollout in enumerate(rollouts):
        assert rollout.status is Status.COMPLETED, rollout.transcript.reason
        (sample,) = rollout.samples
        seeds = [sampling_seed(3, "g", index, 0, turn) for turn in range(turns)]
        said = [token for seed in seeds for token in sampled[seed]]
        assert sample.tokens[sample.loss_mask].tolist() == said
        assert sample.num_turns == turns
        assert sample.rewards["outcome"] == sample.reward
        assert sample.rewards.keys() > {"outcome"}, "the library's own metrics"
    assert len(sampled) == 2 * turns


def _domain(name: str, options: dict[str, Any]) -> Domain:
    """A random model seldom ends a turn by itself: eight tokens are one."""
    return Domain.model_validate(
        {
            "name": "tried",
            "curriculum": {"name": name, "options": options},
            "driver": {"name": "library", "options": {"turn_tokens": 8}},
            "rewards": [{"name": "library-score", "outcome": True}],
            "max_new_tokens": 100,
        }
    )
