"""The temperature that rollouts of an RL stage are sampled at: raised while learning allows it, or
moved so that what is sampled keeps its entropy.

    rewards of two windows of steps ── flat ──▶ due ──▶ held-out problems at each temperature of the
    grid ──▶ the highest that a paired test does not find too much worse than the best ──▶ from the
    next step on, for sampling and for the trainer's logprobs

A search happens between two steps, when nothing waits to be trained on. What it found is noted: an
attempt that repeats the steps up to it does not search again.

    entropy of an update ── not the target ──▶ one small step of ln(temperature) towards it

Its bits are those of the update, which a resumed attempt repeats, also where rollouts go on beside
training: each carries the temperature that it began with, and the trainer computes at that.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import NormalDist
from typing import Any, Protocol

from engines.algorithms.spec import Keep
from engines.rollout.drivers.driver import LiveDomain
from engines.rollout.evaluator import Evaluated, Evaluator, HeldOut
from engines.rollout.loop import Loop
from engines.rollout.metrics import verdict
from engines.rollout.published_policy import PublishedPolicy
from engines.rollout.records.journals import Notes
from engines.rollout.roller import RollsGroups
from tasks.evaluate.score_statistics import mean, problem_means, standard_error
from tasks.nothink import held_out_of
from tasks.rl.spec import RlSpec
from tasks.rl.temperature_rules import EntropyTarget, TemperatureSearch
from tasks.stage import Reporter, StageContext

TEMPERATURES_FILE = "training/temperatures.json"
"""of an artifact"""
_STATE_FILE = "temperature.json"

Outcomes = Mapping[str, Mapping[str, float]]
"""by domain and problem: mean outcome of its samples"""


class Scores(Protocol):
    """Samples held-out problems from the present policy. Raises EngineError."""

    async def __call__(self, temperature: float) -> Outcomes: ...


@dataclass(frozen=True, slots=True)
class Tried:
    """One temperature of a search."""

    temperature: float
    score: float
    """mean outcome over domains"""
    loss: float
    """how much lower it is than the best one's, on the problems that both have"""
    error: float
    """standard error of the loss, of paired problems"""
    is_near: bool
    """whether the test leaves it near the best"""


@dataclass(frozen=True, slots=True)
class Search:
    """What came of one."""

    after_step: int
    before: float
    chosen: float
    """the same as before, where that one has no whole score"""
    why: str
    tried: Sequence[Tried]


@dataclass(slots=True)
class Rewards:
    """Follows the mean outcomes of a phase's steps since the last search."""

    outcomes: list[float] = field(default_factory=list[float])

    def observe(self, outcome: float, settings: TemperatureSearch) -> str:
        """Take a step's in -> in what way they are flat; empty as long as they are not."""
        window = settings.window
        self.outcomes = [*self.outcomes, outcome][-2 * window :]
        if len(self.outcomes) < 2 * window:
            return ""
        before, now = mean(self.outcomes[:window]), mean(self.outcomes[window:])
        if now > before + settings.gain:
            return ""
        return (
            f"the mean outcome of {window} steps is {now:.4f}, not above the {before:.4f} of the"
            f" {window} before by more than {settings.gain:g}"
        )


def tried_of(found: Mapping[float, Outcomes], settings: TemperatureSearch) -> list[Tried]:
    """Each temperature against the best, lowest first; of two that are as good the higher one is
    the best. Without those that have no verdict in a domain that another one has.

    One is left out if, at the settings' `confidence`, a one-sided test on the differences of
    problems says that it loses more than `within`: loss - within > z x error.
    """
    domains = sorted({name for outcomes in found.values() for name, of in outcomes.items() if of})
    judged = {t: o for t, o in found.items() if domains and all(o.get(name) for name in domains)}
    scores = {t: mean([mean([*o[name].values()]) for name in domains]) for t, o in judged.items()}
    if not scores:
        return []
    best = max(scores, key=lambda temperature: (scores[temperature], temperature))
    z = NormalDist().inv_cdf(settings.confidence)
    made: list[Tried] = []
    for temperature in sorted(scores):
        loss, error = _loss(judged[best], judged[temperature], domains)
        is_near = loss - settings.within <= z * error
        made.append(Tried(temperature, scores[temperature], loss, error, is_near))
    return made


