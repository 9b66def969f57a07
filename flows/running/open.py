"""Opens a run: checks its recipe, reaches its store, chooses its launcher and tracker. Stops one
too.
"""

from __future__ import annotations

import hashlib
import os
import socket
from concurrent.futures import ThreadPoolExecutor

from flows.catalog import plan_of
from flows.checks.recipe_checks import check_recipe
from flows.reports.page import report_path
from flows.running.records import RunRecord
from flows.running.run import RecipeRun
from flows.running.secrets import secrets_of_run
from flows.running.tracked_run import TrackedRun
from infra.errors import InfrastructureError, InputError
from infra.home import home
from infra.stack import Stack, load_stack, require_ours
from infra.stack.cluster import Cluster
from infra.store.artifacts import ArtifactStore
from infra.tracking.tracker import Tracker
from infra.user_files import install_hooks, read_hooks
from tasks.durable.attempts import RunPlace
from tasks.durable.launch import Launcher, LocalLauncher, RayLauncher

# Two spinning OpenMP pools on two cores slow each other many times over.
THREADS = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false"}

# No keys: Ray shows a job's environment to everyone who can reach it, and writes it to its logs.
# They come from the environment that Ray itself was started with.
PASSED_ON = (
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL",
    "AWS_PROFILE",
    "HF_ENDPOINT",
    "HF_HOME",
    "HF_HUB_OFFLINE",
    "RAY_ADDRESS",
)


def open_run(record: RunRecord) -> RecipeRun:
    """Return a run ready to execute stages. Raises `InputError` before any job is submitted."""
    head, recipe = record.head(), record.recipe()
    check_recipe(recipe, plan_of(head.flow, recipe, head.arguments))
    # In process a run needs no stack of ours: RAY_ADDRESS may name any cluster.
    stack = load_stack() if head.in_process else running_stack()
    files = read_hooks(recipe.hooks, recipe.data)
    secrets = secrets_of_run(recipe)
    place = RunPlace(
        store=record.store,
        artifacts=ArtifactStore(record.store),
        launcher=launcher_of(record),
        home_id=home_id(),
        run=record.run,
        pool=recipe.resources,
        hooks=files,
        env={name: text for name, text in _job_env(stack).items() if name not in secrets.held},
        secrets=secrets,
        mlflow_uri=stack.mlflow_uri if stack else "",
        mlflow_experiment=recipe.tracking.experiment,
        system_metrics_s=recipe.tracking.system_metrics_s,
    )
    tracker = Tracker(stack.mlflow_uri, recipe.tracking.experiment) if stack else None
    tracked = TrackedRun(tracker, recipe, record.run, head.flow, _pages(record))
    return RecipeRun(record, recipe, place, install_hooks(files), tracked)


def _pages(record: RunRecord) -> dict[str, str]:
    """Where else a person reads of the run."""
    known = record.state().links
    links = {"Prefect run": known.get("Prefect run", "")}
    return {name: page for name, page in links.items() if page} | {
        "report": report_path(record.run).as_uri()
    }


def home_id() -> str:
    """Identifies a home in the claims of a shared store."""
    return hashlib.sha256(f"{socket.gethostname()}:{home()}".encode()).hexdigest()[:12]


def launcher_of(record: RunRecord) -> Launcher:
    """Return how the jobs of a run are reached."""
    if record.head().in_process:
        return LocalLauncher()
    return RayLauncher(Cluster.of(running_stack()))


def running_stack() -> Stack:
    """The local stack. Raises InfrastructureError when it is down, InputError when another
    checkout's runs."""
    stack = load_stack()
    if stack is None:
        raise InfrastructureError("the local stack is down; start it with `tributary up`")
    require_ours(stack)
    if stack.head:
        raise InputError(f"this host has joined the stack of {stack.head}: give the command there")
    return stack


def _job_env(stack: Stack | None) -> dict[str, str]:
    env = {name: os.environ.get(name, value) for name, value in THREADS.items()}
    env |= {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    return env | {"TRIBUTARY_HOME": str(home())} | (stack.env() if stack else {})


def stop_run(record: RunRecord, launcher: Launcher | None = None) -> None:
    """Stop all jobs of a run side by side, and put the run on record as stopped."""
    stop = (launcher or launcher_of(record)).stop
    running = [stage for stage in record.stages().values() if stage.state == "running"]
    jobs = [stage.job for stage in running if stage.mine]
    with ThreadPoolExecutor(max(1, len(jobs))) as pool:
        list(pool.map(stop, jobs))
    for stage in running:
        latest = record.stage(stage.name) or stage
        if latest.state == "running":  # its flow is gone and will not say so
            record.put_stage(latest.model_copy(update={"state": "stopped"}))
    state = record.state()
    if state.state in ("pending", "running"):
        record.put_state(state.model_copy(update={"state": "stopped", "message": "cancelled"}))
