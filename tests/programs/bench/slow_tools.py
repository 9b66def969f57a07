"""Sampling beside training against taking turns, and against whole batches beside training, where
tools take their time.

Every rollout calls one tool, whose latency is log-normal with a median of 0.5 s and a 99th
percentile of 10 s. All loops do the same number of steps with as many samples of as many tokens,
on one SGLang server and one trainer; beside training what takes too long is replaced. TRL's trainer
does the same task, with the tools of a step side by side: its own loop runs them one by one.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from engines.algorithms.spec import Algorithm
from engines.rollout.background_sampler import BackgroundSampler
from engines.rollout.consumer import Consumer, StepResult
from engines.rollout.drivers.session_host import End, SessionHost
from engines.rollout.loop import Loop
from engines.rollout.metrics import step_metrics
from engines.rollout.records.journals import RolloutJournal
from engines.rollout.records.take_log import TakeLog
from engines.rollout.tickets import Admission
from engines.sglang.client import GenerationClient
from engines.step_inputs import StepInputs, TrainedStep
from engines.types import Problem, Rollout, Status
from tests.parts.rollout_parts import producer_of
from tests.parts.stage_parts import stage_context
from tests.programs.bench.grpo import Checksum, HerePolicy, HereTrainer, endless_roller, trl_steps
from tests.programs.bench.rows import Row
from tests.programs.bench.servers import Servers
from tests.programs.bench.tool_latency import MEDIAN_S, P99_S, latency_s
from tests.programs.bench.trl_grpo import TOOL_TOKENS
from tests.programs.bench.workbench import Workbench

PROMPTS, GROUP, TURN_TOKENS, STEPS = 16, 4, 12, 10
STALENESS = 2
ONE_OFF = 1
"""staleness of whole batches: one is sampled while the one before it is trained on"""
TRL_STEPS = 6


class OneTool:
    """Two turns, and between them a tool that answers late."""

    async def run(self, problem: Problem, sessions: SessionHost) -> Rollout:
        session = sessions.open(sessions.prompt_ids)
        first = await sessions.turn(session, max_new_tokens=TURN_TOKENS)
        await asyncio.sleep(latency_s(session.tokens))
        session.extend(sessions.prompt_ids[-TOOL_TOKENS:])
        turn = await sessions.turn(session, max_new_tokens=TURN_TOKENS, is_last=True)
        said = [t.said.message() for t in (first, turn) if t.said is not None]
        return sessions.finish(End(Status.COMPLETED), said)


class WholeBatches(Admission):
    """Starts a step's tickets together, when all before them are over: a step waits for the slowest
    rollout of its batch."""

    def beside_training(
        self,
        *,
        waiting: int,
        rolling: int,
        drawn: int,
        trained: int,
        steps: int,
        is_training: bool = False,
    ) -> int:
        ahead = min(self.max_staleness + 1, steps - trained)
        may_start = not rolling and drawn < (trained + ahead) * self.groups_per_step
        return self.groups_per_step if may_start else 0


class ThreadTrainer(HereTrainer):
    """Trains in a thread, as a rank trains in another process."""

    async def rl_step(self, inputs: StepInputs) -> TrainedStep:
        self.seen.append(sum(sample.num_trained_tokens for sample in inputs.samples))
        return await asyncio.to_thread(self.trainer.rl_step, inputs)


@dataclass(frozen=True, slots=True)
class Ran:
    """One loop."""

    seconds: float
    tokens: int
    """trained on"""
    metrics: Sequence[dict[str, float]]
    servers_idle: float
    """seconds"""

    def mean(self, name: str) -> float:
        return statistics.mean(values.get(name, 0.0) for values in self.metrics)

    def note(self) -> str:
        trainer = self.mean("trainer_idle_seconds") * len(self.metrics) / self.seconds
        return (
            f"{self.seconds:.1f} s, {self.tokens} tokens; idle: trainer {trainer:.0%}, servers"
            f" {self.servers_idle / self.seconds:.0%}; staleness"
            f" {self.mean('staleness_mean'):.2f}, replaced"
            f" {sum(m['groups_stale'] + m['groups_dropped'] for m in self.metrics):.0f} groups"
        )


def measure(bench: Workbench, engines: Servers) -> list[Row]:
    turns = asyncio.run(_run(bench, engines, 0))
    beside = asyncio.run(_run(bench, engines, STALENESS))
    batches = asyncio.run(_run(bench, engines, ONE_OFF, WholeBatches))
    one_off = asyncio.run(_run(bench, engines, ONE_OFF))
    trl_s = _trl_step_seconds(bench)
    ours_s = beside.seconds / STEPS
    work = (
        f"{STEPS} steps of {PROMPTS} x {GROUP} rollouts, tool latency log-normal, median"
        f" {MEDIAN_S} s, p99 {P99_S:.0f} s"
    )
    return [
        Row("slow tools, in turns", turns.seconds, "s", note=turns.note()),
        Row(f"slow tools, staleness {STALENESS}", beside.seconds, "s", note=beside.note()),
        Row(
            "slow tools: in turns over beside training",
            turns.seconds / beside.seconds,
            "ratio",
            2.5,
            note=work,
        ),
        Row("slow tools, whole batches", batches.seconds, "s", note=batches.note()),
        Row(f"slow tools, staleness {ONE_OFF}", one_off.seconds, "s", note=one_off.note()),
        Row(
            "slow tools: whole batches over groups as they finish",
            batches.seconds / one_off.seconds,
            "ratio",
            1.2,
            note=f"both at staleness {ONE_OFF}; {work}",
        ),
        Row(
            "slow tools: GRPO samples/s, ours over TRL",
            trl_s / ours_s,
            "ratio",
            2.0,
            note=f"{PROMPTS * GROUP / ours_s:.1f} and {PROMPTS * GROUP / trl_s:.1f} samples/s;"
            f" ours at staleness {STALENESS}, TRL with the tools of a step side by side",
        ),
    ]


def _trl_step_seconds(bench: Workbench) -> float:
    """Mean over steps: a step waits for its slowest tool."""
    sizes = (PROMPTS, GROUP, TURN_TOKENS, TRL_STEPS)
    answer = trl_steps(bench, bench.domain("reasoning"), sizes, with_tools=True)
    trained = PROMPTS * GROUP * 2 * TURN_TOKENS
    if answer["tokens"] != trained:
        raise RuntimeError(f"TRL's side trained {answer['tokens']} tokens a step, not {trained}")
    return answer["mean_wall_s"]


async def _run(
    bench: Workbench,
    engines: Servers,
    staleness: int,
    admission: type[Admission] = Admission,
) -> Ran:
    router, urls = await asyncio.to_thread(engines.serve, bench.endless, 1)
    trainer = ThreadTrainer(bench.trainer(bench.endless))
    results: list[StepResult] = []

    async def after_step(result: StepResult) -> bool:
        results.append(result)
        return False

    async with GenerationClient(router) as client:
        policy = HerePolicy(trainer, urls)
        notes = stage_context(
            bench.folder, f"slow-tools-{staleness}-{admission.__name__}", {}
        ).checkpoints
        domain = bench.domain("reasoning")
        domain = replace(domain, judge=Checksum(), driver=OneTool(), max_new_tokens=2 * TURN_TOKENS)
        producer, buffer = producer_of(
            endless_roller(bench, client),
            [domain],
            groups_per_step=PROMPTS,
            group_size=GROUP,
            max_staleness=staleness,
            policy=policy,
            journal=RolloutJournal(notes),
        )
        producer.admission = admission(PROMPTS, waves=3, max_staleness=staleness)
        consumer = Consumer(
            trainer=trainer, policy=policy, algorithm=Algorithm(), groups_per_step=PROMPTS
        )
        sampler = BackgroundSampler(producer, buffer, policy, STEPS)
        loop = Loop(producer, buffer, TakeLog(notes), consumer, policy, sampler)
        began, idle = time.monotonic(), client.in_flight.idle_seconds
        await loop.run(first=1, last=STEPS, after_step=after_step)
        seconds, idle = time.monotonic() - began, client.in_flight.idle_seconds - idle
    return Ran(seconds, sum(trainer.seen), [step_metrics(r) for r in results], idle)
