"""Data sources: which problem a ticket stands for.

`source_faults` says what every data source must do, tried on the first tickets.

    tributary test-hook my_source.py:MySource --domains reasoning,agent
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from engines.draws import Fault, guarded
from engines.rollout.metrics import mean
from engines.rollout.protocols import SOURCES
from engines.types import TRAINABLE, Group, one_per_rollout
from infra.config import require_comparable
from infra.errors import InputError
from infra.hooks import construct_with, require_methods, require_no_options, resolve


@dataclass(frozen=True, slots=True)
class Pick:
    """The problem of a ticket."""

    domain: str
    position: int | None = None
    """of the domain's problems, counted from the stage's first; None: the next one that no ticket
    of this stage had"""


@dataclass(frozen=True, slots=True)
class TicketResult:
    """What came of a ticket. The three numbers are None where no rollout can be trained on."""

    number: int
    domain: str
    position: int
    reward: float | None
    """mean over its rollouts"""
    outcome: float | None
    """the same of the verifier's verdicts, 0 to 1"""
    spread: float | None
    """largest minus smallest reward"""
    problem: str = ""
    """its id; a problem that comes again may end it with @2, @3 and so on"""


class DataSource(Protocol):
    """A source's picks depend on its options, the ticket's number, and what it was `told`: nothing
    else, no clock and no random state of its own, so that a resumed stage has the same tickets."""

    def pick(self, number: int) -> Pick:
        """The problem of ticket `number`, from 0. Asking changes nothing."""
        ...


@runtime_checkable
class LearningSource(DataSource, Protocol):
    """One that learns from results. Only with `max_staleness: 0`: above it, the clock decides which
    results are there when a ticket is drawn."""

    def told(self, result: TicketResult) -> None:
        """A ticket is over. Results come in the order of tickets, after each wave; a resumed stage
        tells them all again, to a new instance."""
        ...


def result_of(group: Group, domain: str, position: int) -> TicketResult:
    problem = group.problem.id
    kept = [s for s in one_per_rollout(group.samples) if s.status in TRAINABLE]
    if not kept:
        return TicketResult(group.ticket, domain, position, None, None, None, problem)
    rewards = [s.reward for s in kept]
    return TicketResult(
        number=group.ticket,
        domain=domain,
        position=position,
        reward=mean(rewards),
        outcome=mean(s.rewards.get("outcome", 0.0) for s in kept),
        spread=max(rewards) - min(rewards),
        problem=problem,
    )


class Weighted:
    """A ticket's domain is drawn by its number alone.

    Example: weights {"reasoning": 3, "agent": 1}: three of four tickets are of `reasoning`.
    """

    def __init__(self, weights: Mapping[str, float], domains: Sequence[str], seed: int) -> None:
        if set(weights) != set(domains):
            raise InputError(
                f"weights are given to {', '.join(sorted(weights)) or 'none'}; the stage's domains"
                f" are {', '.join(sorted(domains))}; give each one a weight"
            )
        if min(weights.values()) < 0 or not any(weights.values()):
            raise InputError(f"weights {dict(weights)}: none may be negative, and not all may be 0")
        try:
            require_comparable(weights.values())
        except ValueError as error:
            raise InputError(str(error)) from None
        self._names = sorted(weights)
        self._weights = [float(weights[name]) for name in self._names]
        self._seed = seed

    def pick(self, number: int) -> Pick:
        draw = random.Random(f"weighted/{self._seed}/{number}")
        return Pick(draw.choices(self._names, self._weights)[0])


_COMES_AGAIN = re.compile(r"@\d+$")
_UNSURE = 0.25
"""groups, half of them right, that a problem's success rate begins with"""


@dataclass(slots=True)
class _Evidence:
    """Counts what groups said of one problem; older groups count less."""

    right: float = 0.0
    groups: float = 0.0
    told: int = 0
    """results of all problems when its last one came"""


