"""What is tried of a recipe's parts, and what came of it: plain data that goes to a process of its
own and comes back.

Each step of a trial is announced, bounded and, if it fails, named.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from typing import Any, Protocol

from pydantic import Field

from curricula.built_in_curricula import BUILT_IN as CURRICULA
from curricula.built_in_curricula import OF_LIBRARIES, OF_ROWS
from engines.algorithms.advantages import CustomAdvantage
from engines.algorithms.losses import CustomLoss
from engines.algorithms.parts import Need
from engines.rollout.protocols import DRIVERS
from engines.types import Split
from flows.checks.hook_checks import Contract
from flows.path import OPTIONS, domains_at, with_options
from flows.plan import PlannedStage
from flows.recipe import Recipe
from infra.config import Config
from infra.errors import InputError, TributaryError
from infra.user_files import HOOK_COPY
from rewards.built_in_rewards import BUILT_IN as REWARDS
from tasks.base.spec import BaseSettings
from tasks.distill.spec import DistillSpec
from tasks.domain import CurriculumSpec, Domain
from tasks.evaluate.spec import EvaluateSettings
from tasks.nothink import is_asked_of
from tasks.rl.spec import RlSpec

_SHOWN = 8
"""demonstrations that are looked at where no stage trains on them"""
_DRAWN = 64
"""most problems of a split that are drawn to look for overlaps"""
_KINDS: Mapping[str, Contract] = {
    "data_source": "data-source",
    "group_filter": "group-filter",
    "buffer": "buffer",
}
_DRAWN_HELDOUT = 256
"""of the held-out split: a curriculum that has too few fails hours later"""
CALL_SECONDS = 30.0
"""of one call of a part that has no `timeout_s`"""
IMPORT_SECONDS = 60.0
"""of importing a module: torch takes ten on a loaded machine"""


class PlacedDomain(Config):
    """A domain, where it is written, and how many problems of each split are drawn."""

    where: str
    domain: Domain
    counts: dict[Split, int]
    is_tried: bool = False
    """whether an `admit` stage tries its problems"""
    without_thinking: str = ""
    """where a stage asks a share of its problems with thinking off"""
    blind_to_turns: tuple[str, ...] = ()
    """the stages that learn from its rewards, where none looks at what each turn earned: each as
    `NAME (advantage KIND)`"""


class PlacedCurriculum(Config):
    """A domain's curriculum with the options that a stage of a path changes."""

    where: str
    curriculum: CurriculumSpec


class CustomPart(Config):
    """A part that has a contract, and where it is written."""

    where: str
    kind: Contract
    path: str
    """`module:attribute`, or the name of one of ours"""
    options: dict[str, Any]
    needs: tuple[Need, ...] = ()
    """of the advantage"""
    domains: tuple[str, ...] = ()
    """that a data source picks from"""
    is_beside_training: bool = False
    """whether sampling goes on while the trainer trains"""


class TrialRequest(Config):
    """Everything that a trial depends on."""

    hooks: list[str]
    data: list[str]
    base: BaseSettings
    seed: int
    domains: list[PlacedDomain]
    changed: list[PlacedCurriculum]
    custom: list[CustomPart]
    forced_thoughts: dict[str, bool] = Field(default_factory=dict[str, bool])
    """ways to sample the evaluation that force thoughts, by name: whether they have some go on"""

    @property
    def runs_user_code(self) -> bool:
        """Return whether a part is not ours: it may hang, exit or print."""
        ours = CURRICULA.keys() - OF_LIBRARIES.keys()
        curricula = [placed.domain.curriculum for placed in self.domains]
        named = [each.name not in ours or each.mcp is not None for each in curricula]
        named += [r.name not in REWARDS for placed in self.domains for r in placed.domain.rewards]
        named += [placed.domain.driver.name not in DRIVERS for placed in self.domains]
        return any(named) or any(":" in part.path for part in self.custom)


class Findings(Config):
    """What a trial found: what is refused, what only deserves a warning, and what was decided."""

    problems: list[str]
    cautions: list[str]
    notes: list[str] = Field(default_factory=list[str])


def request_of(recipe: Recipe, plan: list[PlannedStage]) -> TrialRequest:
    """The parts that this plan uses."""
    custom = [part for stage in plan for part in _custom(stage)]
    scored = recipe.evaluate or EvaluateSettings()
    return TrialRequest(
        hooks=recipe.hooks,
        data=recipe.data,
        base=recipe.base,
        seed=recipe.seed,
        domains=_domains(recipe, plan),
        changed=_changed(recipe),
        forced_thoughts={
            way.name: bool(way.thought_waits) for way in scored.sampling if way.thought
        },
        custom=list({(p.path, p.kind, repr(p.options)): p for p in reversed(custom)}.values()),
    )


