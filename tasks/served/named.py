"""How a served model is named: as a stage of the recipe, or by its folder."""

from __future__ import annotations

import re

from infra.hub import is_hub_name

_STAGE = re.compile(r"[a-z0-9][a-z0-9-]*")


def is_stage(model: str) -> bool:
    """Whether a served model is named as a stage of the recipe, and not by its folder."""
    return not is_hub_name(model) and _STAGE.fullmatch(model) is not None
