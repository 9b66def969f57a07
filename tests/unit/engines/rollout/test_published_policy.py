"""The policy on the servers, with servers that are lost at the worst moments."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from engines.rollout.published_policy import PublishedPolicy
from engines.weights.transport import PublishReport
from infra.errors import EngineError

pytestmark = pytest.mark.unit
BOTH = ["http://a", "http://b"]


class Fleet:
    """Servers with the versions that they serve; a lost one comes back, with those of the disk,
    when someone waits for it."""

    server_urls = BOTH

    def __init__(self) -> None:
        self.serve = dict.fromkeys(BOTH, "1")
        self.lost: set[str] = set()
        self.bits: dict[str, str] = {}
        """of servers that differ from the others, until they are asked"""
        self.returns = True

    def lose(self, url: str) -> None:
        self.lost.add(url)

    async def wait_healthy(self) -> None:
        await asyncio.sleep(0)
        if self.lost and not self.returns:
            raise EngineError("it is not back")
        for url in self.lost:
            self.serve[url] = "0"
        self.lost.clear()

    async def checksums(self) -> dict[str, str]:
        return {url: self.bits.pop(url, "same") for url in BOTH}

    async def versions(self) -> dict[str, str]:
        return {url: "" if url in self.lost else held for url, held in self.serve.items()}


class Trainer:
    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.published: list[tuple[tuple[str, ...], int]] = []

    async def publish(self, endpoints: Sequence[str], version: int) -> PublishReport:
        await asyncio.sleep(0)
        if self.fleet.lost & set(endpoints):
            raise EngineError("connection refused")
        self.published.append((tuple(endpoints), version))
        self.fleet.serve.update(dict.fromkeys(endpoints, str(version)))
        return PublishReport(version, "here", 1, len(endpoints), 0.0)


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


@pytest.fixture
def trainer(fleet: Fleet) -> Trainer:
    return Trainer(fleet)


async def test_a_server_that_came_back_gets_the_weights_of_the_moment(
    fleet: Fleet, trainer: Trainer
) -> None:
    served = PublishedPolicy(trainer, fleet, 1)
    fleet.lose(BOTH[1])
    served.repair()
    await served.repair()  # by every turn that fails
    assert trainer.published == [((BOTH[1],), 1)]
    await served.repair()
    assert len(trainer.published) == 1, "nothing is lacking any more"


async def test_servers_that_differ_after_a_repair_all_get_the_weights_again(
    fleet: Fleet, trainer: Trainer
) -> None:
    served = PublishedPolicy(trainer, fleet, 1)
    fleet.lose(BOTH[1])
    fleet.bits = {BOTH[1]: "other"}
    await served.repair()
    assert trainer.published == [((BOTH[1],), 1), (tuple(BOTH), 1)]


async def test_a_publish_goes_to_healthy_servers_and_a_lost_one_catches_up(
    fleet: Fleet, trainer: Trainer
) -> None:
    served = PublishedPolicy(trainer, fleet, 1)
    fleet.returns = False
    fleet.lose(BOTH[0])
    for version in (2, 3):
        async with served.changing():
            report = await served.publish_next()
        assert (report.version, report.servers, served.version) == (version, 1, version)
        await served.repair()
    assert fleet.serve == {BOTH[0]: "1", BOTH[1]: "3"}
    fleet.returns = True
    async with served.changing():
        await served.publish_next()
        assert fleet.serve[BOTH[1]] == "4", "whatever becomes of the other"
    await served.repair()
    assert set(fleet.serve.values()) == {"4"}


async def test_a_publish_waits_where_all_servers_are_lost(fleet: Fleet, trainer: Trainer) -> None:
    served = PublishedPolicy(trainer, fleet, 1)
    for url in BOTH:
        fleet.lose(url)
    async with served.changing():
        await served.publish_next()
    assert set(fleet.serve.values()) == {"2"}


async def test_servers_that_stay_away_are_an_error_of_the_publish_and_not_of_repairing(
    fleet: Fleet, trainer: Trainer
) -> None:
    served = PublishedPolicy(trainer, fleet, 1)
    fleet.returns = False
    for url in BOTH:
        fleet.lose(url)
    await served.repair()
    with pytest.raises(EngineError, match="not back"):
        await served.publish_next()
    await served.close()


async def test_while_weights_change_no_server_is_repaired(fleet: Fleet, trainer: Trainer) -> None:
    """Else they would be served under the version before them."""
    served = PublishedPolicy(trainer, fleet, 1)
    async with served.changing():
        assert served.is_changing
        fleet.lose(BOTH[0])
        repairing = served.repair()
        for _ in range(20):
            await asyncio.sleep(0)
        assert trainer.published == []
        await served.publish_next()
    await repairing
    assert trainer.published == [(tuple(BOTH), 2)], "the publish gave it what it lacked"
    assert not served.is_changing


async def test_what_is_being_repaired_ends_with_the_stage(fleet: Fleet, trainer: Trainer) -> None:
    served = PublishedPolicy(trainer, fleet, 1)
    fleet.lose(BOTH[0])
    served.repair()
    await served.close()
    assert trainer.published == []
