"""Checks a recipe's store and leaves nothing in it; says how much room a run's stages will take
there and in MLflow; refuses values of TRIBUTARY_* variables with which no stack could start, or
which would be found late, in a stage.
"""

from __future__ import annotations

import difflib
import errno
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import fsspec
from fsspec.core import split_protocol

from engines.memory.trainer_memory import OptimizerState
from engines.rollout.records.gallery import MOST_TOKENS as MOST_SHOWN_TOKENS
from engines.rollout.records.last_steps import MOST_TOKENS as MOST_LAST_TOKENS
from flows.checks.memory.roles import BaseModel, base_model
from flows.explain import nearest
from flows.plan import PlannedStage
from flows.recipe import Recipe
from infra.access import (
    ADDRESS_VARIABLE,
    HOST_VARIABLE,
    KEY_VARIABLE,
    given_key,
    listening_host,
    named_address,
)
from infra.errors import InputError
from infra.home import home
from infra.processes.variables import CHECK_WEIGHTS, is_on
from infra.stack import database, flow_jobs, services, stack_ports
from infra.store import evicted
from tasks.model_folder.model_files import expanded

_IMPOSSIBLE = (errno.ENOENT, errno.ENOTDIR)
"""below a file, or where the kernel alone makes files"""
_BYTES = {"fp32": 4, "bf16": 2}
_SHOWN_BYTES, _TRAINED_BYTES = 18, 11
"""of a token in `rollouts.parquet`, with its text, and of one that `keep_rollouts` keeps"""
_POINT_BYTES = 250
"""of a value in MLflow's database, with its indexes"""
_POLICY_POINTS, _OTHER_POINTS = 85, 9
"""of a step"""
_PREFIX = "TRIBUTARY_"


def store_problems(recipe: Recipe) -> Iterator[str]:
    """Yield an unknown kind of store, and a place where nobody can make a folder."""
    protocol, _ = _parts(recipe)
    known = fsspec.available_protocols()
    if protocol not in known:
        yield (
            f"storage.root: {recipe.storage.root}: no kind of store is called `{protocol}`"
            f"{nearest(protocol, known) or '; e.g. file:// or s3://'}"
        )
        return
    try:
        fsspec.get_filesystem_class(protocol)
    except ImportError as error:
        yield f"storage.root: {recipe.storage.root} cannot be opened: {error}"
    fault = _fault(recipe)
    if fault is not None and fault.errno in _IMPOSSIBLE:
        yield f"{_told(recipe, fault)}; name a folder that can be made"


def store_cautions(recipe: Recipe) -> Iterator[str]:
    """Yield a folder of this machine that can be looked at and not written: a run of this user
    would fail in it."""
    fault = _fault(recipe)
    if fault is not None and fault.errno not in _IMPOSSIBLE:
        yield _told(recipe, fault)


def _fault(recipe: Recipe) -> OSError | None:
    """Tried with a file that has no name, there or in the nearest folder above it that exists."""
    protocol, path = _parts(recipe)
    if protocol not in ("file", "local"):
        return None
    there = Path(path).absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        with tempfile.TemporaryFile(dir=there):
            return None
    except OSError as error:
        error.filename = str(there)
        return error


def _told(recipe: Recipe, fault: OSError) -> str:
    reason = fault.strerror or str(fault)
    return f"storage.root: {recipe.storage.root} cannot be written ({fault.filename}: {reason})"


def _parts(recipe: Recipe) -> tuple[str, str]:
    """Protocol and path of the store's root."""
    root = expanded(recipe.storage.root.replace("$TRIBUTARY_HOME", str(home())))
    protocol, path = split_protocol(root)
    return protocol or "file", path


@dataclass(frozen=True, slots=True)
class KeptBytes:
    """Bytes that one stage takes, at most."""

    stage: str
    checkpoints: int
    """of those that its retention keeps, and the one that is being written, until it is done"""
    model: int
    """that it leaves"""
    rollouts: int
    """to browse, and those that it was trained on where `keep_rollouts` says so"""
    mlflow: int
    """its curves, until they are thinned"""


