"""The few MLflow REST calls that Tributary makes.

Why not MLflow's own client: importing it costs five CPU seconds, which every stage's job would pay.
The REST interface is public, versioned and small (MLflow documentation, "REST API").
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx

from infra.access import basic
from infra.errors import InfrastructureError, TributaryError
from infra.json_text import writable
from infra.processes.network import certificates, loosed
from infra.tracking.params import LONGEST_KEY, LONGEST_VALUE, cut, mlflow_key

_T = TypeVar("_T")
_API = "/api/2.0/mlflow"
_MAX_METRICS = 1000
"""metrics that one log-batch request may carry"""
_MAX_STEPS = 1000
"""steps that one request for points asks about: each has one answer at most"""
_MAX_PARAMS = 100
_LONGEST_TAG, _LONGEST_EXPERIMENT_TAG, _LONGEST_DATASET_NAME, _LONGEST_SOURCE = (
    8000,
    20_000,
    500,
    65_535,
)
_NOT_US = (401, 403, 404, 405, 407, 408, 425, 429)
"""what a proxy, another server on this port or one with another key says: no word about the data"""
_DIGEST = "tributary.digest"
"""tag of a registered model's version: the artifact that it is"""
_KIND, _TRAINING = "mlflow.experimentKind", "custom_model_development"
"""an experiment's tag by which MLflow opens on its runs; without it, on traces of chats"""


class MlflowRefused(TributaryError):
    """MLflow is up and says no (a deleted run, a bad name): trying again will not help."""


class MlflowFailed(InfrastructureError):
    """MLflow answered with an error of its own: it is busy, or cannot bear what it was sent."""


class MlflowSlow(InfrastructureError):
    """MLflow is there and did not answer in time."""


BUSY = (MlflowFailed, MlflowSlow)


@dataclass(frozen=True, slots=True)
class Metric:
    """One point of a curve, as MLflow stores it; `timestamp` in Unix milliseconds."""

    key: str
    value: float
    step: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class Dataset:
    """What a run reads. `source` is JSON text; `context` says what for, e.g. `training`."""

    name: str
    source: str
    rows: int
    context: str = "training"

    @property
    def digest(self) -> str:
        text = f"{self.name} {self.rows} {self.source}"
        return hashlib.sha256(text.encode()).hexdigest()[:12]