class ByDifficulty:
    """Problems that the model solves sometimes come again, those that it solves always or never
    seldom: one with the success rate p is drawn with the weight 4 p (1 - p) + floor.

    Example: ByDifficulty(["a"], 0, fresh=0.25): one of four tickets has the next new problem
    """

    def __init__(
        self,
        domains: Sequence[str],
        seed: int,
        *,
        fresh: float = 0.5,
        floor: float = 0.05,
        half_life: float = 512.0,
    ) -> None:
        """`fresh` is the share of tickets that go on in the domains' order. After `half_life`
        results a result counts half, so that what was too hard or too easy is tried again. What is
        known of a problem stays when all have come and it comes again."""
        if not (0 < fresh <= 1 and 0 <= floor <= 1 and half_life > 0):
            raise InputError(
                f"fresh {fresh}, floor {floor}, half_life {half_life}: `fresh` is above 0 and at"
                " most 1, `floor` is from 0 to 1, `half_life` is above 0"
            )
        self._domains, self._seed = domains, seed
        self._fresh, self._floor, self._half_life = fresh, floor, half_life
        self._places: dict[tuple[str, str], int] = {}
        """the position of each problem that was told of, by domain and id"""
        self._known: dict[tuple[str, int], _Evidence] = {}
        self._told = 0
        self._weights: dict[tuple[str, int], float] | None = None

    def pick(self, number: int) -> Pick:
        draw = random.Random(f"by-difficulty/{self._seed}/{number}")
        weights = self.weights
        if draw.random() < self._fresh or not any(weights.values()):
            return Pick(self._domains[number % len(self._domains)])
        ((domain, position),) = draw.choices([*weights], [*weights.values()])
        return Pick(domain, position)

    def told(self, result: TicketResult) -> None:
        if result.outcome is None:
            return
        position = result.position
        if result.problem:
            asked = result.domain, _COMES_AGAIN.sub("", result.problem)
            position = self._places.setdefault(asked, position)
        self._told += 1
        self._weights = None
        known = self._known.setdefault((result.domain, position), _Evidence())
        kept = self._kept(known)
        known.right = known.right * kept + result.outcome
        known.groups = known.groups * kept + 1.0
        known.told = self._told

    @property
    def weights(self) -> Mapping[tuple[str, int], float]:
        """Give the weight of each problem that was tried, by domain and position."""
        if self._weights is None:
            self._weights = {problem: self._weight(of) for problem, of in self._known.items()}
        return self._weights

    def _weight(self, known: _Evidence) -> float:
        kept = self._kept(known)
        rate = (known.right * kept + _UNSURE / 2) / (known.groups * kept + _UNSURE)
        return 4 * rate * (1 - rate) + self._floor

    def _kept(self, known: _Evidence) -> float:
        """Give the share that its earlier results still count."""
        return 0.5 ** ((self._told - known.told) / self._half_life)


_IN_TURNS = "in-turns"


def build_source(
    name: str, options: Mapping[str, Any], domains: Sequence[str], seed: int
) -> DataSource | None:
    """The source, made with its options, and with `domains` and `seed` where its constructor has
    parameters of these names; None for `in-turns`. Raises `InputError`, as above."""
    if name == _IN_TURNS:
        require_no_options("data source", name, options)
        return None
    factory = resolve("data source", name, SOURCES)
    offered = {"domains": tuple(domains), "seed": seed}
    refusal = "the source gets the stage's"
    source = construct_with("data source", name, factory, options, offered, refusal=refusal)
    require_methods("data source", name, source, ("pick",))
    return source


def require_can_learn(name: str, source: DataSource, is_beside_training: bool) -> None:
    """Raises `InputError` for one that learns while sampling goes on beside training."""
    if is_beside_training and isinstance(source, LearningSource):
        raise InputError(
            f"data source {name!r} learns from results (it has told()), and above max_staleness 0"
            " the clock decides which results it knows, so a resumed stage would draw other"
            " problems; set `max_staleness: 0`, or remove told()"
        )


_TICKETS = 32

_TOLD = (3, 8, 21, 32)
"""results after which a learning source is asked"""

Make = Callable[[], DataSource]


def source_faults(make: Make, domains: Sequence[str]) -> list[Fault]:
    """Checks of a class with `pick(number)` and, where it learns, `told(result)`. `make` gives a
    new instance at each call."""

    def checks(make: Make) -> Iterator[Fault]:
        found = list(_pick_checks(make, domains))
        yield from found or _learning_checks(make, domains)

    return list(guarded(make, checks))


def _pick_checks(make: Make, domains: Sequence[str]) -> Iterator[Fault]:
    source = make()
    picks: list[object] = [source.pick(number) for number in range(_TICKETS)]
    for number, pick in enumerate(picks):
        if not isinstance(pick, Pick) or pick.domain not in domains:
            yield Fault(
                "picks a problem of one of the stage's domains",
                f"pick({number}) gave {pick!r:.80}; domains: {', '.join(domains)}",
            )
            return
        if pick.position is not None and pick.position < 0:
            yield Fault("picks a position from 0 on", f"pick({number}) gave {pick.position}")
            return
    again = [source.pick(number) for number in reversed(range(_TICKETS))]
    if again[::-1] != picks:
        yield Fault("picks by the ticket's number", "asked again in another order, it picks others")
    elif [make().pick(number) for number in range(_TICKETS)] != picks:
        yield Fault("picks the same in a resumed stage", "a new instance picks others")


def _learning_checks(make: Make, domains: Sequence[str]) -> Iterator[Fault]:
    for told in _TOLD:
        often, once = make(), make()
        if not isinstance(often, LearningSource) or not isinstance(once, LearningSource):
            return
        for number in range(told):
            often.pick(number)
            often.told(_result(number, domains))
            once.told(_result(number, domains))
        ahead = range(told, told + _TICKETS)
        if [often.pick(number) for number in ahead] != [once.pick(number) for number in ahead]:
            yield Fault(
                "learns from told() alone",
                f"after {told} results, one that was asked for each ticket picks others than one"
                " that was only told",
            )
            return


def _result(number: int, domains: Sequence[str]) -> TicketResult:
    """Every fifth ticket failed."""
    domain, position = domains[number % len(domains)], number // len(domains)
    if number % 5 == 4:
        return TicketResult(number, domain, position, None, None, None)
    outcome = (number % 3) / 2
    return TicketResult(number, domain, position, outcome + 0.1, outcome, float(outcome == 0.5))
