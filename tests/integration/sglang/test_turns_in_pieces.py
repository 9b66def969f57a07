"""Rollouts that wait between rounds, and thoughts that are ended: by the real SGLang."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from engines.rollout.drivers.pace import Pace
from engines.rollout.drivers.session_host import sampling_seed
from engines.rollout.protocols import ThoughtBudget
from engines.rollout.roller import Roller
from engines.sglang.client import GenerationClient
from engines.types import Problem, Rollout, Sampling, TokenIds
from tests.integration.conftest import SglangPair
from tests.parts.rollout_parts import STOP, CharChat, domain, ids

pytestmark = pytest.mark.integration

END = 263
"""`</think>` of the tiny models' tokenizer"""


class Thinks(CharChat):
    """The header opens the thought."""

    thought_end_ids = (END,)

    def open_thought(self, problem: Problem, token_ids: TokenIds) -> bool | None:
        return END not in [int(token) for token in token_ids]

    def thought_closing_ids(self, token_ids: TokenIds) -> list[int]:
        return [*ids("\n"), END]


async def _rolled(
    client: GenerationClient, pace: Pace | None = None, thought: ThoughtBudget | None = None
) -> list[Rollout]:
    roller = Roller(generate=client.generate, chat=Thinks(), context_length=200, seed=3)
    made = domain("d", lambda answer: 1.0, max_new_tokens=24)
    problem = made.curriculum.problems("rl", 1, 0)[0]
    return await roller.roll_group(
        made, problem, 4, temperature=1.0, group_id="g", seed_name="g", thought=thought, pace=pace
    )


async def test_a_rollout_in_pieces_has_the_tokens_and_logprobs_of_a_whole_one(
    sglang_pair: SglangPair,
) -> None:
    async with GenerationClient(sglang_pair.router.url) as client:
        whole = await _rolled(client)
        pace = Pace(5)
        rolling = asyncio.create_task(_rolled(client, pace))
        while not rolling.done():
            rest = asyncio.create_task(pace.rest())
            await asyncio.wait({rolling, rest}, return_when=asyncio.FIRST_COMPLETED)
            rest.cancel()
            if not rolling.done():
                pace.begin_round(pace.round + 1)
    assert pace.round == 5, "of 24 tokens"
    for one, other in zip(rolling.result(), whole, strict=True):
        mine, theirs = one.samples[0], other.samples[0]
        assert mine.tokens.tolist() == theirs.tokens.tolist()
        np.testing.assert_allclose(mine.logprobs, theirs.logprobs, rtol=0, atol=1e-5)


async def test_after_a_thought_that_was_ended_the_model_goes_on_from_there(
    sglang_pair: SglangPair,
) -> None:
    async with GenerationClient(sglang_pair.router.url) as client:
        free = await _rolled(client)
        ended = await _rolled(client, thought=ThoughtBudget(tokens=7))
        forced = 0
        for one, other in zip(ended, free, strict=True):
            mine, theirs = one.samples[0], other.samples[0]
            begin = mine.num_prompt_tokens
            thought, end = begin + 7, begin + 9
            assert mine.tokens[begin:thought].tolist() == theirs.tokens[begin:thought].tolist()
            if len(theirs.tokens) <= thought:  # it ended by itself
                assert "forced_tokens" not in mine.metadata
                continue
            forced += 1
            assert mine.tokens[thought:end].tolist() == [*ids("\n"), END]
            assert np.flatnonzero(~mine.loss_mask[begin:]).tolist() == [7, 8]
            assert mine.metadata["forced_tokens"] == 2
            asked = Sampling(17, stop_token_ids=(STOP,), seed=_seed(mine.sample_index))
            rest = await client.generate(mine.tokens[:end], asked)
            assert rest.token_ids.tolist() == mine.tokens[end:].tolist()
            np.testing.assert_allclose(mine.logprobs[end:], rest.logprobs, rtol=0, atol=1e-5)
        assert forced


def _seed(index: int) -> int:
    return sampling_seed(3, "g", index, 0, 0)
