"""What ranks on another host write: a second Ray node, with a home of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from engines.devices.folder_transfer import RankFolders, other_nodes, upload_stand_in
from engines.devices.ray_cluster import on_node
from infra.errors import EngineError, StorageError
from infra.store.artifacts import StageCheckpoints
from infra.store.store import Store
from infra.store.uploads import Destination, destination_of, forget_notes, note_destination
from tests.parts.machine import until
from tests.parts.ray_parts import own_ray
from tests.parts.s3_services import moto

pytestmark = [pytest.mark.integration, pytest.mark.long]
DIGEST = "7" * 64
ADDRESS = "127.0.0.2"
WAIT_S = 120.0
SHARD = "__1_0.distcp"


@contextmanager
def second_node(head: str, home: Path) -> Generator[None]:
    """Of the cluster, at another address; ends with the block."""
    ray = [sys.executable, "-c", "from ray.scripts.scripts import main; main()"]
    start = ["start", f"--address={head}", f"--node-ip-address={ADDRESS}", "--num-cpus=2"]
    env = os.environ | {"TRIBUTARY_HOME": str(home), "PYTHONPATH": str(Path.cwd())}
    node = subprocess.Popen([*ray, *start, "--block", "--disable-usage-stats"], env=env)
    try:
        until(lambda: has_joined(ADDRESS), seconds=WAIT_S)
        yield
    finally:
        node.terminate()
        node.wait(WAIT_S)


def has_joined(address: str) -> bool:
    try:
        return bool(other_nodes([address]))
    except EngineError:
        return False


def written_there(folder: Any, content: bytes) -> None:
    """A rank on the other host writes its part of a checkpoint."""

    def write(folder: Any, name: str, content: bytes) -> None:
        (folder.here() / name).write_bytes(content)

    there(write, folder, SHARD, content)


def there(function: Any, *arguments: Any) -> Any:
    """Its result on the other host."""
    import ray

    (node,) = other_nodes([ADDRESS])
    task: Any = ray.remote(function).options(num_cpus=0, scheduling_strategy=on_node(node))
    return ray.get(task.remote(*arguments), timeout=WAIT_S)


async def test_a_host_puts_its_part_of_a_checkpoint_into_the_store_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))
    with moto() as service:
        service.enter(monkeypatch)
        service.client.create_bucket(Bucket="hosts")
        store, other_home = Store("s3://hosts/store"), tmp_path / "other-home"
        with own_ray() as head, second_node(head, other_home):
            folders = RankFolders([ADDRESS])
            checkpoints = StageCheckpoints(store, "rl", DIGEST, 1, tmp_path / "scratch")
            folder = tmp_path / "scratch" / "checkpoint-1"
            folder.mkdir(parents=True)
            (folder / "state.json").write_text("{}")

            sent = await folders.to_write(folder / "trainer", WAIT_S)
            written_there(sent, b"first")
            await folders.collect(folder / "trainer", WAIT_S)
            assert (folder / "trainer" / SHARD).read_bytes() == b"first", "nobody said where to"

            sent = await folders.to_write(folder / "critic", WAIT_S)
            written_there(sent, b"second")
            checkpoints.begin(1, folder)
            place = destination_of(folder / "critic")
            (lost,) = there(upload_stand_in, folder / "critic", place)
            assert lost.path == f"critic/{SHARD}", "an answer that a broken connection swallowed"
            await folders.collect(folder / "critic", WAIT_S)
            assert not (folder / "critic").exists(), "it does not travel through the job"
            assert not list(other_home.rglob(SHARD)), "nor does it stay there"
            checkpoints.save(1, folder)
            _, copy = checkpoints.latest() or (0, tmp_path)
            assert (copy / "trainer" / SHARD).read_bytes() == b"first"
            assert (copy / "critic" / SHARD).read_bytes() == b"second"

            sent = await folders.to_write(folder / "trainer", WAIT_S)
            written_there(sent, b"third")
            folder.mkdir()
            note_destination(folder, Destination(root="s3://no-such-bucket/store", path="x"))
            with pytest.raises(StorageError, match="no-such-bucket"):
                await folders.collect(folder / "trainer", WAIT_S)
            assert list(other_home.rglob(SHARD)), "it is not lost"

            shutil.rmtree(other_home / "cache" / "work")
            for is_stored in (True, False):
                if not is_stored:
                    forget_notes(folder)
                with pytest.raises(EngineError, match=r"stands in for .* is gone"):
                    await folders.collect(folder / "trainer", WAIT_S)
