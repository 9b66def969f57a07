"""The programs of the local stack: how each is started, and how it shows that it answers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from infra.access import basic, bearer
from infra.errors import InputError
from infra.guard import strangers_at
from infra.home import home, runtime_dir, stack_temporary_dir
from infra.processes.children import MARK_VARIABLE
from infra.processes.network import loosed, unusable
from infra.processes.variables import CHECK_WEIGHTS
from infra.secret_references import environment_without_secrets, with_secrets_of_the_store
from infra.stack.database import mlflow_env, prefect_env
from infra.stack.prefect_server import HEARTBEAT_SECONDS
from infra.stack.record import WORK_POOL, Stack
from infra.store.evicted import LIMIT_VARIABLE
from infra.tracking.server_app import APP

VARIABLE = "TRIBUTARY_KEEP_DAYS"
DEFAULT = 90
DAY_S = 86_400
# The pools of engines bound the work, not Ray's counters: a laptop's two cores would not let the
# idle actors of a demo exist side by side.
RAY_LOGICAL_CPUS = 64
RAY_OBJECT_STORE_BYTES = 1 << 30
PROBE_SECONDS = 3.0
# Here we need neither proxies nor certificates, and loading the latter for each probe is slow.
_http = httpx.Client(timeout=PROBE_SECONDS, trust_env=False, verify=False)
# Another stack's or a cloud's settings in the caller's environment must not reach ours.
_FOREIGN = ("PREFECT_", "RAY_", "MLFLOW_", "TRIBUTARY_")
_PASSED_ON = (LIMIT_VARIABLE, CHECK_WEIGHTS)
"""what the stages, and what they start, read themselves"""
_BOUNDED_HEADS = ("--http", "h11")
"""uvicorn's usual reader keeps a head of any size, which comes before a key is asked for"""


def kept_days() -> int:
    """Raises InputError for what is no number of days."""
    text = os.environ.get(VARIABLE, "") or str(DEFAULT)
    if not text.isdecimal() or not 1 <= int(text) <= 36_500:
        raise InputError(f"{VARIABLE}={text}: give a number of days, e.g. {DEFAULT}")
    return int(text)


@dataclass(frozen=True, slots=True)
class Service:
    """One program. `after` names those that must answer before it starts."""

    name: str
    url: str
    command: list[str]
    env: dict[str, str]
    answers: Callable[[], bool]
    after: tuple[str, ...] = ()


def services(stack: Stack) -> list[Service]:
    """Return all that this host runs: the whole stack, or its part in the one that it joined."""
    if stack.head:
        return [_joined_ray(stack)]
    here = [_ray(stack), _prefect_server(stack), _mlflow(stack)]
    return here if stack.job_template else [*here, _prefect_worker(stack)]


def service_env(stack: Stack, service: str) -> dict[str, str]:
    """The caller's environment without foreign settings and secrets that the service does not need,
    plus what reaches this stack, the mark of what the service starts, and where that keeps
    temporary files."""
    kept = {k: v for k, v in os.environ.items() if k in _PASSED_ON or not k.startswith(_FOREIGN)}
    if service == "ray" and not stack.job_template:
        kept = with_secrets_of_the_store(kept)
    elif service not in ("ray", "prefect-worker"):  # flows get all, and hand jobs what they need
        kept = environment_without_secrets(kept)
    threads = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    marks = {MARK_VARIABLE: f"{stack.mark}/{service}", "PYTHONUNBUFFERED": "1"}
    places = {"TMPDIR": str(stack_temporary_dir())}
    # Servers would believe programs of this machine that name another client.
    clients = {"FORWARDED_ALLOW_IPS": ""}
    return threads | kept | stack.env() | marks | places | clients


def prefect_service_env(stack: Stack, service: str) -> dict[str, str]:
    """Return the environment with the key, and without proxies that Prefect's programs cannot
    use."""
    left_out = unusable()
    env = service_env(stack, service) | stack.secret_env()
    return {k: v for k, v in env.items() if k not in left_out}


def program(name: str) -> str:
    """Return a program of the environment that we run in."""
    return str(Path(sys.executable).parent / name)


def get_json(url: str) -> object:
    """The answer's JSON, or None when there is no good answer in time, or another user's program
    would give it, which is not to see the key."""
    place = urlsplit(url)
    if strangers_at({place.port or 0}, place.hostname or ""):
        return None
    try:
        reply = loosed(_http.get(url, headers=bearer()))
        return reply.json() if reply.status_code == 200 else None
    except (httpx.HTTPError, ValueError):
        return None


def _prefect_server(stack: Stack) -> Service:
    port = str(stack.ports["prefect"])
    command = [
        sys.executable, "-m", "uvicorn", "--factory", "flows.page.prefect_app:create_app",
        "--host", stack.host, "--port", port, "--log-level", "warning", *_BOUNDED_HEADS,
    ]  # fmt: skip
    settings = prefect_env() | {
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_UI_API_URL": "/api",  # a browser elsewhere has another loopback
        # Prefect answers pages of every origin by default.
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": stack.prefect_ui,
        # By default Prefect keeps every flow run and every line of its log for ever. What a run
        # is and what it made is in its store.
        "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",
        "PREFECT_SERVER_SERVICES_DB_VACUUM_RETENTION_PERIOD": str(kept_days() * DAY_S),
    }
    return Service(
        "prefect-server",
        stack.prefect_ui,
        command,
        prefect_service_env(stack, "prefect-server") | settings,
        lambda: get_json(f"{stack.prefect_api}/health") is True,
    )


