"""The rewards that ask a served model, with a model that answers what it is told to."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from pydantic import ValidationError
from tokenizers import Tokenizer

from engines.chat import Chat
from engines.sglang.roles.role_client import RoleClient
from engines.types import Finish, Generation, Json, Message, Problem, Status, ToolCall, Transcript
from engines.weight_versions import WeightVersions
from rewards.judges.served import JudgeSettings, build_served, question
from rewards.rubric import Rubric, Term
from tasks.domain import Domain
from tasks.live_domain import open_domain
from tasks.served.served_roles import RoleClients
from tests.parts.chat_parts import LLAMA_TOKENS, R1_IN_HEADER, chat_folder

pytestmark = pytest.mark.unit

PROBLEM = Problem("p/1", "d", (Message("user", "2+2"),), {"answer": "4", "unit": "none"})


def transcript(*turns: Message) -> Transcript:
    said = turns or (Message("assistant", "It is 4", reasoning="two and two"),)
    return Transcript(PROBLEM, said, Status.COMPLETED, 3, raw="It is 4")


class Model:
    """Answers the same to everything, and keeps what it was asked."""

    def __init__(self, said: str = "", logprobs: Sequence[float] = ()) -> None:
        self.said, self.numbers = said, list(logprobs)
        self.asked: list[Any] = []

    async def answer(self, problem: Problem, **more: Any) -> tuple[str, bool]:
        self.asked.append((problem, more))
        return self.said, not self.said.endswith("…")

    async def choice_logprobs(
        self, problem: Problem, choices: Sequence[str], *, timeout_s: float
    ) -> list[float]:
        self.asked.append((problem, choices))
        return self.numbers

    async def outputs(
        self, problem: Problem, turns: Sequence[Message], *, timeout_s: float
    ) -> list[float]:
        self.asked.append((problem, turns))
        return self.numbers


class Silent(Model):
    async def answer(self, problem: Problem, **more: Any) -> tuple[str, bool]:
        raise ConnectionError("nobody is there")


ASK = {"prompt": "Q: {question} A: {answer} R: {reference.answer}", "pattern": r"Score: (\d+)"}


async def score(options: dict[str, Any], model: Model, name: str = "judge") -> Any:
    return await build_served(name, options, [model], 5.0)(transcript())


async def test_a_number_in_the_answer_is_put_on_the_scale() -> None:
    model = Model("Score: 3 at first. Score: 8")
    verdict = await score({**ASK, "scale": [0, 10]}, model)
    assert verdict.score == pytest.approx(0.8), "the last match counts"
    assert "Score: 8" in verdict.reason
    ((asked, more),) = model.asked
    assert asked.messages == (Message("user", "Q: 2+2 A: It is 4 R: 4"),)
    assert (more["temperature"], more["max_new_tokens"], more["timeout_s"]) == (0.0, 64, 5.0)


async def test_the_same_rollout_is_judged_with_the_same_seed() -> None:
    model = Model("Score: 1")
    for _ in range(2):
        await score({**ASK, "temperature": 1.0}, model)
    assert model.asked[0][1]["seed"] == model.asked[1][1]["seed"]


class Voting(Model):
    """Each vote says the next of its answers."""

    async def answer(self, problem: Problem, **more: Any) -> tuple[str, bool]:
        self.asked.append(more["seed"])
        return self.said.split("|")[len(self.asked) - 1], True


VOTES = {**ASK, "scale": [0, 10], "temperature": 1.0, "votes": 3}


@pytest.mark.parametrize(
    ("said", "how", "expected", "disagreement"),
    [
        ("Score: 0|Score: 1|Score: 8", "mean", 0.3, math.sqrt(0.38 / 3)),  # -.3, -.2, .5 squared
        ("Score: 0|Score: 1|Score: 8", "median", 0.1, math.sqrt(0.38 / 3)),
        ("Score: 2|no idea|Score: 6", "median", 0.4, 0.2),
    ],
)
async def test_votes_become_one_score_and_their_disagreement_is_kept(
    said: str, how: str, expected: float, disagreement: float
) -> None:
    model = Voting(said)
    verdict = await score({**VOTES, "vote_score": how}, model)
    assert verdict.score == pytest.approx(expected)
    votes = sum("Score" in each for each in said.split("|"))
    assert verdict.parts == pytest.approx({"votes": votes, "disagreement": disagreement})
    assert len(set(model.asked)) == 3, "each has a seed of its own"


async def test_votes_of_which_half_fail_are_no_verdict() -> None:
    with pytest.raises(ValueError, match="2 of 3 votes failed; the first: its answer holds no"):
        await score(VOTES, Voting("?|Score: 9|?"))


@pytest.mark.parametrize("said", ["no idea", "Score: 11"])
async def test_an_answer_without_a_score_raises_or_has_the_score_that_was_named(said: str) -> None:
    with pytest.raises(ValueError, match="holds no score"):
        await score({**ASK, "scale": [0, 10]}, Model(said))
    assert (await score({**ASK, "scale": [0, 10], "unreadable": 0}, Model(said))).score == 0


async def test_a_score_is_not_read_from_half_a_number() -> None:
    """Of `Score: 10`, cut off behind the 1."""
    with pytest.raises(ValueError, match=r"was cut off, .* raise `max_new_tokens`: 'Score: 1"):
        await score({**ASK, "scale": [0, 10]}, Model("Score: 1…"))
    assert (await score({**ASK, "unreadable": 0.25}, Model("Score: 1…"))).score == 0.25


@pytest.mark.parametrize(
    ("said", "finish", "is_whole"),
    [
        ("so\n</think>\n\nScore: 4<|eot|>", "stop", True),
        ("so\n</think>\n\nScore: 1", "length", False),
        ("3 at first. Score: 3", "length", False),
        ("Score: 3<|eot|>", "stop", False),
    ],
)
async def test_of_a_thought_that_does_not_end_nothing_is_read(
    tmp_path: Path, said: str, finish: Finish, *, is_whole: bool
) -> None:
    chat = Chat.load(chat_folder(tmp_path, R1_IN_HEADER, LLAMA_TOKENS, "<|eot|>"))
    tokens = np.array(Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode(said).ids)

    async def generate(prompt: object, sampling: object) -> Generation:
        logprobs = np.zeros(len(tokens), np.float32)
        return Generation(tokens, logprobs, WeightVersions.of_runs([(0, len(tokens))]), finish)

    judge, held = RoleClient("judge"), SimpleNamespace(generate=generate, refusal=None)
    judge._open = cast("Any", SimpleNamespace(
        chat=chat, client=held, scorer=SimpleNamespace(last_trouble=""),
        places=asyncio.Semaphore(1), address=SimpleNamespace(context_length=999),
    ))  # fmt: skip
    more = {"max_new_tokens": 64, "temperature": 0.0, "seed": 0, "timeout_s": 5.0}
    text, found = await judge.answer(PROBLEM, **more)
    assert (found, "Score" in text) == (is_whole, True)


@pytest.mark.parametrize(
    ("last", "status", "thinking", "shown"),
    [
        (Message("assistant", "so 4"), Status.TRUNCATED, True, ""),
        (Message("assistant", "so 4"), Status.TRUNCATED, False, "so 4"),
        (Message("assistant", "<think>\nso 4"), Status.TRUNCATED, None, ""),
        (Message("assistant", "It is 4", reasoning="so"), Status.TRUNCATED, True, "It is 4"),
        (Message("assistant", "It is 4"), Status.COMPLETED, True, "It is 4"),
    ],
)
async def test_a_thought_that_the_budget_cut_off_is_no_answer(
    last: Message, status: Status, *, thinking: bool | None, shown: str
) -> None:
    problem = replace(PROBLEM, thinking=thinking)
    cut = replace(transcript(last), problem=problem, status=status)
    model = Model("Score: 1", [1.0])
    await build_served("reward-model", {}, [model], 5.0)(cut)
    await build_served("judge", ASK, [model], 5.0)(cut)
    (_, turns), (asked, _) = model.asked
    assert turns == [Message("assistant", shown)]
    assert asked.messages == (Message("user", f"Q: 2+2 A: {shown} R: 4"),)


async def test_a_reward_model_is_shown_no_thought_of_the_prompt_either() -> None:
    said = replace(PROBLEM.messages[0], role="assistant", reasoning="so")
    problem = replace(PROBLEM, messages=(said, *PROBLEM.messages), thinking=True)
    model = Model(logprobs=[1.0])
    judged = replace(transcript(), problem=problem)
    await build_served("reward-model", {}, [model], 5.0)(judged)
    ((asked, _),) = model.asked
    assert asked.messages == (replace(said, reasoning=None), *PROBLEM.messages)
    assert asked.thinking is None


async def test_a_pattern_with_choices_reads_one_of_them() -> None:
    options = {**ASK, "pattern": r"Verdict: (\w+)", "choices": {"good": 1, "fair": 0.5, "bad": 0}}
    assert (await score(options, Model("Verdict: fair"))).score == 0.5
    with pytest.raises(ValueError, match="holds no score"):
        await score(options, Model("Verdict: excellent"))


async def test_choices_alone_count_by_the_probability_that_the_judge_gives_them() -> None:
    options = {"prompt": "{answer}?", "choices": {"Yes": 1, "No": 0}}
    verdict = await score(options, Model(logprobs=[math.log(0.6), math.log(0.2)]))
    assert verdict.score == pytest.approx(0.75), "0.6 of the 0.8 that both have"
    assert verdict.parts == pytest.approx({"Yes": 0.75, "No": 0.25})


@pytest.mark.parametrize(
    ("scale", "expected"),
    [("raw", 2.0), ("sigmoid", 1 / (1 + math.exp(-2))), ("softmax", 1 / (1 + math.exp(-1)))],
)
async def test_a_reward_models_output_is_scaled(scale: str, expected: float) -> None:
    model = Model(logprobs=[1.0, 2.0])
    verdict = await score({"output": 1, "scale": scale}, model, "reward-model")
    assert verdict.score == pytest.approx(expected)
    ((problem, turns),) = model.asked
    assert (problem.messages, turns) == (PROBLEM.messages, [Message("assistant", "It is 4")])
    with pytest.raises(ValueError, match="`output` is 2, and the model's head has 2"):
        await score({"output": 2}, model, "reward-model")


SEVERAL = {"scale": "raw", "combine": "mean"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"scale": "raw"}, 1.0),
        (SEVERAL, 3.0),  # (1 + 2 + 6) / 3
        ({**SEVERAL, "disagreement_penalty": 0.5}, 3.0 - 0.5 * math.sqrt((4 + 1 + 9) / 3)),
        ({**SEVERAL, "disagreement_penalty": 2}, 3.0 - 2 * math.sqrt(14 / 3)),
        ({"scale": "sigmoid"}, 1 / (1 + math.exp(-1))),
    ],
)
async def test_several_reward_models_are_one_reward(options: dict[str, Any], expected: float):
    models = [Model(logprobs=[number]) for number in (2.0, 1.0, 6.0)]
    verdict = await build_served("reward-model", options, models, 5.0)(transcript())
    assert verdict.score == pytest.approx(expected)
    if options["scale"] == "raw":
        parts = {"1": 2.0, "2": 1.0, "3": 6.0, "disagreement": math.sqrt(14 / 3)}
        assert verdict.parts == pytest.approx(parts)


class Lost(Model):
    async def outputs(
        self, problem: Problem, turns: Sequence[Message], *, timeout_s: float
    ) -> list[float]:
        raise ConnectionError("reward-model-2: nobody is there")


@pytest.mark.parametrize("combine", ["least", "mean"])
async def test_one_of_several_models_that_fails_is_no_verdict_and_no_zero(combine: str) -> None:
    models = [Model(logprobs=[5.0]), Lost(), Model(logprobs=[4.0])]
    reward = build_served("reward-model", {"combine": combine}, models, 5.0)
    judged = await Rubric([Term("taste", 1.0, True, reward)]).judge(transcript())
    assert (judged.failed, judged.breakdown) == (True, {})
    assert judged.reason == "reward 'taste' raised ConnectionError: reward-model-2: nobody is there"


async def test_a_budget_that_ran_out_after_a_tools_answer_is_judged_up_to_the_last_turn() -> None:
    model = Model(logprobs=[0.0])
    called = Message("assistant", "", tool_calls=(ToolCall("add", {"a": 2}),))
    reward = build_served("reward-model", {}, [model], 5.0)
    verdict = await reward(transcript(called, Message("tool", "4")))
    assert verdict.score == 0.5
    assert model.asked[0][1] == [called]


async def test_scores_of_an_rl_stage_ask_reward_models_and_no_judge_beside_the_outcome() -> None:
    asked = {"judge": Model("Yes"), "reward-model": Model(logprobs=[0.0])}
    rewards: list[Any] = [
        {"name": "math", "outcome": True},
        {"name": "reward-model", "weight": 0.5, "served": {"model": "base"}},
        {"name": "judge", "options": ASK, "served": {"model": "base"}},
    ]
    domain = {"name": "d", "curriculum": {"name": "reasoning"}, "rewards": rewards}
    opened = open_domain(
        Domain.model_validate(domain), cast("RoleClients", SimpleNamespace(of=asked.__getitem__))
    )
    judged = await opened.live.of_outcome().judge.judge(transcript())
    assert judged.breakdown == {"outcome": 0.0, "reward-model": 0.5, "reward-model/raw": 0.0}
    assert judged.weights == {"outcome": 1.0, "reward-model": 0.5}
    assert not asked["judge"].asked


async def test_a_judge_that_fails_gives_a_failed_sample_with_its_reason() -> None:
    term = Term("judge", 1.0, True, build_served("judge", ASK, [Silent()], 5.0))
    judged = await Rubric([term]).judge(transcript())
    assert judged.failed
    assert judged.reason == "reward 'judge' raised ConnectionError: nobody is there"


def test_a_prompt_shows_conversations_calls_and_references() -> None:
    settings = JudgeSettings(
        prompt="{{x}} {conversation} | {reference}", system="Be fair.", choices={"a": 1, "b": 0}
    )
    call = ToolCall("add", {"a": 2})
    asked = question(
        settings,
        transcript(Message("assistant", "", tool_calls=(call,)), Message("tool", "4")),
    )
    assert [m.role for m in asked.messages] == ["system", "user"]
    assert asked.messages[1].content == (
        '{x} assistant: add({"a": 2})\ntool: 4 | {"answer": "4", "unit": "none"}'
    )
    with pytest.raises(ValueError, match="its reference has no 'colour'"):
        question(settings.model_copy(update={"prompt": "{reference.colour}"}), transcript())


RUBRIC: list[Any] = [
    {"criterion": "Names a doctor.", "points": 5, "tags": []},
    {"description": "Scolds.", "title": "Tone", "weight": -2},
    "Is short.",
]


@pytest.mark.parametrize(
    ("reference", "asked"),
    [
        (None, "Is A good?"),
        ({"answer": ""}, "Is A good?"),
        ({"rubric": RUBRIC}, "Is A good?"),
        ({"answer": "4"}, 'Is A {"answer": "4"}?'),
        ({"answer": "4", "rubric": RUBRIC}, 'Is A {"answer": "4"}?'),
    ],
)
def test_a_row_with_a_reference_is_judged_by_a_prompt_of_its_own(reference: Json, asked: str):
    choices = {"a": 1.0, "b": 0.0}
    settings = JudgeSettings(
        prompt="Is {answer} good?", reference_prompt="Is {answer} {reference}?", choices=choices
    )
    assert settings.reference_keys == ()
    said = replace(
        transcript(Message("assistant", "A")), problem=replace(PROBLEM, reference=reference)
    )
    assert question(settings, said).messages[0].content == asked


def test_a_prompt_shows_the_criteria_of_the_row() -> None:
    settings = JudgeSettings(
        prompt="{answer}",
        reference_prompt="{answer}\n{rubric}",
        choices={"a": 1, "b": 0},
    )

    def asked(rubric: Json) -> str:
        problem = replace(PROBLEM, reference={"rubric": rubric})
        said = replace(transcript(Message("assistant", "A")), problem=problem)
        return question(settings, said).messages[0].content

    lines = ["A", "- Names a doctor. (points: 5)", "- Scolds. (points: -2)", "- Is short."]
    assert asked(RUBRIC) == "\n".join(lines)
    assert asked("Be brief.") == "A\nBe brief."
    assert asked("") == "A"
    with pytest.raises(ValueError, match="an item of its rubric has no text under criterion or"):
        asked([{"points": 1}])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"prompt": "{answer}", "pattern": "a", "reference_prompt": "{answer}"},
            "reference_prompt: shows no {reference} and no {rubric}",
        ),
        (
            {"prompt": "{answer}", "pattern": "a", "reference_prompt": "{rubric}"},
            "reference_prompt: it shows nothing of what is judged",
        ),
        ({"prompt": "{answer}"}, "write `pattern` or `choices`"),
        ({**ASK, "votes": 3}, "at temperature 0 all 3 would say the same"),
        (
            {"prompt": "{answer}", "choices": {"a": 1, "b": 0}, "votes": 3, "temperature": 1},
            "leave `votes` out, or write a `pattern`",
        ),
        ({"prompt": "{what}", "pattern": "a"}, "there is no {what}; allowed: {question}"),
        ({"prompt": "{question}", "pattern": "a"}, "shows nothing of what is judged"),
        ({"prompt": "{answer", "pattern": "a"}, "write {{ and }} for braces"),
        ({"prompt": "{answer!r}", "pattern": "a"}, "takes no format"),
        ({"prompt": "{answer}", "pattern": "("}, "is no regular expression"),
        ({"prompt": "{answer}", "pattern": "(a)(b)"}, "has 2 groups"),
        ({"prompt": "{answer}", "pattern": "a", "scale": [1, 1]}, "two numbers are equal"),
        ({"prompt": "{answer}", "choices": {"Yes": 1}}, "one choice tells nothing apart"),
        ({"prompt": "{answer}", "choices": {"Yes": 1, " ": 0}}, "an empty text"),
    ],
)
def test_what_cannot_be_asked_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as raised:
        JudgeSettings.model_validate(options)
    assert said in str(raised.value)
