"""Our group filters by name. Imports nothing, so that a spec can name them."""

from __future__ import annotations

from collections.abc import Mapping

BUILT_IN: Mapping[str, str] = {
    "can-teach": "engines.rollout.filters.can_teach:CanTeach",
    "outcome-between": "engines.rollout.filters.outcome_between:OutcomeBetween",
    "every": "engines.rollout.filters.every:Every",
}
