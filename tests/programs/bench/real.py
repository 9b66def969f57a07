"""The rows of a real model, SmolLM2-135M-Instruct in fp32, one thread for each process. CPU seconds
are the figure that a busy machine changes least; they count every process of a side."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import aiohttp
import orjson
import torch

from engines.sglang.routed_batch import pack
from engines.types import TokenIds
from infra.access import bearer
from tests.programs.bench import grpo, rollout, trainer
from tests.programs.bench.bare_megatron import BareLoop
from tests.programs.bench.bare_transformers import TransformersLoop
from tests.programs.bench.clock import Clock, Spent, median_ratio, timed
from tests.programs.bench.rows import Row
from tests.programs.bench.servers import Servers
from tests.programs.bench.workbench import CONSTANT, Workbench

AT_ONCE, NEW_TOKENS = 16, 48
GREEDY, GREEDY_TOKENS = 50, 16
DOMAIN = "arithmetic"


def measure(bench: Workbench, engines: Servers) -> Iterator[list[Row]]:
    """One part after the other, as a later one may fail."""
    yield _training(bench)
    yield asyncio.run(_generation(bench, engines))
    yield [asyncio.run(rollout.measure_domain(bench, engines, 1, DOMAIN, floor=0.95))]
    yield grpo.measure(bench, engines, DOMAIN)


def _training(bench: Workbench) -> list[Row]:
    ours = bench.trainer()
    rows: list[Row] = []
    for name, loop, floors in (
        ("bare Megatron-core", BareLoop, (0.9, 0.9)),
        ("a bare transformers loop", TransformersLoop, (1.0, 0.9)),
    ):
        reference = loop(bench.model, CONSTANT.lr)
        rows += [
            trainer.sft(bench, ours, reference, name, floors[0]),
            trainer.rl(bench, ours, reference, name, floors[1]),
        ]
    return rows


async def _generation(bench: Workbench, engines: Servers) -> list[Row]:
    """Raw SGLang and transformers' `generate` with a static cache, on the same prompts."""
    from transformers import AutoModelForCausalLM

    router, _ = await asyncio.to_thread(engines.serve, bench.endless, 1)
    problems = bench.domain(DOMAIN).curriculum.problems("heldout", GREEDY, 0)
    prompts = [bench.chat.prompt_ids(problem) for problem in problems]
    # transformers takes rows of one length: what is longer loses its beginning, on both sides.
    shortest = min(map(len, prompts))
    together = [ids[-shortest:] for ids in prompts[:AT_ONCE]]
    model: Any = AutoModelForCausalLM.from_pretrained(bench.endless, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    ours: list[Spent] = []
    theirs: list[Spent] = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as session:
        for _ in range(bench.sizes.repeats + 1):
            clock = Clock()
            await _ask(session, router, together, NEW_TOKENS, temperature=1.0)
            ours.append(clock.spent())
            theirs.append(timed(lambda: _generate(model, together, NEW_TOKENS, sample=True)))
        said = await _ask(session, router, prompts, GREEDY_TOKENS, temperature=0.0)
    expected = [_generate(model, [ids], GREEDY_TOKENS, sample=False)[0] for ids in prompts]
    equal = sum(a == b for a, b in zip(said, expected, strict=True))
    ratio = median_ratio(theirs[1:], ours[1:])
    tokens = AT_ONCE * NEW_TOKENS
    speeds = [tokens / sorted(s.cpu for s in of[1:])[len(of) // 2 - 1] for of in (ours, theirs)]
    return [
        Row(
            f"generated tokens a CPU second, raw SGLang over transformers, {AT_ONCE} at once",
            ratio.cpu,
            "ratio",
            floor=0.95,
            note=f"{speeds[0]:.0f} and {speeds[1]:.0f}; by wall time {ratio.wall:.2f}; median of"
            f" {bench.sizes.repeats} pairs, {tokens} tokens each",
        ),
        Row(f"greedy answers equal to transformers', of {GREEDY}", equal, "", floor=GREEDY),
    ]


async def _ask(
    session: aiohttp.ClientSession,
    router: str,
    prompts: Sequence[TokenIds],
    new_tokens: int,
    temperature: float,
) -> list[list[int]]:
    fields = {"max_new_tokens": new_tokens, "temperature": temperature, "ignore_eos": True}
    sampling = [fields | {"sampling_seed": seed} for seed in range(len(prompts))]
    body = pack([[int(t) for t in ids] for ids in prompts], sampling)
    headers = {"Content-Type": "application/json"} | bearer()
    async with session.post(
        f"{router}/generate", data=orjson.dumps(body), headers=headers
    ) as response:
        return [reply["output_ids"] for reply in orjson.loads(await response.read())]


def _generate(
    model: Any, prompts: Sequence[TokenIds], new_tokens: int, *, sample: bool
) -> list[list[int]]:
    given = torch.tensor([[int(t) for t in ids] for ids in prompts])
    how: dict[str, Any] = {"do_sample": False}
    if sample:
        how = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    with torch.no_grad():
        answer = model.generate(
            given, attention_mask=torch.ones_like(given), max_new_tokens=new_tokens,
            cache_implementation="static", disable_compile=True, pad_token_id=0, **how,
        )  # fmt: skip
    return answer[:, given.shape[1] :].tolist()
