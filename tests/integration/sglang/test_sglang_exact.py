"""The CPU engine answers a request with the same bits whatever happens around it."""

from __future__ import annotations

import asyncio

import pytest

from engines.algorithms.spec import Keep
from engines.sglang.client import GenerationClient
from engines.sglang.spec import FleetSpec
from engines.types import Generation, Sampling
from engines.weights.disk import load_folder
from engines.weights.update import flush
from tests.integration.conftest import SglangPair
from tests.parts.whole_weights import push

pytestmark = pytest.mark.integration

Turns = list[tuple[list[int], Sampling]]


def prompt(i: int) -> list[int]:
    return [(11 * i + 3 * j) % 256 for j in range(3 + (7 * i) % 45)]


def sampled(count: int) -> Turns:
    return [(prompt(i), Sampling(20 + i % 30, seed=77 + i)) for i in range(count)]


async def generate(pair: SglangPair, turns: Turns, max_batch: int) -> list[Generation]:
    async with GenerationClient(pair.router.url, max_batch=max_batch) as client:
        return list(await asyncio.gather(*(client.generate(ids, s) for ids, s in turns)))


def bits(generations: list[Generation]) -> list[tuple[list[int], list[float]]]:
    return [(g.token_ids.tolist(), g.logprobs.tolist()) for g in generations]


async def test_tokens_and_logprobs_have_the_same_bits_alone_and_in_any_batch(
    sglang_pair: SglangPair,
) -> None:
    turns = sampled(18)
    together = bits(await generate(sglang_pair, turns, 16))
    for url in sglang_pair.urls:
        flush(url)
    alone: list[Generation] = []
    for turn in turns:
        alone += await generate(sglang_pair, [turn], 1)
    assert bits(alone) == together
    for max_batch in (5, 18):
        assert bits(await generate(sglang_pair, turns[::-1], max_batch))[::-1] == together


async def test_a_cached_prefix_gives_the_same_bits_as_a_prompt_read_anew(
    sglang_pair: SglangPair,
) -> None:
    """The second turn of an episode finds its first in the cache, or not after an eviction."""
    first = sampled(12)
    answers = await generate(sglang_pair, first, 16)
    second: Turns = [
        ([*ids, *answer.token_ids.tolist(), 10, 20, 30 + i], Sampling(24, seed=i))
        for i, ((ids, _), answer) in enumerate(zip(first, answers, strict=True))
    ]
    cached = bits(await generate(sglang_pair, second, 16))
    for url in sglang_pair.urls:
        flush(url)
    assert bits(await generate(sglang_pair, second, 3)) == cached


async def test_greedy_and_filtered_neighbours_leave_a_sample_as_it_is(
    sglang_pair: SglangPair,
) -> None:
    turns = sampled(12)
    greedy: Turns = [(prompt(i), Sampling(24, temperature=0.0, seed=1)) for i in range(12)]
    narrow: Turns = [(prompt(i), Sampling(24, keep=Keep(top_p=0.6), seed=5 + i)) for i in range(12)]
    apart = [bits(await generate(sglang_pair, kind, 16)) for kind in (turns, greedy, narrow)]
    mixed = [turn for three in zip(turns, greedy, narrow, strict=True) for turn in three]
    found = bits(await generate(sglang_pair, mixed, 36))
    assert [found[0::3], found[1::3], found[2::3]] == apart


async def test_a_bf16_engine_takes_fp32_weights_and_has_the_same_bits_in_any_batch(
    sglang_pair: SglangPair,
) -> None:
    pair, turns = sglang_pair, sampled(20)
    await asyncio.to_thread(load_folder, pair.other_model, pair.urls, 1)
    fine = await generate(pair, turns, 16)
    spec = FleetSpec(sglang={"dtype": "bfloat16"})
    await asyncio.to_thread(pair.prepare, spec, pair.model)
    await asyncio.to_thread(push, pair.other_model, pair.urls, 1)
    together = await generate(pair, turns, 16)
    for url in pair.urls:
        flush(url)
    for max_batch in (1, 5, 20):
        assert bits(await generate(pair, turns[::-1], max_batch))[::-1] == bits(together)
    assert {v for g in together for v in g.weight_versions.sampled} == {1}
    firsts = [
        abs(a.logprobs[0] - b.logprobs[0])
        for a, b in zip(fine, together, strict=True)
        if a.token_ids[0] == b.token_ids[0]
    ]
    assert len(firsts) > 10, "the same seed mostly picks the same token"
    assert 1e-3 < sum(firsts) / len(firsts) < 0.1
