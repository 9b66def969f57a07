"""Admission: planted bad problems are refused for what is wrong with them, good ones are not."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from curricula.built_in_curricula import build
from engines.types import (
    AssistantTurn,
    Demonstration,
    Message,
    Problem,
    Split,
    Step,
    Tool,
    ToolCall,
    Transcript,
    Verdict,
)
from flows.command.main import main
from infra.errors import InputError
from infra.home import SOURCE_ROOT
from rewards.built_in_rewards import build as build_reward
from rewards.rubric import Rubric, Term
from tasks.admit.admission import Bounds, admit

pytestmark = pytest.mark.unit
DOORS = (
    Tool("doors", "The doors.", {}),
    Tool("open", "What is behind a door.", {"door": "string"}, ("door",)),
    Tool("take", "Take a thing.", {"thing": "string", "word": "string"}, ("thing", "word")),
)
SECRET = "mint tea"


@dataclass
class Planted:
    """A house of doors: behind `red` is a box, which a password opens. It is also the reward."""

    doors: dict[str, str] = field(default_factory=lambda: {"red": "a box", "blue": "dust"})
    prompt: str = "Open the box."
    password: str = SECRET
    """that its solution gives"""
    is_free: bool = False
    """any answer is right"""
    answers_vary: bool = False
    outcomes_vary: bool = False
    seconds: float = 0.0
    fault: str = ""
    counter: itertools.count = field(default_factory=itertools.count)

    def problems(self, split: Split, count: int, seed: int, start: int = 0) -> list[Problem]:
        ask = (Message("user", self.prompt),)
        return [
            Problem(f"doors/{n}", "doors", ask, None, DOORS) for n in range(start, start + count)
        ]

    def demonstrations(self, count: int, seed: int) -> list[Demonstration]:
        return []

    def environment(self) -> Planted:
        return self

    def solution(self, problem: Problem) -> Sequence[Message]:
        take = ToolCall("take", {"thing": "box", "word": self.password})
        calls = [ToolCall("open", {"door": "red"}), take]
        turns = [Message("assistant", "", tool_calls=(call,)) for call in calls]
        return (*turns, Message("assistant", "done"))

    def secrets(self, problem: Problem) -> Sequence[str]:
        return [SECRET]

    async def start(self, problem: Problem) -> Planted:
        if self.fault:
            raise RuntimeError(self.fault)
        return self

    async def step(self, turn: AssistantTurn) -> Step:
        await asyncio.sleep(self.seconds)
        if not turn.tool_calls:
            return Step(done=True)
        return Step(tuple(Message("tool", self._answer(call)) for call in turn.tool_calls))

    async def close(self) -> None: ...

    def _answer(self, call: ToolCall) -> str:
        if self.answers_vary:
            return f"{next(self.counter)}"
        if call.name == "doors":
            return "\n".join(self.doors)
        if call.name == "open":
            return self.doors.get(str(call.arguments["door"]), "no such door")
        return "taken"

    async def __call__(self, transcript: Transcript) -> Verdict:
        if self.outcomes_vary:
            return Verdict(float(next(self.counter) % 2 == 0))
        calls = [call for m in transcript.messages for call in m.tool_calls]
        opened = any(c.name == "take" and c.arguments["word"] == SECRET for c in calls)
        return Verdict(float(opened or self.is_free), reason="" if opened else "the box is shut")


async def reasons_of(planted: Planted, **bounds: float) -> list[str]:
    judge = Rubric([Term("doors", 1.0, True, planted)])
    problems = planted.problems("rl", 3, seed=0)
    given = Bounds.model_validate({"seconds": 30.0, **bounds})
    found = await admit(planted, planted.environment(), judge, problems, given)
    assert [finding.problem for finding in found] == problems
    assert len({finding.is_admitted for finding in found}) == 1
    return found[0].reasons


async def test_a_good_problem_is_admitted() -> None:
    assert await reasons_of(Planted()) == []


BAD = {
    "nothing passes": (Planted(is_free=True), "doing nothing scores 1"),
    "unsolvable": (Planted(password="coffee"), "its solution scores 0: the box is shut"),
    "flaky outcomes": (Planted(outcomes_vary=True), "its solution scores 1, then 0"),
    "flaky answers": (Planted(answers_vary=True), "its solution, repeated, differs: '0', then"),
    "broken": (Planted(fault="no house"), "an episode failed: RuntimeError: no house"),
    "leaks in an answer": (
        Planted(doors={"red": "a box", "blue": "a note: Mint  TEA"}),
        "the tool open shows 'mint tea'",
    ),
    "leaks in a name": (
        Planted(doors={"red": "a box", "mint-tea": "", "mint tea": ""}),
        "the tool doors shows 'mint tea'",
    ),
    "leaks in the prompt": (
        Planted(prompt="Open the box; the word is mint tea."),
        "its prompt shows 'mint tea'",
    ),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_planted_bad_problem_is_refused_with_its_reason(name: str) -> None:
    planted, reason = BAD[name]
    bounds = {"random_outcome": 0.99} if "leaks" in name else {}  # random actions find it too
    assert reason in (await reasons_of(planted, **bounds))[0]


async def test_a_slow_problem_is_refused() -> None:
    reasons = await reasons_of(Planted(seconds=5.0), seconds=0.2)
    assert reasons == ["an episode was not over after 0.2 s"]


async def test_a_problem_that_random_actions_solve_is_refused() -> None:
    async def lucky(transcript: Transcript) -> Verdict:
        calls = [c.name for m in transcript.messages for c in m.tool_calls]
        return Verdict(float("take" in calls))

    house = Planted()
    judge = Rubric([Term("lucky", 1.0, True, lucky)])
    (found,) = await admit(house, house, judge, house.problems("rl", 1, 0), turns=30)
    assert found.reasons == ["random actions score 1, more than 0.1"]


async def test_a_curriculum_that_cannot_solve_its_problems_is_told_what_it_lacks() -> None:
    class Without:
        pass

    with pytest.raises(InputError, match="`solution"):
        await admit(Without(), None, Rubric([Term("x", 1.0, True, Planted())]), [])


async def test_questions_of_the_browsing_curriculum_are_admitted() -> None:
    curriculum = build("browsing", {"levels": ["easy", "hard"]})
    judge = Rubric([Term("answer", 1.0, True, build_reward("agent-answer"))])
    problems = curriculum.problems("rl", 3, seed=0)
    found = await admit(curriculum, curriculum.environment(), judge, problems)
    assert [finding.reasons for finding in found] == [[]] * 3


def _run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(["admit", *arguments])
    assert isinstance(end.value.code, int)
    return end.value.code


def test_the_command_needs_a_domain_that_can_be_tried(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("cpu-demo", "--domain", "writing") == 2
    assert "it has reasoning, agent, general" in " ".join(capsys.readouterr().err.split())
    assert _run("cpu-demo", "--domain", "reasoning") == 2
    assert "`solution(problem)` and `secrets(problem)`" in " ".join(capsys.readouterr().err.split())
    assert _run("cpu-demo", "--count", "0") == 2


@pytest.mark.integration
def test_the_command_admits_problems_of_the_coding_curriculum(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = yaml.safe_load((SOURCE_ROOT / "flows/recipes/cpu-smoke.yaml").read_text())
    domain = written["experts"]["agent"]["domain"]
    domain["curriculum"] = {"name": "coding", "options": {"levels": ["easy", "hard"]}}
    domain["rewards"] = [{"name": "repository-tests", "outcome": True}]
    domain["max_turns"] = 14
    recipe, findings = tmp_path / "recipe.yaml", tmp_path / "findings.jsonl"
    recipe.write_text(yaml.safe_dump(written))
    code = _run(str(recipe), "--count", "4", "--to", str(findings))
    said = capsys.readouterr()
    found = [json.loads(line) for line in findings.read_text().splitlines()]
    assert [finding["reasons"] for finding in found] == [[]] * 4
    assert _run(str(recipe), "--count", "4", "--to", str(findings)) == 2
    assert "there is such a file" in " ".join(capsys.readouterr().err.split())
    assert _run(str(recipe), "--count", "4", "--to", str(tmp_path / "none/x.jsonl")) == 2
    assert "is no folder to write to" in " ".join(capsys.readouterr().err.split())
    assert (code, "4 of 4 problems are admitted" in said.out + said.err) == (0, True)


async def test_a_problem_whose_solution_cannot_be_had_is_refused_alone() -> None:
    class Missing(Planted):
        def solution(self, problem: Problem) -> Sequence[Message]:
            if problem.id == "doors/1":
                raise KeyError("answer")
            return super().solution(problem)

    house = Missing()
    judge = Rubric([Term("doors", 1.0, True, house)])
    found = await admit(house, house, judge, house.problems("rl", 3, 0))
    said = "its solution cannot be had: KeyError: 'answer'"
    assert [finding.reasons for finding in found] == [[], [said], []]
