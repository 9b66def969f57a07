"""Digests, and which edits change a stage's code identity."""

from __future__ import annotations

import gc
import math
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.digest import canonical_json, code_identity, digest_of
from infra.home import SOURCE_ROOT

pytestmark = pytest.mark.unit

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), JSON))
def test_the_order_of_keys_does_not_matter(value: dict[str, object]) -> None:
    assert digest_of(value) == digest_of(dict(reversed(value.items())))


def test_canonical_json_is_one_text_and_refuses_nan() -> None:
    assert canonical_json({"b": [1, 2.5], "a": "é"}) == '{"a":"é","b":[1,2.5]}'
    with pytest.raises(ValueError, match="Out of range"):
        canonical_json(math.nan)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of our code, without its history."""
    for room in ("flows", "tasks", "engines", "rewards", "curricula", "infra"):
        skipped = shutil.ignore_patterns("__pycache__")
        shutil.copytree(SOURCE_ROOT / room, tmp_path / room, ignore=skipped)
    (tmp_path / "README.md").write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("edited", "changes"),
    [
        ("README.md", False),
        ("tasks/evaluate.py", False),
        ("flows/recipe.py", False),
        ("tasks/rl.py", True),
        ("engines/algorithms/spec.py", True),
        ("infra/errors.py", True),
        ("engines/rollout/producer.py", True),  # imported inside a function
    ],
)
def test_only_an_edit_of_an_imported_file_changes_it(
    tree: Path, edited: str, changes: bool
) -> None:
    before = code_identity(["tasks.rl"], [], root=tree)
    with (tree / edited).open("a") as file:
        file.write("\n# edited\n")
    assert (code_identity(["tasks.rl"], [], root=tree).hash != before.hash) is changes
    assert (edited in before.files) is changes


def test_imports_inside_functions_and_started_modules_count(tmp_path: Path) -> None:
    package = tmp_path / "engines"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "entry.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from engines import typed\n"
        "def run():\n    from . import lazy\n"
        "COMMAND = ['-m', 'engines.started']\n"
        "PART = 'engines.named:Part'\n"
    )
    for name in ("typed", "lazy", "started", "named"):
        (package / f"{name}.py").write_text("import json\n")
    files = code_identity(["engines.entry"], [], root=tmp_path).files
    assert files == [
        "engines/__init__.py", "engines/entry.py", "engines/lazy.py", "engines/started.py",
    ]  # fmt: skip


def test_a_hook_counts_by_name_and_content_not_by_folder(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "hook.py").write_text("A = 1\n")
    one = code_identity(["infra.errors"], [tmp_path / "one/hook.py"])
    two = code_identity(["infra.errors"], [tmp_path / "two/hook.py"])
    assert one.hash == two.hash
    (tmp_path / "two/hook.py").write_text("A = 2\n")
    assert code_identity(["infra.errors"], [tmp_path / "two/hook.py"]).hash != one.hash


@pytest.fixture
def others_run_while_garbage_is_collected() -> Iterator[None]:
    """As where finalizers are Python code: often, so that a few files are enough."""
    before = gc.get_threshold()

    def yield_to_others(_phase: str, _info: object) -> None:
        time.sleep(0)

    gc.set_threshold(500)
    gc.callbacks.append(yield_to_others)
    try:
        yield
    finally:
        gc.callbacks.remove(yield_to_others)
        gc.set_threshold(*before)


def test_stages_that_begin_together_read_the_code_at_once(
    tmp_path: Path, others_run_while_garbage_is_collected: None
) -> None:
    roots = [tmp_path / str(number) for number in range(16)]
    for root in roots:
        (root / "infra").mkdir(parents=True)
        shutil.copy(SOURCE_ROOT / "infra/artifacts.py", root / "infra")
    with ThreadPoolExecutor(4) as pool:
        found = list(
            pool.map(lambda root: code_identity(["infra.artifacts"], [], root=root), roots)
        )
    assert len({identity.hash for identity in found}) == 1
