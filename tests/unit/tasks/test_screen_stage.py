"""The stage `screen`: which pool a problem is in, with how few answers, and what goes on."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from curricula.splits import Admitted
from engines.draws import draw_problems
from engines.rollout.drivers.driver import LiveDomain
from engines.rollout.records.dataset import read_admitted, write_admitted
from engines.rollout.records.journals import RolloutJournal
from engines.rollout.records.packing import saved_groups
from engines.rollout.roller import Roller
from engines.rollout.sample_only import KeptRollouts
from engines.types import Sampling
from infra.errors import InputError
from tasks.admitted import only_admitted
from tasks.rollout.body import run as run_rollout
from tasks.rollout.spec import RolloutSpec
from tasks.sampling import SamplingParts
from tasks.screen.body import Found, Screened, Tally, screen
from tasks.screen.body import run as run_screen
from tasks.screen.spec import ScreenSettings, ScreenSpec
from tasks.stage import StageContext
from tests.parts.rollout_parts import CharChat, Policy, domain, roller
from tests.parts.stage_parts import ListReporter, stage_context

pytestmark = pytest.mark.unit

RATES = {"never": 0.0, "hard": 0.01, "moderate": 0.4, "solved": 1.0}
"""of the problems, in turn"""


def rate_of(prompt: str) -> float:
    """Of the problem `<n>`"""
    return list(RATES.values())[int(prompt.strip("<>")) % len(RATES)]


def say(prompt: str, sampling: Sampling) -> str:
    """Right as often as the problem's rate says, by the seed of the request alone."""
    drawn = random.Random(f"{prompt}/{sampling.seed}").random()
    return "yes" if drawn < rate_of(prompt) else "no"


def judge(answer: str) -> float:
    return float(answer == "yes")


SCORED = {
    "name": "a", "curriculum": {"name": "reasoning"}, "outcomes": [{"name": "math"}],
    "max_new_tokens": 8, "max_turns": 1, "timeout_s": 9.0,
}  # fmt: skip


def opened(live: LiveDomain, said: Callable[[str, Sampling], str] = say) -> Callable[..., Any]:
    """Stand-in for what opens servers: a policy says the answers."""

    class Rollers:
        async def of(self, folder: Path, chat: object) -> Roller:
            return roller(Policy(said))

    async def open_here(stack: object, context: StageContext, *_: object) -> SamplingParts:
        rest: Any = Rollers()
        chat: Any = CharChat()
        journal = RolloutJournal(context.checkpoints)
        return SamplingParts(rest, chat, [live], rest, journal)

    return open_here


async def screened(
    root: Path, settings: ScreenSettings, count: int, policy: Policy | None = None
) -> Screened:
    live = domain("a", judge)
    kept = await KeptRollouts.open(RolloutJournal(stage_context(root, "s", {}).checkpoints), 0)
    problems = live.curriculum.problems("rl", count, 0)
    asked = roller(policy or Policy(say))
    return await screen(settings, ListReporter(), asked, live, "rl", problems, kept)


