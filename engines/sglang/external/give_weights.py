"""A model folder's weights for running servers, pushed as a trainer of one rank would, or read by
the servers; `tributary publish` gives them to servers of others that go on serving them.

Never through shared memory: torch keeps a process for it that has this one's output open, and lives
as long as the servers do.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from engines.devices.waiting_time import folder_bytes
from engines.families.common.tensors import INDEX, SINGLE, Size
from engines.sglang.external.found_server import FoundServer, check_shape, find_servers, look_at
from engines.sglang.external.held_servers import HeldServers, forget_keys, note_keys
from engines.weights.broadcast.broadcast import Broadcast
from engines.weights.buckets import BUCKET_BYTES, TrainedWeights
from engines.weights.disk import load_folder
from engines.weights.transport import PublishReport, as_taken, find_targets, server_weights
from infra.errors import EngineError, InputError

if TYPE_CHECKING:
    from torch import Tensor

Way = Literal["auto", "broadcast", "disk"]
_log = logging.getLogger(__name__)
_WAIT_S = 5.0
"""for somebody who looks whether the servers are free; a stage holds them for hours"""
_LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class WholeTensor:
    """A `Weight` that is one whole tensor of a file."""

    name: str
    local: Tensor

    @property
    def tensors(self) -> Sequence[tuple[str, Size]]:
        return [(self.name, tuple(self.local.shape))]

    def gives(self, index: int, to: int) -> bool:
        return False

    def place(self, shard: Tensor, index: int, whole: Sequence[Tensor]) -> None:
        whole[0].copy_(shard)


def folder_weights(folder: Path, bucket_bytes: int = BUCKET_BYTES) -> TrainedWeights:
    """Return all tensors of a local folder, mapped and not read until they are packed.

    Raises InputError if a safetensors file is missing or damaged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    weights: list[WholeTensor] = []
    for name in _files(folder):
        try:
            stored = load_file(folder / name)
        except (OSError, SafetensorError) as error:
            raise InputError(
                f"{folder / name} cannot be read ({error}); copy the model folder again"
            ) from error
        weights += [WholeTensor(tensor, stored[tensor]) for tensor in sorted(stored)]
    return TrainedWeights(weights, bucket_bytes=bucket_bytes)


def _files(folder: Path) -> list[str]:
    """Names of the files with weights, in order. Raises InputError."""
    index = folder / INDEX
    if not index.exists():
        if (folder / SINGLE).exists():
            return [SINGLE]
        raise InputError(f"{folder} has neither {SINGLE} nor {INDEX}; give an HF model folder")
    try:
        return sorted(set(json.loads(index.read_text())["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise InputError(f"{index} has no `weight_map` ({error}); copy it again") from error


def give_weights(
    folder: Path, urls: Sequence[str], version: int, way: Way = "auto"
) -> PublishReport:
    """Put the folder's weights on every server as `version`, all or none.

    `auto` is broadcast, and disk where that does not work: `disk` needs servers that read `folder`
    under this very path. Raises EngineError if a server refuses: then all call their weights
    "broken"; InputError for a folder without weights.
    """
    if way != "auto":
        return _given(folder, urls, version, way)
    try:
        return _given(folder, urls, version, "broadcast")
    except EngineError as error:
        _log.warning("broadcast did not work (%s); the servers are told to read the folder", error)
        try:
            return _given(folder, urls, version, "disk")
        except EngineError as second:
            raise EngineError(f"by broadcast: {error}; by disk: {second}") from error


def _given(
    folder: Path, urls: Sequence[str], version: int, way: Literal["broadcast", "disk"]
) -> PublishReport:
    weights = folder_weights(folder)
    if way == "broadcast":
        transport = Broadcast()
        try:
            targets = find_targets(urls)
            return transport.push(as_taken(weights, targets), targets, version)
        except RuntimeError as error:  # torch's, of the group that it and the servers make
            raise EngineError(
                f"{', '.join(urls)} did not join a broadcast from here ({error}): can they connect"
                " to this host, on any port?"
            ) from error
        finally:
            transport.close()
    began = time.perf_counter()
    paused_s = load_folder(folder.resolve(), urls, version)
    return PublishReport(
        version=version,
        transport="disk",
        bytes=sum(weight.local.nbytes for weight in weights.weights),
        servers=len(urls),
        seconds=time.perf_counter() - began,
        pause_seconds=paused_s,
    )


@dataclass(frozen=True, slots=True)
class Published:
    """What was done, and the proof that all servers hold the same."""

    report: PublishReport
    urls: tuple[str, ...]
    checksums: Mapping[str, str]
    """by server; without those that offer none"""


def publish(folder: Path, addresses: Sequence[str], way: Way) -> Published:
    """Have all servers at the addresses serve the folder's weights, as the version after theirs.

    Raises InputError if one is no server, or cannot take this model: then none was changed.
    EngineError if one is in use or fails: then all that answer serve again what they served
    before, as far as their own folders have it; the message says which do not.
    """
    note_keys(addresses)
    urls: tuple[str, ...] = ()
    try:
        urls = find_servers(addresses)
        note_keys(urls)
        for url in urls:
            check_shape(look_at(url), folder)
        return _publish(folder, urls, way)
    finally:
        forget_keys([*addresses, *urls])


def _publish(folder: Path, urls: tuple[str, ...], way: Way) -> Published:
    held = HeldServers(urls, folder_bytes(folder))
    deadline = time.monotonic() + _WAIT_S
    while in_use := held.hold():
        if time.monotonic() > deadline:
            raise held.in_use(in_use)
        time.sleep(_LOOK_S)
    try:
        report = give_weights(folder, urls, _next_version(held.found.values()), way)
        asked = [url for url, server in held.found.items() if server.checksum]
        checksums = {url: server_weights(url).checksum for url in asked}
        _require_equal(held.found, checksums)
        return Published(report, urls, checksums)
    except BaseException as error:
        troubles = held.restore()
        if isinstance(error, EngineError) and troubles:
            raise EngineError(f"{error}; moreover {'; '.join(troubles)}") from error
        raise
    finally:
        held.give_back()


def _next_version(found: Iterable[FoundServer]) -> int:
    """After the highest number that a server has; 1 where all have names."""
    return 1 + max((int(x.version) for x in found if x.version.isdecimal()), default=0)


def _require_equal(found: Mapping[str, FoundServer], checksums: Mapping[str, str]) -> None:
    """Raise EngineError if servers with equally many ranks hold different bits."""
    first: dict[int, str] = {}
    for url, checksum in checksums.items():
        other = first.setdefault(found[url].num_ranks, url)
        if checksums[other] != checksum:
            raise EngineError(
                f"{other} and {url} took the same weights and hold different ones (checksums"
                f" {checksums[other][:12]} and {checksum[:12]}): do they run the same release of"
                " SGLang, with the same dtype and quantization?"
            )
