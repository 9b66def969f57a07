"""The rollout of the GRPO rows against transformers' `generate`: same prompts, weights and lengths.

No answer ends early, so both sides make the same number of tokens. Ours has a server, a router, the
journal and the judges around its model; transformers is called in this process with one padded
batch and gives tokens without log-probabilities.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import torch

from engines.rollout.loop import fill
from engines.rollout.records.journals import RolloutJournal
from engines.rollout.roller import Roller
from engines.sglang.client import GenerationClient
from tests.parts.rollout_parts import producer_of
from tests.parts.stage_parts import stage_context
from tests.programs.bench.clock import Clock, Spent, median_ratio, timed
from tests.programs.bench.grpo import CONTEXT, endless_domain
from tests.programs.bench.rows import Row
from tests.programs.bench.servers import Servers
from tests.programs.bench.workbench import Workbench

REPEATS = 5


async def measure(bench: Workbench, engines: Servers) -> Row:
    sizes = bench.sizes
    router, _ = await asyncio.to_thread(engines.serve, bench.endless, 1)
    notes = stage_context(bench.folder, "rollout-transformers", {}).checkpoints
    model = _load(bench.endless)
    ours: list[Spent] = []
    theirs: list[Spent] = []
    async with GenerationClient(router) as client:
        for repeat in range(REPEATS + 1):
            roller = Roller(
                generate=client.generate,
                chat=bench.endless_chat(),
                context_length=CONTEXT,
                seed=repeat,
            )
            domain = endless_domain(bench)
            producer, _ = producer_of(
                roller, [domain], groups_per_step=sizes.prompts, group_size=sizes.group,
                seed=repeat,
                journal=RolloutJournal(notes),
            )  # fmt: skip
            clock = Clock()
            sampled = await fill(producer)
            ours.append(clock.spent())
            prompts = [bench.chat.prompt_ids(g.problem) for g in sampled.groups for _ in g.samples]
            theirs.append(timed(lambda given=prompts: _generate(model, given, sizes.new_tokens)))
    ratio = median_ratio(theirs[1:], ours[1:])
    tokens = sizes.prompts * sizes.group * sizes.new_tokens
    speed = tokens / sorted(spent.wall for spent in ours[1:])[REPEATS // 2]
    return Row(
        "rollout tokens/s over transformers' generate, 1 server",
        ratio.wall,
        "ratio",
        note=f"{speed:.0f} tokens/s; by CPU seconds {ratio.cpu:.2f}; median of {REPEATS} pairs,"
        f" {tokens} tokens each",
    )


def _load(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    return model


def _generate(model: Any, prompts: list[list[int]], new_tokens: int) -> None:
    longest = max(map(len, prompts))
    padding = [[0] * (longest - len(ids)) for ids in prompts]
    pairs = list(zip(padding, prompts, strict=True))
    with torch.no_grad():
        answer = model.generate(
            torch.tensor([pad + ids for pad, ids in pairs]),
            attention_mask=torch.tensor([pad + [1] * len(ids) for pad, ids in pairs]),
            max_new_tokens=new_tokens, do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
            pad_token_id=0,
        )  # fmt: skip
    if answer.shape[1] != longest + new_tokens:
        raise RuntimeError(f"transformers gave {answer.shape[1] - longest} tokens a prompt")
