"""RayWorker: a rollout worker in a Ray actor, as the stage holds it. Imports no ray."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any, Self
from urllib.parse import urlsplit
from uuid import uuid4

from engines.devices.address import ProcessAddress
from engines.rollout.workers.messages import News, RollRequest, WorkerLost
from infra.access import is_loopback
from infra.errors import InputError
from tasks.rollout_workers.actor import RolloutWorkerActor

CPU_SHARE = 0.1
"""of a core, as Ray counts it: a worker mostly waits"""
START_S = 300.0
"""what a worker may take to be placed on a host and to build its domains"""
NEWS_S = 1.0
"""how long a worker that has nothing to tell keeps the stage waiting: so old is what it knows of
the stage at most"""
SILENT_S = 120.0
"""how long a worker may not answer before it counts as lost: a driver may block its event loop"""
_END_S = 10.0
_log = logging.getLogger(__name__)


class RayWorker:
    """Made by `start`, ended by `end`, and by Ray when the stage's job ends."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._place: ProcessAddress | None = None

    @classmethod
    async def start(cls, setup: Any, router_url: str, name: str) -> Self:
        """`setup`: reference to a `WorkerSetup`; `name` is for people. Raises InputError for a part
        that cannot be built, WorkerLost."""
        worker = cls(_new_actor(router_url, name))
        try:
            worker._place = await worker._answer(worker._actor.open.remote(setup), START_S)
        except BaseException:
            worker._kill()
            raise
        _log.info("rollout worker: %s", worker._place)
        return worker

    async def roll(self, request: RollRequest) -> None:
        """Raises WorkerLost."""
        await self._answer(self._actor.roll.remote(request), SILENT_S)

    def cancel(self, number: int) -> None:
        self._actor.cancel.remote(number)

    async def news(self, is_changing: bool) -> News:
        """Raises WorkerLost."""
        call = self._actor.news.remote(is_changing, NEWS_S)
        return await self._answer(call, NEWS_S + SILENT_S)

    async def end(self) -> None:
        with suppress(WorkerLost, InputError):
            await self._answer(self._actor.close.remote(), _END_S)
        self._kill()

    def _kill(self) -> None:
        import ray

        ray.kill(self._actor, no_restart=True)

    async def _answer(self, call: Any, timeout_s: float) -> Any:
        from ray.exceptions import RayError, RayTaskError

        try:
            return await asyncio.wait_for(_result(call), timeout_s)
        except TimeoutError:
            raise WorkerLost(f"no answer within {timeout_s:g} s{self._where}") from None
        except RayTaskError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, InputError):
                raise cause from None
            raise WorkerLost(f"{type(cause).__name__}: {cause}{self._where}") from error
        except RayError as error:
            text = next(iter(str(error).strip().splitlines()), "no message")
            raise WorkerLost(f"{type(error).__name__}: {text}{self._where}") from error

    @property
    def _where(self) -> str:
        place = self._place
        return f" ({place.host}, pid {place.pid}, log {place.log or 'unknown'})" if place else ""


async def _result(call: Any) -> Any:
    return await call


def _new_actor(router_url: str, name: str) -> Any:
    """On any host that reaches the router; it is started in the background."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    strategy: Any = "SPREAD"
    if _is_of_this_host(router_url):
        here = ray.get_runtime_context().get_node_id()
        strategy = NodeAffinitySchedulingStrategy(here, soft=False)
    actor_class: Any = ray.remote(RolloutWorkerActor)
    options = actor_class.options(
        # Of those of one name Ray wants one at a time, also of those that are ending.
        name=f"{name} {uuid4().hex[:4]}",
        num_cpus=CPU_SHARE,
        max_restarts=0,
        scheduling_strategy=strategy,
    )
    return options.remote()


def _is_of_this_host(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return is_loopback(host)
    except ValueError:  # a name
        return host == "localhost"
