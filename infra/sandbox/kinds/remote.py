"""The kind `remote`: sandboxes of a server elsewhere, over HTTP with a key.

The server's side is described in `docs/sandboxes.md`; `tests/parts/sandbox_server.py` is one.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import httpx

from infra.access import sendable
from infra.errors import InputError
from infra.processes.network import goes_by_proxies
from infra.sandbox.agent_sandbox import (
    FILES_SECONDS,
    GRACE_SECONDS,
    START_SECONDS,
    check_command,
    result_of,
    within,
)
from infra.sandbox.sandbox import (
    Limits,
    SandboxLost,
    SandboxRefused,
    SandboxResult,
    Snapshot,
    inside,
)

IDLE_SECONDS = 600.0
"""without a request after which the server ends a sandbox: its owner was killed"""
_MOST_PACKED = 1 << 28
_OVERHEAD = 1 << 20
_REFUSED, _NO_KEY = 422, (401, 403)


def start(limits: Limits, *, url: str, key: str) -> RemoteSandbox:
    """Return a sandbox of the server at `url` that is ready. Raises InputError where the server
    does not take the key, SandboxRefused and SandboxLost."""
    client = httpx.Client(
        base_url=url.rstrip("/") + "/v1/sandboxes",
        headers={
            "Authorization": f"Bearer {sendable(key, 'the key of the remote sandboxes')}",
            "Accept-Encoding": "identity",
        },
        timeout=START_SECONDS,
        trust_env=goes_by_proxies(url),
    )
    try:
        order = {"limits": asdict(limits), "idle_seconds": IDLE_SECONDS}
        made = _asked(client, "POST", "", json=order, most=_OVERHEAD).json()
        return RemoteSandbox(client, str(made["id"]), limits)
    except BaseException as error:
        client.close()
        if isinstance(error, KeyError | ValueError | TypeError):
            raise SandboxLost(f"{url} did not answer with a sandbox's id") from error
        raise


class RemoteSandbox:
    """Keeps the contract of `infra.sandbox.sandbox.Sandbox`."""

    def __init__(self, client: httpx.Client, identity: str, limits: Limits) -> None:
        self._client, self._identity, self._limits = client, identity, limits
        self._stopped = False

    def exec(
        self,
        command: Sequence[str],
        *,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
        limits: Limits | None = None,
    ) -> SandboxResult:
        limits = within(limits or self._limits, self._limits)
        check_command(command, limits)
        order = {
            "command": list(command),
            "stdin": base64.b64encode(stdin).decode(),
            "environment": dict(environment or {}),
            "limits": asdict(limits),
        }
        seconds, most = limits.seconds + GRACE_SECONDS, 4 * limits.output + _OVERHEAD
        told = self._ask("POST", "exec", json=order, seconds=seconds, most=most)
        try:
            answer = told.json()
            output, errors = (base64.b64decode(answer[name]) for name in ("stdout", "stderr"))
            return result_of({**answer, "stdout": len(output)}, output + errors)
        except (KeyError, ValueError, TypeError) as error:
            raise SandboxLost(f"{self._client.base_url} answered no result") from error

    def write(self, path: str, content: bytes) -> None:
        self._ask("PUT", "files", params={"path": inside(path)}, content=content)

    def read(self, path: str, most: int = 5_000_000) -> bytes:
        asked = {"path": inside(path), "most": most}
        return self._ask("GET", "files", params=asked, most=max(most, _OVERHEAD)).content

    def snapshot(self) -> Snapshot:
        return Snapshot(self._ask("GET", "snapshot", most=_MOST_PACKED).content)

    def restore(self, snapshot: Snapshot) -> None:
        self._ask("PUT", "snapshot", content=snapshot.packed)

    def is_running(self) -> bool:
        return not self._stopped

    def stop(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        try:
            _asked(self._client, "DELETE", self._identity, most=_OVERHEAD)
        except (SandboxLost, SandboxRefused):
            pass  # the server ends it when it has been idle
        finally:
            self._client.close()

    def _ask(
        self, method: str, what: str, *, seconds: float = FILES_SECONDS, most: int = _OVERHEAD,
        **given: Any,
    ) -> httpx.Response:  # fmt: skip
        if self._stopped:
            raise SandboxLost("a remote sandbox was stopped")
        path = f"{self._identity}/{what}"
        return _asked(self._client, method, path, most=most, timeout=seconds, **given)


def _asked(
    client: httpx.Client, method: str, path: str, *, most: int, **given: Any
) -> httpx.Response:
    """The answer, of at most `most` bytes."""
    try:
        with client.stream(method, path, **given) as response:
            parts = bytearray()
            for part in response.iter_raw():  # kilobytes may be gigabytes once they are unpacked
                parts += part
                if len(parts) > most:
                    raise SandboxLost(f"{client.base_url} answered more than {most} bytes")
    except httpx.HTTPError as error:
        raise SandboxLost(f"{client.base_url} did not answer: {error!r}") from error
    if response.status_code in _NO_KEY:
        raise InputError(f"{client.base_url} does not take the key of the remote sandboxes.")
    if response.status_code == _REFUSED:
        raise SandboxRefused(f"a remote sandbox: {bytes(parts).decode(errors='replace')[:500]}")
    if not response.is_success:
        raise SandboxLost(f"{client.base_url} answered with status {response.status_code}")
    return httpx.Response(response.status_code, content=bytes(parts))
