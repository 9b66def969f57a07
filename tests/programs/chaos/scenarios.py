"""The runs that cells disturb: a recipe, a flow, and what they share with another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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

    @property
    def recipe(self) -> Path:
        return _FOLDER / self.file


SCENARIOS: Mapping[str, Scenario] = {
    "expert": Scenario(),
    "union": Scenario(flow="post-train", begins_as="expert", shared=("base", "sft", "rl")),
    "agent": Scenario(file="agent.yaml"),
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
        changes=("determinism=close", "experts.general.path.rl.max_staleness=2"),
        begins_as="expert",
        shared=("base", "sft"),
        is_exact=False,
    ),
}
"""expert: one expert, a rank, a server. union: the same in the whole pipeline. agent: turns with
tools, and a reward that asks a process of its own. wide: two ranks and two servers. overlapped: one
expert that samples while it trains"""
