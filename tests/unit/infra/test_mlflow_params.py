"""Settings as MLflow's params, and the addresses of its pages."""

from __future__ import annotations

import json
from urllib.parse import parse_qs

import pytest

from infra.tracking.pages import VIEW_TAG, curves_page, run_page, runs_page, shared_view
from infra.tracking.params import LONGEST_KEY, LONGEST_VALUE, MlflowKeys, flat_params

pytestmark = pytest.mark.unit


def test_settings_are_flat_and_empty_ones_are_left_out() -> None:
    settings = {
        "seed": 0,
        "settings": {"optimizer": {"lr": 1e-3, "warmup": None}, "teachers": [], "solved": False},
        "domains": [{"name": "agent"}, {"name": "general"}],
        "models": ["a", "b"],
    }
    assert flat_params(settings) == {
        "seed": "0", "settings.optimizer.lr": "0.001", "settings.solved": "false",
        "domains.0.name": "agent", "domains.1.name": "general", "models": '["a", "b"]',
    }  # fmt: skip


def test_what_mlflow_would_refuse_is_made_to_fit() -> None:
    found = flat_params({"a" * 300: {"ends": "x" * 7000}, "b,c(d)": 1})
    (long, text), (other, _) = found.items()
    assert len(long) == LONGEST_KEY
    assert long.endswith(".ends")
    assert len(text) == LONGEST_VALUE
    assert text.endswith("x...")
    assert other == "b_c_d_"


def test_every_page_opens_the_training_view() -> None:
    pages = [
        runs_page("http://m", "1"),
        run_page("http://m", "1", "r"),
        curves_page("http://m", "1", ["r", "s"], ["outcome_mean", "entropy"]),
    ]
    queries = [parse_qs(page.partition("?")[2]) for page in pages]
    assert [query["workflowType"] for query in queries] == [["machine_learning"]] * 3
    assert json.loads(queries[2]["runs"][0]) == ["r", "s"]
    assert json.loads(queries[2]["plot_metric_keys"][0]) == ["outcome_mean", "entropy"]
    assert VIEW_TAG.endswith(queries[0]["viewStateShareKey"][0])


def test_the_columns_of_older_runs_stay_in_the_view() -> None:
    first = shared_view(["metrics.score/agent", "params.seed"])
    assert json.loads(first)["selectedColumns"] == ["metrics.`score/agent`", "params.`seed`"]
    second = json.loads(shared_view(["metrics.score/general", "params.seed"], first))
    assert second["selectedColumns"] == [
        "metrics.`score/general`", "params.`seed`", "metrics.`score/agent`",
    ]  # fmt: skip


def test_names_of_metrics_and_params_are_cleaned_alike_and_stay_different() -> None:
    names = ["acc@1", "acc#1", "acc_1", "a/../b", "/abs", "", "..", "wörter", "half \ud83d"]
    keys = MlflowKeys()
    found = [keys.of(name) for name in names]
    assert found[0] == "acc_1"
    assert found[3:] == ["a/_/b", "_/abs", "_", "_-" + found[6][2:], "wörter", "half _"]
    assert len(set(found)) == len(names)
    assert [keys.of(name) for name in names] == found
    assert list(flat_params({"acc@1": 1, "acc#1": 2})) == found[:2]
