"""The owner's rules, with units that only note what is asked of them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from engines.devices import owner as owner_module
from engines.devices.host_agent import HostAgent
from engines.devices.lease import Lease
from engines.devices.owner import DeviceOwner
from engines.devices.units import OwnerSettings, Request
from infra.errors import EngineError, LeaseLost

pytestmark = pytest.mark.unit


class NotedUnits:
    """Units that start at once; giving one back waits for `may_return`."""

    last: NotedUnits
    made: list[NotedUnits]

    def __init__(self, agent: HostAgent, settings: OwnerSettings) -> None:
        self.names: list[str] = []
        self.started: set[str] = set()
        self.given_back: list[tuple[str, bool]] = []
        self.may_return = asyncio.Event()
        self.may_return.set()
        self.restarts = 0
        self.freed: list[str] = []
        NotedUnits.last = self
        NotedUnits.made.append(self)

    def gpus(self, name: str, request: Request) -> frozenset[int]:
        return frozenset({self.names.index(name)})

    def held_gpus(self, name: str) -> frozenset[int]:
        return frozenset({self.names.index(name)}) if name in self.started else frozenset()

    async def free_memory(self, name: str) -> None:
        self.freed.append(name)
        await asyncio.sleep(0)

    def grow(self, count: int) -> Sequence[str]:
        self.names += [f"unit-{index}" for index in range(len(self.names), count)]
        return tuple(self.names)

    def running(self) -> Mapping[str, int]:
        return dict.fromkeys(self.started, 1)

    def place(self, requests: Sequence[Request], taken: frozenset[int]) -> Sequence[Request]:
        return requests

    def choose(self, free: Sequence[str], request: Request) -> Sequence[str]:
        return free[: request.count]

    async def warm(self, name: str) -> None:
        self.started.add(name)

    async def prepare(self, lease: Lease, terms: Any) -> Any:
        if terms == "impossible":
            raise EngineError("no such terms")
        return (terms, lease.units)

    def end_lease(self, lease: Lease) -> None:
        pass

    async def give_back(self, name: str, is_clean: bool) -> None:
        self.given_back.append((name, is_clean))
        await self.may_return.wait()

    async def repair(self, leases: Sequence[Lease], idle: Sequence[str]) -> Sequence[str]:
        return ()

    async def use(self, lease: Lease) -> Any:
        return True

    def close(self) -> None:
        self.started.clear()


@pytest.fixture
def owner(monkeypatch: pytest.MonkeyPatch) -> DeviceOwner:
    monkeypatch.setattr(owner_module, "resolve", lambda *_: NotedUnits)
    monkeypatch.setattr(owner_module, "_WATCH_S", 0.01)
    monkeypatch.setattr(NotedUnits, "made", [], raising=False)
    monkeypatch.setattr(owner_module, "dead_drivers", lambda drivers: drivers & {"dead"})
    return DeviceOwner(OwnerSettings(Path(os.devnull), 0, ttl_s=60.0))


def request(count: int = 1, driver: str = "alive", **more: Any) -> Request:
    return Request("rank", count, 2, "h", **{"wait_s": 5.0, "driver": driver, **more})


async def test_a_lease_has_units_that_serve_its_terms_and_others_later(owner: DeviceOwner) -> None:
    grant = await owner.lease(request(2, terms="one"))
    assert grant.use == ("one", ("unit-0", "unit-1"))
    assert await owner.prepare("rank", grant.lease_id, "two") == ("two", ("unit-0", "unit-1"))


async def test_a_unit_is_not_leased_before_it_is_given_back(owner: DeviceOwner) -> None:
    grant = await owner.lease(request(2))
    NotedUnits.last.may_return.clear()
    await owner.release("rank", grant.lease_id, is_clean=True)
    with pytest.raises(EngineError, match=r"1 of 2 ranks did not come free .* held by nobody"):
        await owner.lease(request(wait_s=0.05))
    NotedUnits.last.may_return.set()
    await owner.lease(request(2))
    assert NotedUnits.last.given_back == [("unit-0", True), ("unit-1", True)]


async def test_units_of_a_dead_driver_are_given_back_as_lost(owner: DeviceOwner) -> None:
    grant = await owner.lease(request(2, driver="dead"))
    await owner.lease(request(2))
    assert NotedUnits.last.given_back == [("unit-0", False), ("unit-1", False)]
    with pytest.raises(LeaseLost):
        await owner.renew("rank", grant.lease_id)


async def test_units_whose_terms_cannot_be_served_come_free_again(owner: DeviceOwner) -> None:
    with pytest.raises(EngineError, match="no such terms"):
        await owner.lease(request(2, terms="impossible"))
    assert (await owner.lease(request(2))).use[1] == ("unit-0", "unit-1")


async def test_a_kind_ends_only_when_nobody_uses_it(owner: DeviceOwner) -> None:
    grant = await owner.lease(request())
    units = NotedUnits.last
    assert await owner.end_idle("rank") is False
    await owner.release("rank", grant.lease_id, is_clean=True)
    assert await owner.end_idle("rank") is True
    assert units.started == set()
    assert await owner.end_idle("server") is True


async def test_a_stage_that_shares_its_gpus_with_itself_has_them_alone(owner: DeviceOwner) -> None:
    def ask(kind: str, holder: str, **more: Any) -> Request:
        return Request(kind, 1, 1, holder, **{"wait_s": 5.0, "driver": "alive", **more})

    sole = {"is_sole": True}
    first = await owner.lease(ask("rank", "a", **sole))
    servers = await owner.lease(ask("server", "a", **sole))
    await owner.release("server", servers.lease_id, is_clean=True)
    with pytest.raises(EngineError, match="1 of 1 servers did not come free"):
        await owner.lease(ask("server", "b", wait_s=0.05))
    waiting = asyncio.create_task(owner.lease(ask("server", "b")))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await owner.release("rank", first.lease_id, is_clean=True)
    await waiting
    with pytest.raises(EngineError, match="1 of 1 ranks did not come free"):
        await owner.lease(ask("rank", "a", wait_s=0.05, **sole))
    await owner.lease(ask("rank", "c"))  # two that do not share with themselves may meet


async def test_idle_units_on_the_gpus_of_a_lease_give_their_memory_back_first(
    owner: DeviceOwner,
) -> None:
    servers = await owner.lease(Request("server", 1, 2, "a", driver="alive"))
    held = NotedUnits.made[0]
    await owner.lease(Request("rank", 2, 2, "b", driver="alive"))
    assert held.freed == ["unit-1"], "the other is in use"
    await owner.release("server", servers.lease_id, is_clean=True)
    await owner.lease(Request("rank", 1, 3, "c", driver="alive"))
    assert held.freed == ["unit-1"], "it is on another GPU"


async def test_a_unit_that_is_being_given_back_gives_its_memory_back_too(
    owner: DeviceOwner,
) -> None:
    servers = await owner.lease(Request("server", 1, 1, "a", driver="alive"))
    held = NotedUnits.made[0]
    held.may_return.clear()
    await owner.release("server", servers.lease_id, is_clean=True)
    ranks = asyncio.create_task(owner.lease(Request("rank", 1, 1, "b", driver="alive")))
    await asyncio.sleep(0.1)
    assert not ranks.done()
    held.may_return.set()
    await ranks
    assert held.freed == ["unit-0"]


async def test_the_roles_of_a_stage_are_granted_together_or_not_at_all(owner: DeviceOwner) -> None:
    def ask(holder: str, wait_s: float = 5.0) -> list[Request]:
        return [
            Request("server", 1, 2, holder, terms, wait_s, "alive") for terms in ("policy", "judge")
        ]

    first = await owner.lease_all(ask("a"))
    assert [grant.use for grant in first] == [("policy", ("unit-0",)), ("judge", ("unit-1",))]
    await owner.release("server", first[0].lease_id, is_clean=True)
    with pytest.raises(EngineError, match="2 of 2 servers did not come free"):
        await owner.lease_all(ask("b", wait_s=0.05))
    (one,) = await owner.lease_all(ask("c")[:1])
    assert one.use == ("policy", ("unit-0",)), "half of what b wanted was kept for nobody"


async def test_a_role_that_cannot_be_served_gives_all_roles_back(owner: DeviceOwner) -> None:
    impossible = [
        Request("server", 1, 2, "a", terms, 5.0, "alive") for terms in ("policy", "impossible")
    ]
    with pytest.raises(EngineError, match="no such terms"):
        await owner.lease_all(impossible)
    assert (await owner.status("server")).leases == ()
    assert len(await owner.lease_all([impossible[0], impossible[0]])) == 2
