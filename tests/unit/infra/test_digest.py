"""Digests: one text for one value, and which edits change a file's closure."""

from __future__ import annotations

import gc
import math
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from infra.code.digest import canonical_json, content_of, digest_of
from infra.code.identity import code_identity
from infra.code.imports import imports_of
from infra.config import RESULT_NEUTRAL, Choice, Config
from infra.errors import InputError
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


class Inner(Config):
    lr: float
    every: Annotated[int, RESULT_NEUTRAL] = 5
    passed: dict[str, Any] = Field(default_factory=dict)


class Outer(Config):
    one: Inner
    several: list[Inner]
    named: dict[str, Inner]
    options: dict[str, Any] = Field(default_factory=dict)


def test_neutral_fields_are_left_out_however_deep_and_options_of_that_name_are_not() -> None:
    inner = Inner(lr=0.1, passed={"speed": 1, "size": 2})
    whole = Outer(one=inner, several=[inner], named={"a": inner}, options={"every": 1, "speed": 3})
    kept = {"lr": 0.1, "passed": {"size": 2}}
    assert content_of(whole, {(Inner, "passed"): {"speed"}}) == {
        "one": kept,
        "several": [kept],
        "named": {"a": kept},
        "options": {"every": 1, "speed": 3},
    }


class Spread(Choice):
    code: ClassVar[str] = "a:b"
    needs_spread: ClassVar[bool] = True
    std: bool = True


class Algorithm(Config):
    advantage: Spread = Spread()


def test_what_a_choice_says_for_all_of_its_kind_counts() -> None:
    assert content_of(Algorithm(), {}) == {"advantage": {"std": True, "needs_spread": True}}


def test_imports_inside_functions_and_started_modules_count(tmp_path: Path) -> None:
    package = tmp_path / "engines"
    package.mkdir()
    (package / "__init__.py").write_text("")  # empty: it says nothing
    (package / "entry.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from engines import typed\n"
        "def run():\n    from . import lazy\n"
        "COMMAND = ['-m', 'engines.started']\n"
        "PART = 'engines.named:Part'\n"
    )
    for name in ("typed", "lazy", "started", "named"):
        (package / f"{name}.py").write_text("import json\n")
    files = code_identity(["engines.entry"], root=tmp_path).files
    assert list(files) == [
        "engines/entry.py", "engines/lazy.py", "engines/started.py",
    ]  # fmt: skip


DECLARES = '''
"""Settings."""
from typing import Annotated, ClassVar, Literal
from infra.config import Choice, Config
Level = Literal["a", "b"]
class One(Choice):
    """One."""
    code: ClassVar[str] = "engines.one:loss"
    needs: ClassVar[tuple[str, ...]] = ("spread", "critic")
    level: Level = "a"
    @model_validator(mode="after")
    def _ordered(self):
        return self
class Two(One):
    @property
    def parts(self):
        return ()
    @property
    def needs(self):
        return ()
TABLE: dict[str, str] = {"one": "engines.one:One", "two": "engines.two:Two.make"}
'''


@pytest.mark.parametrize(
    ("added", "declares"),
    [
        ("", True),
        ("def compute(x): return x\n", False),
        ("LIMIT = 3\n", False),
        ("class Table(Config):\n    words: ClassVar[dict] = {'a': 1}\n", False),
        ("WORDS = {'a': 'ant'}\n", False),
        ("class Table(Config):\n    words: ClassVar[tuple] = (LEVEL, 'b')\n", False),
        ("class Computes(Config):\n    x: int\n    @property\n    def y(self): return 1\n", False),
        ("class Other:\n    x: int = 1\n", False),
    ],
)
def test_a_file_of_settings_and_tables_of_parts_alone_is_none_of_the_code(
    tmp_path: Path, added: str, declares: bool
) -> None:
    file = tmp_path / "settings.py"
    file.write_text(DECLARES + added)
    assert imports_of(file, "").only_declares is declares


def test_words_alone_are_code() -> None:
    assert not imports_of(SOURCE_ROOT / "curricula/vocabulary.py", "curricula").only_declares


def test_a_file_that_is_not_python_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def (:\n")
    with pytest.raises(InputError, match=r"broken\.py is not Python"):
        code_identity(["broken"], hooks=tmp_path)


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
        shutil.copy(SOURCE_ROOT / "infra/store/artifacts.py", root / "infra")
    with ThreadPoolExecutor(4) as pool:
        found = list(
            pool.map(lambda root: code_identity(["infra.store.artifacts"], root=root), roots)
        )
    assert len({identity.hash for identity in found}) == 1
