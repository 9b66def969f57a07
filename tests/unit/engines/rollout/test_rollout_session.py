"""A token session holds exactly what the engine produced."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from engines.rollout.drivers.session import TokenSession
from engines.rollout.drivers.session_host import sampling_seed
from engines.types import Generation, Sampling
from infra.errors import EngineError
from tests.parts.sample_parts import generation_of

pytestmark = pytest.mark.unit
SAMPLING = Sampling(max_new_tokens=4)


def session_that_answers(*generations: Generation) -> TokenSession:
    queue = list(generations)

    async def generate(prompt_ids, sampling):
        return queue.pop(0)

    return TokenSession(generate, [1, 2])


async def test_turns_are_trained_on_and_tool_output_is_not():
    session = session_that_answers(
        generation_of([5, 6], [-0.1, -0.2], [3, 3], "stop"), generation_of([7], [-0.3], [4], "stop")
    )
    await session.turn(SAMPLING)
    session.extend([8, 9])
    await session.turn(SAMPLING)
    session.check("g#1")
    assert session.tokens.tolist() == [1, 2, 5, 6, 8, 9, 7]
    assert session.loss_mask.tolist() == [0, 0, 1, 1, 0, 0, 1]
    assert session.logprobs.tolist() == pytest.approx([0, 0, -0.1, -0.2, 0, 0, -0.3])
    assert session.weight_versions.runs == ((-1, 2), (3, 2), (-1, 2), (4, 1))
    assert session.response_ids.tolist() == [5, 6, 8, 9, 7]


@pytest.mark.parametrize(
    "answer",
    [
        generation_of([5, 6], [-0.1], [0, 0], "stop"),
        generation_of([5], [-0.1], [], "stop"),
        generation_of([5], [math.nan], [0], "stop"),
        generation_of([5], [0.7], [0], "stop"),
        generation_of([5] * 5, [-0.1] * 5, [0] * 5, "length"),
    ],
    ids=["a logprob short", "a version short", "nan", "positive logprob", "over budget"],
)
async def test_an_answer_that_does_not_add_up_is_refused(answer):
    with pytest.raises(EngineError):
        await session_that_answers(answer).turn(SAMPLING)


async def test_experts_are_asked_of_the_tokens_of_which_they_are_not_known():
    """The engine says those of all that it has read, which the last token is not."""
    first = generation_of([5, 6], [-1, -1], [0, 0], "stop")
    second = generation_of([7], [-1], [0], "stop")
    session = session_that_answers(
        replace(first, experts=np.array([[1, 2], [3, 4], [5, 6]], np.uint8)),
        replace(second, experts=np.array([[7, 8], [9, 10], [300, 5]], np.int16)),
    )
    assert session.experts is None
    await session.turn(SAMPLING)
    assert session.experts.tolist() == [[1, 2], [3, 4], [5, 6], [0, 0]]
    session.extend([8, 9])
    await session.turn(SAMPLING)
    assert session.tokens.tolist() == [1, 2, 5, 6, 8, 9, 7]
    known = [[1, 2], [3, 4], [5, 6], [7, 8], [9, 10], [300, 5], [0, 0]]
    assert session.experts.tolist() == known
    session.cut(4)
    assert session.experts.tolist() == known[:4]


async def test_what_was_kept_is_of_each_sampled_token_and_cut_off_with_it():
    first = generation_of([5, 6], [-0.1, -0.2], [0, 0], "stop")
    second = generation_of([7], [-0.3], [0], "stop")
    session = session_that_answers(
        replace(first, kept=np.array([~5, 1, ~6], np.int32)),
        replace(second, kept=np.array([~7, 2, 3], np.int32)),
        replace(second, kept=np.array([~8, 7], np.int32)),
    )
    assert session.kept is None
    await session.turn(SAMPLING)
    session.extend([8, 9])
    await session.turn(SAMPLING)
    assert session.kept.tolist() == [~5, 1, ~6, ~7, 2, 3]
    session.cut(5)
    assert session.kept.tolist() == [~5, 1, ~6]
    session.cut(3)
    assert session.kept.tolist() == [~5, 1]
    with pytest.raises(EngineError, match="what it kept for other tokens"):
        await session.turn(SAMPLING)


async def test_what_is_cut_off_is_neither_there_nor_trained():
    session = session_that_answers(generation_of([5, 6], [-0.1, -0.2], [0, 1], "stop"))
    begin = len(session.tokens)
    await session.turn(SAMPLING)
    session.extend([9])
    session.cut(begin + 1)
    assert session.tokens.tolist()[begin:] == [5]
    assert session.weight_versions.of_each().tolist() == [-1] * begin + [0]
    assert session.num_generated == 1
    session.check("g#0")
    with pytest.raises(RuntimeError, match="after its prompt"):
        session.cut(begin - 1)


@pytest.mark.parametrize("place", [0, 2], ids=["prompt", "answer"])
async def test_a_changed_token_is_never_trained_on(place: int):
    session = session_that_answers(generation_of([5], [-0.1], [0], "stop"))
    await session.turn(SAMPLING)
    session.tokens[place] = 6
    with pytest.raises(EngineError, match="rollout g#0 differ from those the engine produced"):
        session.check("g#0")


def test_seeds_differ_in_every_argument_and_never_between_processes():
    base = (0, "p", 1, 2, 3)
    others = [(1, "p", 1, 2, 3), (0, "q", 1, 2, 3), (0, "p", 0, 2, 3), (0, "p", 1, 0, 3)]
    others.append((0, "p", 1, 2, 0))
    assert len({sampling_seed(*a) for a in [base, *others]}) == 6
    assert sampling_seed(*base) == 292446534
    assert 0 <= sampling_seed(*base) < 2**31
