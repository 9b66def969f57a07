"""The gateway's HTTP server, in the event loop of the rollouts that it serves."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Generator
from contextlib import contextmanager

import uvicorn

from engines.agents.gateway import Gateway
from infra.access import LOOPBACK
from infra.errors import EngineError

_START_S, _END_S = 30.0, 10.0
_BACKLOG = 1024
_IDLE_S = 3600
"""that a connection may be idle: an agent's tools take their time between two turns"""


class GatewayServer:
    """Listens on a port of the loopback interface. `start` it and `close` it in one event loop."""

    def __init__(self, gateway: Gateway) -> None:
        # Where the protocol is named, asyncio lets small pieces go out at once. Otherwise an
        # answer's body waits until the client acknowledges its head, for 40 ms.
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.bind((LOOPBACK, 0))
        config = uvicorn.Config(
            gateway.app, log_config=None, log_level="critical", access_log=False, lifespan="off",
            ws="none", timeout_keep_alive=_IDLE_S, timeout_graceful_shutdown=1,
            server_header=False, proxy_headers=False, backlog=_BACKLOG,
        )  # fmt: skip
        self._server = _Server(config)
        self._serving: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """`host:port`"""
        return f"{LOOPBACK}:{self._socket.getsockname()[1]}"

    async def start(self) -> None:
        """Raises EngineError if it does not listen in time."""
        self._serving = asyncio.create_task(self._server.serve([self._socket]))
        deadline = asyncio.get_running_loop().time() + _START_S
        while not self._server.started:
            late = asyncio.get_running_loop().time() > deadline
            if late or self._serving.done():
                raise EngineError(f"the agents' gateway does not listen on {self.address}")
            await asyncio.sleep(0.005)

    async def close(self) -> None:
        """End it, with the requests that it is about; doing it twice is harmless."""
        self._server.should_exit = True
        if self._serving is not None:
            done, _ = await asyncio.wait({self._serving}, timeout=_END_S)
            if not done:
                self._serving.cancel()
                await asyncio.wait({self._serving})
            self._serving = None


class _Server(uvicorn.Server):
    """Leaves the process's signals alone: they are the stage's."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield
