"""What the two detached actors that lease things out (trainer ranks, servers) have in common.

    their side:    Waiting (first come, first served) and `ended_leases` (expired, driver gone)
    holder's side: `open_keeper` finds or starts the actor, `grant_of` asks it, `keep_renewing`

Importing this file imports no ray.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from engines.lease import Lease, LeaseBook
from engines.raylink import NAMESPACE, connect, dead_drivers
from infra.errors import EngineError, LeaseLost

_T = TypeVar("_T")
_log = logging.getLogger(__name__)
_HUNG_S = 30.0
"""what a living keeper may take to answer; it only keeps books"""
_END_S = 15.0


class Waiting:
    """Requests in order of arrival: the first is tried again at every change, others wait for it.

    For one event loop.
    """

    def __init__(self) -> None:
        self._queue: deque[object] = deque()
        self._change = asyncio.Event()

    def __len__(self) -> int:
        return len(self._queue)

    async def serve(self, attempt: Callable[[], Awaitable[_T | None]], wait_s: float) -> _T:
        """The first answer of `attempt` that is not None; raises TimeoutError after `wait_s`."""
        ticket = object()
        self._queue.append(ticket)
        try:
            async with asyncio.timeout(wait_s):
                while True:
                    change = self._change  # taken first: a change during the attempt counts
                    if self._queue[0] is ticket and (answer := await attempt()) is not None:
                        return answer
                    await change.wait()
        finally:
            self._queue.remove(ticket)
            self.changed()

    def changed(self) -> None:
        """Something came free, or broke: let the first request look again."""
        self._change.set()
        self._change = asyncio.Event()


def holders(book: LeaseBook) -> str:
    """Holders of leases, for an error message. Example: "stage-rl-ab12-a1"."""
    return ", ".join(lease.holder for lease in book.leases) or "nobody"


async def ended_leases(book: LeaseBook, drivers: Mapping[str, str]) -> list[Lease]:
    """Leases that nobody holds any more, taken from the book: expired, or the driver process of
    the holder (`drivers`: Ray job by lease id) has ended."""
    ended = list(book.expired(time.monotonic()))
    gone: set[str] = set()
    with suppress(Exception):  # the cluster's head is away: expiry still holds
        gone = await asyncio.to_thread(dead_drivers, set(drivers.values()))
    for lease in book.leases:
        if drivers.get(lease.id) in gone:
            ended.append(book.release(lease.id, lease.token))
    return ended


def open_keeper(
    actor_class: type, prefix: str, tag: str, name: str, arguments: tuple[Any, ...], **options: Any
) -> Any:
    """The handle of the one keeper called `prefix + tag`, or `name` if given; started if need be.

    Idle keepers of the prefix with another tag are asked to end, so that what they keep does not
    pile up; one that hangs is replaced. Blocks like `raylink.connect` the first time.
    """
    connect()
    import ray
    from ray.util import list_named_actors

    name = name or prefix + tag
    if name in (alive := list_named_actors()):
        _end_if_hung(name)
    else:
        for other in alive:
            if other.startswith(prefix):
                with suppress(ValueError):  # it ended meanwhile
                    ray.get_actor(other, NAMESPACE).retire.remote()
    return (
        ray.remote(actor_class)
        .options(
            name=name,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=0,
            **options,
        )
        .remote(*arguments)
    )


def _end_if_hung(name: str) -> None:
    """Kill a keeper that does not answer in time, with all that it keeps."""
    import ray
    from ray.util import list_named_actors

    with suppress(Exception):  # it ended meanwhile
        keeper = ray.get_actor(name, NAMESPACE)
        if not _answers(keeper):
            _log.warning("%s did not answer within %.0f s: it is replaced", name, _HUNG_S)
            ray.kill(keeper, no_restart=True)
            deadline = time.monotonic() + _END_S
            while name in list_named_actors() and time.monotonic() < deadline:
                time.sleep(0.1)


def _answers(keeper: Any) -> bool:
    """Whether it answers in time. Raises ray's ActorDiedError when it is over."""
    import ray
    from ray.exceptions import ActorUnavailableError, GetTimeoutError

    deadline = time.monotonic() + _HUNG_S
    while (left := deadline - time.monotonic()) > 0:
        try:
            ray.get(keeper.ping.remote(), timeout=left)
            return True
        except GetTimeoutError:
            return False
        except ActorUnavailableError:  # its connection broke: it may live, or hang
            time.sleep(0.5)
    return False


async def grant_of(request: Any, answer: Callable[[Any], Awaitable[_T]]) -> _T:
    """`answer(request)`; a holder that is cancelled meanwhile takes its request back."""
    try:
        return await answer(request)
    except asyncio.CancelledError:
        import ray

        ray.cancel(request)
        raise


async def keep_renewing(
    renew: Callable[[], Awaitable[Any]], every_s: float, on_lost: Callable[[LeaseLost], None]
) -> None:
    """Renew a lease until cancelled; when it is lost, tell `on_lost` and end."""
    while True:
        await asyncio.sleep(every_s)
        try:
            await renew()
        except LeaseLost as error:
            on_lost(error)
            return
        except EngineError:
            continue  # a busy keeper or a head that is away: the lease's own end decides
