"""One attempt at the month's RL stage: the real job and the real body, with simulated engines.

Usage: python -m tests.programs.month.worker ROOT JOB LOG KILL_AT FULL_AT. The event loop's clock is
simulated; files, records and tracking are real. The process kills itself in the update that follows
version KILL_AT, and finds its disk full from version FULL_AT on; -1: never. Each update adds a line
to LOG.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from engines.rollout.drivers.driver import Conversation, LiveDomain
from engines.step_inputs import StepInputs, TrainedStep
from engines.types import TokenIds, Transcript
from tasks.durable import job
from tasks.rl import body
from tests.programs.bench.process_memory import process_memory
from tests.programs.growth.made_up import TRAINED
from tests.programs.month.full_disk import FullDisk
from tests.programs.month.ground import fixed_work
from tests.programs.scale.fleet import SimulatedClient, SimulatedFleet
from tests.programs.scale.server import ServerSpeed
from tests.programs.scale.trainer import SimulatedTrainer, num_tokens
from tests.programs.scale.virtual_time import VirtualTimeLoop
from tests.programs.scale.workload import (
    LOG_NORMAL,
    MOST_TOKENS,
    TOKENS_EACH,
    SimulatedChat,
    SimulatedJudgement,
    SimulatedProblems,
)

SERVERS = 2
UPDATE_S = 2.0
"""of the simulated clock"""
WEIGHT_BYTES = 64 << 10
_WEIGHTS = "weights.bin"


@dataclass(frozen=True, slots=True)
class Faults:
    """When something happens to this attempt, by version of the policy; -1: never."""

    kill_at: int
    full_at: int


@dataclass
class MonthTrainer(SimulatedTrainer):
    """Gives as many metrics as a real one, and meets the attempt's faults."""

    faults: Faults = field(default_factory=lambda: Faults(-1, -1))
    disk: FullDisk = field(default_factory=FullDisk)
    log: Path = field(default_factory=Path)

    async def rl_step(self, inputs: StepInputs) -> TrainedStep:
        assert inputs.version is not None
        self._note(inputs.version)
        if 0 <= self.faults.full_at <= inputs.version:
            self.disk.fill()
        await asyncio.sleep(UPDATE_S)
        if 0 <= self.faults.kill_at <= inputs.version:
            os.kill(os.getpid(), signal.SIGKILL)
        tokens = float(num_tokens(inputs.samples))
        return TrainedStep(dict(TRAINED) | {"tokens": tokens, "entropy": 1.0 + tokens % 7 / 10})

    def _note(self, version: int) -> None:
        before = time.process_time()
        fixed_work()
        line = [version, before, time.process_time(), process_memory("VmRSS")]
        with self.log.open("a") as out:
            out.write(json.dumps(line) + "\n")


@dataclass(slots=True)
class MonthRoles:
    """The trained role of the stage; its weights are a small file."""

    trainer: MonthTrainer
    critic: None = None
    groups: Mapping[str, Any] = field(default_factory=dict[str, Any])

    async def begin_save(self, folder: Path) -> Any:
        _write_weights(folder)
        return self._saved

    async def _saved(self) -> None:
        """All was written at once."""

    async def load(self, folder: Path) -> None:
        assert (folder / _WEIGHTS).stat().st_size == WEIGHT_BYTES

    async def export(self, out: Path, model: Path) -> float:
        _write_weights(out)
        return 1.0


def _write_weights(folder: Path) -> None:
    noise = np.random.default_rng(0).bytes(WEIGHT_BYTES)
    (folder / _WEIGHTS).write_bytes(noise)


class MonthFleet(SimulatedFleet):
    """Simulated servers with their client."""

    def __init__(self) -> None:
        super().__init__(SERVERS, ServerSpeed())
        self.client = SimulatedClient(self, LOG_NORMAL)


class MonthJudge:
    """Half of the answers are right, by their length."""

    async def judge(self, transcript: Transcript) -> SimulatedJudgement:
        outcome = float(transcript.num_tokens % 2)
        return SimulatedJudgement(outcome, {"outcome": outcome})


class MonthChat(SimulatedChat):
    """What it decodes is as long as the tokens."""

    def decode(self, token_ids: TokenIds) -> str:
        return "word " * len(token_ids)


def main(root: str, name: str, log: str, kill_at: str, full_at: str) -> int:
    faults, disk = Faults(int(kill_at), int(full_at)), FullDisk()

    async def lease(stack: AsyncExitStack, *_: object) -> tuple[MonthRoles, MonthFleet]:
        fleet = MonthFleet()
        stack.push_async_callback(fleet.client.close)
        trainer = MonthTrainer(1.0, fleet, faults=faults, disk=disk, log=Path(log))
        return MonthRoles(trainer), fleet

    async def open_parts(
        stack: AsyncExitStack, model: Path, domains: Sequence[Any], roles: object, **_: bool
    ) -> tuple[MonthChat, list[LiveDomain]]:
        most = MOST_TOKENS // TOKENS_EACH
        return MonthChat(), [
            LiveDomain(d.name, SimulatedProblems(), MonthJudge(), Conversation(None), most)
            for d in domains
        ]

    with (
        patch.object(body, "_lease", lease),
        patch.object(body, "open_parts", open_parts),
        patch.object(asyncio, "run", _run_in_simulated_time),
    ):
        return job.main(root, name)


def _run_in_simulated_time(work: Any) -> Any:
    """As `virtual_time.run`, and `time.monotonic` stays simulated for what closes after it."""
    loop = VirtualTimeLoop()
    with patch.object(time, "monotonic", loop.time), asyncio.Runner(loop_factory=lambda: loop) as r:
        return r.run(work)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
