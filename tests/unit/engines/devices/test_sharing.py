"""The order in which trainer and servers have the devices that they share."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import pytest

from engines.devices.sharing import SeparateDevices, SharedDevices
from engines.devices.units import SERVER_PARTS, TRAINER_PARTS, Held
from engines.rollout.published_policy import PublishedPolicy
from engines.weights.transport import PublishReport
from infra.errors import EngineError

pytestmark = pytest.mark.unit

BYTES: dict[str, int] = {"weights": 2, "optimizer": 12, "frozen": 0, "gradients": 4, "cache": 20}
"""of each part, in units of a parameter"""
MB = 1 << 20


class Role:
    """Memory of which parts sleep and wake; writes down what happens to all roles."""

    def __init__(self, name: str, parts: Collection[str], log: list[str]) -> None:
        self.name, self.all, self.awake, self.log = name, set(parts), set(parts), log
        self.left = 0
        self.fails = False

    @property
    def size(self) -> int:
        return sum(BYTES[part] for part in self.awake)

    async def hold(self, parts: Collection[Any]) -> Held:
        await asyncio.sleep(0)
        if self.fails:
            raise EngineError("no answer")
        gave = self.awake - set(parts)
        took = set(parts) - self.awake
        self.awake = set(parts)
        assert bool(gave) != bool(took), "it sleeps or it wakes"
        signs = ["-" + part for part in sorted(gave)] + ["+" + part for part in sorted(took)]
        self.log.append(f"{self.name} {' '.join(signs)}")
        asleep = sum(BYTES[part] for part in self.all - self.awake) * MB
        left = self.left * MB
        return Held(sum(BYTES[part] for part in gave) * MB, asleep, left, ("1 MB float32[4]",))


class Trainer(Role):
    async def publish(self, endpoints: Any, version: int) -> PublishReport:
        assert "weights" in self.awake
        self.log.append(f"publish {version} to {len(endpoints)}")
        return PublishReport(version, "here", 1, len(endpoints), 0.0)


class Servers(Role):
    server_urls = ("http://a", "http://b")

    async def wait_healthy(self) -> None: ...

    async def versions(self) -> dict[str, str]:
        return {"http://a": "7", "http://b": "0"}

    async def checksums(self) -> dict[str, str]:
        return {}


class Stage:
    def __init__(self) -> None:
        self.log: list[str] = []
        self.warnings: list[str] = []
        self.trainer = Trainer("trainer", TRAINER_PARTS, self.log)
        self.servers = Servers("servers", SERVER_PARTS, self.log)
        self.trainer.awake.clear()
        roles = {"trainer": self.trainer}
        self.devices = SharedDevices(roles, self.servers, self.warnings.append)
        self.policy = PublishedPolicy(self.trainer, self.servers, 7, self.devices)


@pytest.fixture
def stage() -> Stage:
    return Stage()


async def test_a_step_goes_round_and_never_are_both_there_at_full_size(stage: Stage) -> None:
    async with stage.policy.changing():
        stage.log.append("trains")
        await stage.policy.publish_next()
    async with stage.devices.keeping():
        stage.log.append("saves")
    await stage.devices.generate()
    assert stage.log == [
        "servers -cache -weights",
        "trainer +frozen +gradients +optimizer +weights",
        "trains",
        "trainer -frozen -gradients -optimizer",
        "servers +weights",
        "publish 8 to 2",
        "trainer +optimizer",
        "saves",
        "trainer -optimizer -weights",
        "servers +cache",
    ]


async def test_both_sides_together_never_need_more_than_the_larger_and_the_weights(
    stage: Stage,
) -> None:
    sizes: list[int] = []
    for role in (stage.trainer, stage.servers):
        hold = role.hold

        async def watched(parts: Collection[Any], hold: Any = hold) -> Held:
            held = await hold(parts)
            sizes.append(stage.trainer.size + stage.servers.size)
            return held

        role.hold = watched
    async with stage.policy.changing():
        await stage.policy.publish_next()
    async with stage.devices.keeping():
        pass
    await stage.devices.generate()
    # Servers alone 22, the trainer alone 18, which is more than for a checkpoint: 14 + 2.
    assert max(sizes) == 22
    assert sizes == [0, 18, 2, 4, 16, 2, 22]


async def test_a_policy_that_stayed_as_it_was_is_published_again(stage: Stage) -> None:
    async with stage.policy.changing():
        pass
    assert stage.log[-1] == "publish 7 to 2"
    assert stage.policy.version == 7
    await stage.devices.generate()
    await stage.devices.generate()
    assert stage.log[-2:] == ["trainer -weights", "servers +cache"]


async def test_a_step_that_failed_publishes_nothing(stage: Stage) -> None:
    with pytest.raises(EngineError, match="NaN"):
        async with stage.policy.changing():
            raise EngineError("NaN")
    assert "publish 7 to 2" not in stage.log
    with pytest.raises(EngineError, match="publish them first"):
        await stage.devices.generate()


async def test_a_lost_server_gets_weights_beside_servers_that_generate(stage: Stage) -> None:
    await stage.policy.repair()
    assert stage.log == ["trainer +weights", "publish 7 to 1", "trainer -weights"]
    assert stage.servers.awake == SERVER_PARTS


async def test_a_repair_waits_until_a_checkpoint_is_written(stage: Stage) -> None:
    async with stage.devices.keeping():
        repair = stage.policy.repair()
        for _ in range(20):
            await asyncio.sleep(0)
        stage.log.append("saved")
    await repair
    assert stage.log.index("saved") < stage.log.index("publish 7 to 1")


async def test_a_phase_that_did_not_begin_can_be_tried_again(stage: Stage) -> None:
    stage.trainer.fails = True
    with pytest.raises(EngineError, match="no answer"):
        await stage.devices.train()
    stage.trainer.fails = False
    stage.servers.awake = set(SERVER_PARTS)  # what it holds is told again
    await stage.devices.train()
    assert stage.trainer.awake == TRAINER_PARTS


async def test_a_step_says_what_was_given_back_and_how_long_it_took(stage: Stage) -> None:
    async with stage.policy.changing():
        await stage.policy.publish_next()
    await stage.devices.generate()
    told = stage.devices.since_last()
    assert told["trainer_given_back_bytes"] == 18 * MB
    assert told["servers_given_back_bytes"] == 22 * MB
    assert told["trainer_left_bytes"] == told["servers_left_bytes"] == 0
    seconds = {name for name in told if name.endswith("_seconds")}
    assert seconds == {
        f"{role}_{does}_seconds" for role in ("trainer", "servers") for does in ("sleep", "wake")
    }
    assert stage.devices.since_last() == {}


async def test_a_role_that_keeps_much_is_named_once(stage: Stage) -> None:
    stage.servers.left = 65
    for _ in range(2):
        async with stage.policy.changing():
            pass
        await stage.devices.generate()
    (warning,) = stage.warnings
    assert "servers holds 0.07 GB of its device although it sleeps" in warning
    assert "1 MB float32[4]" in warning


@pytest.mark.parametrize(
    ("asleep", "left", "is_too_much"),
    [(10 * MB, 64 * MB, False), (0, 65 * MB, True), (400 * MB, 100 * MB, False),
     (396 * MB, 104 * MB, True)],
)  # fmt: skip
def test_a_fifth_may_stay_and_64_mib_in_any_case(asleep: int, left: int, is_too_much: bool) -> None:
    assert Held(0, asleep, left).is_too_much is is_too_much


async def test_with_devices_of_their_own_nobody_is_asked() -> None:
    devices = SeparateDevices()
    await devices.train()
    async with devices.publishing(), devices.keeping():
        await devices.generate()
    assert not devices.servers_lack_weights
    assert devices.since_last() == {}
