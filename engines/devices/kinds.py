"""The kinds of units that the owner of devices leases, and where it finds each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Kind = Literal["rank", "server"]

KINDS: Mapping[Kind, str] = {
    "rank": "engines.megatron.ranks.rank_units:RankUnits",
    "server": "engines.sglang.servers.server_units:ServerUnits",
}
