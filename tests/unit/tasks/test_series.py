"""Curves of a training: few points, the same ones after a resume, and no metric but those named."""

from __future__ import annotations

import json

import pytest

from tasks.training_record import FEWEST_POINTS, SERIES_FILE, Series, read_series

pytestmark = pytest.mark.unit


def test_only_named_metrics_are_kept(tmp_path):
    series = Series(("loss",))
    series.observe(1, {"loss": 2.5, "seconds": 0.1})
    series.observe(2, {"seconds": 0.1})
    series.write(tmp_path)
    assert json.loads((tmp_path / SERIES_FILE).read_text()) == {"loss": [[1, 2.5]]}
    assert read_series((tmp_path / SERIES_FILE).read_bytes()) == {"loss": [(1, 2.5)]}


def test_a_long_training_keeps_evenly_spaced_steps():
    series = Series(("loss",))
    for step in range(1, 5001):
        series.observe(step, {"loss": float(step)})
    points = series.state()["loss"]
    assert FEWEST_POINTS <= len(points) <= 2 * FEWEST_POINTS
    assert [step for step, _ in points] == list(range(8, 5001, 8))
    assert all(step == value for step, value in points)


def test_a_resumed_training_keeps_the_same_points():
    whole = Series(("loss",))
    for step in range(1, 3001):
        whole.observe(step, {"loss": float(step)})
    first = Series(("loss",))
    for step in range(1, 1711):
        first.observe(step, {"loss": float(step)})
    rest = Series(("loss",))
    rest.restore(json.loads(json.dumps(first.state())))
    for step in range(1711, 3001):
        rest.observe(step, {"loss": float(step)})
    assert rest.state() == whole.state()
