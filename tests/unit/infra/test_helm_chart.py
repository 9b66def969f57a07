"""The Helm chart: rendered by Helm itself, checked by Kubernetes' and KubeRay's schemas."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from infra.stack.flow_jobs import ELSEWHERE_VARIABLE, TEMPLATE_VARIABLE, read_template
from infra.stack.record import WORK_POOL
from infra.stack.stack_ports import fixed_ports
from tests.parts.helm import PACKAGE, helm
from tests.parts.prefect_job import COMMAND, NAME, flow_job
from tests.parts.ray_cluster import validate_ray_cluster

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
GROUPS = [
    {"name": "h100", "replicas": 2, "gpus": 8, "nodeSelector": {"gpu": "h100"}},
    {"name": "cpu", "replicas": 4},
]
SEVERAL = {**FULL, "gpus": 0, "kuberay": {"enabled": True, "workers": GROUPS}}
JOBS = {**FULL, "prefectWorker": {"enabled": True}}


def rendered(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Manifests by kind."""
    with helm().Chart.load(str(CHART)) as chart:
        chart.validate_schema(values)
        texts = chart.render(values, name="demo", namespace="of-test")
    files = [yaml.safe_load_all(text) for name, text in texts.items() if name.endswith(".yaml")]
    found = [each for manifests in files for each in manifests if each]
    assert len({each["kind"] for each in found}) == len(found)
    return {each["kind"]: each for each in found}


def container(values: dict[str, Any]) -> dict[str, Any]:
    made = rendered(values)
    spec = made["RayCluster"]["spec"]["headGroupSpec"] if "RayCluster" in made else None
    pod = (spec or made["StatefulSet"]["spec"])["template"]["spec"]
    return pod["containers"][0]


def test_helm_finds_nothing_wrong() -> None:
    found = helm().lint(str(CHART), KEY, strict=True)
    assert found["errors"] == []
    told = [line["error"] for line in found["messages"]]
    assert told in ([], ["icon is recommended"])


def pods(manifest: Any) -> list[dict[str, Any]]:
    """Every pod that a manifest, or JSON within it, describes."""
    if isinstance(manifest, str) and manifest.startswith("{\n"):
        manifest = json.loads(manifest)
    if isinstance(manifest, list):
        return [pod for each in manifest for pod in pods(each)]
    if not isinstance(manifest, dict):
        return []
    own = [manifest] if "containers" in manifest else []
    return own + [pod for each in manifest.values() for pod in pods(each)]


def test_no_pod_is_root_or_keeps_a_capability_and_the_network_is_closed_to_others() -> None:
    for values, count in ((KEY, 1), (SEVERAL, 3), (JOBS, 3)):
        made = rendered(values)
        found = pods(list(made.values()))
        assert len(found) == count
        for pod in found:
            assert pod["securityContext"]["runAsNonRoot"] is True
            assert pod["securityContext"]["runAsUser"] > 0
            assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            for each in pod["containers"]:
                assert each["securityContext"] == {
                    "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}
                }  # fmt: skip
        policy = made["NetworkPolicy"]["spec"]
        inside, outside = policy["ingress"]
        assert inside == {"from": [{"podSelector": policy["podSelector"]}]}
        assert [each["port"] for each in outside["ports"]] == [4200, 5000, 8265]
    assert "NetworkPolicy" not in rendered({**KEY, "networkPolicy": {"enabled": False}})


def test_every_image_of_compose_has_a_tag_and_no_container_gains_privileges() -> None:
    services = yaml.safe_load((ROOT / "infra/docker/compose.yaml").read_text())["services"]
    assert all(":" in service["image"] for service in services.values())
    for name, service in services.items():
        assert service["security_opt"] == ["no-new-privileges:true"], name
    assert services["tributary"]["cap_drop"] == ["ALL"]


@pytest.mark.parametrize(
    "values", [KEY, FULL, {"existingSecret": "mine"}, SEVERAL, JOBS, {**SEVERAL, **JOBS}]
)
def test_manifests_are_what_kubernetes_takes(values: dict[str, Any]) -> None:
    made = rendered(values)
    assert ("Secret" in made) == ("existingSecret" not in values)
    cluster = made.pop("RayCluster", None)
    for manifest in made.values():
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
    if cluster is not None:
        validate_ray_cluster(cluster, KUBERNETES)
    head = cluster["spec"]["headGroupSpec"] if cluster else made["StatefulSet"]["spec"]
    selected = made["Service"]["spec"]["selector"]
    assert selected == head["template"]["metadata"]["labels"]
    claim = made["PersistentVolumeClaim"]
    volumes = head["template"]["spec"]["volumes"]
    assert {"claimName": claim["metadata"]["name"]} in [
        volume.get("persistentVolumeClaim") for volume in volumes
    ]
    assert claim["spec"]["accessModes"] == [
        "ReadWriteMany" if "prefectWorker" in values else "ReadWriteOnce"
    ]


def test_the_pod_has_what_was_asked_for() -> None:
    made = container(FULL)
    assert made["image"] == "registry.example/tributary:cuda"
    assert made["resources"]["limits"] == {"memory": "16Gi", "nvidia.com/gpu": 8}
    assert "nvidia.com/gpu" not in container(KEY)["resources"]["limits"]
    assert {"name": "HF_HUB_OFFLINE", "value": "1"} in made["env"]
    secret = rendered(FULL)["Secret"]["stringData"]
    assert secret["TRIBUTARY_DATABASE_URL"] == "postgresql://t:p@postgres:5432/t"
    assert "postgres" not in yaml.safe_dump(made), "passwords are in the secret alone"


