"""What becomes of rollouts whose judge at an address is down, slow or busy for a while.

Before a real server: the stage waits, says so once, and nothing counts as 0 or as failed.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from engines.rollout.workers.worker import RolloutWorker
from engines.types import Message, Problem, Status, Transcript
from infra.errors import OutOfReach, TrainingStopped
from infra.processes.outages import Outage, outages, told_by, waiting_for
from rewards.judges import chat_api
from rewards.judges.external_judge import ExternalJudge
from rewards.rubric import Rubric, Term
from tasks.durable import reporter as reporting
from tasks.durable.protocol import MARK
from tasks.durable.reporter import JobReporter, saying_outages
from tasks.stage import Pulse
from tests.parts.chat_server import Api, completion, serving
from tests.parts.rollout_parts import CharChat, domain
from tests.unit.tasks.test_trained_nothing import by_turn, run_stage

pytestmark = pytest.mark.unit

ASK: dict[str, Any] = {"prompt": "{answer}", "model": "m", "tries": 2, "cache": False}


def scored(score: float) -> str:
    return json.dumps({"reason": "r", "score": score})


@pytest.fixture(autouse=True)
def quick(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path))
    monkeypatch.setattr(chat_api, "_FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(chat_api, "_LONGEST_WAIT_S", 0.05)


@asynccontextmanager
async def judging(url: str, timeout_s: float = 5.0, **options: Any) -> AsyncGenerator[Rubric]:
    judge = ExternalJudge.of_options({**ASK, "url": url, **options}, timeout_s)
    try:
        yield Rubric([Term("external-judge", 1.0, True, judge)])
    finally:
        await judge.close()


def transcript(answer: str) -> Transcript:
    problem = Problem("p/1", "d", (Message("user", "2+2"),))
    return Transcript(problem, (Message("assistant", answer),), Status.COMPLETED, 3, raw=answer)


async def until(holds: Callable[[], bool], limit_s: float = 5.0) -> None:
    async with asyncio.timeout(limit_s):
        while not holds():
            await asyncio.sleep(0.01)


def turned_away() -> web.Response:
    return web.Response(status=429, headers={"Retry-After": "1"}, text="slow down")


def broken() -> web.Response:
    return web.Response(status=500, text="oops")


def patience(trouble: Any) -> float:
    """A time limit that only an answer meant to be late exceeds, on a busy machine too."""
    return 0.2 if isinstance(trouble, float) else 5.0


TROUBLES: list[tuple[Any, str]] = [
    (None, "it is not reached (ConnectError"),
    (turned_away, "it is busy or broken (429): 'slow down'"),
    (broken, "it is busy or broken (500): 'oops'"),
    (30.0, "no answer within timeout_s 0.2"),
]


@pytest.mark.parametrize(("trouble", "why"), TROUBLES)
async def test_rollouts_wait_for_a_judge_that_answers_nobody(trouble: Any, why: str) -> None:
    options = {"timeout_s": patience(trouble), "at_once": 2}
    async with serving(scored(1.0)) as api, judging(api.url, **options) as rubric:
        if trouble is None:
            await api.down()
        else:
            api.answers = [trouble]
        asked = [asyncio.create_task(rubric.judge(transcript(str(n)))) for n in range(5)]
        await until(lambda: bool(outages()))
        (outage,) = outages()
        assert outage.why.startswith(why)
        assert outage.service == f"{api.url}/chat/completions"
        assert outage.until - outage.since == pytest.approx(14_400)
        await asyncio.sleep(0.5)
        assert not any(task.done() for task in asked)
        api.answers = [scored(1.0)]
        if trouble is None:
            await api.up()
        judged = await asyncio.wait_for(asyncio.gather(*asked), 5)
    assert [(each.failed, each.reward) for each in judged] == [(False, 1.0)] * 5
    assert not outages()


async def test_past_the_bound_it_is_no_verdict_at_all() -> None:
    async with serving(scored(1.0)) as api, judging(api.url, outage_s=0.3) as rubric:
        await api.down()
        began = time.monotonic()
        with pytest.raises(OutOfReach) as raised:
            await rubric.judge(transcript("4"))
        assert 0.3 <= time.monotonic() - began < 3
        assert "(ConnectError" in str(raised.value)
        assert "it answered nothing for 0.3 s (`outage_s`)" in str(raised.value)
        await api.up()
    assert not OutOfReach.retryable, "another attempt would wait as long"


@pytest.mark.parametrize("outage_s", [0.0, 9.0])
async def test_votes_of_a_judge_that_is_down_are_no_verdict_either(outage_s: float) -> None:
    options = {"votes": 3, "temperature": 1.0, "outage_s": outage_s}
    async with serving(scored(1.0)) as api, judging(api.url, **options) as rubric:
        await api.down()
        asked = asyncio.create_task(rubric.judge(transcript("4")))
        if outage_s:
            await until(lambda: bool(outages()))
        else:
            with pytest.raises(OutOfReach):
                await asked
        await api.up()
        if outage_s:
            assert (await asyncio.wait_for(asked, 5)).breakdown["external-judge/votes"] == 3


class Picky(Api):
    """Answers all questions but one, about which something goes wrong."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        said = (await request.json())["messages"][0]["content"]
        if said == "poison":
            self.asked.append(said)
            trouble = self.answers[0]
            if isinstance(trouble, float):
                await asyncio.sleep(trouble)
            return trouble() if callable(trouble) else completion("too late")
        return completion(scored(0.5))


