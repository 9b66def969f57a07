"""A session's tree: what continues what, what drifts, what is trained once."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from engines.agents.agent_session import AgentSession
from engines.agents.incremental_prompt import Drift, drift_of, meaning_of
from engines.agents.limits import SessionLimits
from engines.agents.wire.content_parts import arguments_text, call_of
from engines.agents.wire.wire_format import Answer, Refusal, Request
from engines.rollout.drivers.session_host import End, SessionHost
from engines.types import (
    Generation,
    Message,
    Rollout,
    Sampling,
    Status,
    TokenIds,
    Tool,
    ToolCall,
)
from tests.parts.agent_parts import PROBLEM, Script, TextChat, attempt_of, session_of

pytestmark = pytest.mark.unit

USER = Message("user", "task")
DONE = End(Status.COMPLETED)


async def ask(session: AgentSession, *messages: Message, tools: tuple[Tool, ...] = ()) -> Message:
    async with session.turn(Request(messages, tools)) as answer:
        return answer.said.message()


def texts(rollout: Rollout) -> list[list[str]]:
    """Of each sample, the runs of trained tokens as text."""
    found: list[list[str]] = []
    for sample in rollout.samples:
        edges = np.flatnonzero(np.diff(sample.loss_mask.astype(int), prepend=0, append=0))
        spans = edges.reshape(-1, 2).tolist()
        found.append(["".join(map(chr, sample.tokens[a : b - 1])) for a, b in spans])
    return found


def record(rollout: Rollout) -> dict[str, Any]:
    return cast("dict[str, Any]", rollout.samples[0].metadata["session"])["whole"]


def kinds(rollout: Rollout) -> list[str]:
    notes = [cast("dict[str, Any]", sample.metadata["session"]) for sample in rollout.samples]
    turns = [turn for note in notes for turn in note["turns"]]
    return [turn["kind"] for turn in sorted(turns, key=lambda turn: turn["turn"])]


def counting() -> Script:
    numbers = iter(range(1, 1000))
    return Script(lambda prompt: f"<think>why</think>answer {next(numbers)}")


async def test_turns_that_continue_each_other_are_one_sample() -> None:
    session = session_of(counting())
    first = await ask(session, USER)
    assert first == Message("assistant", "answer 1", "why")
    second = await ask(session, USER, first, Message("tool", "found"))
    rollout = session.finish(DONE, {})
    assert texts(rollout) == [["<think>why</think>answer 1", "<think>why</think>answer 2"]]
    assert kinds(rollout) == ["first", "continued"]
    assert rollout.transcript.messages == (first, Message("tool", "found"), second)
    text = "".join(map(chr, rollout.samples[0].tokens))
    assert text == (
        "[]\nuser> task\nassistant> <think>why</think>answer 1\0\ntool> found"
        "\nassistant> <think>why</think>answer 2\0"
    )


@pytest.mark.parametrize(
    ("back", "reason"),
    [
        (Message("assistant", "  answer\n1 ", "why"), Drift.SPACE),
        (Message("assistant", "answer 1"), Drift.THOUGHT),
        (Message("assistant", "answer 1", "other"), Drift.THOUGHT),
    ],
)
async def test_a_history_that_drifted_uses_the_tokens_that_were_sampled(
    back: Message, reason: Drift
) -> None:
    session = session_of(counting())
    await ask(session, USER)
    await ask(session, USER, back, Message("user", "more"))
    rollout = session.finish(DONE, {})
    assert texts(rollout) == [["<think>why</think>answer 1", "<think>why</think>answer 2"]]
    assert record(rollout)["drift"] == {str(reason): 1}


def test_meaning_knows_neither_key_order_nor_unicode_form_nor_thoughts() -> None:
    said = Message("assistant", "caf\u00e9", "r", (ToolCall("f", {"a": 1, "b": "x  y"}),))
    back = Message("assistant", "cafe\u0301 ", None, (ToolCall("f", {"b": "x  y", "a": 1.0}),))
    assert meaning_of(said) == meaning_of(back)
    assert drift_of(said, back) == {Drift.UNICODE, Drift.SPACE, Drift.THOUGHT, Drift.KEY_ORDER}
    other = Message("assistant", "caf\u00e9", "r", (ToolCall("f", {"a": 1, "b": "x y"}),))
    assert meaning_of(said) != meaning_of(other)


async def test_branches_are_samples_that_train_what_they_share_once() -> None:
    """A retry, a branch, an edited history and a sub-agent."""
    session = session_of(counting())
    first = await ask(session, USER)
    await ask(session, USER)
    await ask(session, USER, first, Message("tool", "a"))
    await ask(session, USER, first, Message("tool", "b"))
    await ask(session, USER, Message("assistant", "no answer of ours"), Message("tool", "c"))
    await ask(session, Message("user", "another task"))
    rollout = session.finish(DONE, {})
    assert kinds(rollout) == [
        "first", "retry", "continued", "branch", "edited history", "new conversation",
    ]  # fmt: skip
    trained = [text.removeprefix("<think>why</think>") for s in texts(rollout) for text in s]
    assert sorted(trained) == [f"answer {n}" for n in range(1, 7)]
    assert texts(rollout)[0] == ["<think>why</think>answer 1", "<think>why</think>answer 3"]
    assert rollout.transcript.answer == "answer 6"
    branch = "".join(map(chr, rollout.samples[2].tokens))
    assert branch.startswith("[]\nuser> task\nassistant> <think>why</think>answer 1\0\ntool> b")


async def test_a_turn_in_the_middle_that_was_never_sampled_is_context() -> None:
    session = session_of(counting())
    first = await ask(session, USER)
    edited = Message("assistant", "something else")
    await ask(session, USER, first, Message("tool", "a"), edited, Message("user", "go on"))
    rollout = session.finish(DONE, {})
    assert kinds(rollout) == ["first", "edited history"]
    assert len(rollout.samples) == 1
    text = "".join(map(chr, rollout.samples[0].tokens))
    assert "\ntool> a\nassistant> something else\0\nuser> go on\nassistant> " in text


async def test_a_first_turn_that_a_harness_replaced_is_an_edit_and_what_follows_goes_on() -> None:
    """As OpenCode does with the call of a tool that it does not have."""
    calls = iter(["!nothing {}", "looked", "done"])
    session = session_of(Script(lambda prompt: next(calls)))
    await ask(session, USER)
    invalid = Message("assistant", "", None, (ToolCall("invalid", {"tool": "nothing"}),))
    history = (USER, invalid, Message("tool", "no such tool"))
    said = await ask(session, *history)
    await ask(session, *history, said, Message("user", "go on"))
    rollout = session.finish(DONE, {})
    assert kinds(rollout) == ["first", "edited history", "continued"]
    assert texts(rollout) == [["!nothing {}"], ["looked", "done"]]


async def test_a_history_of_other_messages_is_found_by_its_tokens() -> None:
    """Two messages of the user that came back as one with the same text."""
    plain = iter(["one", "two"])
    session = session_of(Script(lambda prompt: next(plain)))
    one = await ask(session, USER, Message("tool", "a"))
    joined = Message("user", "task\ntool> a")
    await ask(session, joined, one, Message("tool", "b"))
    rollout = session.finish(DONE, {})
    assert texts(rollout) == [["one", "two"]]
    assert record(rollout)["drift"] == {str(Drift.MESSAGES): 1}


async def test_other_tools_are_another_conversation() -> None:
    session = session_of(counting())
    first = await ask(session, USER)
    await ask(session, USER, first, Message("user", "x"), tools=(Tool("f", "", {}, schema={}),))
    rollout = session.finish(DONE, {})
    assert kinds(rollout) == ["first", "new conversation"]


async def test_a_turn_that_was_not_delivered_is_not_trained() -> None:
    script = counting()
    session = session_of(script)
    first = await ask(session, USER)
    with pytest.raises(ConnectionError):
        async with session.turn(Request((USER, first, Message("tool", "a")))):
            raise ConnectionError
    again = await ask(session, USER, first, Message("tool", "a"))
    assert again.content == "answer 3"
    rollout = session.finish(DONE, {})
    assert [text[-8:] for text in texts(rollout)[0]] == ["answer 1", "answer 3"]
    assert record(rollout)["not_delivered"] == 1
    assert record(rollout)["tokens_not_delivered"] == len("<think>why</think>answer 2") + 1


async def test_a_turn_that_is_given_up_leaves_no_trace() -> None:
    script = counting()
    session = session_of(script)
    first = await ask(session, USER)
    script.delay_s = 60.0
    task = asyncio.create_task(ask(session, USER, first, Message("tool", "a")))
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait({task})
    script.delay_s = 0.0
    await ask(session, USER, first, Message("tool", "b"))
    rollout = session.finish(DONE, {})
    assert len(rollout.samples) == 1
    assert "tool> b" in "".join(map(chr, rollout.samples[0].tokens))
    assert "tool> a" not in "".join(map(chr, rollout.samples[0].tokens))
    assert script.cancelled == 1


async def test_parallel_turns_have_lines_of_their_own() -> None:
    session = session_of(counting(), SessionLimits(turn_tokens=100))
    first = await ask(session, USER)
    asked = [(USER, first, Message("tool", name)) for name in "abc"]
    await asyncio.gather(*(ask(session, *messages) for messages in asked))
    rollout = session.finish(DONE, {})
    assert sorted(len(sample) for sample in texts(rollout)) == [1, 1, 2]
    assert kinds(rollout) == ["first", "continued", "branch", "branch"]


async def test_a_broken_call_ends_the_session_and_is_trained_on() -> None:
    session = session_of(Script(lambda prompt: "?broken"))
    with pytest.raises(Refusal, match="this session is over: broken call"):
        await ask(session, USER)
    with pytest.raises(Refusal, match="over"):
        await ask(session, USER)
    rollout = session.finish(DONE, {})
    assert rollout.status is Status.MALFORMED
    assert texts(rollout) == [["?broken"]]


async def test_budget_turns_branches_and_context_are_limits() -> None:
    session = session_of(counting(), max_new_tokens=30)
    first = await ask(session, USER)
    async with session.turn(Request((USER, first, USER))) as answer:
        assert isinstance(answer, Answer)
        assert answer.is_cut_off
    with pytest.raises(Refusal, match="token budget"):
        await ask(session, USER)
    assert session.finish(DONE, {}).status is Status.TRUNCATED

    session = session_of(counting(), SessionLimits(turns=1))
    await ask(session, USER)
    with pytest.raises(Refusal, match="limit of 1 turns"):
        await ask(session, USER)

    session = session_of(counting(), SessionLimits(samples=2))
    await ask(session, USER)
    await ask(session, USER)
    with pytest.raises(Refusal, match="limit of 2 branches"):
        await ask(session, USER)

    session = session_of(counting(), context_length=100)
    await ask(session, USER)
    too_long = r"prompt is too long: 121 tokens > 92 maximum; this model's maximum context length"
    with pytest.raises(Refusal, match=too_long):
        await ask(session, Message("user", "x" * 100))
    assert session.finish(DONE, {}).transcript.reason == "context length"


async def test_a_session_that_had_no_turn_is_a_failed_rollout() -> None:
    rollout = session_of(counting()).finish(DONE, {})
    assert rollout.status is Status.FAILED
    assert rollout.num_trained_tokens == 0


async def test_what_a_request_asks_for_is_recorded_and_not_followed() -> None:
    script = counting()
    session = session_of(script, temperature=0.7)
    asked = {"temperature": 0.2, "top_p": 1, "max_tokens": 5}
    async with session.turn(Request((USER,), asked=asked)):
        pass
    async with session.turn(Request((USER,), asked={"temperature": 0.7, "stop": ["x" * 9999]})):
        pass
    rollout = session.finish(DONE, {"a.txt": "x"})
    assert rollout.transcript.files == rollout.samples[0].files == {"a.txt": "x"}
    noted = record(rollout)["asked"]
    assert noted.pop("stop") == ['["' + "x" * 1998 + "..."]
    assert noted == {"temperature": [0.2], "max_tokens": [5]}


async def test_a_remembered_conversation_goes_on_under_the_instructions_of_the_request() -> None:
    session = session_of(counting())
    brief = Message("system", "be brief")
    first = Request((brief, USER))
    async with session.turn(first) as answer:
        session.remember("r1", answer)
    async with session.turn(Request((brief, Message("user", "more")), previous="r1")):
        pass
    async with session.turn(Request((Message("user", "more"),), previous="r1")):
        pass
    assert kinds(session.finish(DONE, {})) == ["first", "continued", "retry"]


async def test_the_last_turn_that_was_cut_off_is_no_whole_answer() -> None:
    session = session_of(counting(), context_length=50)
    await ask(session, USER)
    assert (rollout := session.finish(DONE, {})).status is Status.TRUNCATED
    assert rollout.transcript.reason == "context length"
    failed = End(Status.FAILED, "exit code 1")
    assert session.finish(failed, {}).status is Status.FAILED

    session = session_of(counting(), SessionLimits(turn_tokens=10))
    await ask(session, USER)
    assert session.finish(DONE, {}).status is Status.COMPLETED, "its agent took it as it was"

    texts = iter(["x" * 100, "short"])
    session = session_of(Script(lambda prompt: next(texts)), context_length=100)
    await ask(session, USER)
    await ask(session, Message("user", "another task"))
    assert session.finish(DONE, {}).status is Status.COMPLETED, "a later one was not cut off"


async def test_branches_under_way_count() -> None:
    session = session_of(counting(), SessionLimits(samples=2, turn_tokens=50))
    asked = [ask(session, Message("user", f"task {n}")) for n in range(6)]
    ended = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(isinstance(each, Message) for each in ended) == 2
    assert all("limit of 2 branches" in str(each) for each in ended if isinstance(each, Refusal))
    assert len(session.finish(DONE, {}).samples) == 2


async def test_turns_under_way_are_given_up_before_a_session_is_finished() -> None:
    session = session_of(script := counting(), SessionLimits(turn_tokens=100))
    first = await ask(session, USER)
    script.delay_s = 60.0
    task = asyncio.create_task(ask(session, USER, first, Message("tool", "secret")))
    await asyncio.sleep(0.01)
    await session.close()
    assert task.done()
    assert (task.cancelled(), script.cancelled) == (True, 1)
    rollout = session.finish(DONE, {})
    assert texts(rollout) == [["<think>why</think>answer 1"]]
    assert "secret" not in rollout.transcript.raw
    with pytest.raises(Refusal, match="its harness has ended"):
        await ask(session, USER)


async def test_an_answer_on_its_way_is_delivered_before_a_session_is_finished() -> None:
    session = session_of(counting())

    async def slowly() -> None:
        async with session.turn(Request((USER,))):
            await asyncio.sleep(0.05)

    task = asyncio.create_task(slowly())
    await asyncio.sleep(0.02)
    await session.close()
    assert (task.done(), task.cancelled()) == (True, False)
    assert texts(session.finish(DONE, {})) == [["<think>why</think>answer 1"]]


async def test_an_interrupted_turn_keeps_its_part_of_the_budget() -> None:
    """Two turns of 60 tokens, of which an engine interrupts the first, and a budget of 100."""
    script = Script(lambda prompt: "x" * 200)
    calls = 0

    async def generate(prompt_ids: TokenIds, sampling: Sampling) -> Generation:
        nonlocal calls
        calls += 1
        is_first = calls == 1
        most = 0 if is_first else sampling.max_new_tokens
        made = await script.generate(prompt_ids, replace(sampling, max_new_tokens=most))
        return replace(made, finish="abort") if is_first else made

    host = SessionHost(generate, TextChat(), attempt_of(PROBLEM, max_new_tokens=100))
    session = AgentSession(host, PROBLEM, SessionLimits(turn_tokens=60))
    await asyncio.gather(ask(session, USER), ask(session, Message("user", "other")))
    rollout = session.finish(DONE, {})
    assert calls == 3, "it was interrupted while the other began"
    assert sum(sample.num_trained_tokens for sample in rollout.samples) == 100


@pytest.mark.parametrize("number", ["6.022e23", str(10**30), str(2**60 + 1), "12.0", "1" * 300])
async def test_a_call_with_a_number_of_any_size_is_followed_by_its_result(number: str) -> None:
    script = Script(lambda prompt: "done" if "tool>" in prompt else f'!mul {{"a": {number}}}')
    session = session_of(script)
    said = await ask(session, USER)
    # As it comes back over HTTP, where a large number is read as a float.
    (call,) = said.tool_calls
    back = replace(said, tool_calls=(call_of("mul", arguments_text(call), ""),))
    await ask(session, USER, back, Message("tool", "2"))
    rollout = session.finish(DONE, {})
    assert kinds(rollout) == ["first", "continued"]
    assert len(rollout.samples) == 1


async def test_a_turn_that_cannot_be_kept_is_not_trained() -> None:
    session = session_of(counting())
    first = await ask(session, USER)
    note, session._record.note = session._record.note, _fails
    with pytest.raises(ZeroDivisionError):
        await ask(session, USER, first, Message("tool", "a"))
    session._record.note = note
    await ask(session, USER, first, Message("tool", "b"))
    rollout = session.finish(DONE, {})
    assert [text[-8:] for text in texts(rollout)[0]] == ["answer 1", "answer 3"]


def _fails(*_: object) -> None:
    raise ZeroDivisionError
