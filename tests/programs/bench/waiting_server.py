"""A server that only waits and answers: `python -m tests.programs.bench.waiting_server N`.

It waits as the scripted policy of `agent_gateway` does and answers with as much text, so that the
gateway's clients measure what they need themselves. Prints its address and N keys, and serves until
its input ends.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import sys
import time
from typing import cast

from tests.programs.bench.agent_gateway import SAID, WAITS

_random = random.Random(0)


class _Connection(asyncio.Protocol):
    """One request after another, each with its length in the head."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._came = b""

    def data_received(self, data: bytes) -> None:
        self._came += data
        head, ended, body = self._came.partition(b"\r\n\r\n")
        if not ended:
            return
        length = int(head.lower().partition(b"content-length:")[2].split(None, 1)[0])
        if len(body) < length:
            return
        self._came = b""
        began = time.perf_counter()
        asyncio.get_running_loop().call_later(_random.uniform(*WAITS), self._answer, began)

    def _answer(self, began: float) -> None:
        said = f"{time.perf_counter() - began:.6f}\n{SAID}"
        choice = {"message": {"role": "assistant", "content": said}}
        body = json.dumps({"choices": [choice]}).encode()
        kind = b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        self._transport.write(b"HTTP/1.1 200 OK\r\n" + kind + body)


async def _serve(count: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(_Connection, "127.0.0.1", 0, backlog=1024)
    port = server.sockets[0].getsockname()[1]
    keys = [str(number) for number in range(count)]
    gc.collect()
    gc.freeze()
    print(json.dumps({"url": f"http://127.0.0.1:{port}", "keys": keys}), flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    server.close()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