class MlflowRest:
    """Synchronous; one instance a thread. Every call is bounded. Raises InfrastructureError."""

    def __init__(self, uri: str, timeout: float = 10.0) -> None:
        self.uri = uri.rstrip("/")
        self._http = httpx.Client(
            base_url=self.uri, timeout=timeout, trust_env=False, verify=certificates(),
            headers=basic(),
        )  # fmt: skip

    def experiment(self, name: str) -> str:
        """Id of the experiment of that name, made if it is not there."""
        found = self._call("GET", "/experiments/get-by-name", {"experiment_name": name}, (404,))
        if not found:
            body = {"name": name, "tags": _pairs({_KIND: _TRAINING})}
            made = self._call("POST", "/experiments/create", body, (400,))
            if made:
                return made["experiment_id"]
            found = self._call("GET", "/experiments/get-by-name", {"experiment_name": name})
        experiment = found["experiment"]
        if experiment.get("lifecycle_stage") == "deleted":  # MLflow keeps its name
            body = {"experiment_id": experiment["experiment_id"]}
            self._call("POST", "/experiments/restore", body)
        if _KIND not in {tag["key"] for tag in experiment.get("tags", [])}:
            self.tag_experiment(experiment["experiment_id"], {_KIND: _TRAINING})
        return experiment["experiment_id"]

    def latest_experiments(self) -> list[tuple[str, dict[str, str]]]:
        """Id and tags of each, the one that was changed last first."""
        body = {"max_results": 100, "order_by": ["last_update_time DESC"]}
        found = self._call("POST", "/experiments/search", body).get("experiments", [])
        return [(each["experiment_id"], _by_name(each.get("tags", []))) for each in found]

    def experiment_tags(self, experiment: str) -> dict[str, str]:
        found = self._call("GET", "/experiments/get", {"experiment_id": experiment})
        return _by_name(found["experiment"].get("tags", []))

    def tag_experiment(self, experiment: str, tags: Mapping[str, str]) -> None:
        for key, value in tags.items():
            text = cut(_storable(value), _LONGEST_EXPERIMENT_TAG)
            body = {"experiment_id": experiment, "key": key, "value": text}
            self._call("POST", "/experiments/set-experiment-tag", body)

    def create_run(self, experiment: str, name: str, tags: Mapping[str, str]) -> str:
        body = {
            "experiment_id": experiment,
            "run_name": cut(_storable(name), LONGEST_KEY),
            "start_time": _now(),
            "tags": _tags(tags),
        }
        return self._call("POST", "/runs/create", body)["run"]["info"]["run_id"]

    def find_run(self, experiment: str, tags: Mapping[str, str]) -> str | None:
        """The newest run that carries all these tags."""
        body = {
            "experiment_ids": [experiment],
            "filter": " and ".join(f"tags.`{k}` = '{v}'" for k, v in tags.items()),
            "max_results": 1,
            "order_by": ["attributes.start_time DESC"],
        }
        runs = self._call("POST", "/runs/search", body).get("runs", [])
        return runs[0]["info"]["run_id"] if runs else None

    def run(self, run_id: str) -> dict[str, Any]:
        return self._call("GET", "/runs/get", {"run_id": run_id})["run"]

    def update_run(self, run_id: str, status: str) -> None:
        body: dict[str, Any] = {"run_id": run_id, "status": status}
        if status != "RUNNING":
            body["end_time"] = _now()
        self._call("POST", "/runs/update", body)

    def rename_run(self, run_id: str, name: str) -> None:
        body = {"run_id": run_id, "run_name": cut(_storable(name), LONGEST_KEY)}
        self._call("POST", "/runs/update", body)

    def log_metrics(self, run_id: str, metrics: Sequence[Metric]) -> None:
        """Their keys must be such as `mlflow_key` gives."""
        for chunk in _chunks(metrics, _MAX_METRICS):
            rows = [
                {"key": m.key, "value": _number(m.value), "step": m.step, "timestamp": m.timestamp}
                for m in chunk
            ]
            self._call("POST", "/runs/log-batch", {"run_id": run_id, "metrics": rows})

    def log_params(self, run_id: str, params: Mapping[str, str]) -> None:
        rows = _pairs({k: cut(_storable(v), LONGEST_VALUE) for k, v in params.items()})
        for chunk in _chunks(rows, _MAX_PARAMS):
            self._call("POST", "/runs/log-batch", {"run_id": run_id, "params": chunk})

    def tag_run(self, run_id: str, tags: Mapping[str, str]) -> None:
        for chunk in _chunks(_tags(tags), _MAX_PARAMS):
            self._call("POST", "/runs/log-batch", {"run_id": run_id, "tags": chunk})

    def steps(self, run_id: str, key: str, first: int, last: int) -> set[int]:
        """The steps from `first` to `last` that this metric has. The server looks at no others: a
        long run has a hundred metrics with a point for each of its steps."""
        asked: dict[str, Any] = {"run_ids": run_id, "metric_key": key, "max_results": _MAX_STEPS}
        found: set[int] = set()
        for start in range(first, last + 1, _MAX_STEPS):
            part = {"start_step": start, "end_step": min(start + _MAX_STEPS - 1, last)}
            page = self._call("GET", "/metrics/get-history-bulk-interval", asked | part)
            found.update(int(m.get("step", 0)) for m in page.get("metrics", []))
        return found

    def log_datasets(self, run_id: str, datasets: Sequence[Dataset]) -> None:
        inputs = [
            {
                "dataset": {
                    "name": cut(_storable(each.name), _LONGEST_DATASET_NAME),
                    "digest": each.digest,
                    "source_type": "tributary",
                    "source": cut(_storable(each.source), _LONGEST_SOURCE),
                    "profile": json.dumps({"num_rows": each.rows}),
                },
                "tags": _pairs({"mlflow.data.context": each.context}),
            }
            for each in datasets
        ]
        self._call("POST", "/runs/log-inputs", {"run_id": run_id, "datasets": inputs})

    def upload(self, artifact_uri: str, name: str, data: bytes) -> str:
        """Put one small file among a run's artifacts; -> the folder's URI."""
        path = artifact_uri.removeprefix("mlflow-artifacts:").lstrip("/")
        url = f"/api/2.0/mlflow-artifacts/artifacts/{path}/{name}"
        self._send("PUT", url, content=data)
        return f"{artifact_uri}/{name.rsplit('/', 1)[0]}" if "/" in name else artifact_uri

    def model_version(
        self, name: str, source: str, run_id: str, tags: Mapping[str, str], digest: str
    ) -> str:
        """Version of the registered model that has this digest, made if it is not there."""
        self._call("POST", "/registered-models/create", {"name": name}, (400, 409))
        wanted = f"name='{name}' and tags.`{_DIGEST}` = '{digest}'"
        query = {"filter": wanted, "max_results": 1}
        found = self._call("GET", "/model-versions/search", query).get("model_versions", [])
        if found:
            return found[0]["version"]
        body = {
            "name": name,
            "source": source,
            "tags": _pairs({**tags, _DIGEST: digest}),
        }
        if run_id:
            body["run_id"] = run_id
        return self._call("POST", "/model-versions/create", body)["model_version"]["version"]

    def alias(self, name: str, alias: str, version: str) -> None:
        body = {"name": name, "alias": alias, "version": version}
        self._call("POST", "/registered-models/alias", body)

    def model_tags(self, name: str) -> dict[str, str]:
        """Return the tags of a registered model; empty while there is none."""
        found = self._call("GET", "/registered-models/get", {"name": name}, (404,))
        return _by_name(found.get("registered_model", {}).get("tags", []))

    def tag_model(self, name: str, tags: Mapping[str, str]) -> None:
        for key, value in tags.items():
            body = {"name": name, "key": key, "value": value}
            self._call("POST", "/registered-models/set-tag", body)

    def aliased_version(self, name: str, alias: str) -> dict[str, Any] | None:
        """The version of a registered model that an alias points at; None where there is none."""
        query = {"name": name, "alias": alias}
        found = self._call("GET", "/registered-models/alias", query, (400, 404))
        return found.get("model_version")

    def registered_models(self) -> Iterator[dict[str, Any]]:
        """Yield all of them, each with its `name` and its `aliases`."""
        query: dict[str, Any] = {"max_results": 100}
        while True:
            page = self._call("GET", "/registered-models/search", query)
            yield from page.get("registered_models", [])
            if not page.get("next_page_token"):
                return
            query["page_token"] = page["next_page_token"]

    def _call(
        self, method: str, path: str, body: Mapping[str, Any], allowed: tuple[int, ...] = ()
    ) -> dict[str, Any]:
        """The parsed reply; {} for a status that the caller allows."""
        if method == "GET":
            given: dict[str, Any] = {"params": body}
        else:
            text = json.dumps(body, ensure_ascii=False, allow_nan=False)
            given = {
                "content": text.encode(errors="replace"),
                "headers": {"Content-Type": "application/json"},
            }
        reply = self._send(method, _API + path, allowed=allowed, **given)
        if not reply.is_success or not reply.content:
            return {}
        try:
            found = reply.json()
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise InfrastructureError(self._no_mlflow(reply))
        return found

    def _send(
        self, method: str, url: str, *, allowed: tuple[int, ...] = (), **given: Any
    ) -> httpx.Response:
        try:
            reply = loosed(self._http.request(method, url, **given))
        except httpx.HTTPError as error:
            kind = MlflowSlow if isinstance(error, httpx.ReadTimeout) else InfrastructureError
            raise kind(
                f"MLflow at {self.uri} does not answer ({type(error).__name__}: {error}); "
                "`tributary status` shows the stack, `tributary up` restarts it"
            ) from error
        if reply.is_success or (reply.status_code in allowed and _is_mlflow(reply)):
            return reply
        message = (
            f"MLflow at {self.uri} refused {method} {url}: {reply.status_code} {reply.text[:300]}"
        )
        if reply.status_code >= 500:
            raise MlflowFailed(message)
        if reply.status_code in _NOT_US and not _is_mlflow(reply):
            raise InfrastructureError(self._no_mlflow(reply))
        raise MlflowRefused(message)

    def _no_mlflow(self, reply: httpx.Response) -> str:
        return (
            f"what answers at {self.uri} is no MLflow, or asks for another key ({reply.status_code}"
            f" {reply.text[:100]}); `tributary status` shows the stack, `tributary up` restarts it"
        )


