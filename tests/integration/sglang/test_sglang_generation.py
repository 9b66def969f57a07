"""Generation by the real SGLang behind the real router."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from dataclasses import replace
from typing import Any

import psutil
import pytest

from engines.algorithms.spec import Keep
from engines.sglang.client import GenerationClient
from engines.sglang.http import call, read_text
from engines.types import Generation, Sampling
from infra.errors import EngineError
from tests.integration.conftest import SglangPair

pytestmark = pytest.mark.integration


def _prompt(i: int) -> list[int]:
    return [(7 * i + j) % 256 for j in range(5 + i % 9)]


async def _generate(
    pair: SglangPair, turns: list[tuple[list[int], Sampling]], max_batch: int = 16
) -> list[Generation]:
    async with GenerationClient(pair.router.url, max_batch=max_batch) as client:
        return await asyncio.gather(*(client.generate(ids, s) for ids, s in turns))


def _hf_logprobs(model: Any, prompt: list[int], tokens: list[int], temperature: float) -> Any:
    import torch

    with torch.no_grad():
        logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1].float()
    scores = (logits / temperature).log_softmax(-1)
    return scores[torch.arange(len(tokens)), torch.tensor(tokens)]


async def test_a_seeded_turn_is_the_same_alone_and_in_any_batch(sglang_pair: SglangPair) -> None:
    turns = [(_prompt(i), Sampling(8 + i % 5, temperature=0.9, seed=1000 + i)) for i in range(32)]
    together = await _generate(sglang_pair, turns)
    alone = await _generate(sglang_pair, turns, max_batch=1)
    reversed_ = (await _generate(sglang_pair, turns[::-1], max_batch=7))[::-1]
    assert [g.token_ids.tolist() for g in together] == [g.token_ids.tolist() for g in alone]
    assert [g.token_ids.tolist() for g in together] == [g.token_ids.tolist() for g in reversed_]


async def test_a_short_turn_does_not_wait_for_a_long_one_of_its_request(
    sglang_pair: SglangPair,
) -> None:
    async with GenerationClient(sglang_pair.router.url) as client:
        long, short = (
            asyncio.create_task(client.generate(_prompt(i), Sampling(most, seed=i)))
            for i, most in enumerate((120, 2))
        )
        assert len((await short).token_ids) == 2
        assert not long.done()
        assert len((await long).token_ids) == 120
        assert client.counts.requests == 1


async def test_one_prompt_with_other_seeds_or_no_seed_gives_other_samples(
    sglang_pair: SglangPair,
) -> None:
    for seeds in (range(16), [None] * 16):
        turns = [(_prompt(3), Sampling(12, seed=seed)) for seed in seeds]
        samples = {tuple(g.token_ids.tolist()) for g in await _generate(sglang_pair, turns)}
        assert len(samples) == 16


@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_logprobs_are_those_of_the_sampled_distribution(
    sglang_pair: SglangPair, temperature: float
) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(sglang_pair.model).eval()
    turns = [(_prompt(i), Sampling(20, temperature=temperature, seed=i)) for i in range(24)]
    differences: list[float] = []
    generations = await _generate(sglang_pair, turns)
    for (prompt, _), generation in zip(turns, generations, strict=True):
        expected = _hf_logprobs(model, prompt, generation.token_ids.tolist(), temperature)
        differences += [
            abs(a - b) for a, b in zip(generation.logprobs, expected.tolist(), strict=True)
        ]
    assert sum(differences) / len(differences) <= 2e-5
    assert max(differences) <= 2e-4


async def test_each_turn_of_a_batch_keeps_its_own_sampling(sglang_pair: SglangPair) -> None:
    greedy = Sampling(6, temperature=0.0)
    stopped = (await _generate(sglang_pair, [(_prompt(1), greedy)]))[0].token_ids.tolist()[0]
    turns = [
        (_prompt(1), greedy),
        (_prompt(1), Sampling(3, seed=5)),
        (_prompt(1), Sampling(6, temperature=0.0, stop_token_ids=(stopped,))),
        (_prompt(2), Sampling(9, temperature=1.0, keep=Keep(top_p=0.5), seed=6)),
    ]
    all_, short, stop, nucleus = await _generate(sglang_pair, turns)
    assert (len(all_.token_ids), all_.finish) == (6, "length")
    assert (len(short.token_ids), short.finish) == (3, "length")
    assert (stop.token_ids.tolist(), stop.finish) == ([stopped], "stop")
    assert len(nucleus.token_ids) == 9
    assert all_.weight_versions.runs == ((0, 6),)


@pytest.mark.parametrize(("is_last", "cached"), [(False, 24), (True, 16)])
async def test_a_last_turn_leaves_its_prompt_in_the_cache_and_not_its_answer(
    sglang_pair: SglangPair, is_last: bool, cached: int
) -> None:
    prompt = [100 + is_last, *range(40, 55)]  # of its own, so that nothing else is cached of it
    sampling = Sampling(9, seed=1, is_last=is_last)
    async with GenerationClient(sglang_pair.urls[0]) as client:
        said = await client.generate(prompt, sampling)
    body = {
        "input_ids": [*prompt, *said.token_ids.tolist(), 7],
        "sampling_params": {"max_new_tokens": 1},
    }
    reply = call(sglang_pair.urls[0], "/generate", body, timeout=30)
    assert reply["meta_info"]["cached_tokens"] == cached


async def test_a_prompt_is_read_once_for_all_its_samples(sglang_pair: SglangPair) -> None:
    prompts = [[60 + number, *range(130, 169)] for number in range(3) for _ in range(8)]
    turns = [(ids, Sampling(4 + n % 8, seed=n, is_last=True)) for n, ids in enumerate(prompts)]
    async with GenerationClient(sglang_pair.urls[0]) as client:
        together = await asyncio.gather(*(client.generate(ids, how) for ids, how in turns))
        # The last token of a prompt is read by each sample.
        assert client.counts.cached_tokens == 3 * 7 * 39
        alone = [await client.generate(ids, how) for ids, how in turns]
    assert [g.token_ids.tolist() for g in together] == [g.token_ids.tolist() for g in alone]
    assert [list(g.logprobs) for g in together] == [list(g.logprobs) for g in alone]


async def test_samples_do_not_wait_for_one_of_their_prompt_that_is_given_up(
    sglang_pair: SglangPair,
) -> None:
    prompt = [*range(170, 210)]
    async with GenerationClient(sglang_pair.urls[0], max_batch=1) as client:
        first, *others = (
            asyncio.create_task(client.generate(prompt, Sampling(60, seed=n))) for n in range(6)
        )
        await asyncio.sleep(0)
        first.cancel()
        finishes = {g.finish for g in await asyncio.gather(*others)}
    assert finishes <= {"length", "stop"}


def test_scores_of_one_prompt_are_those_of_each(sglang_pair: SglangPair) -> None:
    """Where logprobs of the prompt are asked for, no cache can give them."""
    prompt = [*range(211, 255)]
    body = {
        "input_ids": [prompt] * 5, "sampling_params": {"max_new_tokens": 1, "temperature": 0},
        "return_logprob": True, "logprob_start_len": 0,
    }  # fmt: skip
    replies = json.loads(read_text(sglang_pair.urls[0], "/generate", body, timeout=60))
    scores = [reply["meta_info"]["input_token_logprobs"] for reply in replies]
    assert len(scores[0]) == len(prompt)
    assert scores == [scores[0]] * 5


async def test_later_turns_of_a_lane_find_all_before_them_in_its_servers_cache(
    sglang_pair: SglangPair,
) -> None:
    prompts = [[220 + i, *range(90, 120)] for i in range(8)]
    known = 0
    async with GenerationClient(sglang_pair.router.url, max_batch=1, routing="sticky") as client:

        async def converse(number: int, ids: list[int]) -> None:
            nonlocal known
            sampling = Sampling(8, route=f"cache/{number}", seed=number)
            for turn in range(3):
                said = (await client.generate(ids, sampling)).token_ids.tolist()
                ids = [*ids, *said, 7]
                # The last token of an answer has no keys and values yet.
                known += len(ids) - 2 if turn < 2 else 0

        await asyncio.gather(*(converse(*each) for each in enumerate(prompts)))
        assert client.counts.cached_tokens == known > 8 * 2 * 31


async def test_a_refused_turn_raises_with_the_engines_words(sglang_pair: SglangPair) -> None:
    with pytest.raises(EngineError, match=r"(?i)length|long|exceed"):
        await _generate(sglang_pair, [(list(range(256)) * 3, Sampling(4))])


async def test_an_aborted_turn_says_so(sglang_pair: SglangPair) -> None:
    async with GenerationClient(sglang_pair.router.url) as client:
        turn = asyncio.create_task(
            client.generate(_prompt(1), Sampling(400, stop_token_ids=(), seed=8))
        )
        await _until_running(sglang_pair)
        for url in sglang_pair.urls:
            body = {"abort_all": True}
            await asyncio.to_thread(read_text, url, "/abort_request", body, timeout=10)
        generation = await turn
    assert generation.finish == "abort"
    assert 0 < len(generation.token_ids) < 400


@pytest.mark.parametrize("neighbours", [1, 0])
async def test_a_cancelled_turn_ends_in_the_engine(
    sglang_pair: SglangPair, neighbours: int
) -> None:
    """What the servers have cached of a turn says how far it came."""
    prompts = [[200 + 2 * neighbours + i, *range(70, 85)] for i in range(1 + neighbours)]
    asked = Sampling(450, seed=1)
    ahead = replace(asked, is_last=True)  # leaves nothing of its answer in a cache
    expected = await _generate(sglang_pair, [(prompt, ahead) for prompt in prompts])
    async with GenerationClient(sglang_pair.router.url) as client:
        turns = [asyncio.create_task(client.generate(prompt, asked)) for prompt in prompts]
        await _until_running(sglang_pair)
        turns[0].cancel()
        others = await asyncio.gather(*turns[1:])
        while await asyncio.to_thread(sglang_pair.is_generating):
            pass
    assert [o.token_ids.tolist() for o in others] == [e.token_ids.tolist() for e in expected[1:]]
    for number, (prompt, whole) in enumerate(zip(prompts, expected, strict=True)):
        ids = [*prompt, *whole.token_ids.tolist()]
        body = {"input_ids": ids, "sampling_params": {"max_new_tokens": 1}}
        replies = [call(url, "/generate", body, timeout=30) for url in sglang_pair.urls]
        most = max(reply["meta_info"]["cached_tokens"] for reply in replies)
        assert (most < len(ids) - 20) == (number == 0)


async def test_a_server_killed_in_mid_batch_costs_no_turn_and_doubles_none(
    sglang_pair: SglangPair,
) -> None:
    """Nor does it matter which server has a lane: the one that is left takes all of them."""
    turns = [(_prompt(i), Sampling(120, seed=i, route=f"{i // 8}")) for i in range(48)]
    expected = await _generate(sglang_pair, turns)
    async with GenerationClient(sglang_pair.router.url, routing="sticky") as client:
        running = asyncio.gather(*(client.generate(ids, sampling) for ids, sampling in turns))
        await _until_running(sglang_pair)
        os.killpg(sglang_pair.server("server-1").pid, signal.SIGKILL)
        survived = await running
        assert client.counts.turns == len(turns)
    assert [g.token_ids.tolist() for g in survived] == [g.token_ids.tolist() for g in expected]


async def _until_running(pair: SglangPair) -> None:
    """Return once a server works on a request (bounded by the test's own limit)."""
    while not await asyncio.to_thread(pair.is_generating):
        pass


def test_a_server_and_its_ranks_listen_on_loopback_only(sglang_pair: SglangPair) -> None:
    for name in sglang_pair.names:
        server = psutil.Process(sglang_pair.server(name).pid)
        listening = {
            connection.laddr.ip
            for process in (server, *server.children(recursive=True))
            for connection in process.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        }
        assert listening == {"127.0.0.1"}


def test_the_router_tells_nobody_where_the_model_is(sglang_pair: SglangPair) -> None:
    told = call(sglang_pair.router.url, "/v1/models", timeout=10)
    assert str(sglang_pair.model) not in str(told)
    assert [model["id"] for model in told["data"]] == ["model"]
