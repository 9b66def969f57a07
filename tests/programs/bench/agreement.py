"""How far the trainer's log-probabilities are from the engine's, on tokens that the engine sampled.

Single turns, conversations with tools, and answers that never end, at temperature 1.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from engines.chat import Chat
from engines.rollout.drivers.driver import LiveDomain
from engines.rollout.roller import Roller
from engines.sglang.client import GenerationClient
from engines.types import Sample
from tests.programs.bench.rows import Row
from tests.programs.bench.servers import Servers
from tests.programs.bench.workbench import Workbench

PROBLEMS = 24
GROUP = 4
LONG = 300
CONTEXT = 512


def measure(bench: Workbench, engines: Servers) -> list[Row]:
    samples = asyncio.run(_sample(bench, engines))
    scored = bench.trainer().logprobs([sample.tokens.tolist() for sample in samples])
    differences = [
        abs(ours - theirs)
        for sample, values in zip(samples, scored, strict=True)
        for ours, theirs, trained in zip(values, sample.logprobs, sample.loss_mask, strict=True)
        if trained
    ]
    lengths = [len(sample.tokens) for sample in samples]
    turns = max(int(str(sample.metadata["turns"])) for sample in samples)
    note = (
        f"{len(differences)} tokens of {len(samples)} sequences, {min(lengths)} to {max(lengths)}"
        f" tokens long, up to {turns} turns"
    )
    mean = sum(differences) / len(differences)
    return [
        Row("trainer-engine logprob difference, mean", mean, "nats", 2e-5, True, note),
        Row("trainer-engine logprob difference, max", max(differences), "nats", note=note),
    ]


async def _sample(bench: Workbench, engines: Servers) -> list[Sample]:
    router, _ = await asyncio.to_thread(engines.serve, bench.endless, 2)
    domains = [bench.domain(name) for name in bench.recipe.experts]
    long = replace(domains[0], max_new_tokens=LONG)
    async with GenerationClient(router) as client:
        rolled = await asyncio.gather(
            *[_roll(client, bench.chat, domain) for domain in domains],
            _roll(client, bench.endless_chat(), long),
        )
    return [sample for samples in rolled for sample in samples]


async def _roll(client: GenerationClient, chat: Chat, domain: LiveDomain) -> list[Sample]:
    roller = Roller(generate=client.generate, chat=chat, context_length=CONTEXT, seed=0)
    problems = domain.curriculum.problems("heldout", PROBLEMS, 0)
    groups = await asyncio.gather(
        *[
            roller.roll_group(
                domain, problem, GROUP, temperature=1.0, group_id=problem.id, seed_name=problem.id
            )
            for problem in problems
        ]
    )
    return [s for group in groups for rollout in group for s in rollout.samples]