@dataclass(frozen=True, slots=True)
class AliasedArtifact:
    """Example: name="cpu-demo-agent", alias="best", digest="3f09...",
    url="file:///data/store/artifacts/rl/3f09c2b1a7d4/a1" """

    name: str
    alias: str
    digest: str
    url: str
    """the folder that contains its files"""

    @property
    def root(self) -> str:
        """The store that it is in."""
        return self.url.rpartition("/artifacts/")[0]


def aliased_artifact(uri: str, name: str, alias: str) -> AliasedArtifact | None:
    """Return what `name@alias` is; None where there is no such alias, or another program set it."""
    return _artifact(name, alias, MlflowRest(uri).aliased_version(name, alias))


def aliased_artifacts(uri: str) -> Iterator[AliasedArtifact]:
    """Yield every alias that points at an artifact."""
    rest = MlflowRest(uri)
    for model in rest.registered_models():
        for entry in model.get("aliases", []):
            name, alias = str(model["name"]), str(entry["alias"])
            found = _artifact(name, alias, rest.aliased_version(name, alias))
            if found is not None:
                yield found


def _artifact(name: str, alias: str, version: Mapping[str, Any] | None) -> AliasedArtifact | None:
    tags = {tag["key"]: str(tag["value"]) for tag in (version or {}).get("tags", [])}
    digest, url = tags.get("tributary.digest", ""), tags.get("tributary.url", "")
    return AliasedArtifact(name, alias, digest, url) if digest and url else None


def _is_mlflow(reply: httpx.Response) -> bool:
    """Return whether a refusal is MLflow's own, which names its reason."""
    try:
        return "error_code" in reply.json()
    except (ValueError, TypeError):
        return False


def _number(value: float) -> float | str:
    """Return it as Protocol Buffers write it in JSON, which has no word for NaN. MLflow stores no
    infinity; the largest number stands in its place."""
    if math.isnan(value):
        return "NaN"
    return value if math.isfinite(value) else math.copysign(sys.float_info.max, value)


def _storable(text: str) -> str:
    """Without what a database or UTF-8 cannot hold: NUL, and halves of surrogate pairs."""
    return writable(str(text)).replace("\0", "\N{REPLACEMENT CHARACTER}")


def _tags(values: Mapping[str, str]) -> list[dict[str, str]]:
    named = {mlflow_key(key): cut(_storable(value), _LONGEST_TAG) for key, value in values.items()}
    return _pairs(named)


def _pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": str(value)} for key, value in values.items()]


def _by_name(tags: Sequence[Mapping[str, str]]) -> dict[str, str]:
    return {tag["key"]: tag["value"] for tag in tags}


def _chunks(items: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _now() -> int:
    return int(time.time() * 1000)
