"""Checkpoints beside the loop: what goes on, what waits, and how their errors reach the stage."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from infra.errors import FencedOut, StorageError
from infra.store.artifacts import StageCheckpoints
from infra.store.store import FileRecord, Store
from tasks.durable.claims import Claims, Owner
from tasks.saving import Saving, Written
from tasks.stage import StageContext, Stopped
from tests.parts.stage_parts import stage_context

pytestmark = [pytest.mark.unit, pytest.mark.timeout(60)]


class SlowStore(Store):
    """Writes no checkpoint's manifest before it is let go, and then fails if it is told to."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.reached, self.let_go = threading.Event(), threading.Event()
        self.error: StorageError | None = None

    def write(self, path: str, data: bytes, *, sync: bool = False) -> None:
        if path.endswith("manifest.json"):
            self.reached.set()
            self.let_go.wait()
            if self.error is not None:
                raise self.error
        super().write(path, data, sync=sync)


class Ranks:
    """A weight that each step changes, that a save copies only when it is let go, and writes only
    when it is let go on."""

    def __init__(self) -> None:
        self.weight = 0
        self.let_go = asyncio.Event()
        self.let_go.set()
        self.let_go_on = asyncio.Event()
        self.let_go_on.set()
        self.error: Exception | None = None

    def snapshot(self, folder: Path) -> Coroutine[Any, Any, Written]:
        (folder / "state.json").write_text(str(self.weight))
        return self._copy(folder)

    async def _copy(self, folder: Path) -> Written:
        await self.let_go.wait()
        if self.error is not None:
            raise self.error
        return partial(self._write, folder, self.weight)

    async def _write(self, folder: Path, weight: int) -> None:
        await self.let_go_on.wait()
        (folder / "weight").write_text(str(weight))


@pytest.fixture
def around(tmp_path: Path) -> StageContext:
    return stage_context(tmp_path, "rl", {})


@pytest.fixture
def store(around: StageContext, tmp_path: Path) -> SlowStore:
    store = SlowStore(f"file://{tmp_path / 'rl' / 'store'}")
    around.checkpoints = StageCheckpoints(store, "test", "0" * 64, 1, around.scratch)
    return store


def latest(context: StageContext) -> tuple[int, str, str] | None:
    """Step, record and weight of the newest checkpoint."""
    found = context.checkpoints.latest()
    if found is None:
        return None
    step, folder = found
    return step, (folder / "state.json").read_text(), (folder / "weight").read_text()


async def reached(store: SlowStore) -> None:
    assert await asyncio.to_thread(store.reached.wait, 30)


async def test_what_a_killed_attempt_left_in_the_folder_is_replaced(
    around: StageContext, store: SlowStore
) -> None:
    ranks = Ranks()
    left = around.scratch / "checkpoint-5" / "weight-9"
    left.parent.mkdir(parents=True)
    left.write_text("half a che")
    store.let_go.set()
    async with Saving(around, lambda seconds: None) as saving:
        ranks.weight = 5
        await saving.begin(5, 0.0, ranks.snapshot)
    found = around.checkpoints.latest()
    assert found is not None
    assert not (found[1] / left.name).exists()


async def test_steps_go_on_while_a_slow_store_writes_and_the_next_checkpoint_waits(
    around: StageContext, store: SlowStore
) -> None:
    ranks, blocked = Ranks(), list[float]()
    async with Saving(around, blocked.append) as saving:
        ranks.weight = 5
        await saving.begin(5, 0.0, ranks.snapshot)
        await saving.wait_for_snapshot()
        await reached(store)
        for ranks.weight in (6, 7, 8):
            await saving.wait_for_snapshot()
        assert latest(around) is None
        seen: list[Any] = []

        def second(folder: Path) -> Coroutine[Any, Any, Written]:
            seen.append(latest(around))
            return ranks.snapshot(folder)

        beginning = asyncio.create_task(saving.begin(8, 0.0, second))
        await asyncio.sleep(0)
        store.let_go.set()
        await beginning
        assert seen == [(5, "5", "5")], "at most one is on its way"
    assert latest(around) == (8, "8", "8"), "the end waits"
    assert len(blocked) == 6


