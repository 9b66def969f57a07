"""A model's results of an earlier evaluation: the same model, sampled the same way, is not sampled
again, whatever it is called and whatever it is compared with.

What an evaluation says of a model depends on that model, on the settings and on the code, never on
the other models: their problems and seeds are the same. So each model's results are kept under the
digest that an evaluation of this model alone would have. Results with failed rollouts are not kept:
what failed may work the next time.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from engines.rollout.metrics import NOTHINK
from engines.rollout.records.gallery import relabelled
from tasks.evaluate.cells import CellResult, renamed
from tasks.evaluate.spec import EvaluateSpec
from tasks.served.served_roles import is_role
from tasks.stage import StageContext

ANY = "model"
"""what a model is called in an evaluation of it alone"""


@dataclass(frozen=True, slots=True)
class ModelResults:
    """Of one model, under the name that it has here."""

    cells: Sequence[CellResult]
    rows: bytes
    """of rollouts to browse, as a gallery encodes them"""

    def encoded(self, name: str) -> dict[str, Any]:
        cells = [asdict(cell) for cell in self.cells]
        rows = base64.b64encode(self.rows).decode()
        return {"name": name, "cells": cells, "rows": rows}

    @classmethod
    def decoded(cls, kept: Mapping[str, Any], name: str) -> ModelResults:
        """What was kept, perhaps under another name."""
        cells = [CellResult(**cell) for cell in kept["cells"]]
        kinds = {cell.kind for cell in cells}
        names = {kept["name"]: name, kept["name"] + NOTHINK: name + NOTHINK}
        labels = {f"{old} {kind}": f"{new} {kind}" for old, new in names.items() for kind in kinds}
        rows = relabelled(base64.b64decode(kept["rows"]), labels)
        return cls(renamed(cells, kept["name"], name), rows)


async def earlier_results(
    spec: EvaluateSpec, context: StageContext, names: Sequence[str]
) -> dict[str, ModelResults]:
    """Of those models that were evaluated before, by name."""
    results = context.results
    if results is None:
        return {}
    found: dict[str, ModelResults] = {}
    for name in names:
        inputs = _inputs(context, name)
        data = await asyncio.to_thread(results.read, alone(spec, name), inputs, inputs[ANY])
        if data is not None:
            found[name] = ModelResults.decoded(data, name)
    return found


async def keep_results(
    spec: EvaluateSpec, context: StageContext, made: Mapping[str, ModelResults]
) -> None:
    """For later evaluations; none of a model with failed rollouts."""
    for name, of_model in made.items():
        if context.results is None or any(cell.failed_share for cell in of_model.cells):
            continue
        inputs, data = _inputs(context, name), of_model.encoded(name)
        await asyncio.to_thread(context.results.keep, alone(spec, name), inputs, inputs[ANY], data)


def alone(spec: EvaluateSpec, name: str) -> EvaluateSpec:
    """The evaluation of this model alone, which is called `ANY` there."""
    nothink = [ANY] if name in spec.nothink else []
    home = {ANY: list(spec.home.get(name, []))}
    return spec.model_copy(update={"home": home, "nothink": nothink})


def _inputs(context: StageContext, name: str) -> dict[str, str]:
    """Digests of the model, and of those that rewards ask."""
    records = context.input_records
    asked = {role: str(record["digest"]) for role, record in records.items() if is_role(role)}
    return {ANY: str(records[name]["digest"]), **asked}
