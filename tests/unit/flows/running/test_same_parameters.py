"""A flow run that goes on with a run on record is asked for the same recipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.load import load_recipe
from flows.running.records import new_run
from flows.running.same_parameters import require_same
from infra.errors import InputError

pytestmark = pytest.mark.unit


def test_what_differs_from_the_record_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path))
    recipe = load_recipe("cpu-smoke")
    head = new_run(recipe, "expert", {"name": "agent"}, in_process=False).head()
    require_same(head, "expert", recipe, {"name": "agent"})
    changed = load_recipe("cpu-smoke", ["seed=1", "experts.agent.path.rl.optimizer.lr=1e-4"])
    with pytest.raises(InputError) as caught:
        require_same(head, "expert", changed, {"name": "general"})
    said = str(caught.value)
    assert f"run {head.run}" in said
    assert "\n  seed: 0 -> 1\n" in said
    assert "\n  experts.agent.path.1.rl.optimizer.lr: 0.0002 -> 0.0001\n" in said
    assert "\n  arguments.name: 'agent' -> 'general'\n" in said
