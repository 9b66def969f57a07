"""Addresses of MLflow's pages. All open its view for training, not the one for chat traces."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from urllib.parse import quote, urlencode

from infra.errors import TributaryError
from infra.tracking.params import mlflow_key
from infra.tracking.rest import MlflowRest

VIEW = "tributary"
"""name of the shared view whose columns are the scores"""
VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"
"""of an experiment: the view"""
_MOST_COLUMNS = 24
_LOOK_SECONDS = 3.0
_TRAINING = {"workflowType": "machine_learning"}


def start_page(uri: str) -> str:
    """Return the page of all experiments."""
    return f"{uri}/#/experiments?{urlencode(_TRAINING)}"


def front_page(uri: str) -> str:
    """The runs with their scores of the experiment that was worked on last; all experiments while
    none has scores, or the server does not answer at once."""
    rest = MlflowRest(uri, timeout=_LOOK_SECONDS)
    with suppress(TributaryError):
        for experiment, tags in rest.latest_experiments():
            if VIEW_TAG in tags:
                return runs_page(uri, experiment)
    return start_page(uri)


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


def shared_view(columns: Sequence[str], before: str = "") -> str:
    """The value of VIEW_TAG for columns `metrics.NAME`, `params.NAME`; then come those of the value
    `before`, as older runs have other models."""
    chosen = [
        f"{kind}.`{mlflow_key(name)}`" for kind, _, name in (c.partition(".") for c in columns)
    ]
    chosen += json.loads(before)["selectedColumns"] if before else []
    shown = list(dict.fromkeys(chosen))[:_MOST_COLUMNS]
    state = {"selectedColumns": shown, "orderByKey": "attributes.start_time", "orderByAsc": False}
    return json.dumps(state)
