"""Servers whose holder goes away while threads work at them. The slots are stand-ins: what a real
one does for minutes they do until they may end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from engines.devices import owner as owner_module
from engines.devices.host_agent import HostAgent
from engines.devices.owner import DeviceOwner
from engines.devices.units import SERVER_PARTS, OwnerSettings, Request
from engines.sglang.servers import server_units
from engines.sglang.servers.server import Place
from engines.sglang.servers.server_units import HeldParts, ServerTerms, ServerUnits
from engines.sglang.spec import FleetSpec
from infra.errors import EngineError

pytestmark = pytest.mark.unit
LATE_S = 0.3
"""what a unit that comes free too early would need at most"""


class SlowSlot:
    """One whose `hold` takes as long as a test wants, or fails at once."""

    server = None
    is_alive = False
    held_bytes = 0
    held_gpus: frozenset[int] = frozenset()

    def __init__(self, name: str, slots: SlowSlots) -> None:
        self.name, self._slots = name, slots
        self.url = f"http://{name}"

    def fits(self, wanted: str) -> bool:
        return True

    def hold(self, *_: Any) -> None:
        if self.name == "server-0":
            raise EngineError("it does not sleep")
        self._slots.work("hold")


class SlowSlots:
    """Notes which work begins and ends."""

    seen: list[str]
    may_end: threading.Event

    def __init__(self, agent: HostAgent) -> None:
        self._all: dict[str, SlowSlot] = {}

    def __getitem__(self, name: str) -> SlowSlot:
        return self._all[name]

    def grow(self, count: int) -> Sequence[str]:
        for index in range(len(self._all), count):
            self._all[f"server-{index}"] = SlowSlot(f"server-{index}", self)
        return tuple(self._all)

    def gpus(self, name: str, place: Place) -> frozenset[int]:
        return frozenset()

    def settle(self, name: str, place: Place, *, stays: bool) -> None:
        self.seen.append(f"{name} settles")

    def prepare(self, places: Mapping[str, Place], spec: Any, model: Path, version: int) -> Any:
        self.work(model.name)
        return SlowRouter()

    def work(self, what: str) -> None:
        self.seen.append(f"{what} begins")
        assert self.may_end.wait(10.0)
        self.seen.append(f"{what} ends")

    def close(self) -> None: ...


class SlowRouter:
    url = "http://router"


@pytest.fixture
async def owner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[DeviceOwner]:
    monkeypatch.setattr(owner_module, "resolve", lambda *_: ServerUnits)
    monkeypatch.setattr(owner_module, "_WATCH_S", 0.01)
    monkeypatch.setattr(owner_module, "dead_drivers", lambda drivers: drivers & {"dead"})
    monkeypatch.setattr(server_units, "ServerSlots", SlowSlots)
    monkeypatch.setattr(SlowSlots, "seen", [], raising=False)
    monkeypatch.setattr(SlowSlots, "may_end", threading.Event(), raising=False)
    monkeypatch.setattr(server_units, "_architecture", lambda _: "")
    yield DeviceOwner(OwnerSettings(tmp_path, 0))
    SlowSlots.may_end.set()


def request(model: str, count: int = 1, driver: str = "alive") -> Request:
    terms = ServerTerms(FleetSpec(), Path(model), 1)
    return Request("server", count, 2, model, terms, wait_s=10.0, driver=driver)


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(10.0):
        while not holds():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("how", ["cancelled", "dead"])
async def test_a_server_is_not_leased_while_a_thread_of_its_last_holder_works_at_it(
    owner: DeviceOwner, how: str
) -> None:
    first = asyncio.create_task(owner.lease(request("a", 2, "dead" if how == "dead" else "alive")))
    await until(lambda: "a begins" in SlowSlots.seen)
    if how == "cancelled":
        first.cancel()
    second = asyncio.create_task(owner.lease(request("b")))
    await asyncio.sleep(LATE_S)
    seen = SlowSlots.seen
    assert seen == ["server-0 settles", "server-1 settles", "a begins"]
    SlowSlots.may_end.set()
    await second
    assert seen[3:7] == ["a ends", "server-0 settles", "b begins", "b ends"]
    # From then on b is watched, and its servers, which are never alive here, are restarted.
    assert {"a begins", "a ends", "server-1 settles"}.isdisjoint(seen[7:])
    with pytest.raises((asyncio.CancelledError, EngineError)):
        await first


async def test_an_order_that_failed_ends_with_its_last_thread(owner: DeviceOwner) -> None:
    asyncio.get_running_loop().call_later(LATE_S, lambda: SlowSlots.may_end.set())
    grant = await owner.lease(request("a", 2))
    SlowSlots.may_end.clear()
    asleep = asyncio.create_task(
        owner.prepare("server", grant.lease_id, HeldParts(SERVER_PARTS - {"cache"}))
    )
    await until(lambda: "hold begins" in SlowSlots.seen)
    await owner.release("server", grant.lease_id, is_clean=False)
    second = asyncio.create_task(owner.lease(request("b")))
    await asyncio.sleep(LATE_S)
    assert SlowSlots.seen[-1] == "hold begins"
    SlowSlots.may_end.set()
    await second
    with pytest.raises(EngineError, match="does not sleep"):
        await asleep
