"""Phases: the pools of problems that a stage moves through, one after the other.

    tickets of phase 1 ──▶ its last step, or a plateau of held-out scores ──▶ tickets of phase 2

A phase begins at a ticket, so a ticket that is rolled out again has its own phase's problem and
group size. After which step a stage moves on follows from the steps and their scores alone: a
resumed stage, which goes on from a checkpoint's tickets, moves at the same step.
"""

from __future__ import annotations

import asyncio
import json
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from engines.draws import draw_problems
from engines.rollout.drivers.driver import LiveDomain
from engines.rollout.tickets import Ticket, TicketSource, rounded_up
from engines.types import Curriculum, Problem
from infra.errors import InputError
from tasks.admitted import restricted
from tasks.rl.phase_rules import Phase, Plateau
from tasks.rl.spec import RlSpec
from tasks.stage import StageContext, admitted_pools

PHASES_FILE = "training/phases.json"
"""of an artifact"""


@dataclass(frozen=True, slots=True)
class Move:
    """Example: Move(phase=2, after_step=40, ticket=480, why="the phase lasts until step 40")"""

    phase: int
    """the one that begins, from 1"""
    after_step: int
    ticket: int
    """its first"""
    why: str


@dataclass(slots=True)
class Rise:
    """Follows the held-out scores of one phase."""

    best: float | None = None
    """the last score that counted as a rise"""
    flat: int = 0
    """scores after it, none of which did"""

    def observe(self, score: float, plateau: Plateau) -> str:
        """Take the next score in -> why the phase is over; empty as long as it is not."""
        if self.best is None or score > self.best + plateau.gain:
            self.best, self.flat = score, 0
            return ""
        self.flat += 1
        if self.flat < plateau.evaluations:
            return ""
        return (
            f"{self.flat} held-out scores in a row, the last {score:.4f}, were not above"
            f" {self.best:.4f} by more than {plateau.gain:g}"
        )


class PhasedTickets(TicketSource):
    """In each phase domains take turns, and each begins with the first of the phase's problems."""

    def __init__(
        self,
        phases: Sequence[Phase],
        domains: Sequence[Sequence[LiveDomain]],
        *,
        seed: int,
        start: int = 0,
    ) -> None:
        """`domains` of each phase, which draw its problems alone."""
        super().__init__(domains[0], split="rl", seed=seed, start=start)
        self._phases = phases
        self._domains_of = domains
        self._starts = [0]
        """the first ticket of each phase so far"""
        self._rise = Rise()
        self._scored = -1
        """the step of the last score that was taken in"""
        self.moves: list[Move] = []

    @property
    def phase(self) -> int:
        """The present one, from 1."""
        return len(self._starts)

    def after_step(
        self, step: int, score: tuple[int, float] | None, *, is_solved: bool = False
    ) -> str:
        """Take a step in, with the newest score on held-out problems and its step, and whether the
        present problems are solved -> why the next phase begins; empty where none does. Tickets
        that were drawn before keep their phase."""
        now = self._phases[self.phase - 1]
        is_last_step = now.until_step is not None and step >= now.until_step
        why = f"the phase lasts until step {now.until_step}" if is_last_step else ""
        if score is not None and score[0] > self._scored:
            self._scored = score[0]
            if now.plateau is not None:
                why = why or self._rise.observe(score[1], now.plateau)
        if is_solved:
            why = why or "its problems are solved"
        if not why or self.phase == len(self._phases):
            return ""
        self._starts.append(self.next)
        self._rise = Rise()
        self.moves.append(Move(self.phase, step, self.next, why))
        pools = " and ".join(self._phases[self.phase - 1].pools)
        return f"phase {self.phase} begins, with {pools} problems: {why}"

    def state(self, first_open: int) -> dict[str, Any]:
        return {
            **super().state(first_open),
            "starts": self._starts,
            "rise": asdict(self._rise),
            "scored": self._scored,
            "moves": [asdict(move) for move in self.moves],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._starts = state["starts"]
        self._rise = Rise(**state["rise"])
        self._scored = state["scored"]
        self.moves = [Move(**move) for move in state["moves"]]

    def write(self, folder: Path) -> None:
        """Into an artifact's folder: each phase, and why it began."""
        path = folder / PHASES_FILE
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps([asdict(move) for move in self.moves], indent=1))

    def _in_a_row(self, numbers: Sequence[int]) -> list[Ticket]:
        if not numbers:
            return []
        phase = bisect_right(self._starts, numbers[0]) - 1
        domains, start = self._domains_of[phase], self._starts[phase]
        place = numbers[0] % len(domains)
        its_first = start + (place - start) % len(domains)
        position = self._start + (numbers[0] - its_first) // len(domains)
        domain, size = domains[place], self._phases[phase].group_size
        problems = draw_problems(domain.curriculum, self._split, len(numbers), self._seed, position)
        return [Ticket(n, domain, p, size) for n, p in zip(numbers, problems, strict=True)]


async def open_phases(
    spec: RlSpec,
    context: StageContext,
    domains: Sequence[LiveDomain],
    modes: Callable[[list[LiveDomain]], list[LiveDomain]],
) -> PhasedTickets | None:
    """The tickets of a stage with phases; None for one without. `domains`: with all of their
    problems; `modes`: turns thinking off for some of those that a phase draws. Raises InputError
    for a domain without a problem of a phase's pools."""
    phases = spec.settings.phases
    if phases is None:
        return None
    folders = [at for role, at in context.inputs.items() if admitted_pools(role) is not None]
    if not folders:
        raise InputError("phases: the stage was given no problems that a `screen` found")

    def draw_only(phase: Phase) -> list[LiveDomain]:
        drawn = [replace(d, curriculum=_of_phase(d, folders[0], phase)) for d in domains]
        return modes(drawn)

    made = await asyncio.to_thread(lambda: list(map(draw_only, phases)))
    return PhasedTickets(phases, made, seed=spec.seed, start=spec.start)


def _of_phase(domain: LiveDomain, folder: Path, phase: Phase) -> Curriculum:
    def kept(problems: Sequence[Problem]) -> Sequence[Problem]:
        return longest(problems, phase.longest_prompts)

    return restricted(domain.curriculum, folder, domain.name, phase.pools, kept)


def longest(problems: Sequence[Problem], share: float) -> list[Problem]:
    """Return the problems with the longest prompts, in their order; of two as long the earlier one.

    Example: of 5 problems, a share of 0.5 keeps 3
    """
    sizes = [sum(len(message.content) for message in problem.messages) for problem in problems]
    ranked = sorted(range(len(problems)), key=lambda place: -sizes[place])
    return [problems[place] for place in sorted(ranked[: rounded_up(len(problems), share)])]
