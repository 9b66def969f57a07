"""RL on saved rollouts: which groups a step takes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from engines.rollout.records.packing import save_groups
from engines.types import Group, Message, Problem, Sample, Status
from tasks.offline.body import run
from tasks.offline.spec import OfflineSpec
from tasks.rl.saved_rollouts import TrainingOnSaved
from tasks.rl.spec import RlSettings
from tasks.training_record import Updates
from tests.parts.sample_parts import sample_of
from tests.parts.stage_parts import ListReporter, stage_context

pytestmark = pytest.mark.unit


def sample(name: str, index: int) -> Sample:
    return sample_of(
        name, "d", name, f"{name}#{index}", index, [1, 2], [0, 1], [0.0, -1.0], [-1, 0],
        Status.COMPLETED, float(index),
    )  # fmt: skip


def group(ticket: int) -> Group:
    name = f"d/rl/{ticket}"
    problem = Problem(name, "d", (Message("user", "?"),))
    return Group(problem, [sample(name, 0), sample(name, 1)], ticket)


class TakenSteps:
    """Remembers what it should train on."""

    done = 0

    def __init__(self, settings: RlSettings) -> None:
        self.groups_per_step = settings.problems_per_step
        self.steps: list[list[int]] = []
        self.updates = Updates()
        self.trained = {"grad_norm": 0.5}

    async def step(self, step: int, groups: Sequence[Group], last: int) -> None:
        self.updates.observe(self.trained)
        self.steps.append([g.ticket for g in groups])

    async def export(self) -> None:
        return None


@pytest.mark.parametrize(
    ("wanted", "taken", "passes"),
    [(32, [[0, 1, 2]] * 3, 3.0), (3, [[0, 1, 2]] * 3, 3.0), (2, [[0, 1], [2, 0], [1, 2]], 2.0)],
)
async def test_no_group_is_in_a_step_twice(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wanted: int,
    taken: list[list[int]],
    passes: float,
) -> None:
    begun: list[TakenSteps] = []

    async def begin(_: AsyncExitStack, settings: RlSettings, *__: Any, **___: Any) -> TakenSteps:
        begun.append(TakenSteps(settings))
        return begun[0]

    monkeypatch.setattr(TrainingOnSaved, "begin", begin)
    save_groups(tmp_path, [group(ticket) for ticket in range(3)])
    context = stage_context(tmp_path, "offline", {"model": tmp_path, "rollouts": tmp_path})
    learning = {"steps": 3, "problems_per_step": wanted, "optimizer": {"lr": 1e-2}}
    metrics = await run(OfflineSpec.model_validate({"settings": learning}), context)
    assert begun[0].steps == taken
    assert begun[0].groups_per_step == min(wanted, 3), "what a step is compared with"
    assert metrics["passes"] == passes
    assert isinstance(context.reporter, ListReporter)
    assert len(context.reporter.warnings) == (wanted > 3)
