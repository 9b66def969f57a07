"""Secrets that a recipe names and a Prefect Secret block holds.

The block's value is a JSON object of environment variables, e.g. {"AWS_ACCESS_KEY_ID": "...",
"AWS_SECRET_ACCESS_KEY": "..."}. The process that needs them puts them in its own environment, as if
it had been started with them; jobs get them by `infra.processes.secret_file`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from pydantic import SecretStr

from flows.recipe import Recipe
from flows.running.prefect_api import PrefectApi
from infra.errors import InfrastructureError, InputError
from infra.processes.network import unusable
from infra.processes.secret_file import not_secrets
from infra.secret_references import (
    RunSecrets,
    is_for_jobs,
    is_secret_variable,
    missing,
    secret_names,
)
from infra.stack import Stack, load_stack
from infra.stack.flow_jobs import is_elsewhere


def block_secrets(block: str) -> dict[str, str]:
    """The variables that the block holds; none for no block.

    Raises InputError for a block that is missing or holds something else, InfrastructureError when
    Prefect does not answer.
    """
    if not block:
        return {}
    if is_elsewhere():
        raise InputError(
            "storage.credentials: a flow in a pod of its own cannot hand a secret to the jobs of"
            " the stack's pod. Put the keys into the Secret of the pods' environment, and leave"
            " storage.credentials out"
        )
    stack = load_stack()
    if stack is None:
        raise InfrastructureError(
            f"storage.credentials is Prefect's Secret block `{block}`, and the local stack is "
            "down: start it with `tributary up`"
        )
    held = PrefectApi(stack.prefect_api).secret(block)
    if held is None:
        raise InputError(
            f"storage.credentials is Prefect's Secret block `{block}`, and there is no block"
            " of that "
            "name. Create it from variables of your environment: "
            f"tributary secret {block} AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY"
        )
    return _variables(block, held)


def secrets_of_run(recipe: Recipe) -> RunSecrets:
    """Return what jobs of the recipe may need: the block's variables, and those of this environment
    that its options refer to, or that open the places which models come from.

    Raises InputError for one that is in neither, and as `block_secrets` does.
    """
    referred = frozenset(secret_names(recipe.model_dump(mode="json")))
    held = block_secrets(recipe.storage.credentials)
    for name in sorted(referred - held.keys()):
        if not os.environ.get(name):
            raise InputError(f"recipe {recipe.name}: {missing(name)}")
        if any(not_secrets([name])):
            raise InputError(f"recipe {recipe.name}: `secret:{name}`: {name} decides what runs")
        held[name] = os.environ[name]
    if not is_elsewhere():  # the stack's pod has them already
        here = {n: t for n, t in os.environ.items() if is_for_jobs(n) and is_secret_variable(n, t)}
        held = here | held
    return RunSecrets(held, referred)


def use_secrets(block: str) -> None:
    """Put what the block holds in the environment of this process."""
    os.environ.update(block_secrets(block))


def save_secrets(stack: Stack, block: str, names: Sequence[str]) -> None:
    """Make or replace a block from variables of this process's environment.

    Raises InputError for a variable that is not set or may not be in a block.
    """
    missing = [name for name in names if name not in os.environ]
    if missing or not names:
        what = f"{', '.join(missing)} is not set" if missing else "no variable is named"
        raise InputError(
            f"{what}: export the variables that block `{block}` is to hold, and name them, e.g. "
            f"tributary secret {block} AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY"
        )
    values = _variables(block, {name: os.environ[name] for name in names})
    for name in unusable():
        del os.environ[name]
    os.environ.update(stack.env() | stack.secret_env())  # Prefect reads them when it is imported
    from prefect.blocks.system import Secret

    Secret(value=SecretStr(json.dumps(values))).save(block, overwrite=True)


def _variables(block: str, held: Any) -> dict[str, str]:
    """The block's value, checked. No message holds any of it but names."""
    if isinstance(held, str):
        try:
            held = json.loads(held)
        except ValueError:
            held = None
    if not isinstance(held, dict) or not all(isinstance(value, str) for value in held.values()):
        raise InputError(
            f"Prefect's Secret block `{block}` must hold a JSON object of environment variables, "
            'e.g. {"AWS_ACCESS_KEY_ID": "...", "AWS_SECRET_ACCESS_KEY": "..."}'
        )
    for name in not_secrets(held):
        raise InputError(
            f"Prefect's Secret block `{block}` may not set `{name}`: it is for credentials and "
            "tokens, by the names that their libraries read"
        )
    return held
