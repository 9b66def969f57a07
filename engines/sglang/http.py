"""Short control calls to engine processes, with every reply checked.

Standard library only: trainers call this too, and one connection a call costs under 1 ms here.
"""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any
from urllib.parse import urlsplit

from infra.access import bearer
from infra.errors import EngineError


def call(
    url: str, path: str, body: dict[str, Any] | None = None, *, timeout: float, method: str = ""
) -> Any:
    """POST `body` as JSON (GET without one) and return the JSON reply, or its text if it is none.

    Raises EngineError on no answer within `timeout` seconds, a status of 400 or more, or a reply
    that says `success: false`: SGLang answers 200 to some refusals.
    """
    method = method or ("GET" if body is None else "POST")
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout)
    payload = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} | bearer()
    try:
        connection.request(method, path, payload, headers)
        response = connection.getresponse()
        text = response.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        raise EngineError(
            f"{method} {url}{path}: {error!r} (limit {timeout:.0f} s); is it alive?"
        ) from error
    finally:
        connection.close()
    if response.status >= 400:
        raise EngineError(f"{method} {url}{path} was refused ({response.status}): {text[:500]}")
    try:
        reply = json.loads(text)
    except ValueError:
        return text
    if isinstance(reply, dict) and reply.get("success") is False:
        raise EngineError(f"{method} {url}{path} failed: {reply.get('message') or text[:500]}")
    return reply


def free_port() -> int:
    """A port that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]
