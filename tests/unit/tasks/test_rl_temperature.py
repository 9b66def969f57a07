"""The temperature that a stage samples at: when it is searched for, which is taken, and where."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines.algorithms.spec import Algorithm
from engines.megatron.rl.rl_objective import temperature_of
from engines.rollout.evaluator import Evaluated, Evaluator, HeldOut
from engines.rollout.records.journals import RolloutJournal, TurnJournal
from engines.step_inputs import TrainedStep
from engines.types import Sampling, Status
from tasks.rl.spec import RlSettings, RlSpec
from tasks.rl.temperature import (
    TEMPERATURES_FILE,
    EntropyControl,
    HeldOutScores,
    Outcomes,
    Rewards,
    SearchControl,
    moved,
    tried_of,
)
from tasks.rl.temperature_rules import EntropyTarget, TemperatureSearch
from tests.parts.loop_parts import Notes, Parts
from tests.parts.rollout_parts import domain, roller
from tests.parts.sample_parts import sample_of
from tests.parts.stage_parts import ListReporter

pytestmark = pytest.mark.unit

SETTINGS = {"steps": 9, "optimizer": {"lr": 1e-4}}
ENTROPY = {"kind": "entropy", "target": 0.4}


def test_flat_rewards_by_hand() -> None:
    """With windows of two steps: 0.3 to 0.45 rises by more than 0.05, and 0.4 to 0.47; 0.45 to 0.43
    does not."""
    rewards, settings = Rewards(), TemperatureSearch(window=2, gain=0.05)
    said = [rewards.observe(o, settings) for o in (0.2, 0.4, 0.4, 0.5, 0.44, 0.42)]
    assert said[:-1] == [""] * 5
    assert said[-1].startswith("the mean outcome of 2 steps is 0.4300, not above the 0.4500")


FOUND: Mapping[float, Outcomes] = {
    1.0: {"a": {"p": 1.0, "q": 1.0, "r": 1.0, "s": 0.0}},
    1.2: {"a": {"p": 1.0, "q": 1.0, "r": 0.5, "s": 0.25}},
    1.3: {"a": {}},
    1.4: {"a": {"p": 0.5, "q": 0.5, "r": 0.5, "s": 0.0}},
}


def test_the_paired_test_by_hand() -> None:
    """Losses against the best at 1.2: 0, 0, 0.5 and -0.25, mean 0.0625, variance 0.296875 / 3. At
    1.4: 0.5 three times and 0, mean 0.375, variance 0.1875 / 3. At 80%, z = 0.8416: 0.0525 is below
    0.1324, and 0.365 is above 0.1052."""
    tried = {t.temperature: t for t in tried_of(FOUND, TemperatureSearch())}
    assert list(tried) == [1.0, 1.2, 1.4], "no verdict at 1.3"
    assert [t.score for t in tried.values()] == [0.75, 0.6875, 0.375]
    assert [t.loss for t in tried.values()] == [0.0, 0.0625, 0.375]
    assert tried[1.2].error == pytest.approx((0.296875 / 3 / 4) ** 0.5)
    assert tried[1.4].error == pytest.approx(0.125)
    assert [t.is_near for t in tried.values()] == [True, True, False]
    measured = tried_of(FOUND, TemperatureSearch(confidence=0.5))
    assert [t.is_near for t in measured] == [True, False, False], "the loss alone"
    assert tried_of({1.0: {"a": {}}}, TemperatureSearch()) == []


def test_domains_count_alike_in_a_search() -> None:
    """Losses 0.5 of one problem and 0 of two: mean 0.25, whatever the number of problems."""
    found: Mapping[float, Outcomes] = {
        1.0: {"a": {"p": 1.0}, "b": {"q": 0.5, "r": 0.5}},
        2.0: {"a": {"p": 0.5}, "b": {"q": 0.5, "r": 0.5}},
    }
    assert [t.loss for t in tried_of(found, TemperatureSearch())] == [0.0, 0.25]
    silent = {temperature: {**of, "c": {}} for temperature, of in found.items()}
    assert tried_of(silent, TemperatureSearch()) == tried_of(found, TemperatureSearch())


def say(_: str, sampling: Sampling) -> str:
    """A digit by the seed alone, always even above 1.3; then ten times the temperature."""
    digit = 0 if sampling.temperature > 1.3 else (sampling.seed or 0) % 10
    return f"{digit}{sampling.temperature * 10:.0f}"


def judged(said: str) -> float:
    return float(int(said[0]) % 2)


class Attempt:
    """A loop with its control, as the stage's body joins them."""

    def __init__(self, notes: Notes, version: int = 0, **settings: Any) -> None:
        live = domain("a", judged)
        self.parts = Parts(
            say, domains=[live], oversample=1.5, waves=2, journal=RolloutJournal(notes),
            notes=notes, version=version,
        )  # fmt: skip
        search = TemperatureSearch(
            window=2, gain=0.9, grid=[1.0, 1.2, 1.4], problems=8, samples=2, **settings
        )
        held_out = [HeldOut(live, live.curriculum.problems("heldout", 8, 0))]
        policy: Any = self.parts.policy
        policy.is_repairing = False
        self.reporter = ListReporter()
        scores = HeldOutScores(search, roller(policy), held_out, policy, self.reporter)
        self.control = SearchControl(search, 1.0, scores, notes)
        self.trained_at: list[float] = []
        self.said: list[str] = []
        train: Any = self.parts.trainer.rl_step

        async def rl_step(inputs: Any) -> Any:
            self.trained_at.append(inputs.algorithm.temperature)
            return await train(inputs)

        self.parts.trainer.rl_step = rl_step

    @property
    def sampled_at(self) -> list[set[float]]:
        """By step, as the tokens themselves say."""
        return [
            {int("".join(map(chr, tokens[-3:-1]))) / 10 for tokens in step}
            for step in self.parts.trainer.tokens
        ]

    @property
    def searched(self) -> int:
        """Turns of held-out problems at a temperature that no step was sampled at."""
        return sum(sampling.temperature == 1.4 for _, sampling in self.parts.policy.calls)

    async def run(self, first: int, last: int, save_at: int = 0, folder: Path = Path()) -> None:
        async def after_step(result: Any) -> bool:
            self.control.observe({"outcome_mean": 0.5}, is_updated=bool(result.trained))
            if result.step == save_at:
                self.parts.buffer.save(folder)
                self.parts.sampler.save(folder)()
                self.control.save(folder)
            await self._before(result.step)
            return result.step == last

        await self._before(first - 1)
        await self.parts.loop.run(first=first, last=9, after_step=after_step)

    async def _before(self, step: int) -> None:
        self.said += filter(None, [await self.control.before_next_step(self.parts.loop, step)])