def _domains(recipe: Recipe, plan: list[PlannedStage]) -> list[PlacedDomain]:
    """Each domain with its place in the recipe; one that experts share at its first."""
    placed: dict[str, PlacedDomain] = {}
    for key, expert in recipe.experts.items():
        domain = expert.domain
        if domain is None:
            continue
        tried = [
            stage.spec for stage in plan if stage.spec.makes == "problems" and not stage.spec.fleet
        ]
        place = PlacedDomain(
            where=f"experts.{key}.domain",
            domain=domain,
            counts=_counts(recipe, plan, domain),
            without_thinking=next(_asked_without_thinking(plan, domain.name), ""),
            blind_to_turns=tuple(_blind_to_turns(plan, domain)),
            is_tried=any(d.name == domain.name for spec in tried for d in spec.sampled_domains),
        )
        placed.setdefault(domain.name, place)
    return list(placed.values())


def _asked_without_thinking(plan: list[PlannedStage], domain: str) -> Iterator[str]:
    for stage in plan:
        if not isinstance(stage.spec, RlSpec | DistillSpec):
            continue
        names = [sampled.name for sampled in stage.spec.domains]
        share = stage.spec.settings.nothink_share
        if domain in names and is_asked_of(share, domain, len(names)):
            yield f"{stage.where}.nothink_share"


def _blind_to_turns(plan: list[PlannedStage], domain: Domain) -> Iterator[str]:
    """None where some stage looks at turns."""
    learning = [
        (stage.name, stage.spec.policy.algorithm)
        for stage in plan
        if stage.spec.policy is not None
        and not stage.spec.has_teachers
        and any(sampled.name == domain.name for sampled in stage.spec.sampled_domains)
    ]
    if not any("turns" in algorithm.needs for _, algorithm in learning):
        yield from (f"{name} (advantage {of.advantage.kind})" for name, of in learning)


def _changed(recipe: Recipe) -> list[PlacedCurriculum]:
    paths = {
        f"experts.{key}": (e.path, [e.domain]) for key, e in recipe.experts.items() if e.domain
    }
    if recipe.unified is not None:
        paths["unified"] = (recipe.unified.path, recipe.domains)
    in_paths = [
        PlacedCurriculum(where=f"{owner}.path.{index}.{OPTIONS}", curriculum=domain.curriculum)
        for owner, (path, domains) in paths.items()
        for index, stage in enumerate(path)
        if stage.curriculum_options
        for domain in domains_at(path, index, domains)
    ]
    return [*in_paths, *_in_rounds(recipe)]


def _in_rounds(recipe: Recipe) -> Iterator[PlacedCurriculum]:
    """The options of rounds that `distill-rounds` adds."""
    for name, levels in recipe.rounds.harder.items():
        own = recipe.experts[name].domain
        if own is None:
            continue
        for number, options in enumerate(levels):
            domain = with_options(own, options)
            where = f"rounds.harder.{name}.{number}"
            yield PlacedCurriculum(where=where, curriculum=domain.curriculum)


def _counts(recipe: Recipe, plan: list[PlannedStage], domain: Domain) -> dict[Split, int]:
    """Return what the stages of the plan draw of the domain; of what has no end what is held out,
    too.
    """
    most: dict[Split, int] = {}
    for stage in plan:
        domains = {sampled.name for sampled in stage.spec.sampled_domains}
        if stage.expert:
            own = recipe.experts[stage.expert].domain
            domains = {own.name} if own else set()
        for split, count in stage.spec.drawn.items() if domain.name in domains else ():
            most[split] = max(count, most.get(split, 1))
    if domain.curriculum.name in OF_ROWS:  # which has an end, and may have no solutions to show
        return {s: n if s == "heldout" else min(n, _DRAWN) for s, n in most.items()}
    most.setdefault("heldout", (recipe.evaluate or EvaluateSettings()).problems)
    most.setdefault("sft", _SHOWN)
    return {
        split: min(count, _DRAWN_HELDOUT if split == "heldout" else _DRAWN)
        for split, count in most.items()
    }


