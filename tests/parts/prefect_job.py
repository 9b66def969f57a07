"""A flow's job as Prefect's Kubernetes worker makes it from a base job template.

By the worker's rules, written down here: prefect-kubernetes 0.8.0 itself made the same of the
chart's template, and labels for Prefect's own use besides.
"""

from __future__ import annotations

import shlex
from typing import Any, cast

COMMAND = "prefect flow-run execute"
NAME = "amber-fox"
_ENV = {"PREFECT_API_URL": "http://demo-tributary:4200/api"}


def flow_job(template: dict[str, Any]) -> dict[str, Any]:
    """The manifest for a flow run named NAME, without the two fields that only Prefect wants."""
    values = {"name": NAME, "labels": {}, "env": _ENV}
    manifest = _filled(template["job_configuration"], values)["job_manifest"]
    pod = manifest["spec"]["template"]["spec"]
    assert (pod.pop("parallelism"), pod.pop("completions"), pod["restartPolicy"]) == (1, 1, "Never")
    container = pod["containers"][0]
    container["env"] = [*({"name": k, "value": v} for k, v in _ENV.items()), *container["env"]]
    container["args"] = shlex.split(COMMAND)
    return manifest


def _filled(part: Any, values: dict[str, Any]) -> Any:
    match part:
        case dict():
            return {key: _filled(each, values) for key, each in cast("Any", part).items()}
        case list():
            return [_filled(each, values) for each in cast("Any", part)]
        case str() if part.startswith("{{ ") and part.endswith(" }}"):
            return values.get(part[3:-3], part)
        case str():
            return part.replace("{{ name }}", values["name"])
        case _:
            return part
