"""What is running on this machine for this home: `$TRIBUTARY_HOME/stack.json`."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from pydantic import Field, ValidationError

from infra.access import (
    ADDRESS_VARIABLE,
    HOST_VARIABLE,
    JOINED_HOST_VARIABLE,
    LOOPBACK,
    USER,
    is_loopback,
    key,
    key_path,
    listening_host,
    named_address,
    reachable,
)
from infra.config import Config
from infra.errors import InfrastructureError, InputError
from infra.home import JOINED_HOME_VARIABLE, SOURCE_ROOT, home
from infra.processes.children import ProcessRecord
from infra.processes.network import bypass_env
from infra.processes.work_folder import takes_lock_within
from infra.stack.database import shown_database
from infra.stack.flow_jobs import job_template
from infra.stack.stack_ports import choose_ports

WORK_POOL = "tributary-local"
_CERTIFICATES = SOURCE_ROOT / "infra/stack/no_authority.pem"
"""the fewest that a client of Prefect's can be told to read"""
_CONNECT_S = 5.0
_ASK_S = 60.0
_ASK = """
import json, sys
from ray._raylet import GcsClient
nodes = GcsClient(address=sys.argv[1]).get_all_node_info(timeout=20)
print(json.dumps([node.node_manager_address for node in nodes.values() if node.is_head_node]))
"""


class Stack(Config):
    """The local stack of one home, on ports chosen for it."""

    mark: str
    """carried by every process that belongs to it"""
    ports: dict[str, int]
    host: str = LOOPBACK
    """the address that its servers listen on"""
    address: str = ""
    """what other hosts call this one, if that does not follow from `host`"""
    job_template: str = ""
    """the file that a worker elsewhere makes flows' jobs from; empty: flows are processes here"""
    services: dict[str, ProcessRecord] = Field(default_factory=dict)
    source: str = ""
    """the folder whose code its flows and jobs run"""
    environment: str = ""
    """the Python environment that they run in"""
    database: str = ""
    """where Prefect and MLflow keep their records, without its password; empty: in the home"""
    head: str = ""
    """the Ray head of the stack that this host joined, HOST:PORT; empty: this host has all of it"""

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
        return self.head or f"{self.reached_at}:{self.ports['ray_gcs']}"

    @property
    def reached_at(self) -> str:
        """The address of this host, for all that are to reach it."""
        return self.address or reachable(self.host)

    @property
    def ray_dashboard(self) -> str:
        """Dashboard and job API."""
        return self._url("ray_dashboard")

    def env(self) -> dict[str, str]:
        """Return what a flow, a job or a client needs to reach this stack, and none but this. No
        secret: Ray shows the environment that it is given for a job."""
        if self.head:
            return {
                JOINED_HOME_VARIABLE: str(home()),
                JOINED_HOST_VARIABLE: self.host,
                "RAY_ADDRESS": self.ray_address,
                "DO_NOT_TRACK": "1",
                **self._ray_access(),
                **bypass_env(self.reached_at, self.head.rpartition(":")[0]),
            }
        return {
            "TRIBUTARY_HOME": str(home()),
            "PREFECT_HOME": str(home() / "prefect"),
            "PREFECT_API_URL": self.prefect_api,
            "PREFECT_API_SSL_CERT_FILE": str(_CERTIFICATES),
            "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
            "RAY_ADDRESS": self.ray_address,
            "RAY_API_SERVER_ADDRESS": self.ray_dashboard,
            "MLFLOW_TRACKING_URI": self.mlflow_uri,
            "DO_NOT_TRACK": "1",
            **self._ray_access(),
            **bypass_env(self.reached_at),
        }

    def secret_env(self) -> dict[str, str]:
        """Return what Prefect's and MLflow's own clients need beside it to be let in. For Prefect's
        programs: from them it comes to flows without being shown anywhere. Jobs read the file."""
        if self.head:
            return {}
        return {
            "PREFECT_API_AUTH_STRING": f"{USER}:{key()}",
            "MLFLOW_TRACKING_USERNAME": USER,
            "MLFLOW_TRACKING_PASSWORD": key(),
        }

    def _ray_access(self) -> dict[str, str]:
        # Ray takes 127.0.0.1 for a node's address, and then listens nowhere else, only if it may
        # have no other node; otherwise it takes the machine's own.
        alone = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
        return {
            **(alone if is_loopback(self.host) else {HOST_VARIABLE: self.host}),
            **({ADDRESS_VARIABLE: self.address} if self.address else {}),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(key_path()),
        }

    def _url(self, service: str) -> str:
        return f"http://{self.reached_at}:{self.ports[service]}"