def _custom(stage: PlannedStage) -> Iterator[CustomPart]:
    policy = stage.spec.policy
    if policy is None:
        return
    algorithm = policy.algorithm
    where = f"stage {stage.name}: algorithm"
    if isinstance(algorithm.advantage, CustomAdvantage):
        part = algorithm.advantage
        yield CustomPart(
            where=f"{where}.advantage",
            kind="advantage",
            path=part.path,
            options=part.options,
            needs=part.needs,
        )
    if isinstance(algorithm.loss, CustomLoss):
        part = algorithm.loss
        yield CustomPart(where=f"{where}.loss", kind="loss", path=part.path, options=part.options)
    yield from _rollout_parts(stage, algorithm.needs)


def _rollout_parts(stage: PlannedStage, needs: Collection[Need]) -> Iterator[CustomPart]:
    domains = tuple(domain.name for domain in stage.spec.sampled_domains)
    for field, named in stage.spec.rollout_parts.items():
        yield CustomPart(
            where=f"stage {stage.name}: {field}",
            kind=_KINDS[field],
            path=named.name,
            options=named.options,
            needs=tuple(needs),
            domains=domains,
            is_beside_training=stage.spec.samples_beside_training,
        )


class Observer(Protocol):
    """Watches a trial from outside and ends it when a step does not finish."""

    def begin(self, where: str, what: str, seconds: float) -> None: ...

    def printed(self) -> str:
        """Return what was written to the standard streams since the last call."""
        ...


class Blind:
    """Does nothing: for our own parts."""

    def begin(self, where: str, what: str, seconds: float) -> None:
        return

    def printed(self) -> str:
        return ""


class _Exited(Exception):
    """A coroutine raised SystemExit."""


class Attempts:
    """Runs steps and keeps what went wrong. One event loop serves all of them, as in a stage."""

    def __init__(self, observer: Observer, runner: asyncio.Runner) -> None:
        self.observer, self._runner = observer, runner
        self.problems: list[str] = []
        self.cautions: list[str] = []
        self.notes: list[str] = []

    def call(
        self, where: str, what: str, action: Callable[[], Any], seconds: float | None = None
    ) -> tuple[bool, Any]:
        """(whether it went well, what it gave)."""
        seconds = seconds or CALL_SECONDS
        self.observer.begin(where, what, seconds)
        try:
            return True, action()
        except TimeoutError:
            self.problems.append(
                f"{where}: {what} did not finish within {seconds:g} s; make it faster, or raise"
                " `timeout_s`"
            )
        except InputError as error:
            cause = _place(error.__cause__) if error.__cause__ is not None else ""
            self.problems.append(f"{where}: {error}{cause}")
        except (SystemExit, _Exited) as error:
            left = error.__cause__ if isinstance(error, _Exited) else error
            assert isinstance(left, SystemExit)
            self.problems.append(
                f"{where}: {what} ends the process (exit code {left.code}){_place(left)};"
                " raise an exception instead"
            )
        except Exception as error:  # the user's code may raise anything
            self.problems.append(f"{where}: {what} raised {told(error)}")
        return False, None

    def wait(
        self, where: str, what: str, action: Callable[[], Awaitable[Any]], seconds: float
    ) -> tuple[bool, Any]:
        """Run a coroutine, which may take `seconds`."""

        async def kept_in() -> Any:
            try:
                return await action()
            except SystemExit as error:  # it would break the event loop
                raise _Exited from error

        async def bounded() -> Any:
            return await asyncio.wait_for(kept_in(), seconds)

        return self.call(where, what, lambda: self._runner.run(bounded()), seconds)

    def findings(self) -> Findings:
        return Findings(
            problems=list(dict.fromkeys(self.problems)),
            cautions=list(dict.fromkeys(self.cautions)),
            notes=self.notes,
        )


def told(error: BaseException) -> str:
    """Type, message and the line of the user's file; of an error of ours its message alone."""
    if isinstance(error, TributaryError):
        return str(error)
    said = f"{type(error).__name__}: {error}".rstrip(": ") + _place(error)
    if isinstance(error, TypeError | AttributeError) and "'Transcript'" in said:
        said += (
            ". A reward is called with one Transcript: its text is `transcript.answer`, the row's"
            " answer `transcript.problem.reference`"
        )
    return said


def _place(error: BaseException) -> str:
    """Where in the user's own files it was raised, e.g. ` (my_task.py, line 12)`."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if found := HOOK_COPY.search(frame.filename):
            return f" ({found[1]}, line {frame.lineno})"
    return ""
