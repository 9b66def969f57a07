"""The runs that cells disturb: a recipe, a flow, and what they share with another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kind of run. Its reference begins with the artifacts of `shared` kinds of `begins_as`."""

    file: str = "recipe.yaml"
    flow: str = "expert"
    changes: Sequence[str] = ()
    begins_as: str = ""
    shared: Sequence[str] = ()
    is_exact: bool = True
    """whether a run that was disturbed ends with the bits of one that was not"""
    scores_while_training: bool = False
    """whether it has scores that a lost server may cut short, which are then no part of its bits"""
    replays: str = ""
    """the stage that is trained again; empty: none is"""

    @property
    def recipe(self) -> Path:
        return _FOLDER / self.file

    def of_run(self, expert: str) -> tuple[str, dict[str, Any]]:
        """Flow and arguments of a run."""
        arguments = {"name": expert} if self.flow == "expert" else {}
        if not self.replays:
            return self.flow, arguments
        return "replay", {"stage": self.replays, "flow": self.flow, "arguments": arguments}


_MADE = ("base", "sft", "rl", "evaluate")
_OVERLAPPED = ("determinism=close", "experts.general.path.rl.max_staleness=2")
_WORKERS = ("resources.default.rollout_workers=2",)

SCENARIOS: Mapping[str, Scenario] = {
    "expert": Scenario(),
    "union": Scenario(flow="post-train", begins_as="expert", shared=("base", "sft", "rl")),
    "agent": Scenario(file="agent.yaml"),
    "real": Scenario(file="real.yaml"),
    "mixture": Scenario(changes=("base.random.experts=4",)),
    "wide": Scenario(
        changes=(
            "resources.trainer_ranks=2",
            "resources.servers=2",
            "resources.default.trainer.dp=2",
            "resources.default.servers=2",
        ),
        begins_as="expert",
        shared=("base", "sft"),
    ),
    "overlapped": Scenario(
        changes=_OVERLAPPED,
        begins_as="expert",
        shared=("base", "sft"),
        is_exact=False,
    ),
    "overlapped-wide": Scenario(
        changes=(*_OVERLAPPED, "resources.servers=2", "resources.default.servers=2"),
        begins_as="overlapped",
        shared=_MADE,
        is_exact=False,
    ),
    "workers": Scenario(changes=_WORKERS, begins_as="expert", shared=_MADE),
    "agent-workers": Scenario(file="agent.yaml", changes=_WORKERS, begins_as="agent", shared=_MADE),
    "overlapped-workers": Scenario(
        changes=(*_OVERLAPPED, *_WORKERS), begins_as="overlapped", shared=_MADE, is_exact=False
    ),
    "scored": Scenario(
        changes=("experts.general.path.rl.evaluate={every: 2, problems: 8}",),
        begins_as="expert",
        shared=("base", "sft"),
        scores_while_training=True,
    ),
    "replay": Scenario(
        changes=(*_OVERLAPPED, "experts.general.path.rl.keep_rollouts=true"),
        begins_as="expert",
        shared=("base", "sft"),
        replays="general-rl",
    ),
}
"""expert: one expert, a rank, a server. union: the same in the whole pipeline. agent: turns with
tools, and a reward that asks a process of its own. real: SmolLM2-135M. mixture: a base with
experts. wide: two ranks and two servers. overlapped: one expert that samples while it trains.
workers: rollouts in two Ray actors; what they have to end with is what a run without them made.
scored: held-out problems while it trains. replay: a stage that sampled while it trained, trained
again from its rollouts"""