def new_stack(before: Stack | None, head: str = "") -> Stack:
    """Return a stack with nothing running, on the ports that the environment names or it had
    before, and listening where the environment says now; one that joins `head`, where that reaches
    it."""
    host = address_towards(head) if head else listening_host()
    return Stack(
        mark=secrets.token_hex(8),
        head=head,
        host=host,
        address=named_address(host),
        job_template="" if head else job_template(),
        ports=choose_ports(before.ports if before else {}),
        source=str(SOURCE_ROOT),
        environment=_environment(),
        database=shown_database(),
    )


def _environment() -> str:
    """One folder, whichever links lead to it."""
    return str(Path(sys.prefix).resolve())


def require_ours(stack: Stack) -> None:
    """Raises InputError when a running stack would run another checkout's code than ours."""
    if (stack.source, stack.environment) == (str(SOURCE_ROOT), _environment()):
        return
    owner = stack.source or "another version of Tributary"
    raise InputError(
        f"the stack that runs in {home()} was started from {owner} (Python environment "
        f"{stack.environment or 'unknown'}) and would run that code, not {SOURCE_ROOT} (with "
        f"{_environment()}). End it with `tributary down`, or set TRIBUTARY_HOME to another folder"
    )


def require_same_head(stack: Stack, head: str) -> None:
    """Raises InputError when a running stack is not of the head that is asked for."""
    if stack.head != head:
        now = f"has joined {stack.head}" if stack.head else "is a stack of its own"
        raise InputError(
            f"what runs in {home()} {now}: `tributary down` first, then"
            f" `tributary up{f' --join {head}' if head else ''}`"
        )


def require_same_host(stack: Stack) -> None:
    """Raises InputError when the environment asks for other addresses than a running stack's."""
    if stack.head:
        return
    for variable, now in ((HOST_VARIABLE, stack.host), (ADDRESS_VARIABLE, stack.address)):
        if now and os.environ.get(variable, now) != now:
            raise InputError(
                f"the stack that runs in {home()} listens on {now}, and {variable} is now "
                f"{os.environ[variable]}: `tributary down` first, then `tributary up`"
            )


def load_record() -> Stack | None:
    """Return what was last written down, whether or not it still runs."""
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
def stack_lock(wait_s: float = 600.0) -> Generator[None]:
    """One `up` or `down` of a home at a time; a second one waits for it.

    Raises InfrastructureError where the first goes on for longer than any of them takes.
    """
    with (home() / "stack.lock").open("a+") as file:
        if not takes_lock_within(file, wait_s):
            file.seek(0)
            raise InfrastructureError(
                f"another `tributary up`, `down` or `clean` has worked on {home()} for more than"
                f" {wait_s:.0f} s: process {file.read() or 'unknown'}. See what it waits for, or"
                " end it, and try again"
            )
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def address_towards(head: str) -> str:
    """This host's own address on the way to `head` (HOST:PORT), which must answer.

    Raises InputError for what is no such address, InfrastructureError if nothing answers.
    """
    host, _, port = head.rpartition(":")
    if not host or not port.isdecimal():
        raise InputError(
            f"--join {head}: write HOST:PORT of the Ray head, as `tributary status` shows it there"
        )
    try:
        with socket.create_connection((host, int(port)), timeout=_CONNECT_S) as connection:
            own = str(connection.getsockname()[0])
    except OSError as error:
        raise InfrastructureError(
            f"nothing answers at {head} ({error}): see `tributary status` on that host; its"
            " firewall must let this one in"
        ) from error
    if is_loopback(own):
        raise InputError(
            f"--join {head}: that is this host itself. A host joins the stack of another one,"
            f" which was started there with {HOST_VARIABLE}=ADDRESS"
        )
    return own


def require_head(stack: Stack) -> None:
    """Raises InputError unless the head of a joining stack lets it in and tells other hosts an
    address of its own."""
    try:
        asked = subprocess.run(
            [sys.executable, "-c", _ASK, stack.head],
            env=os.environ | stack.env(), capture_output=True, text=True, timeout=_ASK_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise InfrastructureError(
            f"the Ray head at {stack.head} did not answer within {_ASK_S:.0f} s"
        ) from None
    if asked.returncode:
        if "AuthToken" in asked.stderr or "UNAUTHENTICATED" in asked.stderr.upper():
            raise InputError(
                f"the stack at {stack.head} has another key: set TRIBUTARY_KEY to what the file"
                " `key` in that host's home says"
            )
        raise InfrastructureError(
            f"{stack.head} is no Ray head of this version: {asked.stderr.strip()[-500:]}"
        )
    known: list[str] = json.loads(asked.stdout.splitlines()[-1])
    if any(is_loopback(address) for address in known):
        raise InputError(
            f"the stack at {stack.head} calls its host {known[0]}, so no other host can work with"
            f" it: start it again with {HOST_VARIABLE} set to one address of that host"
        )
