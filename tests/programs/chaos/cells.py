"""The kill matrix: what is disturbed, how, and at which moment of which run."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Hit = Literal[
    "kill", "kill-all", "freeze", "full", "slow", "torn", "refusing", "garbage", "restart"
]
"""kill: SIGKILL. kill-all: SIGKILL of every such process at once, without a warning, as the kernel
ends all of a container that passed its memory limit. freeze: SIGSTOP. Of the store, for a while:
full: it refuses every write, slow: all it does takes a second longer; torn: one write stops half
way and fails. Of the servers, for a while: refusing: they answer 500, garbage: 200 and nonsense.
restart: SIGKILL, then `tributary up`"""

MOMENTS = (
    "before-submit",
    "starting",
    "mid-generation",
    "mid-reward",
    "mid-train",
    "mid-publish",
    "mid-checkpoint",
    "committing",
    "between-stages",
)
"""before-submit: the attempt is claimed, no job knows of it. starting: its job has no engines.
Further ones, of some parts: mid-turn, a rollout asks for tokens; mid-take, a step's take is about
to be written; mid-evaluation, held-out problems are rolled out between two steps"""
_IN_JOB = MOMENTS[1:-1]
_WITH_ENGINES = MOMENTS[2:-1]
_IN_LOOP = ("mid-turn", "mid-take")
_WORKING = ("mid-generation", "mid-train", "mid-publish")
_LONG = ("mid-generation", "mid-checkpoint", "committing")

RECOVERIES = {
    "server": (("server",), 10.0),
    "rank or driver": (("rank", "job"), 20.0),
    "flow, its worker alive": (("flow",), 20.0),
    "flow and worker": (("flow-and-worker",), 120.0),
    "whole stack": (("whole-stack",), 60.0),
}
"""what was killed -> its parts in the matrix, and the seconds until work is written again"""
_TIMED = frozenset(part for parts, _ in RECOVERIES.values() for part in parts)


@dataclass(frozen=True, slots=True)
class Part:
    """What is hit, how, and in which moments of which stage of a scenario's run."""

    name: str
    hit: Hit
    moments: Sequence[str]
    target: str = ""
    """the process that is hit; empty: the one of this name"""
    scenario: str = "expert"
    stage: str = "rl"
    """the kind of the stage that is disturbed"""


