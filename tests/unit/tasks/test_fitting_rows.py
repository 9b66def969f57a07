"""Rows that models are asked: the same of all whose scores are compared."""

from __future__ import annotations

import json

import pytest

from engines.sglang.spec import FleetSpec
from tasks.domain import CurriculumSpec
from tasks.sampling import Fit
from tests.unit.tasks.test_evaluate_cells import SPEC_DOMAIN, evaluated, spec, with_positions

pytestmark = pytest.mark.unit

AGENT = CurriculumSpec(name="agent")


async def test_rows_fit_every_model_s_context_and_scores_of_other_rows_are_not_compared(tmp_path):
    """`brief` takes 2048 tokens and `wide` takes 8192; a row of 3,000 fits the second alone."""
    rows = [{"prompt": f"Say {n}{' w' * 3000 * (n == 3)}", "answer": str(n)} for n in range(40)]
    (tmp_path / "asked.jsonl").write_text("\n".join(map(json.dumps, rows)))
    options = {
        "sources": {"files": [str(tmp_path / "asked.jsonl")], "split": "heldout"},
        "shares": {"heldout": 0},
    }

    def of_rows(*names):
        of_files = {**SPEC_DOMAIN, "curriculum": {"name": "files", "options": options}}
        return spec(home={n: ["a"] for n in names}, domains=[{**of_files, "name": "a"}])

    digests, positions = {"wide": "d" * 64, "brief": "e" * 64}, {"wide": 8192, "brief": 2048}

    async def sampled(*names):
        models = {name: digests[name] for name in names}
        found = await evaluated(tmp_path, of_rows(*names), models, positions=positions)
        return found[0]

    assert await sampled("wide") == ["wide"]
    assert await sampled("wide", "brief") == ["wide", "brief"], "the first had other rows"
    assert await sampled("brief", "wide") == []
    assert await sampled("wide") == []
    model = tmp_path / "model"
    folders = [with_positions(model, 8192), with_positions(model, 2048)]
    fleet, domains = FleetSpec(), of_rows().domains
    for there in (folders, folders[::-1]):
        fit = await Fit.of(fleet, domains, there)
        assert (fit.longest, len(fit.chats)) == (2048, 1)
    assert (await Fit.of(fleet, domains, folders[:1])).longest == 8192
    unbounded = [d.model_copy(update={"curriculum": AGENT}) for d in domains]
    assert await Fit.of(fleet, unbounded, folders) is None
