"""The owner of devices and trainer groups on a real Ray, with ranks that hold no torch."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import cloudpickle

from engines.algorithms.spec import Algorithm
from engines.batching import TokenSequence
from engines.devices.find_owner import open_owner
from engines.devices.lease import prewarm
from engines.devices.owner import KindStatus
from engines.devices.ray_cluster import connect
from engines.devices.units import OwnerSettings
from engines.megatron.ranks.rank import Rank, TrainerJob, TrainerRank
from engines.megatron.ranks.trainer_group import TrainerGroup, lease_with_critic
from engines.megatron.spec import CriticSettings, Optimizer, Parallel, TrainerSettings
from engines.step_inputs import StepInputs
from infra.errors import (
    AgreementError,
    EngineError,
    InfrastructureError,
    InputError,
    LeaseLost,
    TrainingStopped,
)
from tests.integration.megatron import stand_in_ranks
from tests.integration.megatron.stand_in_ranks import BrokenRank, StandInRank
from tests.parts.ray_parts import own_ray
from tests.parts.tiny import tiny_model

pytestmark = pytest.mark.integration
cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(stand_in_ranks)


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    with own_ray(num_gpus=2) as address:  # logical ones
        yield address


@pytest.fixture(scope="module")
def owner(cluster: str) -> Any:
    del cluster
    return new_owner()


def new_owner(rank_class: type[Rank] = StandInRank, name: str = "", gpus: int = 0) -> Any:
    settings = OwnerSettings(Path(os.devnull), gpus, rank_class=rank_class)
    return open_owner(name or f"test-owner-{time.monotonic_ns()}", settings)


async def status_of(owner: Any) -> KindStatus:
    return await owner.status.remote("rank")


async def settled(owner: Any) -> None:
    """All ranks are ready: those of the test before are reset or replaced."""
    while (status := await status_of(owner)).ready < status.size:
        await asyncio.sleep(0.01)


async def leased(owner: Any, ranks: int = 1, holder: str = "h", **more: Any) -> TrainerGroup:
    model = more.pop("model", Path("model"))
    job = TrainerJob(TrainerSettings(), Optimizer(lr=1e-3), Parallel(dp=ranks), model, 0, 10)
    return await TrainerGroup.lease(
        job, more.pop("pool_ranks", 2), holder, owner=owner, **{"wait_s": 60.0, **more}
    )


async def killed_idle(owner: Any) -> int:
    """Kill a ready rank that nobody holds; -> its pid."""
    await settled(owner)
    async with await leased(owner) as group:
        idle = await pid(group)
    await settled(owner)
    os.kill(idle, signal.SIGKILL)
    return idle


async def pid(group: TrainerGroup) -> int:
    return int((await group.logprobs([[0]]))[0][0])


async def test_released_ranks_are_reset_and_reused(owner: Any) -> None:
    async with await leased(owner, 2):
        pass  # so that both have started: which one does first is chance
    await settled(owner)
    async with await leased(owner) as first:
        before = await pid(first)
    await settled(owner)
    async with await leased(owner) as second:
        assert await pid(second) == before


async def test_rank_zero_answers_for_all(owner: Any) -> None:
    async with await leased(owner, 2) as group:
        assert (await group.logprobs([[0]]))[0][1] == 0


async def test_requests_are_served_in_order_of_arrival(owner: Any) -> None:
    served: list[str] = []

    async def stage(holder: str, ranks: int) -> None:
        async with await leased(owner, ranks, holder):
            served.append(holder)

    first = await leased(owner)
    # `pair` needs both ranks; `single` could have the free one but came later.
    pair = asyncio.create_task(stage("pair", 2))
    while (await status_of(owner)).waiting < 1:
        await asyncio.sleep(0)
    single = asyncio.create_task(stage("single", 1))
    while (await status_of(owner)).waiting < 2:
        await asyncio.sleep(0)
    await first.release()
    await asyncio.gather(pair, single)
    assert served == ["pair", "single"]


async def test_waiting_is_bounded_and_says_who_holds_the_ranks(owner: Any) -> None:
    async with await leased(owner, 2, "stage-rl-ab12"):
        with pytest.raises(EngineError, match="held by stage-rl-ab12"):
            await leased(owner, 1, wait_s=0.2)
        assert (await status_of(owner)).waiting == 0


async def test_a_request_that_is_given_up_leaves_the_queue(owner: Any) -> None:
    async with await leased(owner, 2):
        request = asyncio.create_task(leased(owner, 1))
        while (await status_of(owner)).waiting < 1:
            await asyncio.sleep(0)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        while (await status_of(owner)).waiting:
            await asyncio.sleep(0)


async def test_an_owner_starts_ranks_as_asked_and_retires_only_when_idle(cluster: str) -> None:
    del cluster
    owner = new_owner()
    with pytest.raises(InputError, match=r"needs 4 ranks .* are 2"):
        await leased(owner, 4)
    await prewarm("rank", 1, owner)
    assert (await status_of(owner)).size == 1
    async with await leased(owner, 1, pool_ranks=2):
        assert (await status_of(owner)).size == 2
        assert await owner.retire.remote() is False
    with pytest.raises(ray.exceptions.ActorDiedError):
        await owner.retire.remote()


def job(**more: Any) -> TrainerJob:
    return TrainerJob(
        TrainerSettings(), Optimizer(lr=1e-3), Parallel(), Path("model"), 0, 10, **more
    )


async def test_stages_with_critics_take_the_ranks_of_both_roles_at_once(owner: Any) -> None:
    """With a lease for each role, both stages would hold one rank of two and wait for ever."""

    async def stage(holder: str) -> int:
        roles = await lease_with_critic(
            job(), job(critic=CriticSettings()), 2, holder, wait_s=60.0, owner=owner
        )
        held = len((await status_of(owner)).leases)
        pids = {
            await pid(roles[0]),
            int((await roles[1].values(StepInputs([], Algorithm())))[0][0]),
        }
        await roles[1].release()
        assert held == 1
        return len(pids)

    assert await asyncio.gather(stage("a"), stage("b")) == [2, 2]
    with pytest.raises(InputError, match=r"trainer and critic need 1 \+ 1 ranks .* are 1"):
        await lease_with_critic(job(), job(critic=CriticSettings()), 1, "c", owner=owner)


async def test_an_error_of_one_role_ends_the_lease_of_both(owner: Any) -> None:
    policy, critic = await lease_with_critic(
        job(), job(critic=CriticSettings()), 2, "a", owner=owner
    )
    with pytest.raises(EngineError, match="division by zero"):
        await critic.save(Path("0-bug"))
    with pytest.raises(EngineError, match="broke before"):
        await policy.logprobs([[0]])
    await policy.release()


async def test_ranks_do_other_work_while_they_write_a_checkpoint(owner: Any) -> None:
    async with await leased(owner, 2) as group:
        await group.begin_save(Path("in-time"))
        writing = asyncio.create_task(group.saved())
        assert await group.logprobs([[0]])
        await writing
        await group.save(Path("in-time"))


async def test_our_own_errors_come_back_as_they_were_raised(owner: Any) -> None:
    async with await leased(owner, 2) as group:
        with pytest.raises(AgreementError, match="sample s3 differs"):
            await group.save(Path("1-disagree"))
    with pytest.raises(InputError, match="no such model"):
        await leased(owner, model=Path("bad-model"))


@pytest.mark.parametrize(
    ("deed", "says"),
    [
        ("die", "on rank 0 .*ActorDiedError"),
        ("bug", "float division by zero"),
        ("hang", "no answer"),
    ],
)
async def test_a_broken_rank_says_where_and_is_replaced(owner: Any, deed: str, says: str) -> None:
    async with await leased(owner) as group:
        before = await pid(group)
        bound = 1.0 if deed == "hang" else 60.0
        with pytest.raises(EngineError, match=says) as caught:
            await group.save(Path(f"0-{deed}"), timeout_s=bound)
        assert f"pid {before}, log /" in str(caught.value)
        with pytest.raises(EngineError, match="broke before"):
            await group.logprobs([[0]])
    async with await leased(owner, 2) as group:
        assert await pid(group) != before
    assert not Path(f"/proc/{before}").exists()


async def test_a_rank_that_died_idle_is_replaced_before_it_is_leased(owner: Any) -> None:
    before = await killed_idle(owner)
    async with await leased(owner, (await status_of(owner)).size, pool_ranks=9) as group:
        assert await pid(group) != before


async def test_a_rank_that_died_idle_is_replaced_without_a_lease(owner: Any) -> None:
    before = await killed_idle(owner)
    async with asyncio.timeout(30):
        while (status := await status_of(owner)).ready == status.size:
            await asyncio.sleep(0.01)
        await settled(owner)
    async with await leased(owner, status.size, pool_ranks=9) as group:
        assert await pid(group) != before


async def test_ranks_that_cannot_start_are_an_error_that_says_why(cluster: str) -> None:
    del cluster
    broken = new_owner(BrokenRank)
    with pytest.raises(EngineError, match=r"do not start: .*no module named megatron"):
        await leased(broken)
    ray.kill(broken)


async def test_a_killed_driver_loses_its_ranks_at_once(cluster: str) -> None:
    name = f"test-owner-{time.monotonic_ns()}"
    code = f"""
