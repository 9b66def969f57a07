"""The reward `external-judge` before a small server on loopback, which says what it is told to."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from pydantic import ValidationError

from engines.types import Message, Problem, Status, Transcript
from infra.errors import EngineError, InputError
from infra.home import home
from rewards.judges import chat_api
from rewards.judges.external_judge import ExternalJudge, ExternalJudgeSettings
from rewards.judges.judge_prompt import JudgeQuestion, read_verdict
from rewards.rubric import Rubric, RubricJudgement, Term
from tasks.domain import Domain
from tasks.live_domain import open_domain
from tasks.nothink import held_out_of
from tests.parts.chat_server import completion, serving

pytestmark = pytest.mark.unit

ASK: dict[str, Any] = {"prompt": "Q: {question} A: {answer}", "model": "m", "scale": [1, 5]}


def transcript(answer: str = "It is 4") -> Transcript:
    problem = Problem("p/1", "d", (Message("user", "2+2"),))
    return Transcript(problem, (Message("assistant", answer),), Status.COMPLETED, 3, raw=answer)


@pytest.fixture(autouse=True)
def quick(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path))
    monkeypatch.setattr(chat_api, "_FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(chat_api, "_LONGEST_WAIT_S", 0.02)


@asynccontextmanager
async def judging(url: str, timeout_s: float = 5.0, **options: Any) -> AsyncGenerator[Any]:
    judge = ExternalJudge.of_options({**ASK, "url": url, **options}, timeout_s)
    rubric = Rubric([Term("external-judge", 1.0, True, judge)])
    try:
        yield rubric.judge
    finally:
        await judge.close()


GOOD = json.dumps({"reason": "polite", "score": 4})


async def test_a_verdict_is_json_on_the_scale_and_a_question_is_paid_for_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "hidden-1")
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")  # httpx refuses to begin with it
    async with serving(GOOD) as api:
        async with judging(api.url, key="secret:JUDGE_KEY", body={"seed": 7}) as judge:
            same = await asyncio.gather(*[judge(transcript()) for _ in range(3)])
            await judge(transcript("5"))
        async with judging(api.url, body={"seed": 7}) as judge:  # another attempt of the stage
            again = await judge(transcript())
    assert [each.reward for each in (*same, again)] == [0.75] * 4
    assert "polite" in same[0].reason
    assert len(api.asked) == 2, "equal answers share a verdict, also after a restart"
    asked = api.asked[0]
    assert asked["messages"] == [{"role": "user", "content": "Q: 2+2 A: It is 4"}]
    assert (asked["max_completion_tokens"], asked["temperature"], asked["seed"]) == (512, 0, 7)
    score = asked["response_format"]["json_schema"]["schema"]["properties"]["score"]
    assert score == {"type": "number", "minimum": 1, "maximum": 5}
    assert api.headers[0]["Authorization"] == "Bearer hidden-1"


async def test_an_answer_that_nobody_asks_for_any_more_is_not_kept_for_ever() -> None:
    async with serving(GOOD) as api:
        async with judging(api.url) as judge:
            await judge(transcript())
        (kept,) = (home() / "cache" / "judged").glob("*/*.txt")
        old, lately = kept.with_name("old.txt"), kept.with_name("lately.txt")
        for file, days in ((old, 31), (lately, 29), (kept, 31)):
            file.write_text("1")
            os.utime(file, (time.time() - days * 86400,) * 2)
        kept.unlink()
        async with judging(api.url) as judge:
            await judge(transcript())
    assert sorted(kept.parent.iterdir()) == sorted([kept, lately])


def busy() -> web.Response:
    return web.Response(status=429, headers={"Retry-After": "30"})


def broken() -> web.Response:
    return web.Response(status=503)


@pytest.mark.parametrize("trouble", [busy, broken])
async def test_a_busy_or_broken_api_is_asked_again(trouble: Any) -> None:
    async with serving(trouble, trouble, GOOD) as api, judging(api.url, max_calls=1) as judge:
        assert (await judge(transcript())).reward == 0.75
    assert len(api.asked) == 3, "and what it turned away costs no call"


def assert_failed(judged: RubricJudgement, why: str) -> None:
    """A failed verdict has no score, and says why."""
    assert judged.failed
    assert judged.breakdown == {}
    assert why in judged.reason


WRONG: list[tuple[Any, str]] = [
    (lambda: web.Response(text="<html>"), "no chat completion: '<html>'"),
    (lambda: web.json_response({"choices": []}), "no chat completion"),
    (lambda: completion('{"score": 4', "length"), "cut off or empty (length)"),
    (lambda: completion(""), "cut off or empty"),
    ("score: 4", "is not the JSON that was asked for"),
    ('{"reason": "?"}', "is not the JSON that was asked for (score: Field required)"),
    ('{"score": NaN}', "is not the JSON that was asked for"),
    ('{"score": 6}', "gives 6, outside 1 to 5"),
    ('{"score": true}', "is a truth value and no number"),
    ('{"score": 2, "score": 4}', "the key 'score' stands twice in one object"),
    ('{"score": 2}\n{"score": 4}', "is not the JSON that was asked for"),
    ('<think>It is {"score": 4}', "its thought does not end"),
    (lambda: web.Response(status=401, text="no key"), "it refuses (401): 'no key'"),
    (lambda: web.Response(text="x" * 5_000_000), "its reply has more than"),
]


@pytest.mark.parametrize(("answer", "why"), WRONG)
async def test_what_is_no_verdict_fails_the_sample_is_not_repeated_and_not_kept(
    answer: Any, why: str
) -> None:
    async with serving(answer) as api, judging(api.url) as judge:
        for _ in range(2):
            assert_failed(await judge(transcript()), why)
    assert len(api.asked) == 2, "once for each"


async def test_a_key_is_in_no_error_and_no_kept_answer_and_no_reply_is_unpacked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MY_KEY", "canary-123456")
    packed = gzip.compress(gzip.compress(b"\0" * (1 << 28), 9), 9)
    unasked = {"content-encoding": "gzip, gzip"}
    for answer, why in (
        (lambda: web.Response(status=401, text="x" * 290 + "canary-123456"), "xxxsecret:MY_'"),
        ('{"reason": "canary-123456", "score": 9}', "gives 9"),
        (lambda: web.Response(body=packed, headers=unasked), "its reply is packed"),
        ('{"reason": "' + "x" * 60_000 + '", "score": 1}', "has 60026 characters"),
    ):
        async with serving(answer) as api, judging(api.url, key="secret:MY_KEY") as judge:
            judged = await judge(transcript())
            assert_failed(judged, why)
            assert "canary" not in judged.reason
            assert api.headers[0]["accept-encoding"] == "identity"
    said = '{"reason": "for canary-123456", "score": 4}'
    async with serving(said) as api, judging(api.url, key="secret:MY_KEY") as judge:
        assert "the judge: 'for secret:MY_KEY'" in (await judge(transcript())).reason
    kept = [file.read_text() for file in (tmp_path / "cache").rglob("*.txt")]
    assert kept == ['{"reason": "for secret:MY_KEY", "score": 4}']
    for key in ("canary-123456\n", "canary-\u00e9"):
        monkeypatch.setenv("MY_KEY", key)
        with pytest.raises(InputError, match="secret:MY_KEY begins or ends with a blank") as wrong:
            ExternalJudge.of_options({**ASK, "url": api.url, "key": "secret:MY_KEY"}, 5.0)
        assert "canary" not in str(wrong.value)


async def test_calls_have_a_bound_and_a_rate() -> None:
    bounds = {"max_calls": 3, "calls_per_minute": 1200}
    async with serving(GOOD) as api, judging(api.url, **bounds) as judge:
        began = time.monotonic()
        judged = [await judge(transcript(str(number))) for number in range(4)]
    assert_failed(judged[-1], "`max_calls` (3) are spent")
    assert api.at[2] - began >= 0.1, "two distances of 0.05 s"


async def test_rollout_workers_share_the_bounds() -> None:
    options = {**ASK, "calls_per_minute": 1200, "max_calls": 7, "at_once": 2, "cache": False}
    async with serving(GOOD) as api:
        judge = ExternalJudge.of_options({**options, "url": api.url}, 5.0, sharing=3)
        began = time.monotonic()
        for _ in range(2):
            await judge(transcript())
        said = r"`max_calls` \(7\), 2 for this rollout worker, are"
        with pytest.raises(EngineError, match=said):
            await judge(transcript())
        await judge.close()
        assert api.at[1] - began >= 0.14, "a third of the calls in a minute"
        with pytest.raises(InputError, match=r"\(7\) is to be shared by 8 rollout workers"):
            ExternalJudge.of_options({**options, "url": api.url}, 5.0, sharing=8)


async def test_each_vote_is_asked_and_kept_by_itself() -> None:
    said = [json.dumps({"reason": "r", "score": score}) for score in (1, 2, 5)]
    async with serving(*said) as api:
        for _ in range(2):
            async with judging(api.url, votes=3, temperature=1.0, at_once=1) as judge:
                judged = await judge(transcript())
                assert judged.reward == pytest.approx(5 / 12)  # (0 + 1/4 + 1) / 3
                assert judged.breakdown["external-judge/votes"] == 3
    assert len(api.asked) == 3, "another attempt of the stage finds them all"


@pytest.mark.parametrize(
    ("answer", "options"),
    [
        (f"```json\n{GOOD}\n```", {}),
        (f'<think>{{"score": 1}}</think>\n\n{GOOD}', {}),
        ("<think>Score: 1</think>Score: 4", {"pattern": r"Score: (\d)"}),
        *[
            (said, {"choices": {"Yes": 0.75, "No": 0.0}, "scale": [0, 1]})
            for said in ("Yes.", "**yes**", "<think>No</think>Yes")
        ],
    ],
)
async def test_what_stands_around_a_verdict_is_not_read(answer: str, options: Any) -> None:
    async with serving(answer) as api, judging(api.url, **options) as judge:
        assert (await judge(transcript())).reward == 0.75


@pytest.mark.parametrize(
    ("pattern", "said", "score"),
    [
        (r"Score: (\d+)", "Score: 7.5", 0.75),
        (r"Score: (\d)", "Score: 10.", 1.0),
        (r"Score:(\s*\d+)", "Score: 7.5/10", 0.75),
        (r"\d+", "between 3 and 4.5", 0.45),
        (r"(\d+)", "4-5", 0.5),
        *[(r"(\d+)", said, -1.0) for said in ("**-3**", "7,5", "1.2.3", "none")],
        *[(pattern, "Score: 7", -1.0) for pattern in (r"Score: \d", r"Score: 7( of)?")],
    ],
)
def test_a_number_is_read_whole_where_the_pattern_matches_a_part(
    pattern: str, said: str, score: float
) -> None:
    question = JudgeQuestion(prompt="{answer}", pattern=pattern, scale=(0, 10), unreadable=-1)
    assert read_verdict(question, said).score == score


async def test_an_answer_may_be_text() -> None:
    async with serving("Good") as api:
        choices = {"Good": 1.0, "Bad": 0.0}
        async with judging(api.url, choices=choices, scale=[0, 1]) as judge:
            assert (await judge(transcript())).reward == 1
        async with judging(api.url, pattern=r"Score: (\d)", unreadable=0.5) as judge:
            assert (await judge(transcript())).reward == 0.5
    assert "response_format" not in api.asked[0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"url": "api.test/v1"}, "is no address; write https://HOST/v1"),
        ({"url": "http://api.test/v1", "key": "secret:A"}, "would send the key in clear text"),
        ({"key": "sk-12345"}, "here `secret:NAME` stands for it"),
        ({"body": {"stream": True}}, "body: stream is set already"),
        ({"body": {"user": "secret:A"}}, "body: secret:A would be sent as it is"),
        ({"prompt": "{question}"}, "shows nothing of what is judged"),
    ],
)
def test_what_cannot_be_asked_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        ExternalJudgeSettings.model_validate({"url": "https://api.test/v1", **ASK, **options})


def test_a_domain_has_it_beside_other_rewards_and_closes_it() -> None:
    options = {**ASK, "url": "https://api.test/v1"}
    rewards = [{"name": "math", "outcome": True}, {"name": "external-judge", "options": options}]
    common = {"name": "d", "curriculum": {"name": "reasoning"}}
    opened = open_domain(Domain.model_validate({**common, "rewards": rewards}))
    (judge,) = opened.connected
    assert isinstance(judge, ExternalJudge)
    assert not opened.processes
    twice = [*rewards, {**rewards[1], "options": {**options, "prompt": "Kind? {answer}"}}]
    with pytest.raises(ValidationError, match="2 rewards are called external-judge; give each a"):
        Domain.model_validate({**common, "rewards": twice})
    twice[2]["label"] = "kind"
    both = open_domain(Domain.model_validate({**common, "rewards": twice}))
    assert len(both.connected) == 2
    del options["model"]
    with pytest.raises(ValidationError, match="model"):
        Domain.model_validate({**common, "rewards": rewards})


async def test_scores_while_a_policy_trains_ask_the_outcome_alone() -> None:
    """So a judge beside it costs nothing then, and one that is down takes no score away."""
    async with serving(lambda: web.Response(status=400)) as api:
        rewards = [
            {"name": "external-judge", "options": {**ASK, "url": api.url}},
            {"name": "exact", "outcome": True, "weight": 0.5},
        ]
        domain = {"name": "d", "curriculum": {"name": "reasoning"}, "rewards": rewards}
        opened = open_domain(Domain.model_validate(domain))
        (held_out,) = held_out_of([opened.live], 1, 0)
        problem = Problem("p/1", "d", (Message("user", "2+2"),), "4")
        said = Transcript(problem, (Message("assistant", "4"),), Status.COMPLETED, 3, raw="4")
        scored: Any = await held_out.domain.judge.judge(said)
        assert (scored.reward, scored.breakdown) == (0.5, {"outcome": 1.0})
        assert not api.asked
        assert (await opened.live.judge.judge(said)).failed
        assert len(api.asked) == 1
        for judge in opened.connected:
            await judge.close()


def test_a_key_that_is_not_set_is_named() -> None:
    with pytest.raises(InputError, match="refers to NO_SUCH_KEY, which is not set here"):
        ExternalJudge.of_options({**ASK, "url": "https://a.test", "key": "secret:NO_SUCH_KEY"}, 1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"prompt": "{answer} {rubric}", "reference_prompt": "{answer}, {rubric}"},
         "reference_prompt: shows nothing that `prompt` does not"),
        ({"vote_score": "median"}, "vote_score: one vote has no median"),
        ({"choices": {"a": 1, "b": 0}}, "scale: `choices` are scores already"),
    ],
)  # fmt: skip
def test_an_option_that_would_change_nothing_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        ExternalJudgeSettings.model_validate({**ASK, "url": "http://127.0.0.1:9/v1", **options})


@pytest.mark.parametrize(
    ("system", "place"),
    [
        ("Be strict. The right answer is {reference.answer}.", "{reference.answer}"),
        ('Reply with JSON as {{answer}}, {"score": 5}.', ""),
    ],
)
def test_a_system_message_is_sent_as_it_stands(system: str, place: str) -> None:
    options = {"url": "http://127.0.0.1:9/v1", "model": "m", "prompt": "{answer}"}
    if not place:
        assert ExternalJudgeSettings(**options, system=system).system == system
        return
    with pytest.raises(ValidationError, match="system: is sent as it stands; move") as raised:
        ExternalJudgeSettings(**options, system=system)
    assert place in str(raised.value)
