"""One gateway for all harnesses of an event loop, while there are any."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

from engines.agents.gateway import Gateway
from engines.agents.server import GatewayServer


class _Shared:
    """A gateway that several use."""

    def __init__(self) -> None:
        self.gateway = Gateway()
        self.server = GatewayServer(self.gateway)
        self.users = 0
        self.started = asyncio.Lock()
        self.is_started = False


_SHARED: WeakKeyDictionary[asyncio.AbstractEventLoop, _Shared] = WeakKeyDictionary()


@asynccontextmanager
async def shared_gateway() -> AsyncGenerator[tuple[Gateway, str]]:
    """The gateway of this event loop and its `host:port`. The first user starts it, and the last
    one ends it. Raises EngineError if it does not listen."""
    loop = asyncio.get_running_loop()
    shared = _SHARED.get(loop)
    if shared is None:
        shared = _SHARED[loop] = _Shared()
    shared.users += 1
    try:
        async with shared.started:
            if not shared.is_started:
                await shared.server.start()
                shared.is_started = True
        yield shared.gateway, shared.server.address
    finally:
        shared.users -= 1
        if not shared.users:
            del _SHARED[loop]
            await shared.server.close()