def _loss(best: Outcomes, other: Outcomes, domains: Sequence[str]) -> tuple[float, float]:
    """Mean over domains of the paired differences, and its standard error; infinite where a domain
    has no problem that both have."""
    losses: list[float] = []
    errors: list[float] = []
    for of_best, of_other in ((best[name], other[name]) for name in domains):
        pairs = [of_best[key] - of_other[key] for key in of_best if key in of_other]
        losses.append(mean(pairs) if pairs else math.inf)
        errors.append(standard_error(pairs))
    return mean(losses), math.hypot(*errors) / len(errors)


class TemperatureControl:
    """The temperature of one stage; part of its checkpoints."""

    def __init__(self, start: float) -> None:
        self.temperature = start

    def observe(self, metrics: Mapping[str, float], *, is_updated: bool) -> None:
        """Take a step in."""

    def forget(self) -> None:
        """The problems from here on are others."""

    async def before_next_step(self, loop: Loop, step: int) -> str:
        """After a step, or the checkpoint that a resumed attempt goes on from: decide, and have the
        loop sample and train at the temperature -> what is to be said of it, if anything. Raises
        EngineError."""
        said = await self._decide(step)
        loop.producer.temperature = self.temperature
        loop.consumer.algorithm = loop.consumer.algorithm.model_copy(
            update={"temperature": self.temperature}
        )
        return said

    async def _decide(self, step: int) -> str:
        return ""

    def save(self, folder: Path) -> None:
        """Into a checkpoint's folder."""
        (folder / _STATE_FILE).write_text(json.dumps(self._state()))

    def restore(self, folder: Path) -> None:
        self._take_up(json.loads((folder / _STATE_FILE).read_text()))

    def _state(self) -> dict[str, Any]:
        return {"temperature": self.temperature}

    def _take_up(self, state: Mapping[str, Any]) -> None:
        self.temperature = state["temperature"]

    def write(self, folder: Path) -> None:
        """Into an artifact's folder, where there is more to say than the metric does."""


class EntropyControl(TemperatureControl):
    """Keeps the entropy of what is sampled near a target."""

    def __init__(self, settings: EntropyTarget, start: float) -> None:
        super().__init__(start)
        self._settings = settings

    def observe(self, metrics: Mapping[str, float], *, is_updated: bool) -> None:
        """A step without an update has no entropy."""
        if is_updated and "entropy" in metrics:
            self.temperature = moved(self.temperature, metrics["entropy"], self._settings)


def moved(temperature: float, entropy: float, settings: EntropyTarget) -> float:
    """The next temperature: ln T + gain x (target - entropy) / target, the change at most `most`.

    Example: T = 1, target 0.4, gain 0.1: entropy 0.3 -> exp(0.025), 0.1 -> exp(0.05), as `most` is
    """
    wanted = settings.gain * (settings.target - entropy) / settings.target
    change = min(max(wanted, -settings.most), settings.most)
    return min(max(temperature * math.exp(change), settings.lowest), settings.highest)