import asyncio
from pathlib import Path
from engines.algorithms.spec import Algorithm
from engines.batching import TokenSequence
from engines.megatron.ranks.trainer_group import TrainerGroup
from engines.devices.find_owner import open_owner
from engines.megatron.ranks.rank import TrainerJob
from engines.megatron.spec import Optimizer, Parallel, TrainerSettings
async def main():
    job = TrainerJob(TrainerSettings(), Optimizer(lr=1e-3), Parallel(), Path("model"), 0, 10)
    group = await TrainerGroup.lease(job, 1, "victim", owner=open_owner(name={name!r}))
    print(int((await group.logprobs([[0]]))[0][0]), flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""
    shared = new_owner(name=name)
    env = {**os.environ, "RAY_ADDRESS": cluster, "RAY_AUTH_MODE": "disabled"}
    driver = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=env)
    try:
        assert driver.stdout is not None
        line = await asyncio.to_thread(driver.stdout.readline)
        driver.kill()
        # Well below the lease's time to live: the owner sees the driver's death itself.
        async with await leased(shared, pool_ranks=1, wait_s=30) as group:
            assert await pid(group) != int(line)
    finally:
        driver.kill()
        driver.communicate()
        ray.kill(shared)


@pytest.mark.parametrize("where", ["connect()", "on_a_thread(target=connect)"])
def test_joining_ray_leaves_a_driver_its_own_end(cluster: str, where: str) -> None:
    """SIGTERM reaches its handler alone; Ray's would write a stack first."""
    code = f"""
import os, signal, threading
from engines.devices.ray_cluster import connect
signal.signal(signal.SIGTERM, lambda *_: print("checkpoint", flush=True))
def on_a_thread(target):
    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
{where}
os.kill(os.getpid(), signal.SIGTERM)
"""
    env = {**os.environ, "RAY_ADDRESS": cluster, "RAY_AUTH_MODE": "disabled"}
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert (told.returncode, told.stdout) == (0, "checkpoint\n")
    assert "SIGTERM" not in told.stderr


