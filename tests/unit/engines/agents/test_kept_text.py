"""What a session keeps of its requests has a bound, whatever its template leaves out."""

from __future__ import annotations

import gc

import pytest

from engines.agents.agent_session import AgentSession
from engines.agents.limits import SessionLimits
from engines.agents.wire.wire_format import Refusal, Request
from engines.rollout.drivers.session_host import End
from engines.types import Message, Status
from tests.parts.agent_parts import Script, session_of

pytestmark = pytest.mark.unit

THOUGHT = 1 << 20


def answering(limits: SessionLimits | None = None) -> AgentSession:
    numbers = iter(range(1, 1000))
    return session_of(Script(lambda prompt: f"<think>why</think>answer {next(numbers)}"), limits)


async def ask(session: AgentSession, *messages: Message) -> Message:
    async with session.turn(Request(messages)) as answer:
        return answer.said.message()


@pytest.mark.parametrize("is_own", [True, False], ids=["came back", "in a context"])
async def test_thoughts_that_the_template_leaves_out_are_counted(is_own: bool) -> None:
    session = answering(SessionLimits(text=8 * THOUGHT))
    said = [Message("user", "task")]

    async def send_thoughts() -> None:
        nonlocal said
        for number in range(10):
            answer = await ask(session, *said)
            content = answer.content if is_own else f"never sampled {number}"
            thought = Message("assistant", content, "x" * THOUGHT)
            said = [*said[: 2 * number + 1], thought, Message("user", "go on")]

    with pytest.raises(Refusal, match=r"over: limit of 8388608 characters"):
        await send_thoughts()
    rollout = session.finish(End(Status.COMPLETED), {})
    assert (rollout.status, rollout.transcript.reason) == (
        Status.TRUNCATED, "limit of 8388608 characters",
    )  # fmt: skip


async def test_conversations_that_a_request_may_name_are_kept_once() -> None:
    """A client that sends everything again and never names an answer."""
    session = answering()
    said = [Message("user", "task")]
    for number in range(12):
        again = tuple(Message(m.role, m.content, m.reasoning) for m in said)
        async with session.turn(Request(again)) as answer:
            session.remember(f"resp_{number}", answer)
        said += [answer.said.message(), Message("user", f"{number} goes on")]
        del again
    gc.collect()
    alive = [each for each in gc.get_objects() if isinstance(each, Message)]
    assert sum(message.content.endswith("goes on") for message in alive) <= 2 * 12
    last = Request((Message("user", "more"),), previous="resp_11")
    async with session.turn(last) as answer:
        prompt = session.tree.turns[-1].path()
        assert [turn.said.content for turn in prompt] == [f"answer {n}" for n in range(1, 14)]
