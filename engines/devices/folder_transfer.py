"""Folders that a stage's job and ranks on several hosts work with: a path means nothing elsewhere.

A `FolderCopy` is what ranks read, fetched by each host from the store. A `WorkFolder` is what they
write, or read once: on another host than the job's a folder stands in for it. Its files travel
through Ray, but what is to be in the store that host puts there itself.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import socket
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.devices.ray_cluster import on_node, own_node
from infra.errors import EngineError, TributaryError
from infra.home import home
from infra.store.origins import FolderCopy, origin_of
from infra.store.store import FileRecord
from infra.store.uploads import Destination, destination_of, note_elsewhere

_PART_BYTES = 64 << 20
"""of a file, in one piece"""
_ABANDONED_S = 24 * 3600.0
"""age at which nobody works with what stands in for a folder"""


class RankFolders:
    """See `Folders`."""

    def __init__(self, addresses: Sequence[str]) -> None:
        """`addresses`: of the ranks' hosts."""
        self._addresses = addresses

    def copy(self, folder: Path) -> FolderCopy:
        return FolderCopy(folder, origin_of(folder))

    @asynccontextmanager
    async def to_read(self, folder: Path, timeout_s: float) -> AsyncGenerator[Path | WorkFolder]:
        others = await asyncio.to_thread(other_nodes, self._addresses)
        if not others:
            yield folder
            return
        work = WorkFolder(folder, own_node())
        try:
            async with _bound(timeout_s, f"{folder} to other hosts"):
                await work.spread(others)
            yield work
        finally:
            await work.remove(others)

    async def to_write(self, folder: Path, timeout_s: float) -> Path | WorkFolder:
        others = await asyncio.to_thread(other_nodes, self._addresses)
        if not others:
            return folder
        work = WorkFolder(folder, own_node())
        async with _bound(timeout_s, f"{folder} on other hosts"):
            await work.make(others)
        return work

    async def collect(self, folder: Path, timeout_s: float) -> None:
        others = await asyncio.to_thread(other_nodes, self._addresses)
        if not others:
            return
        work = WorkFolder(folder, own_node())
        async with _bound(timeout_s, f"{folder} from other hosts"):
            if (destination := destination_of(folder)) is None:
                await work.collect(others)
            else:
                note_elsewhere(folder, destination, await work.upload(others, destination))


@asynccontextmanager
async def _bound(timeout_s: float, what: str) -> AsyncGenerator[None]:
    from ray.exceptions import RayError

    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError:
        raise EngineError(f"{what}: the files did not travel within {timeout_s:.0f} s") from None
    except RayError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, TributaryError):
            raise cause from None
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise EngineError(f"{what}: {first}") from error


@dataclass(frozen=True, slots=True)
class WorkFolder:
    """A folder of the job's host, and what stands in for it on others."""

    path: Path
    node: str
    """Ray's name of the job's host"""

    def here(self) -> Path:
        """It, or what stands in for it on this host."""
        if own_node() == self.node:
            return self.path
        return _stand_in(self.path)

    async def collect(self, nodes: Sequence[str]) -> None:
        """Bring here what ranks on these hosts have written, and remove it there."""
        await asyncio.gather(*(self._collect(node) for node in nodes))

    async def upload(self, nodes: Sequence[str], destination: Destination) -> list[FileRecord]:
        """Have these hosts put what ranks have written there into the store."""
        uploads = (_there(node, upload_stand_in, self.path, destination) for node in nodes)
        files: list[list[FileRecord]] = await asyncio.gather(*uploads)
        await self.remove(nodes)  # their disks do not fill
        return [file for of_one in files for file in of_one]

    async def spread(self, nodes: Sequence[str]) -> None:
        """Let these hosts have all its files."""
        sizes = await asyncio.to_thread(_sizes, self.path)
        for name, size in sizes.items():
            for start in range(0, max(size, 1), _PART_BYTES):
                part = await asyncio.to_thread(_read, self.path / name, start)
                await asyncio.gather(
                    *(_there(node, _write_stand_in, self.path, name, start, part) for node in nodes)
                )

    async def make(self, nodes: Sequence[str]) -> None:
        """An empty folder that stands in for it there."""
        await asyncio.gather(*(_there(node, make_stand_in, self.path) for node in nodes))

    async def remove(self, nodes: Sequence[str]) -> None:
        """What stands in for it there."""
        await asyncio.gather(*(_there(node, _remove_stand_in, self.path) for node in nodes))

    async def _collect(self, node: str) -> None:
        sizes: dict[str, int] = await _there(node, stand_in_sizes, self.path)
        for name, size in sizes.items():
            for start in range(0, max(size, 1), _PART_BYTES):
                part = await _there(node, _read_stand_in, self.path, name, start)
                await asyncio.to_thread(_write, self.path / name, start, part)
        await self.remove([node])


