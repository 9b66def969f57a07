"""Environments of verifiers and tasks of Inspect, with a scripted policy: the real libraries run
them, in processes of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
import pytest_asyncio

from curricula.built_in_curricula import build as build_curriculum
from engines.agents.library_driver import LibraryDriver
from engines.rollout.drivers.session_host import SessionHost
from engines.types import Message, Problem, Rollout, Status
from infra.errors import InputError
from infra.processes.part_process import PartFailed
from rewards.built_in_rewards import build as build_reward
from tests.parts.agent_parts import Script, TextChat, attempt_of
from tests.parts.clients import library

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

SUMS = {"environment": "sums-env", "arguments": {"size": 40}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def driver() -> AsyncIterator[LibraryDriver]:
    """Its process has loaded what an earlier test used."""
    driver = LibraryDriver(seconds=60.0, turns=20)
    yield driver
    await driver.process.close()


def posed(library: str, name: str, content: dict[str, Any], **arguments: Any) -> Problem:
    """As the curriculum has it, whose rows need not be read."""
    reference = {"library": library, "name": name, "arguments": arguments, "content": content}
    asked = (Message("user", content.get("question") or content.get("input", "")),)
    return Problem(f"{library}/{name}", library, asked, reference)


def row(question: str, answer: str) -> dict[str, Any]:
    """Of verifiers."""
    prompt = [{"role": "user", "content": question}]
    return {"example_id": 0, "question": question, "answer": answer, "prompt": prompt}


GUESS = posed("verifiers", "guess_env", row("guess", "17"))
COLOUR = posed("inspect", "inspect_tasks:colours", {"input": "Colour of ant?", "target": "red"})


def problems(name: str, options: dict[str, Any], count: int = 1) -> Sequence[Problem]:
    return build_curriculum(name, options).problems("heldout", count, seed=0)


async def rolled(
    driver: LibraryDriver, problem: Problem, say: Callable[[str], str], **attempt: Any
) -> Rollout:
    """Its samples train what the policy said, each token once."""
    script = Script(say)
    host = SessionHost(script.generate, TextChat(), attempt_of(problem, **attempt))
    rollout = await driver.run(problem, host)
    trained = [n for s in rollout.samples for n in (-s.logprobs[s.loss_mask]).astype(int).tolist()]
    assert sorted(trained) == sorted(script.sampled)
    return rollout


async def score(rollout: Rollout, **options: Any) -> tuple[float, dict[str, float]]:
    verdict = await build_reward("library-score", options)(rollout.transcript)
    return verdict.score, dict(verdict.parts)


def after(prompt: str) -> str:
    """What was said to the policy last."""
    return prompt.rpartition("> ")[0].rpartition("> ")[2].partition("\n")[0].strip("\0")


async def test_one_turn_of_verifiers_is_scored_by_its_rubric(
    driver: LibraryDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    library(monkeypatch, "verifiers")
    right, wrong = problems("verifiers", SUMS, 2)
    assert [m.role for m in right.messages] == ["system", "user"]
    number = int(right.messages[1].content.partition("+")[0])
    good, bad = await asyncio.gather(
        rolled(driver, right, lambda prompt: str(number + 1)),
        rolled(driver, wrong, lambda prompt: "none"),
    )
    assert await score(good) == (1.0, {"is_right": 1.0, "length": 2.0, "num_turns": 1.0})
    assert await score(bad) == (0.0, {"is_right": 0.0, "length": 4.0, "num_turns": 1.0})
    assert await score(bad, of="length", highest=8) == (0.5, (await score(bad))[1])
    with pytest.raises(InputError, match=r"outside 0 to 1; set `lowest` and `highest`"):
        await score(bad, of="length")


async def test_several_turns_of_verifiers_are_one_sample(
    driver: LibraryDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    library(monkeypatch, "verifiers")
    guesses = iter(["100", "17"])
    rollout = await rolled(driver, GUESS, lambda prompt: next(guesses))
    assert rollout.status is Status.COMPLETED, rollout.transcript.reason
    (sample,) = rollout.samples
    assert sample.num_turns == 2
    assert await score(rollout) == (1.0, {"is_guessed": 1.0, "num_turns": 2.0})
    lost = await rolled(driver, GUESS, lambda prompt: "100")
    assert await score(lost) == (0.0, {"is_guessed": 0.0, "num_turns": 3.0}), "its own limit"


async def test_a_tool_of_verifiers_answers_the_policys_call(
    driver: LibraryDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    library(monkeypatch, "verifiers")
    problem = posed("verifiers", "lookup_env", row("Colour of ant?", "red"))

    def say(prompt: str) -> str:
        return after(prompt) if "\ntool> " in prompt else '!look_up {"name": "ant"}'

    rollout = await rolled(driver, problem, say)
    assert await score(rollout) == (
        1.0, {"is_right": 1.0, "num_turns": 2.0, "total_tool_calls": 1.0, "look_up_calls": 1.0},
    )  # fmt: skip
    (sample,) = rollout.samples
    assert "[look_up]" in "".join(map(chr, sample.tokens)), "the tool is described to the policy"


@pytest.mark.parametrize(
    ("say", "attempt", "status", "reason"),
    [
        ("100", {"max_new_tokens": 5}, Status.TRUNCATED, "token budget"),
        ("?broken", {}, Status.MALFORMED, "broken call"),
    ],
)
async def test_how_a_rollout_of_a_library_ends(
    driver: LibraryDriver, monkeypatch: pytest.MonkeyPatch,
    say: str, attempt: dict[str, Any], status: Status, reason: str,
) -> None:  # fmt: skip
    library(monkeypatch, "verifiers")
    rollout = await rolled(driver, GUESS, lambda prompt: say, **attempt)
    assert (rollout.status, rollout.transcript.reason) == (status, reason)


@pytest.mark.parametrize("problem", [GUESS, COLOUR], ids=["verifiers", "inspect"])
async def test_a_rollout_that_takes_too_long_is_ended(
    driver: LibraryDriver, monkeypatch: pytest.MonkeyPatch, problem: Problem
) -> None:
    library(monkeypatch, "verifiers" if problem is GUESS else "inspect_ai")
    hurried = LibraryDriver(seconds=1.0)
    hurried.process = driver.process
    script = Script(lambda prompt: "late", delay_s=300.0)
    host = SessionHost(script.generate, TextChat(), attempt_of(problem))
    rollout = await hurried.run(problem, host)
    assert rollout.status is Status.FAILED, "it never had an answer of the policy"
    assert rollout.transcript.reason == "time limit of 1 s"


async def test_samples_of_inspect_are_scored_each_for_its_own_rollout(
    driver: LibraryDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    library(monkeypatch, "inspect_ai")
    six = problems("inspect", {"task": "inspect_tasks:sums"}, 6)

    def say(prompt: str) -> str:
        number = int(after(prompt).partition("+")[0])
        return f"<think>so</think>the answer is {number + (number % 2)}"

    rollouts = await asyncio.gather(*(rolled(driver, problem, say) for problem in six))
    for problem, rollout in zip(six, rollouts, strict=True):
        assert rollout.status is Status.COMPLETED, rollout.transcript.reason
        is_odd = int(problem.messages[0].content.partition("+")[0]) % 2
        assert await score(rollout) == (is_odd, {"match": is_odd, "includes": is_odd})
        assert [m.role for m in rollout.transcript.messages] == ["assistant"]
    with pytest.raises(InputError, match=r"no row for the split 'rl'"):
        build_curriculum("inspect", {"task": "inspect_tasks:sums"}).problems("rl", 1, 0)


async def test_a_tool_of_inspect_answers_the_policys_call(
    driver: LibraryDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    library(monkeypatch, "inspect_ai")

    def say(prompt: str) -> str:
        return f"It is {after(prompt)}" if "\ntool> " in prompt else '!look_up {"name": "ant"}'

    rollout = await rolled(driver, COLOUR, say)
    assert await score(rollout) == (1.0, {"includes": 1.0}), rollout.transcript.reason
    assert rollout.samples[0].num_turns == 2


async def test_a_sample_of_inspect_that_raises_fails_alone(
    driver: LibraryDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    library(monkeypatch, "inspect_ai")

    def good(prompt: str) -> str:
        return "red"

    def unknown(prompt: str) -> str:
        return '!look_up {"name": "elk"}'

    failed, fine = await asyncio.gather(
        rolled(driver, COLOUR, unknown), rolled(driver, COLOUR, good)
    )
    assert failed.status is Status.FAILED
    assert "KeyError" in failed.transcript.reason
    assert await score(fine) == (1.0, {"includes": 1.0})


@pytest.mark.parametrize(
    ("which", "said"),
    [
        (("verifiers", "sums_env", {"groups": True}), "compares the rollouts of a group"),
        (("verifiers", "sums_env", {"sizes": 1}), "unexpected keyword argument 'sizes'"),
        (("verifiers", "no_such_env", {}),
         "No module named 'no_such_env'; install it, or list its file under"),
        (("inspect", "inspect_tasks:unscored", {}), "has no scorer"),
        (("inspect", "inspect_tasks:boxed", {}), "asks for a sandbox of Inspect"),
        (("inspect", "inspect_tasks:sum", {}), "has no attribute 'sum'"),
        (("inspect", "inspect_tasks", {}), "write `module:function`"),
    ],
)  # fmt: skip
async def test_what_cannot_run_is_refused_by_name(
    driver: LibraryDriver, monkeypatch: pytest.MonkeyPatch, which: tuple[Any, ...], said: str
) -> None:
    library(monkeypatch, "verifiers" if which[0] == "verifiers" else "inspect_ai")
    with pytest.raises(PartFailed, match=said):
        await driver.process.call("rollout", which, {}, "", "", 1.0, about="a test")