@pytest.mark.parametrize(
    ("written", "rounds"),
    [
        ({}, [8]),
        ({"keep": ["hard"]}, [8, 8, 16, 32, 64, 128, 256]),
        ({"keep": ["moderate", "never"], "most": 50}, [8, 8, 16, 18]),
        ({"keep": ["never"], "first": 4, "most": 4}, [4]),
        ({"keep": ["never"], "first": 1, "most": 2}, [1, 1]),
        ({"first": 3}, [3]),
    ],
)
def test_rounds_double_up_to_the_most_answers(
    written: Mapping[str, Any], rounds: Sequence[int]
) -> None:
    assert ScreenSettings.model_validate(written).rounds == rounds


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"keep": []}, "at least 1 item"),
        ({"keep": ["easy"]}, "'solved', 'moderate', 'hard' or 'never'"),
        ({"keep": ["hard", "hard"]}, "names? it twice|has a pool twice"),
        ({"keep": ["hard"], "most": 4}, "4 answers are fewer than the first 8"),
        ({"keep": ["hard"], "most": 8}, "most: 8 is `first` as well"),
        ({"keep": ["moderate", "hard"], "first": 1, "most": 8}, "first: one answer alone is never"),
        ({"first": 1}, "first: one answer alone is never"),
        ({"problems": {"sft": 5}}, "'rl' or 'distill'"),
        ({"problems": {}}, "at least 1 item"),
        ({"right": 0}, "greater than 0"),
    ],
)
def test_settings_that_say_nothing_are_refused(written: Mapping[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        ScreenSettings.model_validate(written)


@pytest.mark.parametrize(
    ("rounds", "goes_on", "pool"),
    [
        ([[1, 1, 1]], False, "solved"),
        ([[1, 0, 1]], False, "moderate"),
        ([[0, 0, 0]], False, "unsolved"),
        ([[0, 0, 0], [0, 1, 0]], True, "hard"),
        ([[0, 0, 0], [0, 0, 0]], True, "never"),
        ([[None, None]], True, "unjudged"),
        ([[None, 1]], True, "solved"),
        ([[None, 0], [None, 1]], True, "hard"),
        ([[None, None], [0, 1]], True, "moderate"),
        ([[None, None], [1, 1]], True, "solved"),
        ([[None, None], [None, 0], [0, 1]], True, "hard"),
        ([[0.5, 1.0]], False, "moderate"),
        ([[1, *[None] * 7]], False, "unjudged"),
        ([[1] * 3 + [None] * 5], False, "unjudged"),
        ([[1] * 4 + [None] * 4], False, "solved"),
        ([[0, None, None], [0, None, None]], True, "unjudged"),
    ],
)
def test_a_pool_follows_from_the_outcomes(
    rounds: Sequence[Sequence[float | None]], *, goes_on: bool, pool: Found
) -> None:
    """None is an answer without a verdict: it counts neither as right nor as wrong."""
    (problem,) = domain("a", judge).curriculum.problems("rl", 1, 0)
    tally = Tally(problem)
    for outcomes in rounds:
        tally.count(outcomes, 1.0)
    assert tally.pool(goes_on=goes_on) == pool
    assert tally.failed == sum(outcome is None for outcomes in rounds for outcome in outcomes)


async def test_pools_are_those_of_all_answers_with_a_third_of_them(tmp_path: Path) -> None:
    """Against what each pool's problems are by their known rates: of 120 problems, thirty have
    each rate, and a pool may differ from its expected size by three standard deviations."""
    settings = ScreenSettings(keep=["hard", "moderate"])
    found = await screened(tmp_path, settings, 120)
    sizes = Counter(found.pools)
    none_of_8 = {name: (1 - rate) ** 8 for name, rate in RATES.items()}
    none_of_512 = {name: (1 - rate) ** 512 for name, rate in RATES.items()}
    expected: dict[Found, list[float]] = {
        "solved": [rate**8 for rate in RATES.values()],
        "moderate": [1 - none_of_8[n] - RATES[n] ** 8 for n in RATES],
        "hard": [none_of_8[n] - none_of_512[n] for n in RATES],
        "never": list(none_of_512.values()),
    }
    for pool, chances in expected.items():
        mean = 30 * sum(chances)
        deviation = math.sqrt(30 * sum(p * (1 - p) for p in chances))
        assert abs(sizes[pool] - mean) <= 3 * deviation + 1e-6, pool
    drawn = sum(tally.judged for tally in found.tallies)
    assert drawn / (512 * 120) <= 0.35
    kept = found.kept(settings.keep)
    assert len(kept) == sizes["hard"] + sizes["moderate"]
    write_admitted(tmp_path, kept)
    live = domain("a", judge)
    for pools, role in (
        (["hard"], "admitted_problems_of_pool_hard"),
        (["hard", "moderate"], "admitted_problems_of_pool_hard_of_pool_moderate"),
        (["hard", "moderate"], "admitted_problems"),
    ):
        (of_pools,) = await only_admitted(stage_context(tmp_path, "rl", {role: tmp_path}), [live])
        wanted = [row.problem for row in kept if row.pool in pools]
        assert draw_problems(of_pools.curriculum, "rl", len(wanted), seed=0) == wanted
    nothing = stage_context(tmp_path, "rl", {"admitted_problems_of_pool_never": tmp_path})
    with pytest.raises(InputError, match=rf"no problem of a is never .*{sizes['hard']} hard"):
        await only_admitted(nothing, [live])


async def test_each_answer_to_a_problem_has_random_numbers_of_its_own(tmp_path: Path) -> None:
    policy = Policy(lambda prompt, sampling: "no")
    found = await screened(tmp_path, ScreenSettings(keep=["never"], most=64), 2, policy)
    assert found.pools == ["never", "never"]
    assert [tally.judged for tally in found.tallies] == [64, 64]
    assert len({(prompt, sampling.seed) for prompt, sampling in policy.calls}) == 128


async def test_what_was_answered_before_a_stop_is_not_asked_again(tmp_path: Path) -> None:
    settings = ScreenSettings(keep=["hard"], most=64)
    first, second = Policy(say), Policy(say)
    whole = await screened(tmp_path, settings, 12, first)
    again = await screened(tmp_path, settings, 12, second)
    assert (again.pools, second.calls) == (whole.pools, [])
    assert [t.right for t in again.tallies] == [t.right for t in whole.tallies]


def admitted_of(count: int) -> Admitted:
    """A domain of which an `admit` let so many problems through."""
    own = domain("a", judge).curriculum
    return Admitted(own, {"rl": own.problems("rl", count, 0)})


async def test_a_problem_is_tried_once_and_is_in_one_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 10 admitted problems 40 are asked for: the rest would be these again, as ID@2 to ID@4."""
    live = replace(domain("a", judge), curriculum=admitted_of(10))
    monkeypatch.setattr("tasks.sampling.open_sampling", opened(live))
    context = stage_context(tmp_path, "screen", {"model": tmp_path})
    settings = {"problems": {"rl": 40}, "keep": ["solved", "moderate"]}
    written = {"settings": settings, "domains": [SCORED]}
    metrics = await run_screen(ScreenSpec.model_validate(written), context)
    assert (metrics["tried"], metrics["rollouts"]) == (10, 10 * 8)
    kept = read_admitted(context.out)
    assert len({row.problem.messages for row in kept}) == len(kept) == metrics["kept"]
    assert not any("@" in row.problem.id for row in kept)
    assert isinstance(context.reporter, ListReporter)
    (warning,) = context.reporter.kept
    assert warning.what == "a, rl: 10 different problems were tried, not 40"


async def test_a_problem_most_of_whose_verdicts_failed_is_left_out_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def at_times(answer: str) -> float:
        if answer == "no":
            raise ValueError("no verdict on no")
        return 1.0

    def one_of_8(prompt: str, sampling: Sampling) -> str:
        return "yes" if prompt != "<3>" else say("<2>", sampling)

    live = domain("a", at_times)
    monkeypatch.setattr("tasks.sampling.open_sampling", opened(live, one_of_8))
    context = stage_context(tmp_path, "screen", {"model": tmp_path})
    written = {"settings": {"problems": {"rl": 6}, "keep": ["solved"]}, "domains": [SCORED]}
    metrics = await run_screen(ScreenSpec.model_validate(written), context)
    assert (metrics["pool/solved"], metrics["pool/unjudged"]) == (5, 1)
    assert isinstance(context.reporter, ListReporter)
    (warning,) = context.reporter.kept
    assert warning.what.endswith(
        " of 48 answers of a, rl got no verdict and count nowhere; problems left out: 1"
    )
    assert "no verdict on no" in warning.cause


async def test_a_stage_after_it_samples_the_problems_of_one_pool_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bodies of both stages."""
    monkeypatch.setattr("tasks.sampling.open_sampling", opened(domain("a", judge)))
    settings = {"problems": {"rl": 24}, "keep": ["solved", "moderate"]}
    written = {"settings": settings, "domains": [SCORED]}
    context = stage_context(tmp_path, "screen", {"model": tmp_path})
    metrics = await run_screen(ScreenSpec.model_validate(written), context)
    assert (metrics["pool/solved"], metrics["rollouts"]) == (6, 24 * 8)

    rewards = [{"name": "math", "outcome": True}]
    drawing = {"name": "a", "curriculum": {"name": "reasoning"}, "rewards": rewards}
    drawn = {"settings": {"problems": 7, "group_size": 2}, "domains": [drawing]}
    inputs = {"model": tmp_path, "admitted_problems_of_pool_solved": context.out}
    after = stage_context(tmp_path, "rollout", inputs)
    await run_rollout(RolloutSpec.model_validate(drawn), after)
    ids = [group.problem.id for group in saved_groups(after.out)]
    assert ids == [*(f"a/rl/{number}" for number in range(3, 24, 4)), "a/rl/3@2"]
