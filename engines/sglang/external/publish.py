"""A model folder's weights for servers of others that go on serving them: `tributary publish`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engines.devices.waiting_time import folder_bytes
from engines.sglang.external.found_server import FoundServer, find_servers, look_at
from engines.sglang.external.give_weights import Way, give_weights
from engines.sglang.external.held_servers import HeldServers, forget_keys, note_keys
from engines.sglang.external.server_checks import check_shape
from engines.weights.transport import PublishReport, server_weights
from infra.errors import EngineError

_WAIT_S = 5.0
"""for somebody who looks whether the servers are free; a stage holds them for hours"""
_LOOK_S = 0.5


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
        checksums = _checksums(held.found)
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


def _checksums(found: Mapping[str, FoundServer]) -> dict[str, str]:
    return {url: server_weights(url).checksum for url, server in found.items() if server.checksum}


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
