"""Our data sources by name. Imports nothing, so that a spec can name them."""

from __future__ import annotations

from collections.abc import Mapping

BUILT_IN: Mapping[str, str] = {
    "in-turns": "engines.rollout.tickets:TicketSource",
    "weighted": "engines.rollout.sources.weighted:Weighted",
}
