"""What the page shows of a stage that trains a policy: its curve, its timeline, its idle shares."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from flows.reports.charts import curve_table
from flows.reports.timeline_chart import idle_shares, timeline_picture
from infra.timeline import (
    CHECKPOINTS,
    SERVERS,
    TICKETS,
    TRACE_FILE,
    TRAINER,
    Timeline,
    read_trace,
    write_trace,
)
from tasks.rl.curve import Curve, ScorePoint

pytestmark = pytest.mark.unit


def point(step, outcome, problems=64):
    return ScorePoint(
        step=step, version=step, outcome=outcome, stderr=0.05, problems=problems, wanted=64
    )


CURVE = Curve(
    training={1: 0.125, 2: 0.25, 4: 0.5},
    held_out={"a&b": [point(0, 0.25), point(4, 0.375, problems=60)]},
)


def trace_of(timeline, folder):
    write_trace(timeline, folder)
    return read_trace((folder / TRACE_FILE).read_bytes())


@pytest.fixture
def two_attempts(monkeypatch):
    """Of 10 seconds each, an hour apart. Busy: trainer 3 + 1 and 5 seconds, servers 4 and 8."""
    timeline = Timeline()
    for part, began in ((1, 1000.0), (2, 4600.0)):
        timeline.part = part
        timeline.add(TRAINER, "wait", began, 4.0, {"step": part})
        timeline.add(TRAINER, "train", began + 4, 3.0 if part == 1 else 5.0, {"step": part})
        if part == 1:
            timeline.add(TRAINER, "publish", began + 7, 1.0, {"version": 1})
        timeline.add(SERVERS, "busy", began, 4.0 * part, {})
        timeline.add(TICKETS, "ticket 1", began, 3.0, {"problem": "<p>"})
        timeline.add(TICKETS, "ticket 2", began + 1, 3.0, {"problem": "<p>"})
        timeline.add(CHECKPOINTS, "step 1", began + 9, 1.0, {})
        monkeypatch.setattr("infra.timeline.now", lambda at=began + 2: at)
        timeline.count({"turns in flight": part + 6})
    return timeline


def test_idle_shares_are_of_the_attempts_own_time(two_attempts: Timeline, tmp_path: Path) -> None:
    idle = idle_shares(trace_of(two_attempts, tmp_path))
    assert idle.trainer == pytest.approx(1 - (3 + 1 + 5) / 20)
    assert idle.servers == pytest.approx(1 - (4 + 8) / 20)


def test_spans_that_overlap_count_once(tmp_path: Path) -> None:
    timeline = Timeline()
    timeline.add(TRAINER, "train", 100.0, 10.0, {})
    timeline.add(SERVERS, "busy", 98.0, 4.0, {})  # 2 of them before the trainer's first event
    timeline.add(SERVERS, "busy", 101.0, 4.0, {})
    idle = idle_shares(trace_of(timeline, tmp_path))
    assert (idle.trainer, idle.servers) == (0.0, pytest.approx(0.5))


def test_the_picture_puts_attempts_end_to_end(two_attempts: Timeline, tmp_path: Path) -> None:
    page = timeline_picture(trace_of(two_attempts, tmp_path))
    assert "Idle: trainer 55%, servers 40%" in page
    assert "all steps" in page
    svg = ElementTree.fromstring(page[page.index("<svg") :].replace("width=100% role=img", ""))
    texts = [text.text for text in svg.iter("text")]
    assert texts[:5] == ["trainer", "servers", "checkpoints", "turns in flight", "max 8"]
    assert texts[-5:] == ["0 s", "5 s", "10 s", "15 s", "20 s"]
    trained = [r for r in svg.iter("rect") if (r[0].text or "").startswith("train ")]
    # 720 units for 20 s, from 120 on
    assert [float(r.attrib["x"]) for r in trained] == pytest.approx([264, 624])
    assert [float(r.attrib["width"]) for r in trained] == pytest.approx([108, 180])


def test_of_a_long_stage_the_last_steps_are_drawn(tmp_path: Path) -> None:
    timeline = Timeline()
    for step in range(100):
        timeline.add(TRAINER, "wait", 2.0 * step, 1.0, {})
        timeline.add(TRAINER, "train", 2.0 * step + 1, 1.0, {})
    page = timeline_picture(trace_of(timeline, tmp_path))
    assert "the last 40 of 100 steps" in page
    assert page.count("<rect") == 80
    assert "80 s</text>" in page
    assert "trainer 50%" in page


def test_the_table_names_steps_scores_and_what_was_not_finished() -> None:
    held_out = {"b": [point(n, n / 100) for n in range(0, 50, 2)] + [point(50, None, problems=0)]}
    header, rows = curve_table({"x-rl": CURVE, "y-rl": Curve(held_out=held_out)})
    assert header == ["stage", "domain", "held-out outcome after step", "last"]
    assert rows[0] == [
        "x-rl", "a&b", "0: 0.250, 4: 0.375", "0.375 ± 0.050 on 60 of 64 problems",
    ]  # fmt: skip
    shown = rows[1][2].split(", ")
    assert (shown[0], shown[-1], len(shown)) == ("0: 0.000", "50: none", 8)
    assert rows[1][3] == "none of 64 problems was finished"
