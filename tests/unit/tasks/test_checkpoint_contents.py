"""Every stateful object of the training loops is in the list of what a checkpoint holds."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.parts.checkpoint_contents import CONTENTS, WITHIN_A_STEP

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
LOOP = (
    *sorted((ROOT / "engines" / "rollout").rglob("*.py")),
    *(
        ROOT / f"tasks/{name}.py"
        for name in (
            "rl/body",
            "rl/stage_record",
            "rl/counts",
            "rl/phases",
            "rl/temperature",
            "domain_verdicts",
            "training_record",
            "rl/trained_roles",
            "rl/evaluation",
            "opd/body",
            "saving",
            "sft/body",
        )
    ),
    ROOT / "infra/timeline.py",
    ROOT / "engines/devices/sharing.py",
    *(
        ROOT / f"engines/megatron/{name}.py"
        for name in ("train/training", "train/value_trainers", "rl/trainer")
    ),
)


def is_state(node: ast.ClassDef) -> bool:
    """Frozen records, protocols and what a person writes hold no state."""
    marks = [ast.unparse(part) for part in [*node.decorator_list, *node.bases]]
    return not any(word in mark for mark in marks for word in ("frozen=True", "Protocol", "Spec"))


def attributes(node: ast.ClassDef) -> set[str]:
    """Names assigned to `self` anywhere in the class, and a dataclass's fields."""
    names = {
        part.attr
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute)
        and isinstance(part.ctx, ast.Store)
        and isinstance(part.value, ast.Name)
        and part.value.id == "self"
    }
    if any("dataclass" in ast.unparse(mark) for mark in node.decorator_list):
        fields = [part.target for part in node.body if isinstance(part, ast.AnnAssign)]
        names |= {target.id for target in fields if isinstance(target, ast.Name)}
    return names


def stateful() -> Iterator[tuple[str, set[str]]]:
    for file in LOOP:
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) and is_state(node) and attributes(node):
                yield f"{file.relative_to(ROOT).as_posix()}:{node.name}", attributes(node)


def test_every_stateful_object_of_a_loop_is_listed_attribute_by_attribute() -> None:
    found = dict(stateful())
    assert set(found) == {*CONTENTS, *WITHIN_A_STEP}
    for name, places in CONTENTS.items():
        assert found[name] == set(places), (
            f"{name}: say in tests/parts/checkpoint_contents.py where a checkpoint has it"
        )


def test_what_is_listed_for_a_file_is_saved_and_restored() -> None:
    """A name that is listed for a file must be written and read where it is kept."""
    for name, kept_in in (
        ("tasks/rl/stage_record.py:RlRecord", "state.json"),
        ("tasks/sft/body.py:SftRecord", "state.json"),
        ("engines/rollout/buffers.py:GroupBuffer", "buffer.bin"),
        ("infra/timeline.py:Timeline", "timeline.jsonl"),
    ):
        file, _, which = name.partition(":")
        tree = ast.parse((ROOT / file).read_text())
        node = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == which)
        methods = {n.name: n for n in node.body if isinstance(n, ast.FunctionDef)}
        saved = [attr for attr, place in CONTENTS[name].items() if place == kept_in]
        assert saved
        for attr in saved:
            assert f"self.{attr}" in ast.unparse(methods["save"]), f"{attr} is not saved"
            if attr != "_unsaved":  # reported again at once, not kept
                assert f"self.{attr}" in ast.unparse(methods["restore"]), f"{attr} is not restored"