async def test_an_owner_that_is_gone_ends_the_group(cluster: str) -> None:
    del cluster
    doomed = new_owner()
    group = await leased(doomed)
    ray.kill(doomed)

    async def use_until_it_fails() -> None:
        while True:
            await group.logprobs([[0]])

    with pytest.raises(EngineError, match="rank 0"):  # ranks end with their owner
        await use_until_it_fails()
    await group.release()
    with pytest.raises(LeaseLost, match="was released"):
        await group.logprobs([[0]])


async def test_with_gpus_each_rank_keeps_one_of_its_own(cluster: str) -> None:
    del cluster
    owner = new_owner(gpus=2)
    async with await leased(owner) as one, await leased(owner) as two:
        gpus = [(await group.logprobs([[0]]))[0][2] for group in (one, two)]
        assert sorted(gpus) == [0, 1]
        with pytest.raises(EngineError):
            await one.save(Path("0-die"))
    # Whichever slot died, its successor got the GPU that the survivor does not hold.
    async with await leased(owner) as one, await leased(owner) as two:
        gpus = [(await group.logprobs([[0]]))[0][2] for group in (one, two)]
        assert sorted(gpus) == [0, 1]
    ray.kill(owner)


@pytest.mark.long
async def test_reused_ranks_train_exactly_as_new_ones(cluster: str, tmp_path: Path) -> None:
    del cluster
    owner = new_owner(TrainerRank)
    model = tiny_model(tmp_path / "model", num_hidden_layers=2)
    batch = [TokenSequence([5, 9, 7, 2, 11, 3], [0, 0, 1, 1, 1, 1]) for _ in range(4)]
    losses: list[list[float]] = []
    for ranks in (1, 2, 1):
        async with await leased(owner, ranks, model=model, wait_s=120) as group:
            steps = await group.sft_steps([batch, batch])
            losses.append([step["loss"] for step in steps])
            if len(losses) == 3:
                with pytest.raises(TrainingStopped, match="no trained token"):
                    await group.sft_steps([[TokenSequence([1, 2], [0, 0])]])
    assert losses[0] == losses[2]
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)
    ray.kill(owner)


def test_no_cluster_is_an_error_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(InputError, match="tributary up"):
        connect()
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(InfrastructureError, match="nothing answers"):
        connect()
