"""The owner's end of a sandbox's channel: requests with a bound on their time."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from typing import Any

from infra.sandbox.inside.agent_messages import Header, encode, receive
from infra.sandbox.sandbox import SandboxLost, SandboxRefused

_CHUNK = 1 << 20


class Connection:
    """One request at a time; `close` may come from another thread and ends the one that waits."""

    def __init__(self, channel: socket.socket, about: str) -> None:
        channel.setblocking(False)
        self._channel, self._about = channel, about

    def request(
        self, header: Header, body: bytes = b"", *, seconds: float, most: int
    ) -> tuple[Header, bytes]:
        """The answer, of at most `most` bytes. Raises SandboxRefused, SandboxLost."""
        deadline = time.monotonic() + seconds
        self.send(header, body, seconds=seconds)
        return self.answer(seconds=deadline - time.monotonic(), most=most)

    def send(self, header: Header, body: bytes = b"", *, seconds: float) -> None:
        self._write(encode(header, body), time.monotonic() + seconds)

    def answer(self, *, seconds: float, most: int) -> tuple[Header, bytes]:
        deadline = time.monotonic() + seconds
        try:
            header, body = receive(lambda size: self._read(size, deadline), most)
        except (ValueError, RecursionError) as error:
            self.close()
            raise SandboxLost(f"{self._about} answered {error}") from error
        if "error" in header:
            raise SandboxRefused(f"{self._about}: {header['error']}")
        return header, body

    def receive_descriptors(self, count: int, *, seconds: float) -> list[int]:
        """Descriptors that the agent hands out with one byte."""
        self._wait(select.POLLIN, time.monotonic() + seconds)
        _, descriptors, _, _ = socket.recv_fds(self._channel, 1, count)
        return descriptors

    def is_open(self) -> bool:
        """False once the agent has closed its end."""
        descriptor = self._channel.fileno()
        if descriptor < 0:
            return False
        poll = select.poll()
        poll.register(descriptor, select.POLLRDHUP)
        return not poll.poll(0)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits in it
        self._channel.close()

    def _write(self, data: bytes, deadline: float) -> None:
        view = memoryview(data)
        while view:
            self._wait(select.POLLOUT, deadline)
            view = view[self._try(lambda part=view: self._channel.send(part), 0) :]

    def _read(self, size: int, deadline: float) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            self._wait(select.POLLIN, deadline)
            wanted = min(size - len(parts), _CHUNK)
            part = self._try(lambda most=wanted: self._channel.recv(most), None)
            if part == b"":
                raise SandboxLost(f"{self._about} has ended")
            parts += part or b""
        return bytes(parts)

    def _try(self, call: Any, otherwise: Any) -> Any:
        try:
            return call()
        except BlockingIOError:
            return otherwise
        except OSError as error:
            raise SandboxLost(f"{self._about} has ended: {error}") from error

    def _wait(self, event: int, deadline: float) -> None:
        poll = select.poll()
        descriptor = self._channel.fileno()
        if descriptor < 0:
            raise SandboxLost(f"{self._about} was stopped")
        poll.register(descriptor, event)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            self.close()
            raise SandboxLost(f"{self._about} did not answer in time and was ended")