def other_nodes(addresses: Sequence[str]) -> list[str]:
    """Ray's names of the hosts with these addresses, without this one; each once. It blocks.

    Raises EngineError if one of them is lost: what ranks wrote there is missing.
    """
    import ray

    others = set(addresses) - {ray.util.get_node_ip_address()}
    if not others:
        return []
    by_address = {n["NodeManagerAddress"]: n["NodeID"] for n in ray.nodes() if n["Alive"]}
    if lost := sorted(others - by_address.keys()):
        raise EngineError(
            f"host {', '.join(lost)} of the ranks is lost, with what they wrote there"
        )
    return sorted({by_address[address] for address in others} - {own_node()})


async def _there(node: str, function: Any, *arguments: Any) -> Any:
    import ray

    task = ray.remote(function).options(num_cpus=0, scheduling_strategy=on_node(node))
    return await task.remote(*arguments)


def _stand_in(path: Path) -> Path:
    return home() / "cache" / "work" / hashlib.sha256(str(path).encode()).hexdigest()[:24]


def make_stand_in(path: Path) -> None:
    """What stands in for it here, empty; others that killed jobs left go."""
    folder = _stand_in(path)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for other in folder.parent.iterdir():
        with suppress(FileNotFoundError):  # its job has just removed it
            if other.stat().st_mtime < time.time() - _ABANDONED_S:
                shutil.rmtree(other, ignore_errors=True)


def stand_in_sizes(path: Path) -> dict[str, int]:
    """Bytes by file of what stands in for it here. Raises EngineError if it is gone."""
    return _sizes(_existing_stand_in(path))


def _existing_stand_in(path: Path) -> Path:
    folder = _stand_in(path)
    if not folder.is_dir():
        raise EngineError(
            f"{folder} on host {socket.gethostname()}, which stands in for {path}, is gone: what"
            " ranks wrote there is lost"
        )
    return folder


def _read_stand_in(path: Path, name: str, start: int) -> bytes:
    return _read(_stand_in(path) / name, start)


def _write_stand_in(path: Path, name: str, start: int, part: bytes) -> None:
    _write(_stand_in(path) / name, start, part)


def upload_stand_in(path: Path, destination: Destination) -> list[FileRecord]:
    """Return what stands in for it here, put into the store; it stays, as Ray does a task whose
    answer it lost once more, and the second answer is the one that counts. Raises EngineError if it
    is gone.
    """
    return destination.upload(_existing_stand_in(path))


def _remove_stand_in(path: Path) -> None:
    shutil.rmtree(_stand_in(path), ignore_errors=True)


def _sizes(folder: Path) -> dict[str, int]:
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {file.relative_to(folder).as_posix(): file.stat().st_size for file in files}


def _read(file: Path, start: int) -> bytes:
    with file.open("rb") as opened:
        opened.seek(start)
        return opened.read(_PART_BYTES)


def _write(file: Path, start: int, part: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("r+b" if start else "wb") as opened:
        opened.seek(start)
        opened.write(part)