async def test_the_trainer_computes_logprobs_at_the_temperature_of_the_rollouts(
    tmp_path: Path,
) -> None:
    whole = Attempt(Notes(), searches=1)
    await whole.run(1, 9)
    assert whole.trained_at == [1.0] * 4 + [1.2] * 5
    assert whole.sampled_at == [{at} for at in whole.trained_at]
    assert whole.searched == 8 * 2, "one search, and no more"
    assert whole.reporter.warnings == []
    assert whole.said == [
        "sampling goes on at temperature 1.2, after 1: the mean outcome of 2 steps is 0.5000, not"
        " above the 0.5000 of the 2 before by more than 0.9; held-out scores by temperature: "
        + ", ".join(f"{t.temperature:g}: {t.score:.4f}" for t in whole.control.searches[0].tried)
    ]
    whole.control.write(tmp_path)
    (search,) = json.loads((tmp_path / TEMPERATURES_FILE).read_text())
    assert (search["after_step"], search["before"], search["chosen"]) == (4, 1.0, 1.2)
    assert [each["is_near"] for each in search["tried"]] == [True, True, False]


@pytest.mark.parametrize("save_at", [3, 4])
async def test_a_killed_stage_takes_the_same_temperature_and_does_not_search_again(
    tmp_path: Path, save_at: int
) -> None:
    """Killed in step 6. The search after step 4 is later than both checkpoints."""
    notes = Notes()
    first = Attempt(notes)
    await first.run(1, 6, save_at=save_at, folder=tmp_path)
    second = Attempt(notes, version=save_at)
    parts = second.parts
    parts.buffer.restore(tmp_path)
    parts.sampler.restore(tmp_path)
    second.control.restore(tmp_path)
    await parts.takes.recover(save_at + 1)
    takes = parts.takes.from_step(save_at + 1)
    await parts.producer.recover(parts.sampler.first_open, takes)
    await second.run(save_at + 1, 7)
    assert second.searched == 0
    whole = Attempt(Notes())
    await whole.run(1, 7)
    tokens = first.parts.trainer.tokens[:save_at] + parts.trainer.tokens
    assert tokens == whole.parts.trainer.tokens
    assert second.control.searches == whole.control.searches
    assert whole.control.temperature == 1.2
    assert parts.producer.recovered > 0


