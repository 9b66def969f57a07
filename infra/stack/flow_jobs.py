"""Where flows run: as processes that the stack's own worker starts, or each as a job of Kubernetes,
which Prefect's Kubernetes worker, outside of the stack, makes from a template.

    stack's pod                worker's pod            a flow's pod
    Prefect's server  <------- asks for work
                               makes the job --------> runs the flow: shared home, the stack's
    Ray's head <------------------------------------- job API for its stages

Only flows move: their stages are Ray jobs as before.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from infra.errors import InputError
from infra.processes.variables import is_on

TEMPLATE_VARIABLE = "TRIBUTARY_JOB_TEMPLATE"
"""the base job template, a JSON file, that `up` gives the work pool"""
_EXECUTED = frozenset({"command", "args", "env", "image", "working_dir", "job_manifest"})
ELSEWHERE_VARIABLE = "TRIBUTARY_STACK_ELSEWHERE"
"""set in a flow's pod: the stack of the home that it shares runs in another one"""
PROCESSES, JOBS = "process", "kubernetes"
PROCESS_TEMPLATE: dict[str, Any] = {
    "job_configuration": {"stream_output": True},
    "variables": {"type": "object", "properties": {}, "additionalProperties": False},
}
"""of flows as processes: they have Prefect's own command, environment and folder, and a flow run
that names another one is refused"""


def job_template() -> str:
    """The file that the environment names; empty for flows as processes. Raises InputError for a
    file that no worker could use."""
    named = os.environ.get(TEMPLATE_VARIABLE, "")
    if named:
        read_template(named)
    return named


def read_template(path: str) -> dict[str, Any]:
    """Raises InputError for a file that is no base job template."""
    try:
        found = json.loads(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(
            f"{TEMPLATE_VARIABLE} is `{path}`, which cannot be read as JSON: {error}"
        ) from None
    match found:
        case {"job_configuration": {"job_manifest": {}}, "variables": {}}:
            _require_fixed(path, found)
            return found
        case _:
            raise InputError(
                f"{TEMPLATE_VARIABLE} is `{path}`, which lacks `job_configuration.job_manifest` or"
                " `variables`: it must be a base job template of Prefect's Kubernetes worker"
            )


def _require_fixed(path: str, template: dict[str, Any]) -> None:
    """Raises InputError where a flow run could name what its pod executes."""
    variables = template["variables"]
    is_open = variables.get("additionalProperties") is not False
    named = sorted(_EXECUTED & set(variables.get("properties", {})))
    if is_open or named:
        wrong = (
            f"has the variables {', '.join(named)}" if named else "lets flow runs name variables"
        )
        raise InputError(
            f"{TEMPLATE_VARIABLE} is `{path}`, which {wrong}, so that who starts a flow could run"
            " any command: take them out of `variables` and write"
            " `additionalProperties: false` there"
        )


def is_elsewhere() -> bool:
    """Return whether the stack of this process's home runs in another pod, where it can be asked
    but not looked at."""
    return is_on(ELSEWHERE_VARIABLE)
