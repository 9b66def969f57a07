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

from infra.code import definitions, kept_definitions
from infra.code.digest import canonical_json, content_of, digest_of
from infra.code.identity import CodeIdentity, code_identity
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


ENTRY = '''
"""What a stage runs."""
from typing import TYPE_CHECKING
from functools import cache

from engines import used
from engines.helpers import LIMIT, Base, helper, logged
from infra.config import Choice, Config

if TYPE_CHECKING:
    from engines import typed


class Size(Config):
    """Settings, by value in a spec."""
    words: int = 1
    def doubled(self): return self.words * 2
    def unnamed(self): return 0


@logged
def recorded(): return 1


@cache
def part(x: int) -> int:
    """A part."""
    from . import lazy
    return helper(x) + LIMIT + used.three() + x.doubled()


class Own(Base):
    """With a base."""


def neighbour(): return 2


COMMAND = ["-m", "engines.started"]
TABLE = {"one": "engines.named:One"}
'''
HELPERS = """
from engines.far import FAR
LIMIT: int = FAR + 2
OTHER = 4
def helper(x): return inner(x) + 5
def inner(x): return x
def logged(f): return f
class Base:
    def run(self): return 1
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    package = tmp_path / "engines"
    package.mkdir()
    files = {
        "__init__": "", "entry": ENTRY, "helpers": HELPERS, "far": "FAR = 1\nNEAR = 2\n",
        "used": "def three(): return 3\ndef four(): return 4\n", "typed": "X = 1\n",
        "lazy": "def anything(): return 1\n", "started": "print('started')\n",
        "named": "class One: pass\n",
    }  # fmt: skip
    for name, text in files.items():
        (package / f"{name}.py").write_text(text)
    (tmp_path / "infra").mkdir()
    shutil.copy(SOURCE_ROOT / "infra/config.py", tmp_path / "infra")
    return tmp_path


def identity_of(root: Path, part: str = "part") -> CodeIdentity:
    return code_identity([f"engines.entry:{part}"], settings=["engines.entry:Size"], root=root)


def edit(root: Path, file: str, old: str, new: str) -> None:
    text = (root / f"engines/{file}.py").read_text()
    assert old in text
    (root / f"engines/{file}.py").write_text(text.replace(old, new))


def test_what_a_definition_names_counts_and_no_more(code: Path) -> None:
    assert list(identity_of(code).files) == [
        f"engines/{name}.py" for name in ("entry", "far", "helpers", "lazy", "used")
    ]
    assert "engines/started.py" in identity_of(code, "COMMAND").files
    assert "engines/named.py" not in identity_of(code, "TABLE").files


@pytest.mark.parametrize(
    ("file", "old", "new", "counts"),
    [
        ("entry", "helper(x) + LIMIT", "helper(x) - LIMIT", True),
        ("entry", "@cache\ndef part", "def part", True),
        ("entry", "return self.words * 2", "return self.words * 3", True),
        ("helpers", "return inner(x) + 5", "return inner(x)", True),
        ("helpers", "def inner(x): return x", "def inner(x): return -x", True),
        ("helpers", "LIMIT: int = FAR + 2", "LIMIT: int = 5", True),
        ("far", "FAR = 1", "FAR = 2", True),
        ("used", "return 3", "return 33", True),
        ("lazy", "return 1", "return 2", True),
        # It keeps a record of what it decorates, when its module is imported.
        ("helpers", "def logged(f): return f", "def logged(f): return None", True),
        ("entry", "def recorded(): return 1", "def recorded(): return 2", True),
        ("entry", "class Own", "print(1)\nclass Own", True),
        ("entry", '"""A part."""', '"""The part."""', False),
        ("entry", "def part(x: int) -> int:", "def part(x: float) -> float:  # typed", False),
        ("entry", "    return helper(x) +", "    return (\n        helper(x)\n    ) +", False),
        ("entry", "def neighbour(): return 2", "def neighbour(): return 3", False),
        ("entry", "words: int = 1", "words: int = 2", False),
        ("entry", "def unnamed(self): return 0", "def unnamed(self): return 1", False),
        ("entry", '"one": "engines.named:One"', '"two": "engines.named:Two"', False),
        ("helpers", "OTHER = 4", "OTHER = 5", False),
        ("helpers", "def run(self): return 1", "def run(self): return 2", False),
        ("helpers", "LIMIT: int = FAR", "LIMIT: float = FAR", False),
        ("far", "NEAR = 2", "NEAR = 3", False),
        ("used", "return 4", "return 44", False),
        ("typed", "X = 1", "X = 2", False),
    ],
)
def test_an_edit_counts_where_its_definition_is_used(
    code: Path, file: str, old: str, new: str, counts: bool
) -> None:
    before = identity_of(code)
    edit(code, file, old, new)
    assert (identity_of(code).hash != before.hash) == counts


def test_an_edit_of_a_base_class_counts(code: Path) -> None:
    before = identity_of(code, "Own")
    edit(code, "helpers", "def run(self): return 1", "def run(self): return 2")
    assert identity_of(code, "Own").hash != before.hash


def test_where_definitions_stand_in_their_file_does_not_count(code: Path) -> None:
    before = identity_of(code)
    text = (code / "engines/far.py").read_text()
    (code / "engines/far.py").write_text("NEAR = 2\n\n\nFAR = 1\n" if text else "")
    assert identity_of(code).hash == before.hash


CHOICES = """
from typing import Annotated, ClassVar
from pydantic import Field
from infra.config import Choice, Config
class One(Choice):
    code: ClassVar[str] = "engines.one:loss"
