"""The Helm chart: linted and rendered by Helm itself, checked by Kubernetes' schemas."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from infra.stack.ports import fixed_ports
from tests.parts.helm import PACKAGE, helm

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[3]
CHART = ROOT / "infra/k8s/tributary"
KEY = {"key": "k" * 16}
KUBERNETES = "1.31"
FULL = {
    **KEY,
    "image": {"repository": "registry.example/tributary", "tag": "cuda"},
    "imagePullSecrets": [{"name": "registry"}],
    "databaseUrl": "postgresql://t:p@postgres:5432/t",
    "s3": {"endpoint": "http://s3:9000", "accessKeyId": "a", "secretAccessKey": "s"},
    "env": {"HF_HUB_OFFLINE": "1"},
    "gpus": 8,
    "nodeSelector": {"gpu": "h100"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    "home": {"size": "1Ti", "storageClassName": "fast"},
}


def rendered(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Manifests by kind."""
    with helm().Chart.load(str(CHART)) as chart:
        chart.validate_schema(values)
        texts = chart.render(values, name="demo", namespace="of-test")
    found = [yaml.safe_load(text) for name, text in texts.items() if name.endswith(".yaml")]
    return {each["kind"]: each for each in found if each}


def container(values: dict[str, Any]) -> dict[str, Any]:
    return rendered(values)["StatefulSet"]["spec"]["template"]["spec"]["containers"][0]


def test_helm_finds_nothing_wrong() -> None:
    found = helm().lint(str(CHART), KEY, strict=True)
    assert found["errors"] == []
    told = [line["error"] for line in found["messages"]]
    assert told in ([], ["icon is recommended"])


@pytest.mark.parametrize("values", [KEY, FULL, {"existingSecret": "mine"}])
def test_manifests_are_what_kubernetes_takes(values: dict[str, Any]) -> None:
    made = rendered(values)
    for manifest in made.values():
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
    assert ("Secret" in made) == ("existingSecret" not in values)
    pod = made["StatefulSet"]["spec"]["template"]
    selector = made["StatefulSet"]["spec"]["selector"]["matchLabels"]
    assert selector == pod["metadata"]["labels"] == made["Service"]["spec"]["selector"]


def test_the_pod_has_what_was_asked_for() -> None:
    made = container(FULL)
    assert made["image"] == "registry.example/tributary:cuda"
    assert made["resources"]["limits"] == {"memory": "16Gi", "nvidia.com/gpu": 8}
    assert "nvidia.com/gpu" not in container(KEY)["resources"]["limits"]
    assert {"name": "HF_HUB_OFFLINE", "value": "1"} in made["env"]
    secret = rendered(FULL)["Secret"]["stringData"]
    assert secret["TRIBUTARY_DATABASE_URL"] == "postgresql://t:p@postgres:5432/t"
    assert "postgres" not in yaml.safe_dump(made), "passwords are in the secret alone"


def test_it_sets_what_the_stack_reads() -> None:
    made = container(FULL)
    code = "\n".join(path.read_text() for path in (ROOT / "infra").rglob("*.py"))
    set_here = [each["name"] for each in made["env"]] + list(rendered(FULL)["Secret"]["stringData"])
    for variable in set_here:
        assert variable.startswith(("AWS_", "HF_")) or f'"{variable}"' in code, variable
    ports = next(each["value"] for each in made["env"] if each["name"] == "TRIBUTARY_PORTS")
    assert set(fixed_ports(ports).values()) == {p["containerPort"] for p in made["ports"]}
    image = (ROOT / "infra/docker/Dockerfile.cpu").read_text()
    (home,) = re.findall(r"^VOLUME (\S+)$", image, re.M)
    assert home in [mount["mountPath"] for mount in made["volumeMounts"]]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "give 16 to 256 letters or digits"),
        ({"key": "short"}, "key"),
        ({**KEY, "gpu": 1}, "gpu"),
        ({**KEY, "databaseUrl": "mysql://x"}, "databaseUrl"),
    ],
)
def test_wrong_values_are_named(values: dict[str, Any], said: str) -> None:
    with pytest.raises(helm().HelmError, match=said):
        rendered(values)


def test_continuous_integration_brings_helm() -> None:
    assert PACKAGE in (ROOT / ".ci/run").read_text()
