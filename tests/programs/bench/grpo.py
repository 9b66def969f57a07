"""GRPO steps against TRL's GRPOTrainer: same weights, prompts, group size, rewards and tokens.

No answer ends early, so both sides generate and train the same number of tokens. Ours is the whole
loop (producer with its journal, one SGLang server behind a router, Megatron-core, weights published
every step), TRL one process; each process computes with one thread. CPU seconds count every process
of a side.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import zlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from engines.algorithms.spec import Algorithm
from engines.megatron.rl.trainer import RlTrainer
from engines.rollout.background_sampler import BackgroundSampler
from engines.rollout.consumer import Consumer, StepResult
from engines.rollout.drivers.driver import LiveDomain
from engines.rollout.loop import Loop
from engines.rollout.records.journals import RolloutJournal
from engines.rollout.records.take_log import TakeLog
from engines.rollout.roller import Roller
from engines.sglang.client import GenerationClient
from engines.step_inputs import StepInputs, TrainedStep, Values
from engines.types import Transcript
from engines.weights.transport import PublishReport
from rewards.rubric import RubricJudgement
from tests.parts.rollout_parts import producer_of
from tests.parts.stage_parts import stage_context
from tests.programs.bench.clock import Clock, Spent
from tests.programs.bench.rows import Row
from tests.programs.bench.servers import Servers
from tests.programs.bench.trl_grpo import WARMUP
from tests.programs.bench.workbench import Workbench

SEED = 0
CONTEXT = 512
DOMAIN = "reasoning"


@dataclass(frozen=True, slots=True)
class StepCost:
    """Medians over steps, in seconds; `tokens` generated a step."""

    wall: float
    cpu: float
    generation: float
    """of `wall`"""
    tokens: int

    def split(self) -> str:
        rest = self.wall - self.generation
        return f"{self.wall:.2f} s a step: {self.generation:.2f} generating, {rest:.2f} the rest"


class Checksum:
    """A reward that depends on the answer and on nothing else, as TRL's side computes it too."""

    async def judge(self, transcript: Transcript) -> RubricJudgement:
        reward = checksum(transcript.raw)
        return RubricJudgement(reward, {"outcome": reward})


def checksum(text: str) -> float:
    return zlib.crc32(text.encode()) % 97 / 97


@dataclass(slots=True)
class HereTrainer:
    """The trainer of this very process, where a stage has one behind Ray."""

    trainer: RlTrainer
    seen: list[int] = field(default_factory=list[int])

    async def rl_step(self, inputs: StepInputs) -> TrainedStep:
        self.seen.append(sum(sample.num_trained_tokens for sample in inputs.samples))
        return self.trainer.rl_step(inputs)

    async def token_rewards(self, inputs: StepInputs) -> Values:
        return self.trainer.token_rewards(inputs)

    async def publish(self, endpoints: Sequence[str], version: int) -> PublishReport:
        report = self.trainer.publish(endpoints, version)
        if report.refused:
            raise RuntimeError(f"the servers did not take the weights: {report}")
        return report


@dataclass
class HerePolicy:
    """Its weights on the servers."""

    trainer: HereTrainer
    urls: Sequence[str]
    version: int = 0

    @contextlib.asynccontextmanager
    async def changing(self) -> AsyncGenerator[None]:
        yield

    async def publish_next(self) -> PublishReport:
        self.version += 1
        return await self.trainer.publish(self.urls, self.version)


def measure(bench: Workbench, engines: Servers, domain: str = DOMAIN) -> list[Row]:
    ours = asyncio.run(_ours(bench, engines, domain))
    trl = _trl(bench, domain)
    if ours.tokens != trl.tokens:
        raise RuntimeError(f"ours trained {ours.tokens} tokens a step, TRL {trl.tokens}")
    sizes = bench.sizes
    samples = sizes.prompts * sizes.group
    size = (
        f"{sizes.prompts} prompts x {sizes.group}, {sizes.new_tokens} tokens each, median of"
        f" {sizes.grpo_steps} steps"
    )
    return [
        Row("GRPO samples/s, ours", samples / ours.wall, "1/s", note=ours.split()),
        Row("GRPO samples/s, TRL", samples / trl.wall, "1/s", note=trl.split()),
        Row(
            "GRPO CPU seconds a sample, ours",
            ours.cpu / samples,
            "s",
            note=f"all processes; {size}",
        ),
        Row("GRPO CPU seconds a sample, TRL", trl.cpu / samples, "s"),
        Row(
            "GRPO samples/s, ours over TRL", trl.wall / ours.wall, "ratio", note=_reason(ours, trl)
        ),
        Row("GRPO CPU seconds a sample, TRL over ours", trl.cpu / ours.cpu, "ratio"),
    ]


