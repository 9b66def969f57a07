"""The simulation's own parts, against figures worked out by hand."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from engines.weight_versions import WeightVersions
from tests.programs.scale import virtual_time
from tests.programs.scale.chart import draw
from tests.programs.scale.server import ServerLost, ServerSpeed, SimulatedServer
from tests.programs.scale.simulation import Setup, seconds_of_a_group, simulate
from tests.programs.scale.workload import LOG_NORMAL, MOST_TOKENS, PARETO, mean_tokens

pytestmark = pytest.mark.unit
SPEED = ServerSpeed(places=2, step_s=1.0, sequence_s=0.5, prefill_s=0.25)


def test_hours_pass_at_once_and_everybody_sees_the_same_clock() -> None:
    async def main() -> tuple[float, float, str]:
        began = time.monotonic()
        await asyncio.gather(asyncio.sleep(7200), asyncio.sleep(3600))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 60)
        said = await asyncio.to_thread(lambda: "at once")
        return began, time.monotonic(), said

    began = time.perf_counter()
    assert virtual_time.run(main()) == (0.0, 7260.0, "at once")
    assert time.perf_counter() - began < 5
    assert time.monotonic() != 7260.0


def test_what_waits_for_nothing_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="never happen"):
        virtual_time.run(asyncio.Event().wait())


async def _ended(server: SimulatedServer, prompt: int, new: int) -> tuple[float, WeightVersions]:
    versions = await server.generate(prompt, new)
    return asyncio.get_running_loop().time(), versions


def test_a_server_decodes_what_runs_together_and_queues_the_rest() -> None:
    """Prefill of 4 and 4 tokens: 2 s. Two run at 2 s a token: 10 tokens end at 22 s, when the
    third is prefilled for 1 s; the second has 10 left, beside the third's 5. Both run for 5 tokens
    until 33 s; the second's last 5 tokens take 1.5 s each."""

    async def main() -> list[float]:
        server = SimulatedServer(SPEED)
        ended = await asyncio.gather(*[_ended(server, 4, new) for new in (10, 20, 5)])
        return [at for at, _ in ended]

    assert virtual_time.run(main()) == pytest.approx([22.0, 40.5, 33.0])


def test_a_publish_pauses_and_each_token_has_its_version() -> None:
    """10 s of prefill, 8 tokens until 22 s; a pause of 5 s; 48 tokens are prefilled in 12 s."""

    async def main() -> tuple[float, WeightVersions]:
        server = SimulatedServer(SPEED)
        task = asyncio.create_task(_ended(server, 40, 10))
        await asyncio.sleep(22)
        server.pause()
        await asyncio.sleep(5)
        server.resume(1)
        return await task

    at, versions = virtual_time.run(main())
    assert (at, versions.runs) == (pytest.approx(42.0), ((0, 8), (1, 2)))


def test_a_lost_server_loses_what_it_has() -> None:
    async def main() -> None:
        server = SimulatedServer(SPEED)
        tasks = [asyncio.create_task(server.generate(4, 10)) for _ in range(3)]
        await asyncio.sleep(5)
        server.lose()
        results = await asyncio.gather(*tasks, server.generate(4, 1), return_exceptions=True)
        assert [type(result) for result in results] == [ServerLost] * 4

    virtual_time.run(main())


@pytest.mark.parametrize("length", [LOG_NORMAL, PARETO])
def test_lengths_are_long_tailed(length: object) -> None:
    assert callable(length)
    drawn = sorted(length(i << 17) for i in range(1 << 14))
    assert drawn[-1] == MOST_TOKENS
    assert drawn[len(drawn) // 2] < 0.75 * mean_tokens(length)


def test_sampling_beside_training_comes_near_the_bound_and_turns_do_not() -> None:
    beside = Setup(8, 2, warm_up=2, steps=3)
    first, again = simulate(beside), simulate(beside)
    assert replace(first, cpu_s=0.0) == replace(again, cpu_s=0.0)
    turns = simulate(replace(beside, staleness=0))
    assert turns.tokens_per_s / beside.bound < 0.5
    assert 0.85 < first.tokens_per_s / beside.bound < 1.1  # of few steps, so not exact
    assert first.used > 0.9


def test_the_loop_goes_on_when_servers_are_lost() -> None:
    found = simulate(Setup(8, 2, hours_to_failure=0.5, warm_up=1, steps=3))
    assert found.lost_servers >= 2
    assert found.tokens_per_s > 0


def test_the_chart_has_a_bar_for_each_run() -> None:
    picture = draw({(64, 0): 0.33, (64, 2): 0.93, (256, 2): 0.94})
    assert picture.count("<rect") == 4
    assert "256 servers" in picture


def test_turns_that_share_requests_do_not_wait_for_each_other() -> None:
    for turns in (1, 10):
        together, apart = (seconds_of_a_group(turns, batch, 0) for batch in (16, 1))
        assert together == pytest.approx(apart, rel=0.02)


def test_a_stage_of_many_turns_comes_near_its_bound() -> None:
    setup = Setup(8, 2, turns=3, tool_s=10.0, rollouts_a_place=2.0, warm_up=2, steps=3)
    assert setup.prompt_tokens == 512 + mean_tokens(LOG_NORMAL) + 256
    assert 0.8 < simulate(setup).tokens_per_s / setup.bound < 1.1