async def test_updates_go_on_while_the_ranks_write_what_they_copied(around: StageContext) -> None:
    ranks = Ranks()
    ranks.let_go_on.clear()
    async with Saving(around, lambda _: None) as saving:
        ranks.weight = 5
        await saving.begin(5, 0.0, ranks.snapshot)
        for weight in (6, 7):
            await saving.wait_for_snapshot()
            ranks.weight = weight
        assert latest(around) is None
        ranks.let_go_on.set()
    assert latest(around) == (5, "5", "5")


async def test_an_update_waits_until_the_ranks_have_copied(around: StageContext) -> None:
    ranks = Ranks()
    ranks.let_go.clear()
    async with Saving(around, lambda _: None) as saving:
        ranks.weight = 5
        await saving.begin(5, 0.0, ranks.snapshot)
        updating = asyncio.create_task(saving.wait_for_snapshot())
        await asyncio.wait({updating}, timeout=0)
        assert not updating.done()
        ranks.let_go.set()
        await updating
        ranks.weight = 6
    assert latest(around) == (5, "5", "5")


@pytest.mark.parametrize("at", ["the next update", "the next checkpoint", "the end"])
async def test_a_refusing_store_ends_the_stage_with_its_own_error(
    at: str, around: StageContext, store: SlowStore
) -> None:
    store.error = StorageError("file:///store: no space left on device")
    store.let_go.set()

    async def stage() -> None:
        async with Saving(around, lambda _: None) as saving:
            await saving.begin(5, 0.0, Ranks().snapshot)
            while at == "the next update":
                await saving.wait_for_snapshot()
                await asyncio.sleep(0)
            if at == "the next checkpoint":
                await saving.begin(10, 0.0, Ranks().snapshot)

    with pytest.raises(StorageError) as told:
        await asyncio.wait_for(stage(), 30)
    assert told.value is store.error
    assert latest(around) is None


async def test_what_the_loop_met_after_a_failed_checkpoint_does_not_hide_it(
    around: StageContext,
) -> None:
    ranks = Ranks()
    ranks.error = StorageError("rank 0: no space left on device")

    async def stage() -> None:
        async with Saving(around, lambda _: None) as saving:
            await saving.begin(5, 0.0, ranks.snapshot)
            raise ConnectionError("the trainer group broke before")

    with pytest.raises(StorageError) as told:
        await stage()
    assert told.value is ranks.error
    assert isinstance(told.value.__context__, ConnectionError)


@pytest.mark.parametrize("by_cancel", [False, True], ids=["at a step", "between steps"])
async def test_a_stop_waits_for_the_checkpoint_on_its_way(
    by_cancel: bool, around: StageContext, store: SlowStore
) -> None:
    async def stage() -> None:
        async with Saving(around, lambda _: None) as saving:
            await saving.begin(5, 0.0, Ranks().snapshot)
            await reached(store)
            if not by_cancel:
                raise Stopped
            asyncio.get_running_loop().call_soon(running.cancel)
            await asyncio.Event().wait()

    running = asyncio.create_task(stage())
    await reached(store)
    await asyncio.wait({running}, timeout=0)
    assert not running.done()
    assert latest(around) is None
    store.let_go.set()
    with pytest.raises(asyncio.CancelledError if by_cancel else Stopped):
        await running
    assert latest(around) == (5, "0", "0")


class SlowUploads(Store):
    """Takes a checkpoint's files when it is let go."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.reached, self.let_go = threading.Event(), threading.Event()

    def upload_folder(self, local: Path, path: str) -> list[FileRecord]:
        self.reached.set()
        self.let_go.wait()
        return super().upload_folder(local, path)


async def test_an_attempt_whose_place_was_taken_while_it_wrote_leaves_no_checkpoint(
    around: StageContext, tmp_path: Path
) -> None:
    store = SlowUploads(f"file://{tmp_path / 'rl' / 'store'}")
    claims = Claims(store, "test", "0" * 64)
    owner = Owner(home="h", launcher="ray", job="j", run="r")
    claims.take(1, owner)
    around.checkpoints = StageCheckpoints(
        store, "test", "0" * 64, 1, around.scratch, fence=lambda: claims.check_newest(1)
    )

    async def stage() -> None:
        async with Saving(around, lambda _: None) as saving:
            await saving.begin(5, 0.0, Ranks().snapshot)

    running = asyncio.create_task(stage())
    assert await asyncio.to_thread(store.reached.wait, 30)
    claims.take(2, owner)
    store.let_go.set()
    with pytest.raises(FencedOut, match="attempt 2 has replaced it"):
        await running
    assert store.listdir("checkpoints/test/" + "0" * 12) == []
