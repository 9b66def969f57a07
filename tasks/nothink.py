"""Thinking on and off in one stage: which of a domain's problems are asked with thinking off.

    problems that ask for a thought ──▶ of every few in a row, a share ──▶ thinking off

The draw depends on the stage's seed and a problem's position alone. A resumed stage finds the same,
and so does a data source that picks a problem twice. All rollouts of a problem are of one mode, so
each mode has the baselines of its own groups.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from pydantic import BeforeValidator

from engines.draws import draw_problems
from engines.rollout.metrics import NOTHINK, THINKING
from infra.errors import InputError

if TYPE_CHECKING:
    from engines.algorithms.advantages import Advantage
    from engines.chat import Chat
    from engines.rollout.drivers.driver import LiveDomain
    from engines.rollout.evaluator import HeldOut
    from engines.types import Curriculum, Demonstration, Environment, Problem, Split

_RAREST = 0.001
"""share of problems in the rarer mode: one of so many in a row is drawn"""
_TRIED = 16
"""problems of a domain, of which one at least must ask for a thought"""


def _is_a_share(written: Any, *, is_below_one: bool) -> Any:
    shares = list(written.values()) if isinstance(written, dict) else [written]
    least, most = (_RAREST, 1 - _RAREST) if is_below_one else (0.0, 1.0)
    if not shares or not all(
        type(s) in (int, float) and (s == 0 or least <= s <= most) for s in shares
    ):
        allowed = f"0, or from {least} to {most}" if is_below_one else "from 0 to 1"
        raise ValueError(
            f"write one share ({allowed}), or one by domain, e.g. `{{reasoning: 0.5}}`;"
            f" got {written!r:.80}"
        )
    return written


NothinkShare: TypeAlias = Annotated[
    float | dict[str, float], BeforeValidator(partial(_is_a_share, is_below_one=True))
]
"""of problems that are asked with thinking off; of all domains, or by the domain's name"""
RepeatedShare: TypeAlias = Annotated[
    float | dict[str, float], BeforeValidator(partial(_is_a_share, is_below_one=False))
]
"""of rows with thoughts that come once more without; likewise"""


def share_of(share: NothinkShare, domain: str) -> float:
    """That of one domain; 0 where it is not named."""
    return share.get(domain, 0.0) if isinstance(share, dict) else share


def is_asked_of(share: NothinkShare, domain: str, domains: int) -> bool:
    """Return whether a stage with so many domains says of this very one that it thinks."""
    return share_of(share, domain) > 0 and (isinstance(share, dict) or domains == 1)


class BothModes:
    """A curriculum that asks a share of one split's problems with thinking off.

    Example: with a share of 0.25, one of the positions 0 to 3, one of 4 to 7, and so on
    """

    def __init__(self, curriculum: Curriculum, split: Split, share: float, domain: str) -> None:
        self._curriculum, self._split, self._domain = curriculum, split, domain
        self._share = Fraction(share).limit_denominator(10**6)
        self._block = max(2, round(1 / min(share, 1 - share)))
        """positions, of which one is in the rarer mode"""

    def problems(self, split: Split, count: int, seed: int, start: int = 0) -> Sequence[Problem]:
        given = self._curriculum.problems(split, count, seed, start)
        if split != self._split:
            return given
        return [
            replace(problem, thinking=False)
            if problem.thinking and self._is_off(position, seed)
            else problem
            for position, problem in enumerate(given, start)
        ]

    def demonstrations(self, count: int, seed: int) -> Sequence[Demonstration]:
        return self._curriculum.demonstrations(count, seed)

    def environment(self) -> Environment | None:
        return self._curriculum.environment()

    def _is_off(self, position: int, seed: int) -> bool:
        block, place = divmod(position, self._block)
        before, after = (math.floor(self._share * n * self._block) for n in (block, block + 1))
        rng = random.Random(f"{seed}/nothink/{self._domain}/{block}")
        return place in rng.sample(range(self._block), after - before)


def in_both_modes(
    share: NothinkShare,
    split: Split,
    seed: int,
    chat: Chat,
    domains: Sequence[LiveDomain],
) -> list[LiveDomain]:
    """The domains of a stage, with thinking off for a share of a split's problems. Raises
    InputError for a template without a switch, and where there is no thinking to turn off."""
    if not any(share_of(share, domain.name) for domain in domains):
        return list(domains)
    chat.require_thinking_switch()
    made = [_in_both_modes(domain, share, split, seed) for domain in domains]
    if not any(isinstance(domain.curriculum, BothModes) for domain in made):
        raise InputError(asks_no_thought("nothink_share", "the domains"))
    return made


def asks_no_thought(where: str, domain: str) -> str:
    """Why thinking cannot be turned off."""
    return (
        f"{where}: no problem of {domain} asks for a thought that could be left out; write"
        " `thinking: true` into the curriculum's `options`, or leave `nothink_share` out"
    )


def _in_both_modes(domain: LiveDomain, share: NothinkShare, split: Split, seed: int) -> LiveDomain:
    own = share_of(share, domain.name)
    if not own:
        return domain
    first = draw_problems(domain.curriculum, split, _TRIED, seed)
    if not any(problem.thinking for problem in first):
        if isinstance(share, dict):
            raise InputError(asks_no_thought(f"nothink_share.{domain.name}", domain.name))
        return domain
    return replace(domain, curriculum=BothModes(domain.curriculum, split, own, domain.name))


def held_out_of(domains: Sequence[LiveDomain], count: int, seed: int) -> list[HeldOut]:
    """Draw so many held-out problems of each domain; of one in both modes, with thinking off as
    well. Their scores are outcomes; beside these, reward models alone are asked."""
    from engines.rollout.evaluator import HeldOut

    held_out: list[HeldOut] = []
    for domain in domains:
        problems = draw_problems(domain.curriculum, "heldout", count, seed)
        scored = domain.of_outcome()
        held_out.append(HeldOut(scored, problems))
        if isinstance(domain.curriculum, BothModes):
            bare = [replace(problem, thinking=False) for problem in problems]
            held_out.append(HeldOut(scored, bare, NOTHINK))
    return held_out


def curves_by_mode(domains: Sequence[LiveDomain]) -> list[str]:
    """Metrics of an RL step that the report draws beside the mean outcome."""
    both = [domain.name for domain in domains if isinstance(domain.curriculum, BothModes)]
    return [f"outcome_mean_{name}{mode}" for name in both for mode in (THINKING, NOTHINK)]


def unknown_domains(share: NothinkShare, names: Sequence[str]) -> Iterator[str]:
    """Domains that a stage has no part of."""
    for name in share if isinstance(share, dict) else ():
        if name not in names:
            yield f"nothink_share.{name}: the stage has no such domain; name {' or '.join(names)}"


def mode_problems(share: NothinkShare, names: Sequence[str], advantage: Advantage) -> Iterator[str]:
    """What cannot be, of an `rl` stage with domains of these names in both modes."""
    if not share:
        return
    yield from unknown_domains(share, names)
    for name in names:
        if share_of(share, name) and name + NOTHINK in names:
            yield (
                f"nothink_share: scores of {name} with thinking off are called {name}{NOTHINK}, as"
                " another domain is; rename that one"
            )
    if advantage.whiten:
        yield (
            f"nothink_share: advantage {advantage.kind} takes the mean of the whole step away"
            " (`whiten`), so that the modes would share a baseline; choose one that compares within"
            " a group, e.g. `group` or `rloo`, or set `whiten: false` if it has a critic"
        )
