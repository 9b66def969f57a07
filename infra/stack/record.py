"""What is running on this machine for this home: `$TRIBUTARY_HOME/stack.json`."""

from __future__ import annotations

import fcntl
import os
import secrets
import sys
from collections.abc import Generator
from contextlib import contextmanager

from pydantic import Field, ValidationError

from infra.config import Config
from infra.errors import InputError
from infra.home import SOURCE_ROOT, home
from infra.ports import free_ports, is_free
from infra.processes import ProcessRecord
from infra.stack.database import shown_database

PORTS = (
    "prefect",
    "mlflow",
    "ray_gcs",
    "ray_dashboard",
    "ray_object_manager",
    "ray_node_manager",
    "ray_client",
    "ray_agent_http",
    "ray_agent_grpc",
    "ray_runtime_env",
    "ray_metrics",
)
WORK_POOL = "tributary-local"


class Stack(Config):
    """The local stack of one home, on ports chosen for it. Prefect and MLflow listen on loopback;
    Ray's own daemons listen on every interface, whatever address the head is given."""

    mark: str
    """carried by every process that belongs to it"""
    ports: dict[str, int]
    services: dict[str, ProcessRecord] = Field(default_factory=dict)
    source: str = ""
    """the folder whose code its flows and jobs run"""
    environment: str = ""
    """the Python environment that they run in"""
    database: str = ""
    """where Prefect and MLflow keep their records, without its password; empty: in the home"""

    @property
    def prefect_ui(self) -> str:
        return self._url("prefect")

    @property
    def prefect_api(self) -> str:
        return f"{self.prefect_ui}/api"

    @property
    def mlflow_uri(self) -> str:
        return self._url("mlflow")

    @property
    def ray_address(self) -> str:
        """The GCS, for `ray.init`."""
        return f"127.0.0.1:{self.ports['ray_gcs']}"

    @property
    def ray_dashboard(self) -> str:
        """Dashboard and job API."""
        return self._url("ray_dashboard")

    def env(self) -> dict[str, str]:
        """What a flow, a job or a client needs to reach this stack, and none but this."""
        return {
            "TRIBUTARY_HOME": str(home()),
            "PREFECT_HOME": str(home() / "prefect"),
            "PREFECT_API_URL": self.prefect_api,
            "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
            "RAY_ADDRESS": self.ray_address,
            "RAY_API_SERVER_ADDRESS": self.ray_dashboard,
            # Unset, a client may find a token file somewhere and be refused.
            "RAY_AUTH_MODE": "disabled",
            "MLFLOW_TRACKING_URI": self.mlflow_uri,
            "DO_NOT_TRACK": "1",
        }

    def _url(self, service: str) -> str:
        return f"http://127.0.0.1:{self.ports[service]}"


def new_stack(before: Stack | None) -> Stack:
    """A stack with nothing running, on the ports it had before where they are still free."""
    known = before.ports if before else {}
    kept = {name: known[name] for name in PORTS if name in known and is_free(known[name])}
    missing = [name for name in PORTS if name not in kept]
    chosen = free_ports(len(missing), avoid=set(known.values()))
    return Stack(
        mark=secrets.token_hex(8),
        ports=kept | dict(zip(missing, chosen, strict=True)),
        source=str(SOURCE_ROOT),
        environment=sys.prefix,
        database=shown_database(),
    )


def require_ours(stack: Stack) -> None:
    """Raises InputError when a running stack would run another checkout's code than ours."""
    if (stack.source, stack.environment) == (str(SOURCE_ROOT), sys.prefix):
        return
    owner = stack.source or "another version of Tributary"
    raise InputError(
        f"the stack that runs in {home()} was started from {owner} (Python environment "
        f"{stack.environment or 'unknown'}) and would run that code, not {SOURCE_ROOT} (with "
        f"{sys.prefix}). End it with `tributary down`, or set TRIBUTARY_HOME to another folder"
    )


def load_record() -> Stack | None:
    """What was last written down, whether or not it still runs."""
    try:
        return Stack.model_validate_json((home() / "stack.json").read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def save_record(stack: Stack) -> None:
    path = home() / "stack.json"
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(stack.model_dump_json(indent=1))
    draft.replace(path)


@contextmanager
def stack_lock() -> Generator[None]:
    """One `up` or `down` of a home at a time; a second one waits."""
    with (home() / "stack.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
