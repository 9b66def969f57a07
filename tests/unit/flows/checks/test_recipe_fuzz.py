"""50 random mutations of a valid recipe: each is accepted, or refused with the field named."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.command.main import main
from flows.load import SHIPPED, parse_yaml

pytestmark = pytest.mark.unit

MUTATIONS, SHARDS, STRIDE = 100, 4, 8
# What a person could have written by mistake, and what nobody would.
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 0.5, 1e-9, -0.0, 10**30, float("nan"), float("inf"), "", "0",
    "1", "true", "a b", "../x", "é", "x" * 500, [], [1], ["math"], {}, {"name": "math"}, {"": 1},
    {1: 2}, [[]], "reasoning", "cosine",
]  # fmt: skip
Path_ = tuple[Any, ...]


def mutated(seed: int) -> tuple[dict[str, Any], list[Path_]]:
    """cpu-smoke with one to three random changes, and where they are."""
    rng = random.Random(seed)
    recipe = json.loads(json.dumps(parse_yaml((SHIPPED / "cpu-smoke.yaml").read_text())))
    changed: list[Path_] = []
    for _ in range(rng.randint(1, 2)):
        places = list(_places(recipe))
        changed.append(_change(recipe, rng.choice(places), rng))
    return recipe, changed


def _places(value: Any, at: Path_ = ()) -> Any:
    """Paths of everything below the root."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        yield (*at, key)
        if isinstance(item, dict | list):
            yield from _places(item, (*at, key))


def _change(recipe: Any, at: Path_, rng: random.Random) -> Path_:
    here = recipe
    for key in at[:-1]:
        here = here[key]
    last = at[-1]
    match rng.choice(("value", "number", "number", "number", "drop", "rename", "add", "swap")):
        case "number" if isinstance(here[last], int | float):
            here[last] = rng.choice((here[last] * 2, -here[last], here[last] + 1, here[last] / 3))
        case "drop":
            del here[last]
        case "rename" if isinstance(here, dict):
            here[f"{last}{rng.choice(('s', '_', 'x'))}"] = here.pop(last)
        case "add" if isinstance(here, dict):
            here[rng.choice(("steps", "lr", "name", "extra", 7, None))] = rng.choice(VALUES)
        case "swap" if isinstance(here, dict):
            other = rng.choice(list(here))
            here[last], here[other] = here[other], here[last]
        case _:
            here[last] = copy.deepcopy(rng.choice(VALUES))
    return at


def _check(recipe: Any, folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    file = folder / "recipe.yaml"
    file.write_text(yaml.safe_dump(recipe, sort_keys=False))
    with pytest.raises(SystemExit) as ended:
        main(["check", str(file)])
    said = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, said.err


@pytest.mark.parametrize("shard", range(SHARDS))
def test_each_mutation_is_accepted_or_refused_by_name(
    shard: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))
    codes: list[int] = []
    for seed in range(shard, MUTATIONS, STRIDE):
        recipe, changed = mutated(seed)
        code, told = _check(recipe, tmp_path, capsys)
        assert code in (0, 2), f"seed {seed}, {changed}: exit code {code}\n{told}"
        assert "Traceback" not in told
        if code == 2:
            fields = [line.strip().partition(":")[0] for line in told.splitlines()]
            assert any(_names(field, at) for field in fields for at in changed), (
                f"seed {seed}, {changed}: {told}"
            )
        codes.append(code)
    assert set(codes) == {0, 2}


def _names(field: str, at: Path_) -> bool:
    """Whether an error's field is the changed one, the mapping around it, or below it; a layout is
    refused by the stage that it is of."""
    if field.startswith("stage ") and at[0] == "resources":
        return True
    parent = ".".join(map(str, at[:-1]))
    return bool(field) and (field.startswith(parent) or parent.startswith(field))
