"""The kinds of units that the owner of devices leases, where it finds each, and which parts of
their memory can sleep by themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Kind = Literal["rank", "server"]

KINDS: Mapping[Kind, str] = {
    "rank": "engines.megatron.ranks.rank_units:RankUnits",
    "server": "engines.sglang.servers.server_units:ServerUnits",
}
SETTINGS: Mapping[Kind, str] = {"rank": "resources.trainer_ranks", "server": "resources.servers"}
"""the recipe's field that says how many there may be"""

OPEN_OWNER = "engines.devices.find_owner:open_owner"
"""found by name, too: who hands units out is no part of what a stage computes with them"""

TrainerPart = Literal["weights", "optimizer", "frozen", "gradients"]
"""`optimizer`: moments and master weights. `frozen`: the reference's and the teachers' weights"""
ServerPart = Literal["weights", "cache"]
"""`cache`: keys and values, and what CUDA graphs hold"""
TRAINER_PARTS: frozenset[TrainerPart] = frozenset({"weights", "optimizer", "frozen", "gradients"})
SERVER_PARTS: frozenset[ServerPart] = frozenset({"weights", "cache"})
