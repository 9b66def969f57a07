"""What people read of long runs: the report, and `tributary rollouts`."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

from engines.rollout.records.gallery import Gallery
from flows.catalog import plan_of
from flows.command.app import CommandConsole
from flows.command.rollouts import Wanted, show_rollouts
from flows.load import load_recipe
from flows.reports.page import write_page
from flows.reports.report import build_report
from flows.running.new_run import new_run
from flows.running.records import RunState, StageRecord, find_run
from infra.store.artifacts import ArtifactStore
from tests.programs.growth.made_up import WordChat, new_folder, sample_of
from tests.programs.growth.meter import Meter
from tests.programs.growth.registry import HISTORY, grows

TOKENS = 1024
STEPS_A_CHECKPOINT = 10


@grows("the report of a long run", "steps", (100, 400, 1_600), cpu_s=HISTORY, memory=HISTORY)
def report(size: int, meter: Meter) -> None:
    meter.apart(lambda: _finished(size, meter.folder))
    record = find_run()
    plan = list(plan_of("post-train", record.recipe(), {}))
    with meter.counting():
        write_page(record, build_report(record, plan), plan)


@grows("`tributary rollouts` of a long run", "steps", (50, 200, 800), memory=HISTORY)
def rollouts_command(size: int, meter: Meter) -> None:
    meter.apart(lambda: _finished(size, meter.folder))
    everything = Wanted.of("", "", "", "", "")
    with meter.counting(), contextlib.redirect_stdout(io.StringIO()):
        console = CommandConsole()
        show_rollouts("agent-rl", "", everything, "step", 5, "", False, console)


def _finished(steps: int, scratch: Path) -> None:
    """A run on record with a model and one RL stage of so many steps, six rollouts each."""
    record = new_run(load_recipe("cpu-smoke"), "post-train", {}, in_process=True)
    out = new_folder(scratch / "out")
    chat = WordChat()
    pieces = (
        _encoded(chat, range(first, first + STEPS_A_CHECKPOINT))
        for first in range(1, steps + 1, STEPS_A_CHECKPOINT)
    )
    Gallery(chat).write(out, pieces, "some")
    artifacts = ArtifactStore(record.store)
    made = artifacts.commit(
        "rl", "d" * 64, 1, out, identity={}, inputs={}, code={"commit": "c" * 40}, metrics={},
        seeds={}, mlflow_run_id="", seconds=1.0,
    )  # fmt: skip
    record.put_stage(
        StageRecord(
            name="agent-rl", kind="rl", state="completed", digest=made.digest, artifact=made.url
        )
    )
    record.put_state(RunState(state="completed", started=1.0, seconds=2.0))


def _encoded(chat: WordChat, steps: range) -> bytes:
    """One checkpoint's rows."""
    gallery = Gallery(chat)
    for step in steps:
        samples = [sample_of(step * 3 + n // 2, n % 2, step, TOKENS) for n in range(6)]
        gallery.add(
            f"step {step}", samples, {(s.rollout_id, s.branch): s.logprobs for s in samples}
        )
    return gallery.encoded()