PARTS = (
    Part("job", "kill", (*_IN_JOB, *_IN_LOOP)),
    Part("rank", "kill", _WITH_ENGINES),
    Part("server", "kill", MOMENTS),
    Part("owner", "kill", MOMENTS),
    Part("flow", "kill", MOMENTS),
    Part("router", "kill", (*_WORKING, "between-stages")),
    Part("job-frozen", "freeze", ("mid-generation",), "job"),
    Part("rank-frozen", "freeze", ("mid-train", "mid-publish", "mid-checkpoint"), "rank"),
    Part("server-frozen", "freeze", ("mid-generation", "mid-publish"), "server"),
    Part("owner-frozen", "freeze", ("mid-generation", "between-stages"), "owner"),
    Part("store-full", "full", _LONG),
    Part("store-slow", "slow", _LONG),
    Part("store-torn", "torn", ("mid-generation", "saving", "mid-checkpoint", "uploading")),
    Part("server-refusing", "refusing", ("starting", "mid-generation", "mid-publish")),
    Part("server-garbage", "garbage", ("starting", "mid-generation", "mid-publish")),
    Part("distill-job", "kill", ("mid-generation", "committing"), "job", "union", "distill"),
    Part("distill-server", "kill", ("mid-generation",), "server", "union", "distill"),
    Part("distill-flow", "kill", ("mid-generation",), "flow", "union", "distill"),
    Part("evaluate-job", "kill", ("mid-generation", "committing"), "job", "union", "evaluate"),
    Part("evaluate-server", "kill", ("mid-load", "mid-generation"), "server", "union", "evaluate"),
    Part("evaluate-flow", "kill", ("mid-generation",), "flow", "union", "evaluate"),
    Part("agent-job", "kill", ("mid-tool",), "job", "agent"),
    Part("agent-server", "kill", ("mid-tool",), "server", "agent"),
    Part("agent-flow", "kill", ("mid-tool",), "flow", "agent"),
    Part("agent-rank", "kill", ("mid-train",), "rank", "agent"),
    Part("sandbox", "kill", ("mid-tool",), scenario="agent"),
    Part("reward-process", "kill", ("mid-judgement",), scenario="agent"),
    Part("mixture-job", "kill", ("mid-train",), "job", "mixture"),
    Part("mixture-flow", "kill", ("mid-generation",), "flow", "mixture"),
    Part("one-of-two-ranks", "kill", ("mid-train", "mid-checkpoint"), "rank", "wide"),
    Part("one-of-two-servers", "kill", ("mid-generation", "mid-publish"), "server", "wide"),
    Part("job-of-two-ranks", "kill", ("mid-train",), "job", "wide"),
    Part("ranks-out-of-memory", "kill-all", ("mid-train", "mid-publish"), "rank", "wide"),
    Part("rollout-worker", "kill", (*_IN_LOOP, "mid-train", "mid-publish"), scenario="workers"),
    Part("all-rollout-workers", "kill-all", ("mid-turn",), "rollout-worker", "workers"),
    Part("job-of-workers", "kill", ("mid-turn",), "job", "workers"),
    Part(
        "agent-rollout-worker", "kill", ("mid-turn", "mid-tool"), "rollout-worker", "agent-workers"
    ),
    Part("scored-job", "kill", ("mid-evaluation",), "job", "scored"),
    Part("scored-rank", "kill", ("mid-evaluation",), "rank", "scored"),
    Part("scored-server", "kill", ("mid-evaluation",), "server", "scored"),
    Part("scored-flow", "kill", ("mid-evaluation",), "flow", "scored"),
    Part("replay-job", "kill", ("mid-train", "mid-checkpoint"), "job", "replay", "replay"),
    Part("replay-rank", "kill", ("mid-train",), "rank", "replay", "replay"),
    Part("replay-flow", "kill", ("mid-train",), "flow", "replay", "replay"),
    Part("overlapped-job", "kill", (*_IN_JOB, *_IN_LOOP), "job", "overlapped"),
    Part("overlapped-rank", "kill", _WITH_ENGINES, "rank", "overlapped"),
    Part("overlapped-server", "kill", _WITH_ENGINES, "server", "overlapped"),
    Part("overlapped-owner", "kill", _WITH_ENGINES, "owner", "overlapped"),
    Part("overlapped-router", "kill", _WORKING, "router", "overlapped"),
    Part("overlapped-flow", "kill", ("mid-generation", "mid-publish"), "flow", "overlapped"),
    Part("overlapped-server-frozen", "freeze", ("mid-generation",), "server", "overlapped"),
    Part(
        "overlapped-one-of-two-servers",
        "kill",
        ("mid-generation", "mid-publish"),
        "server",
        "overlapped-wide",
    ),
    Part(
        "overlapped-rollout-worker",
        "kill",
        (*_IN_LOOP, "mid-publish"),
        "rollout-worker",
        "overlapped-workers",
    ),
    Part("prefect-server", "restart", _LONG),
    Part("prefect-worker", "restart", ("mid-generation", "committing")),
    Part("flow-and-worker", "restart", _LONG),
    Part("mlflow", "restart", _LONG),
    Part("ray-head", "restart", _LONG),
    Part("whole-stack", "restart", MOMENTS[:-1]),
    Part("real-job", "kill", ("mid-generation",), "job", "real"),
    Part("real-rank", "kill", ("mid-train", "mid-checkpoint"), "rank", "real"),
    Part("real-whole-stack", "restart", ("mid-train",), "whole-stack", "real"),
)
"""job: the stage's driver. rank: a trainer rank. server: an SGLang server. owner: the actor that
owns the devices. flow: the process that runs the recipe. sandbox: a tool's program.
reward-process: the process in which a reward compares answers. rollout-worker: one of two actors
that roll out"""


@dataclass(frozen=True, slots=True)
class Cell:
    part: str
    moment: str

    @property
    def name(self) -> str:
        return f"{self.part} {self.moment}"

    @property
    def how(self) -> Part:
        return next(part for part in PARTS if part.name == self.part)

    @property
    def target(self) -> str:
        return self.how.target or self.part

    @property
    def signal(self) -> str:
        """The moment's name in `inject/`."""
        stage = self.how.stage
        return self.moment if stage == "rl" else f"{stage}-{self.moment}"

    @property
    def needs_stack(self) -> bool:
        return self.how.hit == "restart"

    @property
    def is_timed(self) -> bool:
        """Whether its recovery has a bound, so that nothing may run beside it."""
        return self.part in _TIMED


def matrix(seed: int) -> list[Cell]:
    """All cells in an order of the seed's; first those of one rank and one server, of these first
    the ones that take long because something hangs."""
    cells = [Cell(part.name, moment) for part in PARTS for moment in part.moments]
    random.Random(seed).shuffle(cells)
    return sorted(cells, key=lambda cell: (cell.how.scenario == "wide", cell.how.hit != "freeze"))