class SearchControl(TemperatureControl):
    """Searches for a temperature where rewards are flat."""

    def __init__(
        self, settings: TemperatureSearch, start: float, scores: Scores, notes: Notes
    ) -> None:
        super().__init__(start)
        self._settings = settings
        self._scores = scores
        self._notes = notes
        self._rewards = Rewards()
        self._due = ""
        """why a search is to be made before the next step; empty where none is"""
        self.searches: list[Search] = []

    def observe(self, metrics: Mapping[str, float], *, is_updated: bool) -> None:
        """After a step without an update what waits stays fresh, and is of the present temperature:
        then a search waits for the next step."""
        if "outcome_mean" not in metrics:
            return
        why = self._rewards.observe(metrics["outcome_mean"], self._settings)
        if is_updated and len(self.searches) < self._settings.searches:
            self._due = why

    def forget(self) -> None:
        """Look at the steps from here on alone: those before are of other problems, or of another
        temperature."""
        self._rewards, self._due = Rewards(), ""

    async def _decide(self, step: int) -> str:
        """Search if it is due."""
        if not self._due:
            return ""
        noted = await asyncio.to_thread(self._notes.notes, "searches", step, step)
        if noted:
            search = _search_of(json.loads(noted[-1]))
        else:
            search = await self._search(step)
            data = json.dumps(asdict(search)).encode()
            await asyncio.to_thread(self._notes.note, "searches", step, data)
        self.searches.append(search)
        self.temperature = search.chosen
        self.forget()
        shown = ", ".join(f"{t.temperature:g}: {t.score:.4f}" for t in search.tried)
        return (
            f"sampling goes on at temperature {search.chosen:g}, after {search.before:g}:"
            f" {search.why}; held-out scores by temperature: {shown or 'none'}"
        )

    async def _search(self, step: int) -> Search:
        grid = sorted({*self._settings.grid, self.temperature})
        tried = tried_of({t: await self._scores(t) for t in grid}, self._settings)
        near = [each.temperature for each in tried if each.is_near]
        is_known = self.temperature in [each.temperature for each in tried]
        chosen = max(near) if is_known and near else self.temperature
        return Search(step, self.temperature, chosen, self._due, tried)

    def _state(self) -> dict[str, Any]:
        return {
            **super()._state(),
            "outcomes": self._rewards.outcomes,
            "due": self._due,
            "searches": [asdict(search) for search in self.searches],
        }

    def _take_up(self, state: Mapping[str, Any]) -> None:
        super()._take_up(state)
        self._due, self._rewards = state["due"], Rewards(state["outcomes"])
        self.searches = list(map(_search_of, state["searches"]))

    def write(self, folder: Path) -> None:
        """Into an artifact's folder: each search."""
        path = folder / TEMPERATURES_FILE
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps([asdict(search) for search in self.searches], indent=1))


def _search_of(state: Mapping[str, Any]) -> Search:
    values: dict[str, Any] = {**state, "tried": [Tried(**each) for each in state["tried"]]}
    return Search(**values)


@dataclass(frozen=True, slots=True)
class HeldOutScores:
    """Scores of the stage's policy; the same random numbers at each temperature."""

    settings: TemperatureSearch
    roller: RollsGroups
    held_out: Sequence[HeldOut]
    policy: PublishedPolicy
    reporter: Reporter
    keep: Keep | None = None

    async def __call__(self, temperature: float) -> Outcomes:
        settings = self.settings
        evaluator = Evaluator(
            roller=self.roller,
            held_out=self.held_out,
            samples=settings.samples,
            timeout_s=settings.timeout_s,
            temperature=temperature,
            keep=self.keep,
            name=f"temperature {temperature:g}",
        )
        version = self.policy.version
        evaluator.begin(version, version)
        try:
            evaluated = await evaluator.finish(lambda: self.policy.is_repairing)
        finally:
            await evaluator.close()
        if evaluated.failure:
            self.reporter.warn(
                f"search at temperature {temperature:g}: {evaluated.failure}. What has ended by"
                " then are the short answers, so it is left out; if this repeats, raise"
                " `temperature_search.timeout_s`"
            )
            return {}
        return _outcomes(evaluated)


def _outcomes(evaluated: Evaluated) -> Outcomes:
    found: dict[str, dict[str, float]] = {}
    for domain, groups in evaluated.groups.items():
        means = problem_means([[verdict(r.samples[0]) for r in group] for group in groups])
        found[domain] = {
            group[0].samples[0].problem_id: value
            for group, value in zip(groups, means, strict=True)
            if value is not None
        }
    return found


def control_of(
    spec: RlSpec,
    context: StageContext,
    roller: RollsGroups,
    domains: Sequence[LiveDomain],
    policy: PublishedPolicy,
) -> TemperatureControl | None:
    """Return what the settings ask for; None where the temperature stays. Raises InputError."""
    settings, start = spec.settings.temperature_search, spec.settings.algorithm.temperature
    if settings is None:
        return None
    if isinstance(settings, EntropyTarget):
        return EntropyControl(settings, start)
    held_out = held_out_of(domains, settings.problems, spec.seed)
    keep = spec.settings.algorithm.keep
    scores = HeldOutScores(settings, roller, held_out, policy, context.reporter, keep)
    return SearchControl(settings, start, scores, context.checkpoints)
