"""Registers the deployments of `prefect.yaml` with the local Prefect server."""

from __future__ import annotations

import subprocess
from pathlib import Path

import yaml

from infra.code.digest import sha256_of
from infra.code.identity import code_identity
from infra.errors import InfrastructureError
from infra.home import SOURCE_ROOT, home
from infra.processes.children import log_tail
from infra.stack.record import Stack
from infra.stack.schedules import note_schedules, restore_schedules
from infra.stack.services import prefect_service_env, program

DEPLOY_SECONDS = 240.0


def deploy(stack: Stack) -> None:
    """Register what `prefect.yaml` names, unless it and the flows' code are as last time."""
    path = SOURCE_ROOT / "prefect.yaml"
    if not path.exists():  # an installed wheel has flows but no deployments
        return
    fingerprint = f"{_fingerprint(path)} {stack.database} {bool(stack.job_template)}"
    # Beside Prefect's own database: who deletes one deletes both.
    note = home() / "prefect" / "deployed"
    if note.exists() and note.read_text() == fingerprint:
        restore_schedules(stack)  # of an `up` that was interrupted, and whose code is gone again
        return
    note_schedules(stack)
    log = home() / "logs" / "deploy.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        try:
            done = subprocess.run(
                [program("prefect"), "--no-prompt", "deploy", "--all"],
                cwd=SOURCE_ROOT, env=prefect_service_env(stack, "deploy"), stdin=subprocess.DEVNULL,
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
            "Repair the cause and run `tributary up` again"
        )
    restore_schedules(stack)
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(fingerprint)


def _fingerprint(path: Path) -> str:
    """Changes with the file, the code that the flows' parameter schemas come from, and where it
    lies: a deployment names its folder."""
    deployments = yaml.safe_load(path.read_text())["deployments"]
    modules = sorted({d["entrypoint"].rsplit(".", 1)[0] for d in deployments})
    flows = code_identity(modules, root=path.parent).hash
    return f"{flows} {sha256_of(path)} {path.parent}"
