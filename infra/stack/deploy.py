"""Registers the deployments of `prefect.yaml` with the local Prefect server."""

from __future__ import annotations

import subprocess
from pathlib import Path

import httpx
import stamina
import yaml

from infra.access import basic
from infra.digest import code_identity
from infra.errors import InfrastructureError
from infra.home import SOURCE_ROOT, home
from infra.processes import log_tail
from infra.stack.record import WORK_POOL, Stack
from infra.stack.services import program, service_env

DEPLOY_SECONDS = 240.0
BUSY_SECONDS = 30.0


def make_work_pool(stack: Stack) -> None:
    """Create the pool that deployments name; its worker fills in the job template."""
    body = {"name": WORK_POOL, "type": "process"}
    url = f"{stack.prefect_api}/work_pools/"
    try:
        # On SQLite the server turns a write away while another one is going on.
        for attempt in stamina.retry_context(_may_pass, attempts=None, timeout=BUSY_SECONDS):
            with attempt:
                reply = httpx.post(
                    url, json=body, timeout=BUSY_SECONDS, trust_env=False, headers=basic()
                )
                if reply.status_code != 409:  # it is there already
                    reply.raise_for_status()
    except httpx.HTTPError as error:
        raise InfrastructureError(f"Prefect refused the work pool {WORK_POOL}: {error}") from error


def _may_pass(error: Exception) -> bool:
    """No answer, or one that the server is too busy; a refusal stays one."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.is_server_error
    return isinstance(error, httpx.TransportError)


def deploy(stack: Stack, root: Path = SOURCE_ROOT) -> None:
    """Register what `prefect.yaml` names, unless it and the flows' code are as last time."""
    path = root / "prefect.yaml"
    if not path.exists():  # an installed wheel has flows but no deployments
        return
    fingerprint = f"{_fingerprint(path)} {stack.database}"
    # Beside Prefect's own database: who deletes one deletes both.
    note = home() / "prefect" / "deployed"
    if note.exists() and note.read_text() == fingerprint:
        return
    log = home() / "logs" / "deploy.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        try:
            done = subprocess.run(
                [program("prefect"), "--no-prompt", "deploy", "--all"],
                cwd=root, env=service_env(stack, "deploy"), stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, timeout=DEPLOY_SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise InfrastructureError(
                f"the deployments were not registered within {DEPLOY_SECONDS:.0f} s; the log is "
                f"{log}. Run `tributary up` again"
            ) from error
    if done.returncode != 0:
        raise InfrastructureError(
            f"Prefect refused the deployments of {path}. Last lines of {log}:\n{log_tail(log)}\n"
            "Mend the cause and run `tributary up` again"
        )
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(fingerprint)


def _fingerprint(path: Path) -> str:
    """Changes with the file, the code that the flows' parameter schemas come from, and where it
    lies: a deployment names its folder."""
    deployments = yaml.safe_load(path.read_text())["deployments"]
    modules = sorted({d["entrypoint"].rsplit(".", 1)[0] for d in deployments})
    return f"{code_identity(modules, [path], root=path.parent).hash} {path.parent}"
