"""Addresses of MLflow's pages. All open its view for training, not the one for chat traces."""

from __future__ import annotations

import json
from collections.abc import Sequence
from urllib.parse import quote, urlencode

from infra.tracking.params import mlflow_key

VIEW = "tributary"
"""name of the shared view whose columns are the scores"""
_TRAINING = {"workflowType": "machine_learning"}


def start_page(uri: str) -> str:
    """All experiments."""
    return f"{uri}/#/experiments?{urlencode(_TRAINING)}"


def runs_page(uri: str, experiment: str) -> str:
    """The experiment's runs, with the columns of the shared view."""
    query = urlencode({**_TRAINING, "viewStateShareKey": VIEW})
    return f"{uri}/#/experiments/{experiment}/runs?{query}"


def run_page(uri: str, experiment: str, run: str) -> str:
    return f"{uri}/#/experiments/{experiment}/runs/{run}?{urlencode(_TRAINING)}"


def curves_page(uri: str, experiment: str, runs: Sequence[str], metrics: Sequence[str]) -> str:
    """One picture with a curve a run and metric, over steps."""
    given = {
        "runs": list(runs),
        "metric": metrics[0],
        "experiments": [experiment],
        "plot_metric_keys": list(metrics),
    }
    query = "&".join(f"{key}={quote(json.dumps(value))}" for key, value in given.items())
    return f"{uri}/#/metric?{query}&x_axis=step&{urlencode(_TRAINING)}"


def shared_view(columns: Sequence[str]) -> tuple[str, str]:
    """Tag of an experiment, name and value, that holds the view: `metrics.NAME`, `params.NAME`."""
    chosen = [
        f"{kind}.`{mlflow_key(name)}`" for kind, _, name in (c.partition(".") for c in columns)
    ]
    state = {"selectedColumns": chosen, "orderByKey": "attributes.start_time", "orderByAsc": False}
    return f"mlflow.sharedViewState.{VIEW}", json.dumps(state)
