"""The few calls that the command makes to the Prefect server, without importing Prefect. Keeps
which runs a form of Prefect's page asked for that never began, for `tributary runs`.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import stamina
from pydantic import ValidationError

from infra.access import basic
from infra.config import Config
from infra.errors import InfrastructureError, InputError
from infra.home import home, write_whole
from infra.processes.network import certificates, loosed

TIMEOUT_SECONDS = 30.0
PENDING_SECONDS = 60.0
"""what a worker may take to start a flow's process"""
BUSY_SECONDS = 90.0
"""how long a server that is busy is asked again: SQLite lets one write at a time"""
RUN_LABEL = "tributary.run"
"""label of a flow run that says which run it works on"""
_BUSY = (429, 503)
KEPT = 20
"""the newest ones; older ones stay on Prefect's page"""


class PrefectIsBusy(InfrastructureError):
    """The server is up and could not do it now: it did nothing, or may be asked again."""


class PrefectApi:
    """Raises `InfrastructureError` when the server does not answer."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    def require(self, flow: str) -> None:
        """Raises `InfrastructureError` when the deployment `flow/flow` cannot be started."""
        self.call("GET", f"/deployments/name/{flow}/{flow}")

    def is_waiting(self, flow_run: str) -> bool:
        """Return whether a flow run is about to start: no process works on it yet."""
        state = self.call("GET", f"/flow_runs/{flow_run}", unknown={})
        found = state.get("state") or {}
        if found.get("type") != "PENDING":
            return found.get("type") == "SCHEDULED"
        since = datetime.fromisoformat(str(found["timestamp"]))  # a lost worker leaves it pending
        return (datetime.now(UTC) - since).total_seconds() < PENDING_SECONDS

    def start(self, flow: str, parameters: dict[str, Any], run: str) -> str:
        """Create a flow run of the deployment `flow/flow` that works on a run; returns its id."""
        deployment = self.call("GET", f"/deployments/name/{flow}/{flow}")
        body = {
            "parameters": parameters,
            "name": run,
            # No parameter: who copies a flow run on Prefect's page wants a run of their own.
            "labels": {RUN_LABEL: run},
            "state": {"type": "SCHEDULED"},
            "idempotency_key": uuid.uuid4().hex,  # asked twice, it starts once
        }
        made = self.call("POST", f"/deployments/{deployment['id']}/create_flow_run", body)
        return str(made["id"])

    def state(self, flow_run: str) -> tuple[str, str]:
        """Type and message of a flow run's state, e.g. `("CRASHED", "...")`."""
        state = self.call("GET", f"/flow_runs/{flow_run}")["state"] or {}
        return str(state.get("type", "PENDING")), str(state.get("message") or "")

    def secret(self, block: str) -> Any:
        """The value of a Secret block; None when there is none of that name."""
        path = f"/block_types/slug/secret/block_documents/name/{block}?include_secrets=true"
        return self.call("GET", path, unknown={"data": {}})["data"].get("value")

    def cancel(self, flow_run: str) -> None:
        self.call("POST", f"/flow_runs/{flow_run}/set_state", {"state": {"type": "CANCELLING"}})

    def call(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        unknown: dict[str, Any] | None = None,
    ) -> Any:
        """The reply; `unknown` is returned for what Prefect does not know (default: an error)."""
        for attempt in stamina.retry_context(PrefectIsBusy, attempts=None, timeout=BUSY_SECONDS):
            with attempt:
                return self._once(method, path, body, unknown)
        raise AssertionError("stamina raises what the last try raised")

    def _once(
        self, method: str, path: str, body: dict[str, Any] | None, unknown: dict[str, Any] | None
    ) -> Any:
        try:
            reply = loosed(httpx.request(
                method, self._url + path, json=body, timeout=TIMEOUT_SECONDS, headers=basic(),
                trust_env=False, verify=certificates(),
            ))  # fmt: skip
        except httpx.ReadTimeout as error:
            kind = PrefectIsBusy if _may_repeat(method, path, body) else InfrastructureError
            raise kind(self._silent(error)) from error
        except httpx.HTTPError as error:
            raise InfrastructureError(self._silent(error)) from error
        if reply.status_code in (409, 422):
            raise InputError(f"Prefect refuses it: {reply.text[:2000]}")
        if reply.status_code == 404 and unknown is not None:
            return unknown
        if reply.status_code == 404:
            raise InfrastructureError(f"Prefect knows no {path}; deploy again with `tributary up`")
        if reply.status_code in _BUSY:
            raise PrefectIsBusy(f"Prefect is busy ({reply.status_code}): {reply.text[:500]}")
        if reply.is_error:
            raise InfrastructureError(f"Prefect answered {reply.status_code}: {reply.text[:500]}")
        return reply.json() if reply.content else {}

    def _silent(self, error: httpx.HTTPError) -> str:
        return (
            f"the Prefect server at {self._url} does not answer ({error}); "
            "see `tributary status`, repair with `tributary up`"
        )


def _may_repeat(method: str, path: str, body: dict[str, Any] | None) -> bool:
    """Return whether a request that the server may have done can be made again."""
    is_question = path.rpartition("/")[2] in ("filter", "set_state")
    return method != "POST" or is_question or "idempotency_key" in (body or {})


class RefusedRun(Config):
    asked: str
    """its name, or its recipe's"""
    why: str
    at: float
    """Unix time"""


def put_refused(flow_run: str, refused: RefusedRun) -> None:
    """Keep it; the oldest of too many is forgotten."""
    path = _path(flow_run)
    write_whole(path, refused.model_dump_json(indent=1))
    files = sorted(path.parent.glob("*.json"), key=lambda file: file.stat().st_mtime)
    for file in files[:-KEPT]:
        file.unlink(missing_ok=True)


def forget_refused(flow_run: str) -> None:
    """A retry of the flow run began."""
    _path(flow_run).unlink(missing_ok=True)


def refused_runs() -> list[RefusedRun]:
    """The newest first. A file that is being written is left out."""
    found: list[RefusedRun] = []
    for file in (home() / "runs" / "refused").glob("*.json"):
        try:
            found.append(RefusedRun.model_validate_json(file.read_bytes()))
        except (ValidationError, FileNotFoundError):
            continue
    return sorted(found, key=lambda refused: refused.at, reverse=True)


def _path(flow_run: str) -> Path:
    return home() / "runs" / "refused" / f"{flow_run}.json"