@pytest.mark.parametrize("values", [FULL, {**SEVERAL, **JOBS}])
def test_it_sets_what_the_stack_reads(values: dict[str, Any]) -> None:
    made = container(values)
    code = "\n".join(path.read_text() for path in (ROOT / "infra").rglob("*.py"))
    set_here = [each["name"] for each in made["env"]] + list(rendered(FULL)["Secret"]["stringData"])
    for variable in set_here:
        assert variable.startswith(("AWS_", "HF_")) or f'"{variable}"' in code, variable
    assert (TEMPLATE_VARIABLE in set_here) == ("prefectWorker" in values)
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
        ({**KEY, "kuberay": {"enabled": True, "workers": [{"name": "gpu"}]}}, "replicas"),
        ({**KEY, "prefectWorker": {"enable": True}}, "enable"),
    ],
)
def test_wrong_values_are_named(values: dict[str, Any], said: str) -> None:
    with pytest.raises(helm().HelmError, match=said):
        rendered(values)


def test_kuberay_makes_the_stacks_pod_and_hosts_that_join_it() -> None:
    spec = rendered(SEVERAL)["RayCluster"]["spec"]
    assert f"ray=={spec['rayVersion']}" in (ROOT / "locks/cpu.txt").read_text().split()
    head = spec["headGroupSpec"]["template"]
    h100, cpu = (group["template"] for group in spec["workerGroupSpecs"])
    assert [group["maxReplicas"] for group in spec["workerGroupSpecs"]] == [2, 4]
    assert h100["spec"]["nodeSelector"] == {"gpu": "h100"}
    assert h100["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 8}
    assert cpu["spec"]["containers"][0]["resources"]["limits"] == {}
    for pod in (head, h100, cpu):
        assert pod["metadata"]["annotations"]["ray.io/overwrite-container-cmd"] == "true"
        assert "livenessProbe" in pod["spec"]["containers"][0], "or KubeRay adds one by wget"
    env = {each["name"]: each for each in head["spec"]["containers"][0]["env"]}
    port = fixed_ports(env["TRIBUTARY_PORTS"]["value"])["ray_gcs"]
    assert env["TRIBUTARY_ADDRESS"]["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"
    join, address = h100["spec"]["containers"][0]["args"]
    assert address == f"$(FQ_RAY_IP):{port}"
    assert f"= {join} ]" in (ROOT / "infra/docker/entrypoint.sh").read_text()


def test_a_fields_name_that_kuberay_does_not_know_is_found() -> None:
    cluster = rendered(SEVERAL)["RayCluster"]
    cluster["spec"]["workerGroupSpecs"][0]["replica"] = 1
    with pytest.raises(jsonschema.ValidationError, match="replica"):
        validate_ray_cluster(cluster, KUBERNETES)


def test_prefects_worker_makes_jobs_that_kubernetes_takes(tmp_path: Path) -> None:
    made = rendered(JOBS)
    file = tmp_path / "flow-job.json"
    file.write_text(made["ConfigMap"]["data"]["flow-job.json"])
    job = flow_job(read_template(str(file)))
    kubernetes_validate.validate(job, KUBERNETES, strict=True)
    assert job["metadata"]["generateName"] == f"{NAME}-"
    pod = job["spec"]["template"]["spec"]
    (flow,) = pod["containers"]
    stack = container(JOBS)
    assert flow["image"] == stack["image"]
    assert " ".join(flow["args"]) == COMMAND
    assert flow["command"] == ["tini", "-g", "--"], "the image's entry point starts a stack"
    assert flow["envFrom"] == stack["envFrom"]
    env = {each["name"]: each.get("value", "") for each in flow["env"]}
    assert env[ELSEWHERE_VARIABLE]
    assert env["PREFECT_API_URL"] == "http://demo-tributary:4200/api"
    (mounted,) = flow["volumeMounts"]
    assert mounted in stack["volumeMounts"]
    of_stack = made["StatefulSet"]["spec"]["template"]["spec"]
    assert pod["hostname"] == of_stack["hostname"], "a part of the home's identity"
    assert pod["volumes"][0] in of_stack["volumes"]
    assert KEY["key"] not in json.dumps(job)


def test_prefects_worker_asks_the_stack_and_may_make_jobs_here_only() -> None:
    made = rendered(JOBS)
    pod = made["Deployment"]["spec"]["template"]["spec"]
    (worker,) = pod["containers"]
    assert worker["args"][worker["args"].index("--pool") + 1] == WORK_POOL
    (lock,) = re.findall(r"^prefect==(\S+)", (ROOT / "locks/cpu.txt").read_text(), re.M)
    assert f":{lock}-" in worker["image"]
    env = {each["name"]: each for each in worker["env"]}
    name = made["Service"]["metadata"]["name"]
    assert env["PREFECT_API_URL"]["value"] == f"http://{name}:4200/api"
    secret = env["PREFECT_API_AUTH_STRING"]["valueFrom"]["secretKeyRef"]
    assert secret["key"] in made["Secret"]["stringData"]
    account = made["ServiceAccount"]["metadata"]["name"]
    assert pod["serviceAccountName"] == account == made["RoleBinding"]["subjects"][0]["name"]
    assert "ClusterRole" not in made


def test_continuous_integration_brings_helm() -> None:
    assert PACKAGE in (ROOT / ".ci/run").read_text()
