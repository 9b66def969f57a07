"""Generated APIs: over a million, each with its own names and limits."""

from __future__ import annotations

import random

from curricula.vocabulary import LEXICON
from engines.types import Tool
from infra.back_ends.task import ASK, DAYS, REFUSE, Api
from infra.json_schema import ParameterKind

LOOKS = ("view", "show", "load", "find")
CHANGES = ("book", "pay", "rent", "ship", "lend", "sell", "rate", "post", "send", "fund")
DELETES = ("drop", "void", "erase", "close")
LATE = ("late", "old", "past")
KEPT = ("kept", "stay", "held")


def draw_api(rng: random.Random) -> Api:
    noun, field = rng.sample(LEXICON, 2)
    return Api(
        noun=noun,
        look=rng.choice(LOOKS),
        change=rng.choice(CHANGES),
        delete=rng.choice(DELETES),
        field=field,
        limit=rng.randint(2, 9),
        unit=rng.choice(list(DAYS)),
        late=rng.choice(LATE),
        kept=rng.choice(KEPT),
    )


def policies(api: Api) -> str:
    """What the caller must keep to."""
    return (
        f"{api.look} first. {ASK} {api.field}. {api.change} up to {api.limit} {api.unit}, "
        f"else {REFUSE} {api.late}. {ASK} {api.delete}, if no {REFUSE} {api.kept}."
    )


def tools_of(api: Api) -> tuple[Tool, ...]:
    one: dict[str, ParameterKind] = {"name": "string", "user": "string"}
    change: dict[str, ParameterKind] = {**one, api.field: "number"}
    ask: dict[str, ParameterKind] = {"about": "string", "user": "string"}
    refuse: dict[str, ParameterKind] = {**one, "why": "string"}
    changes = api.function(api.change)
    return (
        Tool(api.function(api.look), "Its age.", one, tuple(one)),
        Tool(changes, "Change it.", {**change, "fast": "boolean"}, tuple(change)),
        Tool(api.function(api.delete), "Delete it.", one, tuple(one)),
        Tool(ASK, "Ask the user.", ask, tuple(ask)),
        Tool(REFUSE, "Refuse it.", refuse, tuple(refuse)),
    )
