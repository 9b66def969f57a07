"""Real engines that several files share; each ends with the last test in this folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from engines.devices.host_agent import HostAgent
from engines.sglang.http import call, order
from engines.sglang.servers.router import Router
from engines.sglang.servers.server import Place, Server
from engines.sglang.servers.slots import ServerSlots
from engines.sglang.spec import FleetSpec
from infra.access import EXTERNAL_KEY_VARIABLE, required_key
from infra.home import own_folder, write_own_file
from tests.integration.megatron.megatron_ranks import Ranks
from tests.parts.sglang_python import SglangPython
from tests.parts.tiny import tiny_model

PLACES = dict.fromkeys(("server-0", "server-1"), Place(tp=1))


@dataclass(slots=True)
class SglangPair:
    """Two servers of one architecture, the router before both, and folders they can load."""

    slots: ServerSlots
    router: Router
    model: Path
    other_model: Path
    """same architecture, other weights"""

    names = tuple(PLACES)

    @property
    def urls(self) -> list[str]:
        return [self.slots[name].url for name in self.names]

    def server(self, name: str) -> Server:
        server = self.slots[name].server
        assert isinstance(server, Server)
        return server

    def is_generating(self) -> bool:
        """Whether a server works on a request just now."""
        loads = [call(url, "/v1/loads", timeout=10)["loads"] for url in self.urls]
        return any(load["num_running_reqs"] > 0 for each in loads for load in each)

    def reset(self, version: int = 0) -> None:
        """Both servers alive, in the router, serving `model` as `version`."""
        self.prepare(FleetSpec(), self.model, version)

    def prepare(self, spec: FleetSpec, model: Path, version: int = 0) -> None:
        """The same with other settings or another model."""
        self.slots.prepare(PLACES, spec, model, version)

    def restart(self, name: str) -> None:
        """A server that has ended runs again, with weights that nobody has given it yet."""
        self.slots[name].ensure(FleetSpec(), self.model, PLACES[name])


@pytest.fixture(scope="package")
def ranks() -> Iterator[Ranks]:
    """Two warm processes with torch and Megatron-core loaded."""
    ranks = Ranks()
    yield ranks
    ranks.stop()


@pytest.fixture(scope="package")
def sglang_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SglangPython]:
    made = SglangPython(tmp_path_factory.mktemp("sglang-python") / "log")
    yield made
    made.close()


@pytest.fixture(scope="package")
def running_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SglangPair]:
    folder = tmp_path_factory.mktemp("sglang")
    model = tiny_model(folder / "model")
    other = tiny_model(folder / "other", seed=1)
    slots = ServerSlots(HostAgent(folder / "logs", 0))
    try:
        slots.grow(2)
        router = slots.prepare(PLACES, FleetSpec(), model, 0)
        yield SglangPair(slots, router, model, other)
    finally:
        slots.close()


def home_of_same_key(folder: Path) -> str:
    """A home with the present one's key, so that both reach the servers that tests share."""
    ours = required_key()
    write_own_file(own_folder(folder) / "key", ours)
    return str(folder)


@pytest.fixture
def sglang_pair(running_pair: SglangPair) -> SglangPair:
    """The shared pair, back in its first state whatever the test before did to it."""
    running_pair.reset()
    return running_pair


@pytest.fixture
def external_pair(
    sglang_pair: SglangPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> SglangPair:
    """The pair as somebody else started it, seen from a home of its own, which was told its key."""
    monkeypatch.setenv(EXTERNAL_KEY_VARIABLE, required_key())
    monkeypatch.setenv("TRIBUTARY_HOME", home_of_same_key(tmp_path / "home"))
    for url in sglang_pair.urls:
        named = {"new_version": "default", "abort_all_requests": False}
        order(url, "/update_weight_version", named, timeout=10)
    return sglang_pair