def kept_bytes(recipe: Recipe, plan: Sequence[PlannedStage]) -> list[KeptBytes]:
    """Count for each stage that trains; for none where the model's shape is not known."""
    base = base_model(recipe.base)
    if base is None:
        return []
    return [_kept(stage, base) for stage in plan if stage.spec.trainer and stage.steps]


def _kept(stage: PlannedStage, base: BaseModel) -> KeptBytes:
    assert stage.spec.trainer is not None
    weights, precision = base.size.num_weights, stage.spec.trainer.precision
    with_state = _BYTES[precision] + OptimizerState().on_device(precision)
    models = 1 + (stage.critic is not None)
    points = _POLICY_POINTS if stage.spec.policy is not None else _OTHER_POINTS
    return KeptBytes(
        stage.name,
        checkpoints=int(_num_checkpoints(stage) * models * weights * with_state),
        model=weights * _BYTES[precision],
        rollouts=sum(_rollouts(stage, base)),
        mlflow=stage.steps * points * _POINT_BYTES,
    )


def _num_checkpoints(stage: PlannedStage) -> int:
    """Count the checkpoints that are there at one time."""
    kept = stage.resources.checkpoints
    settings = getattr(stage.spec, "settings", None)
    made = -(-stage.steps // getattr(settings, "checkpoint_every", 1))
    others = int(kept.best) + (stage.steps // kept.every if kept.every else 0)
    return min(kept.last + others, made) + 1


def _rollouts(stage: PlannedStage, base: BaseModel) -> Iterator[int]:
    policy = stage.spec.policy
    if policy is None:
        return
    longest = policy.fleet.context_length or base.max_positions
    trained = stage.steps * policy.problems_per_step * max(policy.group_sizes) * longest
    held_out = MOST_SHOWN_TOKENS if policy.evaluate is not None else 0
    # Of many steps a sample, of the last ones all; nothing is shown that was not sampled.
    yield _SHOWN_BYTES * (min(trained, MOST_SHOWN_TOKENS + MOST_LAST_TOKENS) + held_out)
    yield _TRAINED_BYTES * trained * policy.keep_rollouts


_READ: Mapping[str, Callable[[], object]] = {
    "TRIBUTARY_HOME": home,
    HOST_VARIABLE: listening_host,
    ADDRESS_VARIABLE: lambda: _address(),
    KEY_VARIABLE: given_key,
    stack_ports.VARIABLE: lambda: stack_ports.fixed_ports(os.environ.get(stack_ports.VARIABLE, "")),
    database.VARIABLE: database.database,
    evicted.LIMIT_VARIABLE: evicted.limit_bytes,
    services.VARIABLE: services.kept_days,
    CHECK_WEIGHTS: lambda: is_on(CHECK_WEIGHTS),
    flow_jobs.TEMPLATE_VARIABLE: flow_jobs.job_template,
    flow_jobs.ELSEWHERE_VARIABLE: flow_jobs.is_elsewhere,
}
"""each that the docs name, with what reads it"""


def require_variables() -> None:
    """Raises one InputError that names every variable with a wrong value, or nearly the name of
    one."""
    if problems := dict.fromkeys(_problems()):  # two may read one variable
        raise InputError("; ".join(problems))


def _problems() -> Iterator[str]:
    for read in _READ.values():
        try:
            read()
        except InputError as error:
            yield str(error)
    for name in sorted(os.environ):
        near = difflib.get_close_matches(name, _READ, n=1, cutoff=0.9)
        if name.startswith(_PREFIX) and name not in _READ and near:
            yield f"{name} is no variable that is read; did you mean {near[0]}?"


def _address() -> None:
    host, address = listening_host(), os.environ.get(ADDRESS_VARIABLE, "")
    if not named_address(host) and address not in ("", host):
        raise InputError(
            f"{ADDRESS_VARIABLE} is `{address}`, and is told to other hosts only with"
            f" {HOST_VARIABLE}=0.0.0.0, and that is {host}: set that, or unset {ADDRESS_VARIABLE}"
        )
