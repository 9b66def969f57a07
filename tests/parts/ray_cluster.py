"""What KubeRay takes as a RayCluster (ray.io/v1), written down by hand from its types.

Its own definition is over 800 KB, nearly all of it the schema of a pod, which Kubernetes' own
schemas check here. A file of the operator's chart (`crds/ray.io_rayclusters.yaml`) that the
environment names as KUBERAY_CRD is used in addition.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

_COUNT = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
_TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
_START = {"rayStartParams": _TEXTS, "template": {"type": "object"}}
_HEAD = {
    **_START,
    "serviceType": {"enum": ["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"]},
    "headService": {"type": "object"},
    "enableIngress": {"type": "boolean"},
    "resources": _TEXTS,
    "labels": _TEXTS,
}
_GROUP = {
    **_START,
    "groupName": {"type": "string"},
    "replicas": _COUNT,
    "minReplicas": _COUNT,
    "maxReplicas": _COUNT,
    "numOfHosts": _COUNT,
    "idleTimeoutSeconds": _COUNT,
    "suspend": {"type": "boolean"},
    "scaleStrategy": {"type": "object"},
    "resources": _TEXTS,
    "labels": _TEXTS,
}


def _closed(required: list[str], fields: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": required,
        "properties": fields,
    }


_SPEC = {
    "rayVersion": {"type": "string"},
    "enableInTreeAutoscaling": {"type": "boolean"},
    "suspend": {"type": "boolean"},
    "managedBy": {"type": "string"},
    "headServiceAnnotations": _TEXTS,
    "autoscalerOptions": {"type": "object"},
    "gcsFaultToleranceOptions": {"type": "object"},
    "authOptions": {"type": "object"},
    "headGroupSpec": _closed(["rayStartParams", "template"], _HEAD),
    "workerGroupSpecs": {
        "type": "array",
        "items": _closed(
            ["groupName", "minReplicas", "maxReplicas", "rayStartParams", "template"], _GROUP
        ),
    },
}
_CLUSTER = _closed(
    ["apiVersion", "kind", "metadata", "spec"],
    {
        "apiVersion": {"const": "ray.io/v1"},
        "kind": {"const": "RayCluster"},
        "metadata": {"type": "object", "required": ["name"]},
        "spec": _closed(["headGroupSpec"], _SPEC),
    },
)


def validate_ray_cluster(manifest: dict[str, Any], kubernetes: str) -> None:
    """Raises ValidationError for what KubeRay or, of the pods, Kubernetes would not take."""
    jsonschema.validate(manifest, _CLUSTER)
    named = os.environ.get("KUBERAY_CRD")
    if named:
        definition = yaml.safe_load(Path(named).read_text())
        (version,) = (v for v in definition["spec"]["versions"] if v["name"] == "v1")
        jsonschema.validate(manifest, version["schema"]["openAPIV3Schema"])
    spec = manifest["spec"]
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        pod = {"apiVersion": "v1", "kind": "Pod", **group["template"]}
        kubernetes_validate.validate(pod, kubernetes, strict=True)
