"""The pools that a stage moves through: when it moves, what it draws then, and after a kill."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engines.rollout.records.dataset import AdmittedProblem, write_admitted
from engines.rollout.records.journals import RolloutJournal
from engines.types import Message, Problem
from infra.errors import InputError
from tasks.rl.phase_rules import Phase, Plateau
from tasks.rl.phases import PHASES_FILE, PhasedTickets, Rise, longest, open_phases
from tasks.rl.spec import RlSettings, RlSpec
from tests.parts.loop_parts import Notes, Parts
from tests.parts.rollout_parts import domain
from tests.parts.stage_parts import stage_context

pytestmark = pytest.mark.unit

SETTINGS = {"steps": 9, "optimizer": {"lr": 1e-4}}
PHASES = [
    Phase(pools=["moderate"], plateau=Plateau(evaluations=2, gain=0.05)),
    Phase(pools=["hard"], group_size=3, until_step=7),
    Phase(pools=["hard", "moderate"]),
]
SCORES = {0: 0.2, 1: 0.4, 2: 0.42, 3: 0.44, 5: 0.1}
"""by step: 0.4 is the last rise, so the score of step 3 is the second one without"""


def test_a_plateau_by_hand() -> None:
    """With a gain of 0.05: 0.4 rises from 0.3; 0.44 and 0.41 do not, 0.46 does, and then 0.5, 0.47
    and 0.2 do not, which are three."""
    rise, plateau = Rise(), Plateau(evaluations=3, gain=0.05)
    said = [rise.observe(s, plateau) for s in (0.3, 0.4, 0.44, 0.41, 0.46, 0.5, 0.47, 0.2)]
    assert said[:-1] == [""] * 7
    assert said[-1] == (
        "3 held-out scores in a row, the last 0.2000, were not above 0.4600 by more than 0.05"
    )


def test_the_shorter_half_of_the_prompts_is_dropped() -> None:
    lengths = [3, 9, 4, 9, 1]
    problems = [
        Problem(str(place), "a", (Message("user", "x" * length),))
        for place, length in enumerate(lengths)
    ]
    assert [problem.id for problem in longest(problems, 0.5)] == ["1", "2", "3"]
    assert [problem.id for problem in longest(problems, 0.3)] == ["1", "3"]
    assert longest(problems, 1.0) == problems
    assert len(longest(problems * 20, 0.55)) == 55, "0.55 x 100 is 55.00000000000001 to floats"


def screened(folder: Path) -> Path:
    """Of each of two domains: four moderate problems, then three hard ones."""
    rows = [
        AdmittedProblem(name, "rl", problem, "moderate" if place < 4 else "hard")
        for name in ("a", "b")
        for place, problem in enumerate(domain(name, float).curriculum.problems("rl", 7, 0))
    ]
    write_admitted(folder, rows)
    return folder


def spec(*phases: Phase) -> RlSpec:
    named = {"curriculum": {"name": "reasoning"}, "rewards": [{"name": "math", "outcome": True}]}
    return RlSpec.model_validate(
        {
            "settings": {**SETTINGS, "phases": list(phases) or None},
            "domains": [{"name": name, **named} for name in ("a", "b")],
        }
    )


async def tickets(root: Path, *phases: Phase) -> PhasedTickets:
    context = stage_context(root, "rl", {"admitted_problems": screened(root)})
    domains = [domain("a", judged), domain("b", judged)]
    made = await open_phases(spec(*phases), context, domains, list)
    assert made is not None
    return made


def judged(said: str) -> float:
    return float(int(said) % 2)


async def test_each_phase_draws_its_pools_from_the_first_problem_on(tmp_path: Path) -> None:
    source = await tickets(tmp_path, *PHASES)
    drawn = [[t.group_id for t in source.draw(3)]]
    assert source.after_step(6, None) == "", "not before its plateau"
    for step, score in SCORES.items():
        source.after_step(step + 1, (step, score))
    drawn += [[t.group_id for t in source.draw(4)]]
    assert drawn == [
        ["0/a/rl/0", "1/b/rl/0", "2/a/rl/1"],
        ["3/b/rl/4", "4/a/rl/4", "5/b/rl/5", "6/a/rl/5"],
    ]
    assert source.after_step(7, None) == (
        "phase 3 begins, with hard and moderate problems: the phase lasts until step 7"
    )
    assert [t.problem.id for t in source.draw(1)] == ["b/rl/0"]
    again = [source.again(number) for number in (2, 5, 7)]
    assert [(t.problem.id, t.group_size) for t in again] == [
        ("a/rl/1", None),
        ("b/rl/5", 3),
        ("b/rl/0", None),
    ]
    assert spec(*PHASES).settings.group_sizes == [8, 3, 8], "the stage's, where a phase says none"
    assert spec().settings.group_sizes == [8]
    source.write(tmp_path)
    moves = json.loads((tmp_path / PHASES_FILE).read_text())
    assert [(m["phase"], m["after_step"], m["ticket"]) for m in moves] == [(2, 4, 3), (3, 7, 7)]
    assert moves[0]["why"].startswith("2 held-out scores in a row, the last 0.4400")


async def test_a_phase_whose_problems_are_solved_ends_and_the_stage_with_the_last(
    tmp_path: Path,
) -> None:
    source = await tickets(tmp_path, *PHASES)
    said = [source.after_step(step, None, is_solved=step > 1) for step in (1, 2, 3, 4)]
    assert said == [
        "",
        "phase 2 begins, with hard problems: its problems are solved",
        "phase 3 begins, with hard and moderate problems: its problems are solved",
        "",
    ]


async def test_a_phase_without_a_problem_ends_the_stage_before_it_begins(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no problem of a is never \(4 moderate, 3 hard\)"):
        await tickets(tmp_path, PHASES[0], Phase(pools=["never"]))


class Attempt:
    """A loop over the phases; the scores of a step are known after the next one."""

    def __init__(self, source: PhasedTickets, notes: Notes, version: int = 0) -> None:
        self.parts = Parts(
            lambda _, sampling: str(sampling.seed % 10), domains=[domain("a", judged)],
            oversample=1.5, waves=2, journal=RolloutJournal(notes), notes=notes, version=version,
        )  # fmt: skip
        self.parts.producer.source = self.source = source
        self.sizes: list[list[int]] = []

    async def run(self, first: int, last: int, save_at: int = 0, folder: Path = Path()) -> None:
        async def after_step(result: Any) -> bool:
            step = result.step
            known = max((s for s in SCORES if s < step), default=0)
            self.source.after_step(step, (known, SCORES[known]))
            self.sizes.append([len(group.samples) for group in result.groups])
            if step == save_at:
                self.parts.buffer.save(folder)
                self.parts.sampler.save(folder)()
            return step == last

        await self.parts.loop.run(first=first, last=9, after_step=after_step)


async def test_a_killed_stage_moves_on_at_the_same_step_with_the_same_tickets(
    tmp_path: Path,
) -> None:
    """Killed in step 6, after the move at step 4, with a checkpoint of step 3."""
    notes = Notes()
    first = Attempt(await tickets(tmp_path, *PHASES), notes)
    await first.run(1, 6, save_at=3, folder=tmp_path)
    second = Attempt(await tickets(tmp_path, *PHASES), notes, version=3)
    parts = second.parts
    parts.buffer.restore(tmp_path)
    parts.sampler.restore(tmp_path)
    await parts.takes.recover(4)
    await parts.producer.recover(parts.sampler.first_open, parts.takes.from_step(4))
    await second.run(4, 9)
    whole = Attempt(await tickets(tmp_path, *PHASES), Notes())
    await whole.run(1, 9)
    tokens = first.parts.trainer.tokens[:3] + parts.trainer.tokens
    assert tokens == whole.parts.trainer.tokens
    assert second.source.moves == whole.source.moves
    assert [move.after_step for move in whole.source.moves] == [4, 7]
    assert parts.producer.recovered > 0
    assert {size for step in whole.sizes for size in step} == {2, 3}
    assert whole.sizes[3] == [2] * 4
    assert set(whole.sizes[5]) == {3}


@pytest.mark.parametrize(
    ("phases", "more", "said"),
    [
        ([{"until_step": 4}, {}], {"max_staleness": 1}, "phases: above max_staleness 0 the clock"),
        (
            [{"until_step": 4}, {}],
            {"data_source": {"name": "by-difficulty"}},
            "leave `data_source`",
        ),
        ([{}, {}], {}, "phases.0: nothing ends it"),
        ([{"until_step": 4}, {"until_step": 5}], {}, "phases.1: the last phase has no end"),
        ([{"until_step": 9}, {}], {}, "phases.0.until_step: 9 is not above 0"),
        ([{"until_step": 4}, {"until_step": 4}, {}], {}, "phases.1.until_step: 4 is not above 4"),
        ([{"plateau": {}}, {}], {}, "phases.0.plateau: there are no scores"),
        (
            [{"plateau": {}}, {}],
            {"evaluate": {"every": 3}},
            "phases.0.plateau: takes 4 scores, and the stage has 3 in time",
        ),
        (
            [{"plateau": {}, "until_step": 8}, {"plateau": {"evaluations": 2}}, {}],
            {"evaluate": {"every": 9}},
            "phases.1.plateau: takes 3 scores, and the stage has 1 in time",
        ),
        (
            [{"plateau": {}}, {}],
            {
                "steps": 20,
                "evaluate": {"every": 4},
                "algorithm": {"preset": "ppo"},
                "critic": {"warmup_steps": 8},
            },
            "phases.0.plateau: takes 4 scores, and the stage has 3 in time",
        ),
        ([{"until_step": 4}, {"group_size": 1}], {}, "phases.1.group_size: advantage group"),
    ],
)
def test_phases_that_cannot_run_are_refused_by_name(
    phases: Sequence[dict[str, Any]], more: dict[str, Any], said: str
) -> None:
    written = [{"pools": ["hard"], **phase} for phase in phases]
    made = spec()
    settings = RlSettings.model_validate({**SETTINGS, **more, "phases": written})
    (problem,) = made.model_copy(update={"settings": settings}).problems()
    assert said in problem


def test_a_plateau_is_possible_where_its_last_score_leaves_a_step() -> None:
    """Scores of steps 0, 2, 4 and 6 are four, and the last one moves after step 7 at the latest."""
    phases = [{"pools": ["moderate"], "plateau": {}}, {"pools": ["hard"]}]
    for steps, is_refused in ((7, True), (8, False), (9, False)):
        written = {**SETTINGS, "steps": steps, "evaluate": {"every": 2}, "phases": phases}
        settings = RlSettings.model_validate(written)
        made = spec().model_copy(update={"settings": settings})
        assert bool(list(made.problems())) == is_refused, steps


def test_a_filter_that_drops_every_group_of_one_is_refused() -> None:
    between = {"group_filter": {"name": "outcome-between"}}
    algorithm = {"preset": "reinforce++"}
    phases = [{"pools": ["moderate"], "until_step": 4}, {"pools": ["hard"], "group_size": 1}]
    for more, field in (
        ({"group_size": 1}, "group_size"),
        ({"phases": phases}, "phases.1.group_size"),
    ):
        written = {**SETTINGS, **between, "algorithm": algorithm, **more}
        made = spec().model_copy(update={"settings": RlSettings.model_validate(written)})
        (problem,) = made.problems()
        assert problem.startswith(f"{field}: the filter outcome-between drops groups")


def test_a_stage_without_phases_is_what_it_was() -> None:
    assert "phases" not in RlSettings.model_validate(SETTINGS).model_dump()
