"""A server whose port somebody else has taken."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import pytest

from engines.sglang.servers import slots
from engines.sglang.servers.server import Place, Server
from engines.sglang.servers.slots import Slot
from engines.sglang.spec import FleetSpec
from infra.errors import EngineError
from tests.parts.json_server import json_server

pytestmark = pytest.mark.unit


class EndedChildren:
    """A process parent whose children end at once, or after a few questions."""

    def __init__(self, logs: Path, lives: int) -> None:
        self.logs, self._lives = logs, lives

    def serve(self, options: dict[str, Any], log: Path) -> int:
        return 1 << 30

    def exit_code(self, pid: int) -> int | None:
        self._lives -= 1
        return None if self._lives >= 0 else 1


@pytest.fixture
def taken() -> Iterator[int]:
    """The port of somebody else's server, which answers as ours would."""
    answers = {"/model_info": {"weight_version": "0"}, "/generate": {"output_ids": [1]}}
    with json_server(lambda path, body: (200, answers[path])) as port:
        yield port


@pytest.mark.parametrize("lives", [0, 1])
def test_another_server_on_its_port_is_not_taken_for_it(
    taken: int, tmp_path: Path, lives: int
) -> None:
    (tmp_path / "config.json").write_text("{}")
    children = cast("Any", EndedChildren(tmp_path, lives))
    server = Server(children, "server-0", FleetSpec(), tmp_path, port=taken)
    with pytest.raises(EngineError, match="server-0 ended while starting"):
        server.wait_ready()


class Started:
    """What a slot starts; notes the port."""

    ports: list[int]

    def __init__(self, *given: Any, saves_memory: bool) -> None:
        self.ports.append(given[-2])
        self.is_alive = True

    def wait_ready(self) -> None: ...

    def stop(self) -> None:
        self.is_alive = False


def test_a_slot_has_another_port_once_somebody_took_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(slots, "Server", Started)
    monkeypatch.setattr(Started, "ports", [], raising=False)
    slot = Slot(lambda: cast("Any", None), 0, num_gpus=0)
    for is_taken in (False, True, False):
        slot.stop()
        with socket.socket() as other:
            if is_taken:
                other.bind(("", urlsplit(slot.url).port or 0))
                other.listen()
            slot.ensure(FleetSpec(), tmp_path, Place(1))
    first, second, third = Started.ports
    assert second not in (first, 0)
    assert third == second == urlsplit(slot.url).port