@pytest.mark.parametrize(
    ("trouble", "why"),
    [(broken, "it is busy or broken (500)"), (30.0, "no answer within timeout_s 0.2")],
)
async def test_what_goes_wrong_with_one_question_alone_fails_that_one(
    trouble: Any, why: str
) -> None:
    api = Picky(trouble)
    await api.up()
    async with judging(api.url, timeout_s=patience(trouble), at_once=1) as rubric:
        poison = asyncio.create_task(rubric.judge(transcript("poison")))
        await asyncio.sleep(0.05)
        others = [await rubric.judge(transcript(str(number))) for number in range(3)]
        judged = await asyncio.wait_for(poison, 5)
    await api.down()
    assert [each.reward for each in others] == [0.5] * 3
    assert (judged.failed, judged.breakdown) == (True, {})
    assert why in judged.reason
    assert "others are answered" in judged.reason


@pytest.mark.parametrize("trouble", [broken, 30.0])
async def test_a_question_that_nobody_else_asks_beside_is_told_from_an_outage(trouble: Any) -> None:
    api = Picky(trouble)
    await api.up()
    async with judging(api.url, timeout_s=patience(trouble)) as rubric:
        judged = await asyncio.wait_for(rubric.judge(transcript("poison")), 5)
    await api.down()
    assert judged.failed
    assert "2 times in a row; others are answered" in judged.reason
    assert api.asked == ["poison", "poison"]


async def rl_stage(api: Api, **options: Any) -> list[str]:
    """Three steps of a stage judged by this API; its warnings."""
    async with judging(api.url, **options) as rubric:
        judged = replace(domain("d", float), judge=rubric)
        record, reporter = await run_stage(by_turn("01"), judged)
    assert record.step == 3
    return [str(warning) for warning in reporter.kept]


class Judge01(Api):
    """Scores the answer 1 with 1 and others with 0; down for a while after the 9th question."""

    is_back = False

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append(body)
        if len(self.asked) > 9 and not self.is_back:
            return web.Response(status=503)
        return completion(scored(float(body["messages"][0]["content"] == "1")))


async def test_a_stage_outlives_an_outage_and_counts_nothing_as_failed() -> None:
    api = Judge01()
    await api.up()
    running = asyncio.create_task(rl_stage(api))
    await until(lambda: bool(outages()))
    await asyncio.sleep(0.3)
    api.is_back = True
    assert await asyncio.wait_for(running, 10) == []
    await api.down()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("no JSON", "is not the JSON that was asked for"),
        (lambda: web.Response(status=401, text="no key"), "it refuses (401): 'no key'"),
    ],
)
async def test_a_judge_that_never_gives_a_score_still_ends_the_stage_with_its_cause(
    answer: Any, why: str
) -> None:
    async with serving(answer) as api:
        with pytest.raises(TrainingStopped) as raised:
            await rl_stage(api)
    assert why in str(raised.value)
    assert not outages()


async def test_past_the_bound_the_stage_ends_and_says_what_to_do() -> None:
    api = Judge01()
    await api.up()
    with pytest.raises(OutOfReach, match="resume the run once it answers"):
        await asyncio.wait_for(rl_stage(api, outage_s=0.2), 10)
    await api.down()


async def test_an_outage_is_said_once_and_is_no_standstill(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reporting, "_LOOK_S", 0.01)
    monkeypatch.setattr(reporting, "_OVER_S", 0.1)
    pulse = Pulse()
    reporter = JobReporter("job", "", None, pulse)
    reporter.progress(3, 9, "outcome 0.5")
    outage = Outage("https://api.test/v1", "it is busy or broken (503)", 0.0, 3600.0)

    async def body() -> str:
        began = time.monotonic()
        with waiting_for(outage):
            await asyncio.sleep(0.2)
            assert pulse.idle_seconds < time.monotonic() - began
        with waiting_for(outage):  # at once: the next rollout
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.2)
        return "made"

    assert await saying_outages(body(), reporter) == "made"
    events = [json.loads(line.removeprefix(MARK)) for line in capsys.readouterr().out.splitlines()]
    warned = [event["message"] for event in events if event["event"] == "warn"]
    assert "for https://api.test/v1: it is busy or broken (503)" in warned[0]
    assert "the stage ends, to be resumed. No rollout counts as failed" in warned[0]
    assert warned[1:] == ["https://api.test/v1 is not waited for any more"]
    state = [event for event in events if event["event"] == "progress"][-1]
    assert (state["done"], state["total"]) == (3, 9)
    assert state["message"].startswith("waits since ")


async def test_a_rollout_worker_tells_what_its_rewards_wait_for() -> None:
    class Client:
        on_trouble = must_wait = staticmethod(lambda: False)
        generate: Any = None

    worker = RolloutWorker(
        client=Client(), chat=CharChat(), domains=[domain("d", float)], context_length=9, seed=0
    )
    outage = Outage("https://api.test/v1", "it is not reached", 5.0, 9.0)
    with waiting_for(outage):
        news = await worker.news(is_changing=False, within_s=0.0)
    assert (news.outages, outages()) == ((outage,), [])
    told_by("worker 1", news.outages)
    told_by("worker 2", [replace(outage, since=2.0)])
    assert [each.since for each in outages()] == [2.0], "each service once"
    told_by("worker 1", ())
    told_by("worker 2", ())
    assert not outages()
