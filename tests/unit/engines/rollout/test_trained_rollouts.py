"""What each step was trained on, kept in the artifact."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.rollout.records.take_log import (
    Take,
    TrainedRollouts,
    groups_of,
    kept_takes,
    read_takes,
)
from infra.errors import InputError
from tests.parts.loop_parts import Notes, Parts, informative


async def test_a_loop_keeps_what_it_trains_on_and_the_artifact_gives_it_back(
    tmp_path: Path,
) -> None:
    parts = Parts(informative(), keeps=True)
    await parts.run(2)
    takes = await parts.takes.export(tmp_path)
    assert await parts.loop.trained.export(tmp_path, takes) == []

    assert kept_takes(tmp_path) == takes == read_takes(tmp_path / "takes.jsonl")
    trained = [groups_of(tmp_path, take) for take in takes]
    assert [[g.ticket for g in groups] for groups in trained] == [list(t.tickets) for t in takes]
    tokens = [[s.tokens.tolist() for g in groups for s in g.samples] for groups in trained]
    assert tokens == parts.trainer.tokens


async def test_rollouts_that_an_earlier_attempt_did_not_keep_leave_no_folder(
    tmp_path: Path,
) -> None:
    trained = TrainedRollouts(Notes())
    await trained.keep(2, [])
    assert await trained.export(tmp_path, [Take(1, 0, (0,)), Take(2, 1, ())]) == [1]
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InputError, match="keep_rollouts: true"):
        kept_takes(tmp_path)


async def test_lost_damaged_and_foreign_rollouts_are_named(tmp_path: Path) -> None:
    parts = Parts(informative(), keeps=True)
    await parts.run(2)
    takes = await parts.takes.export(tmp_path)
    await parts.loop.trained.export(tmp_path, takes)
    first, second = sorted((tmp_path / "trained").iterdir())

    with pytest.raises(InputError, match=r"step 1 took tickets \[7\], but"):
        groups_of(tmp_path, Take(1, 0, (7,)))
    first.write_bytes(first.read_bytes()[:-3])
    with pytest.raises(InputError, match="the rollouts of step 1"):
        groups_of(tmp_path, takes[0])
    second.unlink()
    with pytest.raises(InputError, match="the rollouts of step 2"):
        groups_of(tmp_path, takes[1])