def _reason(ours: StepCost, trl: StepCost) -> str:
    """In which part of a step the ratio arises; why, only a profile of that part can say."""
    rest = (trl.wall - trl.generation) / (ours.wall - ours.generation)
    return (
        f"generating (SGLang / transformers) {trl.generation / ours.generation:.2f} times as fast,"
        f" training and the rest (Megatron-core / torch) {rest:.2f} times"
    )


async def _ours(bench: Workbench, engines: Servers, domain: str) -> StepCost:
    router, urls = await asyncio.to_thread(engines.serve, bench.endless, 1)
    trainer = HereTrainer(bench.trainer(bench.endless))
    taken: list[Spent] = []
    results: list[StepResult] = []
    clock = Clock()

    async def after_step(result: StepResult) -> bool:
        nonlocal clock
        taken.append(clock.spent())
        results.append(result)
        clock = Clock()
        return False

    prompts, last = bench.sizes.prompts, WARMUP + bench.sizes.grpo_steps
    async with GenerationClient(router) as client:
        policy = HerePolicy(trainer, urls)
        checkpoints = stage_context(bench.folder, "grpo", {}).checkpoints
        producer, buffer = producer_of(
            endless_roller(bench, client),
            [endless_domain(bench, domain)],
            groups_per_step=prompts,
            group_size=bench.sizes.group,
            seed=SEED,
            policy=policy,
            journal=RolloutJournal(checkpoints),
        )
        consumer = Consumer(
            trainer=trainer,
            policy=policy,
            algorithm=Algorithm(mini_batches=1),
            groups_per_step=prompts,
        )
        sampler = BackgroundSampler(producer, buffer, policy, last)
        loop = Loop(producer, buffer, TakeLog(checkpoints), consumer, policy, sampler)
        await loop.run(first=1, last=last, after_step=after_step)
    return StepCost(
        wall=statistics.median(spent.wall for spent in taken[WARMUP:]),
        cpu=statistics.median(spent.cpu for spent in taken[WARMUP:]),
        generation=statistics.median(result.sampled.seconds for result in results[WARMUP:]),
        tokens=round(statistics.mean(trainer.seen)),
    )


def endless_roller(bench: Workbench, client: GenerationClient) -> Roller:
    """Of turns that take their whole budget."""
    return Roller(
        generate=client.generate, chat=bench.endless_chat(), context_length=CONTEXT, seed=SEED
    )


def endless_domain(bench: Workbench, name: str = DOMAIN) -> LiveDomain:
    """Of answers that take their whole budget, with a reward that TRL's side can compute."""
    return replace(bench.domain(name), judge=Checksum(), max_new_tokens=bench.sizes.new_tokens)


def _trl(bench: Workbench, domain: str) -> StepCost:
    sizes = bench.sizes
    asked = (sizes.prompts, sizes.group, sizes.new_tokens, sizes.grpo_steps)
    answer = trl_steps(bench, endless_domain(bench, domain), asked)
    return StepCost(answer["wall_s"], answer["cpu_s"], answer["generation_s"], answer["tokens"])


def trl_steps(
    bench: Workbench,
    domain: LiveDomain,
    sizes: tuple[int, int, int, int],
    *,
    with_tools: bool = False,
) -> dict[str, Any]:
    """What `trl_grpo` prints: the same problems in the same order, in a process of its own.

    `sizes`: prompts a step, group, tokens a turn, steps.
    """
    steps = WARMUP + sizes[-1] + 1
    problems = domain.curriculum.problems("rl", sizes[0] * steps, SEED)
    prompts = [
        {"text": bench.chat.decode(ids), "ids": ids}
        for ids in (bench.chat.prompt_ids(problem) for problem in problems)
    ]
    file = bench.folder / "prompts.json"
    file.write_text(json.dumps(prompts))
    arguments = [*map(str, sizes), *(["tools"] if with_tools else [])]
    program = [sys.executable, "-m", "tests.programs.bench.trl_grpo"]
    done = subprocess.run(
        [*program, str(bench.endless), str(file), *arguments],
        capture_output=True,
        text=True,
        timeout=bench.sizes.trl_limit_s,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"TRL's side failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])