class Two(Choice):
    code: ClassVar[str] = "engines.two:loss"
    def extra(self): return 2
Loss = Annotated[One | Two, Field(discriminator="kind")]
class Options(Config):
    loss: Loss = One()
    rate: float = 0.1
def part(): return Options().rate, Options().extra()
"""


def test_of_choices_that_settings_could_hold_none_counts_but_by_its_value(code: Path) -> None:
    """`part` makes the settings itself, so their defaults count."""
    (code / "engines/entry.py").write_text(CHOICES)
    before = code_identity(["engines.entry:part"], root=code)
    edit(code, "entry", "rate: float = 0.1", "rate: float = 0.2")
    assert (after := code_identity(["engines.entry:part"], root=code)).hash != before.hash
    edit(code, "entry", "return 2", "return 3")
    edit(code, "entry", "Annotated[One | Two,", "Annotated[One | Two | Three,")
    assert code_identity(["engines.entry:part"], root=code).hash == after.hash


def test_the_next_process_parses_what_was_edited_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))
    shutil.copytree(SOURCE_ROOT / "infra", tmp_path / "infra")
    parsed: list[bytes] = []
    parse = definitions.Module.parse
    monkeypatch.setattr(
        definitions.Module, "parse", lambda self: (parsed.append(self.source), parse(self))
    )

    def in_a_new_process() -> str:
        parsed.clear()
        definitions.KNOWN.clear()
        kept_definitions.NUM_KEPT.clear()
        return code_identity(["infra.store.artifacts"], root=tmp_path).hash

    first = in_a_new_process()
    assert len(parsed) > 10
    assert in_a_new_process() == first
    assert parsed == []
    file = tmp_path / "infra" / "store" / "artifacts.py"
    text = file.read_text()
    file.write_text(
        text.replace("class ArtifactStore:\n", "class ArtifactStore:\n    edited = 1\n")
    )
    assert in_a_new_process() != first
    assert [b"edited = 1" in source for source in parsed] == [True]
    (kept,) = (tmp_path / "home" / "cache" / "files-read").iterdir()
    kept.write_bytes(kept.read_bytes().replace(b"Artifact", b"Brtifact"))
    file.write_text(text)
    assert in_a_new_process() == first, "a damaged file tells nothing"


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