@pytest.mark.parametrize(
    ("cut_off", "chosen"), [((), 1.4), ((1.4,), 1.2), ((1.0,), 1.0), ((1.0, 1.2, 1.4), 1.0)]
)
async def test_a_temperature_whose_answers_took_too_long_is_left_out_of_a_search(
    cut_off: tuple[float, ...], chosen: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has ended in time are the short answers, here the right ones; and nothing is known of
    the others against a present temperature that is left out."""

    class Slow(Evaluator):
        def __init__(self, *, temperature: float, **more: Any) -> None:
            super().__init__(temperature=temperature, **more)
            self.is_slow = temperature in cut_off

        async def finish(self, is_repairing: Callable[[], bool]) -> Evaluated:
            ended = await super().finish(is_repairing)
            groups = {name: of[:2] for name, of in ended.groups.items()}
            failure = "6 of 8 problems took too long"
            return replace(ended, groups=groups, failure=failure) if self.is_slow else ended

    monkeypatch.setattr("tasks.rl.temperature.Evaluator", Slow)
    made = Attempt(Notes(), within=0.999)
    for _ in range(4):
        made.control.observe({"outcome_mean": 0.5}, is_updated=True)
    assert await made.control.before_next_step(made.parts.loop, 4) != ""
    assert made.control.temperature == chosen
    assert len([line for line in made.reporter.warnings if "left out" in line]) == len(cut_off)


async def test_after_a_step_without_an_update_a_search_waits() -> None:
    made = Attempt(Notes())
    for is_updated in (True, True, True, False):
        made.control.observe({"outcome_mean": 0.5}, is_updated=is_updated)
    assert await made.control.before_next_step(made.parts.loop, 4) == ""
    made.control.observe({"outcome_mean": 0.5}, is_updated=True)
    assert await made.control.before_next_step(made.parts.loop, 5) != ""


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"max_staleness": 1}, "set `max_staleness: 0` or `partial_rollout_tokens`, or write"),
        ({"temperature_search": {"grid": [1.0, 1.0]}}, "temperature_search.grid: it has only"),
        (
            {"steps": 20},
            "window: 10 steps are compared with as many before them, and the stage trains",
        ),
        (
            {"steps": 40, "algorithm": {"preset": "ppo"}, "critic": {"warmup_steps": 20}},
            "the stage trains its policy in 20, so no search would be made",
        ),
        (
            {"temperature_search": ENTROPY, "algorithm": {"temperature": 1.6}},
            "begins at algorithm.temperature 1.6, outside `lowest` 0.7 and `highest` 1.5",
        ),
        (
            {"temperature_search": {**ENTROPY, "lowest": 1.0, "highest": 1.0}},
            "`lowest` 1 is not below `highest` 1",
        ),
        (
            {"temperature_search": ENTROPY, "bounds": {"max_entropy": 0.4}},
            "temperature_search.target: 0.4 is not below bounds.max_entropy 0.4",
        ),
    ],
)
def test_a_search_that_cannot_run_is_refused_by_name(more: dict[str, Any], said: str) -> None:
    written = {**SETTINGS, "steps": 21, "temperature_search": {}, **more}
    named = {"curriculum": {"name": "reasoning"}, "rewards": [{"name": "math", "outcome": True}]}
    spec = RlSpec.model_validate({"settings": written, "domains": [{"name": "a", **named}]})
    (problem,) = spec.problems()
    assert said in problem


def test_a_stage_without_a_search_is_what_it_was() -> None:
    settings = RlSettings.model_validate(SETTINGS)
    assert "temperature_search" not in settings.model_dump()
    searching = RlSettings.model_validate({**SETTINGS, "temperature_search": {"problems": 99}})
    assert {**settings.drawn, "heldout": 99} == searching.drawn
    targeting = RlSettings.model_validate({**SETTINGS, "temperature_search": ENTROPY})
    assert targeting.drawn == settings.drawn


def test_the_rule_by_hand() -> None:
    """ln T rises by 0.1 x (0.4 - H) / 0.4: 0.025 at H = 0.3, -0.01 at 0.44, and by no more than
    0.05 at 0.1 and at 0.8, where it would be 0.075 and -0.1."""
    rule = EntropyTarget(kind="entropy", target=0.4)
    found = [moved(1.0, entropy, rule) for entropy in (0.3, 0.4, 0.44, 0.1, 0.8)]
    assert found == pytest.approx([1.0253151, 1.0, 0.9900498, 1.0512711, 0.9512294], abs=1e-7)
    assert moved(1.2, 0.3, rule) == pytest.approx(1.2303781, abs=1e-7)
    assert [moved(1.49, 0.1, rule), moved(0.71, 0.8, rule)] == [1.5, 0.7], "within its bounds"


class Targeting:
    """A loop whose entropy is 0.3 times the temperature of what is trained on."""

    def __init__(self, notes: Notes, max_staleness: int = 0, version: int = 0) -> None:
        self.parts = Parts(
            lambda _, sampling: f"{(sampling.seed or 0) % 10}{sampling.temperature:.12f}",
            domains=[domain("a", judged, max_new_tokens=16)], oversample=1.5, waves=2, slow=3,
            delay=lambda number: 1 + number % 7, max_staleness=max_staleness,
            journal=RolloutJournal(notes), turns=TurnJournal(notes), notes=notes, version=version,
        )  # fmt: skip
        self.control = EntropyControl(EntropyTarget(kind="entropy", target=0.4), 1.0)
        self.at: list[float] = []
        """temperature after each step"""
        self.sampled_at: list[list[float]] = []
        train: Any = self.parts.trainer.rl_step

        async def rl_step(inputs: Any) -> TrainedStep:
            await train(inputs)
            samples = inputs.samples
            said = [float("".join(map(chr, s.tokens[-15:-1].tolist()))) for s in samples]
            assert [s.temperature for s in samples] == pytest.approx(said, abs=1e-12)
            self.sampled_at.append([s.temperature for s in samples])
            return TrainedStep({"entropy": 0.3 * sum(self.sampled_at[-1]) / len(samples)})

        self.parts.trainer.rl_step = rl_step

    async def run(self, first: int, last: int, save_at: int = 0, folder: Path = Path()) -> None:
        async def after_step(result: Any) -> bool:
            self.control.observe(result.trained, is_updated=bool(result.trained))
            self.at.append(self.control.temperature)
            if result.step == save_at:
                self.parts.buffer.save(folder)
                self.parts.sampler.save(folder)()
                self.control.save(folder)
            await self.control.before_next_step(self.parts.loop, result.step)
            return result.step == last

        self.parts.sampler.steps = 9
        await self.control.before_next_step(self.parts.loop, first - 1)
        await self.parts.loop.run(first=first, last=9, after_step=after_step)


async def test_a_target_moves_the_temperature_of_the_next_rollouts() -> None:
    """At T = 1 the entropy is 0.3, so that ln T rises by 0.025; then it is 0.3076, and ln T rises
    by 0.0231."""
    made = Targeting(Notes())
    await made.run(1, 3)
    assert made.at[:2] == pytest.approx([1.0253151, 1.0492770], abs=1e-6)
    assert [set(each) for each in made.sampled_at] == [{1.0}, {made.at[0]}, {made.at[1]}]


@pytest.mark.parametrize("max_staleness", [0, 2])
async def test_a_killed_stage_goes_on_at_the_temperature_of_a_whole_one(
    tmp_path: Path, max_staleness: int
) -> None:
    """Killed after step 6, whose steps after the checkpoint's are repeated to the bit, also where
    a step has rollouts of several temperatures."""
    notes = Notes()
    first = Targeting(notes, max_staleness)
    await first.run(1, 6, save_at=3, folder=tmp_path)
    assert any(len(set(each)) > 1 for each in first.sampled_at) == (max_staleness > 0)
    second = Targeting(notes, max_staleness, version=3)
    parts = second.parts
    parts.buffer.restore(tmp_path)
    parts.sampler.restore(tmp_path)
    second.control.restore(tmp_path)
    await parts.takes.recover(4)
    await parts.producer.recover(parts.sampler.first_open, parts.takes.from_step(4))
    await second.run(4, 7)
    assert second.at[:3] == first.at[3:]
    assert second.sampled_at[:3] == first.sampled_at[3:]
    assert parts.trainer.tokens[:3] == first.parts.trainer.tokens[3:]
    assert second.at[3] > second.at[2]


def test_the_trainer_takes_one_temperature_or_each_sample_s_own() -> None:
    algorithm = Algorithm(temperature=0.8)
    made = partial(
        sample_of, "p", "d", "g", "g#0", 0, [1, 2], [0, 1], [0, -0.5], [-1, 0], Status.COMPLETED
    )
    hot, cool, unsaid = (made(temperature=t) for t in (1.25, 0.5, None))
    assert temperature_of([hot, hot], algorithm) == 1.25
    assert temperature_of([unsaid], algorithm) == 0.8
    each = temperature_of([hot, unsaid, cool], algorithm)
    assert isinstance(each, np.ndarray)
    assert each.tolist() == pytest.approx([1.25, 0.8, 0.5])
