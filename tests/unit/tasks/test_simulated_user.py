"""A user played by a model: at an address, a small server on loopback, or one of a stage."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web
from pydantic import ValidationError

from engines.rollout.drivers.session_host import SessionHost
from engines.rollout.loop import fill
from engines.rollout.producer import Sampled
from engines.rollout.records.journals import TurnJournal
from engines.types import Message, Problem, Rollout, Status
from infra.errors import OutOfReach
from rewards.judges import chat_api
from tasks.domain import Domain, ScoredDomain, UserSpec
from tasks.live_domain import open_domain
from tasks.served.served_roles import served_roles
from tasks.served.simulated_user import ServedUser, UserEnvironment
from tests.parts.agent_parts import Script, TextChat, attempt_of
from tests.parts.chat_server import Api, serving
from tests.parts.loop_parts import Notes
from tests.parts.rollout_parts import Policy, domain, producer_of, roller

pytestmark = pytest.mark.unit

PROBLEM = Problem("p/1", "d", (Message("user", "I want a refund"),), {"wish": "money back"})
SYSTEM = "You want {reference.wish}. Say DONE at the end."


@pytest.fixture(autouse=True)
def quick(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path))
    monkeypatch.setattr(chat_api, "_FIRST_WAIT_S", 0.01)


def written(url: str, **more: Any) -> dict[str, Any]:
    user = {"system": SYSTEM, "stop": "DONE", "api": {"url": url, "model": "m", "tries": 2}}
    return {
        "name": "d", "curriculum": {"name": "needle"}, "max_turns": 3, "max_new_tokens": 100,
        "rewards": [{"name": "exact", "outcome": True}], "user": user, **more,
    }  # fmt: skip


async def rolled(api: Api, **bounds: float) -> Rollout:
    """As an attempt of a stage rolls out; the policy numbers its turns."""
    given = written(api.url)
    given["user"]["api"] |= bounds
    opened = open_domain(Domain.model_validate(given))
    script = Script(lambda prompt: f"answer {prompt.count('answer')}")
    host = SessionHost(script.generate, TextChat(), attempt_of(PROBLEM))
    try:
        return await opened.live.driver.run(PROBLEM, host)
    finally:
        for each in opened.connected:
            await each.close()


async def test_the_user_answers_until_it_is_done_and_is_asked_once() -> None:
    async with serving("Which form?", "Thanks. DONE") as api:
        first = await rolled(api)
        again = await rolled(api)  # a resumed attempt starts the conversation again
        assert len(api.asked) == 2, "what was said is repeated, and not asked again"
    assert first.status is Status.COMPLETED
    assert [(m.role, m.content) for m in first.transcript.messages] == [
        ("assistant", "answer 0"), ("user", "Which form?"), ("assistant", "answer 1"),
    ]  # fmt: skip
    assert first.transcript.answer == "answer 1"
    assert again.samples[0].tokens.tolist() == first.samples[0].tokens.tolist()
    sample = first.samples[0]
    trained = "".join(chr(t) for t in sample.tokens[sample.loss_mask] if t > 31)
    assert trained == "answer 0answer 1", "the user's tokens are never trained on"
    asked = api.asked[1]
    assert [(m["role"], m["content"]) for m in asked["messages"]] == [
        ("system", "You want money back. Say DONE at the end."),
        ("user", "Hi! How can I help you today?"),
        ("assistant", "I want a refund"), ("user", "answer 0"),
        ("assistant", "Which form?"), ("user", "answer 1"),
    ]  # fmt: skip
    assert (asked["temperature"], asked["max_completion_tokens"]) == (0, 256)
    assert api.asked[0]["seed"] != asked["seed"], "it follows from what was said"


async def test_a_user_without_an_answer_fails_the_sample_and_turns_are_bounded() -> None:
    async with serving(lambda: web.Response(status=400)) as api:
        failed = await rolled(api)
    assert failed.status is Status.FAILED
    assert "environment: UserFailed: http://127.0.0.1" in failed.samples[0].reason
    assert "it refuses (400)" in failed.samples[0].reason
    async with serving(" ") as api:
        assert "it said nothing" in (await rolled(api)).samples[0].reason
    async with serving("Go on") as api:
        endless = await rolled(api)
        assert (endless.status, len(api.asked)) == (Status.TRUNCATED, 3)


async def test_an_outage_of_the_user_is_waited_for_and_fails_no_sample() -> None:
    down = lambda: web.Response(status=503)  # noqa: E731
    async with serving(down, down, down, "Which form?", "Thanks. DONE") as api:
        assert (await rolled(api)).status is Status.COMPLETED
    async with serving(down) as api:
        with pytest.raises(OutOfReach, match=r"\(503\).* it answered nothing for 0.1 s"):
            await rolled(api, outage_s=0.1)


class Unsteady:
    """A served model that never says the same twice, as one may not on a GPU."""

    def __init__(self, asked: int = 0) -> None:
        self.asked = asked

    async def answer(self, problem: Problem, **_: Any) -> tuple[str, bool]:
        self.asked += 1
        return f"reply {self.asked} ü", True


async def step_with(model: Any, notes: Notes, policy: Policy) -> tuple[Sampled, TurnJournal]:
    """A step of four rollouts with three turns, whose user is served."""
    user = UserSpec.model_validate({"system": "You want it.", "served": {"model": "hf:a/b"}})
    world, turns = UserEnvironment(user, ServedUser(user, model), None), TurnJournal(notes)
    made, _ = producer_of(
        roller(policy),
        [domain("d", float, environment=world, max_turns=3, max_new_tokens=20)],
        groups_per_step=1, group_size=4, policy=policy, turns=turns,
    )  # fmt: skip
    await made.recover(0)
    return await fill(made), turns


async def test_a_resumed_step_repeats_what_a_served_user_said() -> None:
    notes, policy, first = Notes(), Policy(lambda *_: "7"), Unsteady()
    policy.free_calls = 6
    policy.may_answer.clear()
    killed = asyncio.create_task(step_with(first, notes, policy))
    while not notes.kept["turns"]:
        await asyncio.sleep(0.01)
    killed.cancel()
    await asyncio.gather(killed, return_exceptions=True)
    assert first.asked == 6
    rest, second = Policy(lambda *_: "7"), Unsteady(asked=100)
    sampled, turns = await step_with(second, notes, rest)
    assert second.asked == 100 + 12 - 6, "what was said is repeated, and not asked again"
    assert (turns.recovered_tokens, len(rest.calls)) == (2 * 6, 12 - 6), "nor the policy's turns"
    heard = [chr_of(s.tokens) for s in sampled.groups[0].samples]
    for number in range(1, 7):
        assert sum(f"reply {number} ü" in text for text in heard) == 1
    ids = {sample.rollout_id for sample in sampled.groups[0].samples}
    told = turns.of(0, lambda versions: True).usable(ids)
    assert len(told) == 12, "a rollout worker is told of replies as of turns"


def chr_of(tokens: Any) -> str:
    return "".join(chr(t) for t in tokens)


def test_a_user_is_served_or_at_an_address_and_is_somebody_that_is_heard() -> None:
    good = written("http://127.0.0.1:1/v1")
    scored = ScoredDomain.of(Domain.model_validate(good))
    assert scored.user is not None
    served = {"system": SYSTEM, "served": {"model": "hf:a/b"}}
    roles = served_roles([Domain.model_validate(good | {"user": served})])
    assert [(role.name, role.model) for role in roles.values()] == [("user", "hf:a/b")]
    for change, said in (
        ({"max_turns": 1}, "max_turns: is 1"),
        ({"driver": {"name": "harness"}}, "does without `user`"),
        ({"user": {"system": SYSTEM}}, "write either `served` or `api`"),
        ({"user": served | {"system": "{answer}"}}, "there is no {answer}; allowed: {question}"),
    ):
        with pytest.raises(ValidationError, match=said):
            Domain.model_validate(good | change)
