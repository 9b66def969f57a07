"""What must hold before a model is trained on the domain: `pytest` in this folder."""

from __future__ import annotations

import asyncio

import pytest
from my_domain import MyDomain, content
from my_reward import right_answer

from engines.types import (
    AssistantTurn,
    Message,
    Problem,
    ProtocolBreak,
    Split,
    Status,
    Step,
    ToolCall,
    Transcript,
)

SPLITS: tuple[Split, ...] = ("sft", "rl", "distill", "heldout")


def _score(problem: Problem, *turns: Message) -> float:
    return right_answer(Transcript(problem, turns, Status.COMPLETED, num_tokens=1)).score


def _play(problem: Problem, *turns: Message) -> list[Step]:
    """Return what the environment says to the assistant's turns."""

    async def played() -> list[Step]:
        episode = await MyDomain().environment().start(problem)
        said = [AssistantTurn(t.content, t.content, None, t.tool_calls) for t in turns]
        steps = [await episode.step(turn) for turn in said]
        await episode.close()
        return steps

    return asyncio.run(played())


def test_demonstrations_get_the_full_reward_and_other_answers_get_none() -> None:
    for shown in MyDomain().demonstrations(50, seed=0):
        assert _score(shown.problem, *shown.turns) == 1.0
        assert _score(shown.problem, *shown.turns[:-1], Message("assistant", "wrong")) == 0.0
        assert _score(shown.problem) == 0.0


def test_with_noise_some_demonstrations_are_wrong_and_not_too_many() -> None:
    shown = MyDomain(noise=0.5).demonstrations(400, seed=0)
    assert 0.4 < sum(_score(s.problem, *s.turns) for s in shown) / len(shown) < 1.0


def test_the_environment_answers_a_demonstration_as_it_was_written() -> None:
    for shown in MyDomain().demonstrations(20, seed=0):
        mine = [turn for turn in shown.turns if turn.role == "assistant"]
        steps = _play(shown.problem, *mine)
        tool_turns = [turn for turn in shown.turns if turn.role == "tool"]
        assert [message for step in steps for message in step.messages] == tool_turns
        assert [s.done for s in steps] == [False] * (len(steps) - 1) + [True]


def test_a_call_of_a_tool_that_is_not_there_breaks_the_protocol() -> None:
    [problem] = MyDomain().problems("rl", 1, seed=0)
    with pytest.raises(ProtocolBreak, match="not offered"):
        _play(problem, Message("assistant", "", tool_calls=(ToolCall("steal", {}),)))


def test_no_problem_is_in_two_splits() -> None:
    drawn = [{content(p) for p in MyDomain().problems(s, 100, seed=0)} for s in SPLITS]
    assert sum(map(len, drawn)) == len(set[str]().union(*drawn))


def test_a_position_always_holds_the_same_problem() -> None:
    for split in SPLITS:
        together = MyDomain().problems(split, 10, seed=0)
        assert MyDomain().problems(split, 3, seed=0, start=7) == together[7:]