def _prefect_worker(stack: Stack) -> Service:
    worker = f"{WORK_POOL}-{stack.mark[:6]}"
    command = ["worker", "start", "--pool", WORK_POOL, "--type", "process", "--name", worker]
    env = prefect_service_env(stack, "prefect-worker") | {
        # Runs start within seconds instead of the default's ten.
        "PREFECT_WORKER_QUERY_SECONDS": "2",
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_SECONDS),
    }
    return Service(
        "prefect-worker",
        f"{stack.prefect_ui}/work-pools/work-pool/{WORK_POOL}",
        [program("prefect"), *command],
        env,
        lambda: _worker_is_online(stack, worker),
        after=("prefect-server",),
    )


def _worker_is_online(stack: Stack, worker: str) -> bool:
    url = f"{stack.prefect_api}/work_pools/{WORK_POOL}/workers/filter"
    if strangers_at({stack.ports["prefect"]}):
        return False
    try:
        reply = loosed(_http.post(url, json={}, headers=basic()))
        workers = reply.json() if reply.status_code == 200 else []
    except (httpx.HTTPError, ValueError):
        return False
    return any(w["name"] == worker and w["status"] == "ONLINE" for w in workers)


def _mlflow(stack: Stack) -> Service:
    folder = home() / "mlflow"
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        "server", "--host", stack.host, "--port", str(stack.ports["mlflow"]), "--workers", "1",
        "--artifacts-destination", str(folder / "artifacts"), "--serve-artifacts",
        "--app-name", APP, "--uvicorn-opts", " ".join(_BOUNDED_HEADS),
    ]  # fmt: skip
    # The job executor is for GenAI features that we do not use, and costs over a gigabyte.
    env = service_env(stack, "mlflow") | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    env |= mlflow_env(folder)
    env.pop("MLFLOW_TRACKING_URI")
    env["MLFLOW_SERVER_ALLOWED_HOSTS"] = "*"  # our guard knows which names are this machine's
    return Service(
        "mlflow",
        stack.mlflow_uri,
        [program("mlflow"), *command],
        env,
        lambda: _is_ok(f"{stack.mlflow_uri}/health"),
    )


def _ray(stack: Stack) -> Service:
    head = {
        "port": "ray_gcs",
        "dashboard-port": "ray_dashboard",
        "ray-client-server-port": "ray_client",
    }
    options = [
        "--head", "--no-monitor", "--include-dashboard=true", f"--dashboard-host={stack.host}",
        *(f"--{option}={stack.ports[name]}" for option, name in head.items()),
    ]  # fmt: skip
    return Service(
        "ray",
        stack.ray_dashboard,
        _ray_command(stack, options),
        _ray_env(stack),
        lambda: _ray_has_a_node(stack),
    )


def _joined_ray(stack: Stack) -> Service:
    agent = f"http://{stack.host}:{stack.ports['ray_agent_http']}"
    return Service(
        "ray",
        agent,
        _ray_command(stack, [f"--address={stack.head}"]),
        _ray_env(stack),
        lambda: _is_ok(f"{agent}/api/local_raylet_healthz"),
    )


def _ray_command(stack: Stack, options: list[str]) -> list[str]:
    ports = {
        "object-manager-port": "ray_object_manager", "node-manager-port": "ray_node_manager",
        "dashboard-agent-listen-port": "ray_agent_http",
        "dashboard-agent-grpc-port": "ray_agent_grpc", "runtime-env-agent-port": "ray_runtime_env",
    }  # fmt: skip
    return [
        program("ray"), "start", "--block", "--disable-usage-stats", "--include-log-monitor=false",
        *options, f"--node-ip-address={stack.reached_at}",
        # 0: workers take ports of the system's choice, so two heads do not share a range.
        "--min-worker-port=0", "--max-worker-port=0", f"--temp-dir={runtime_dir() / 'ray'}",
        f"--num-cpus={RAY_LOGICAL_CPUS}", f"--object-store-memory={RAY_OBJECT_STORE_BYTES}",
        *(f"--{option}={stack.ports[name]}" for option, name in ports.items()),
    ]  # fmt: skip


def _ray_env(stack: Stack) -> dict[str, str]:
    env = service_env(stack, "ray") | {
        # One idle worker per logical CPU would be started in advance.
        "RAY_prestart_worker_first_driver": "0",
        "RAY_enable_worker_prestart": "0",
        # Ray yields to everything else on the machine by default; our engines are its work.
        "RAY_worker_niceness": "0",
        # Its metrics would be open to everyone on three ports: the nodes' are not collected, the
        # autoscaler's go with its monitor, and the dashboard's own get a port that cannot be.
        "RAY_enable_metrics_collection": "0",
        "DASHBOARD_METRIC_PORT": "65536",
        # A socket whose data nobody confirms is closed after this: longer than it takes until a
        # host counts as lost, or an answer that a shorter cut of the network delays is lost.
        "RAY_grpc_keepalive_timeout_ms": "120000",
        # And a caller learns of a closed socket when it next asks whether it is open.
        "RAY_grpc_client_keepalive_time_ms": "90000",
        # Ray rewrites its processes' titles; this keeps our mark readable behind them.
        "SPT_NOENV": "1",
    }
    env.pop("RAY_ADDRESS")
    return env


def _ray_has_a_node(stack: Stack) -> bool:
    match get_json(f"{stack.ray_dashboard}/nodes?view=summary"):
        case {"data": {"summary": [{"raylet": {"state": "ALIVE"}}, *_]}}:  # pyrefly: ignore[not-callable]
            return True
        case _:
            return False


def _is_ok(url: str) -> bool:
    try:
        return _http.get(url).status_code == 200
    except httpx.HTTPError:
        return False
