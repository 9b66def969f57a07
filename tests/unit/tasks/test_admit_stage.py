"""The stage `admit`: what it keeps, what it refuses, and that later stages draw nothing else."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from curricula.built_in_curricula import build
from curricula.splits import Admitted
from engines.draws import draw_problems
from engines.rollout.records.dataset import AdmittedProblem, read_admitted, write_admitted
from engines.types import Problem, Split
from infra.code.identity import code_identity
from infra.errors import InputError, TrainingStopped
from tasks.admit.body import run
from tasks.admit.spec import ADMISSION_FILE, REFUSED_FILE, AdmitSpec
from tasks.admitted import only_admitted
from tasks.durable.stage_identity import stage_code
from tasks.resources import STOP_POLL_SECONDS
from tasks.sft.spec import SftSpec
from tasks.stage import ADMITTED, StageContext, Stopped
from tasks.stage_kinds import SPECS, module_of
from tests.parts.rollout_parts import domain
from tests.parts.stage_parts import ListReporter, stage_context

pytestmark = pytest.mark.unit
AGENT = {"name": "agent", "options": {"levels": ["easy"]}}


def spec(problems: Mapping[str, int], **settings: Any) -> AdmitSpec:
    scored = {
        "name": "finder",
        "curriculum": AGENT,
        "outcomes": [{"name": "agent-answer"}],
        "max_new_tokens": 32,
        "max_turns": 4,
        "timeout_s": 60.0,
    }
    written = {"problems": problems, "random_episodes": 2, **settings}
    return AdmitSpec.model_validate({"settings": written, "domains": [scored]})


def problems_of(split: Split, count: int) -> Sequence[Problem]:
    return build("agent", {"levels": ["easy"]}).problems(split, count, 0)


class Watched(ListReporter):
    """Asks for a stop after some problems, and knows how far the stage says that it is."""

    def __init__(self, context: StageContext, stop_after: int = 0) -> None:
        super().__init__()
        self.said: list[tuple[int, int]] = []
        self._context, self._stop_after = context, stop_after

    def progress(self, done: int, total: int, message: str = "") -> None:
        self.said.append((done, total))
        if done == self._stop_after:
            self._context.stop.requested = True
            time.sleep(2 * STOP_POLL_SECONDS)  # problems are tried faster than the stage looks


async def test_a_problem_that_comes_again_is_tried_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = build("agent", {"levels": ["easy"]})

    class Four:
        """Begins again after four problems, with other ids."""

        solution, secrets = own.solution, own.secrets
        environment, demonstrations = own.environment, own.demonstrations

        def problems(self, split: Split, count: int, seed: int, start: int = 0) -> list[Problem]:
            return [
                replace(own.problems(split, 1, seed, n % 4)[0], id=f"finder/{n}")
                for n in range(start, start + count)
            ]

    monkeypatch.setattr("tasks.live_domain.build_curriculum", lambda *_: Four())
    context = stage_context(tmp_path, "admit", {})
    assert (await run(spec({"rl": 12}), context))["tried"] == 4
    assert isinstance(context.reporter, ListReporter)
    said = [warning.what for warning in context.reporter.kept]
    assert said == ["finder, rl: 4 different problems were tried, not 12"]


async def test_each_problem_is_admitted_or_refused_with_its_reason(tmp_path: Path) -> None:
    context = stage_context(tmp_path, "admit", {})
    metrics = await run(spec({"rl": 12, "sft": 6}), context)
    admitted = read_admitted(context.out)
    refused = [json.loads(line) for line in (context.out / REFUSED_FILE).read_text().splitlines()]
    assert admitted
    assert refused
    tried: dict[Split, Sequence[Problem]] = {
        "rl": problems_of("rl", 12),
        "sft": problems_of("sft", 6),
    }
    for split, problems in tried.items():
        kept = [row.problem for row in admitted if row.split == split]
        out = [row["id"] for row in refused if row["split"] == split]
        assert kept == [problem for problem in problems if problem.id not in out]
    # some words that a look-up shows are its answer, so a random walk finds it
    assert {(row["domain"], row["cause"]) for row in refused} == {("finder", "random")}
    assert all(row["reasons"][0].startswith("random actions score") for row in refused)
    counts = json.loads((context.out / ADMISSION_FILE).read_text())
    assert {name: of["tried"] for name, of in counts.items()} == {
        "finder, rl": 12,
        "finder, sft": 6,
    }
    assert metrics["tried"] == 18 == metrics["admitted"] + metrics["refused/random"]
    assert metrics["admitted/finder/rl"] == counts["finder, rl"]["admitted"]
    assert any("problems refused, e.g. agent/" in line for line in warnings_of(context))


def warnings_of(context: StageContext) -> list[str]:
    assert isinstance(context.reporter, ListReporter)
    return context.reporter.warnings


async def test_a_stage_that_was_stopped_tries_no_problem_again(tmp_path: Path) -> None:
    whole = stage_context(tmp_path, "whole", {})
    undisturbed = await run(spec({"rl": 24}), whole)
    first = stage_context(tmp_path, "admit", {})
    first.reporter = Watched(first, stop_after=3)
    with pytest.raises(Stopped):
        await run(spec({"rl": 24}), first)
    second = stage_context(tmp_path, "admit", {})
    watched = second.reporter = Watched(second)
    assert {**await run(spec({"rl": 24}), second), "work_seconds": 0} == {
        **undisturbed,
        "work_seconds": 0,
    }
    assert len(watched.said) <= 24 - 3
    assert watched.said[-1] == (24, 24)
    assert read_admitted(second.out) == read_admitted(whole.out)


async def test_nothing_to_draw_ends_the_run(tmp_path: Path) -> None:
    never = spec({"rl": 2}).model_copy(
        update={"domains": [spec({"rl": 2}).domains[0].model_copy(update={"max_turns": 1})]}
    )
    with pytest.raises(TrainingStopped, match=r"none of 2 problems of finder, rl.*its solution"):
        await run(never, stage_context(tmp_path, "admit", {}))


def _artifact(folder: Path, kept: Mapping[Split, Sequence[Problem]], name: str = "a") -> Path:
    folder.mkdir(exist_ok=True)
    write_admitted(folder, [AdmittedProblem(name, s, p) for s, of in kept.items() for p in of])
    return folder


async def test_stages_draw_admitted_problems_alone_and_again_after_the_last(
    tmp_path: Path,
) -> None:
    problems = list(problems_of("rl", 6))
    kept = [problems[1], problems[4]]
    folder = _artifact(tmp_path / "made", {"rl": kept})
    context = stage_context(tmp_path, "rl", {ADMITTED: folder})
    live = replace(domain("a", lambda _: 1.0), curriculum=build("agent"))
    (restricted,) = await only_admitted(context, [live])
    drawn = draw_problems(restricted.curriculum, "rl", 5, seed=3)
    assert drawn[:2] == kept
    assert [p.id for p in drawn[2:]] == [f"{kept[0].id}@2", f"{kept[1].id}@2", f"{kept[0].id}@3"]
    assert draw_problems(restricted.curriculum, "rl", 2, seed=3, start=3) == drawn[3:]
    held_out = draw_problems(restricted.curriculum, "heldout", 3, seed=3)
    assert held_out == draw_problems(live.curriculum, "heldout", 3, seed=3)
    with pytest.raises(InputError, match="no problem of the split 'distill' was admitted"):
        draw_problems(restricted.curriculum, "distill", 1, seed=3)
    assert await only_admitted(stage_context(tmp_path, "free", {}), [live]) == [live]


def test_demonstrations_of_refused_problems_are_left_out() -> None:
    agent = build("agent")
    shown = agent.demonstrations(5, 0)
    admitted = Admitted(agent, {"sft": [shown[0].problem, shown[3].problem]})
    assert admitted.demonstrations(5, 0) == [shown[0], shown[3]]


def test_the_kinds_that_draw_problems_to_learn_from_read_what_was_admitted() -> None:
    """They run `tasks/admitted.py`, so an edit of it changes their digests and no other; that of an
    `sft` only if it stands after an `admit`."""
    reading = {
        kind for kind in SPECS if "tasks/admitted.py" in code_identity([module_of(kind)]).files
    }
    assert reading == {"rl", "opd", "distill", "rollout", "screen"}
    settings: Any = {"steps": 1, "optimizer": {"lr": 1e-3}}
    for only in (True, False):
        sft = SftSpec.model_validate(
            {"settings": settings, "curriculum": AGENT, "only_admitted": only}
        )
        assert ("tasks/admitted.py" in stage_code(sft).files) == only
