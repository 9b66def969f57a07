"""The mutants themselves: which changes are made, and which tests are asked."""

from __future__ import annotations

import ast

import pytest

from tests.programs.mutants.digests import parts_of
from tests.programs.mutants.mutations import changed_source, mutants
from tests.programs.mutants.reach import statement_span
from tests.programs.mutants.subject import read_sources
from tests.programs.mutants.survivors import KNOWN

pytestmark = pytest.mark.unit

SOURCE = '''"""Of no interest."""
import math
LIMIT = 3

def share(part, whole, *, least=0.5):
    """Neither."""
    if whole < 1 and not part:
        raise ValueError("too " + "small")
    value = max(part / whole, least)
    value += LIMIT
    check(value, whole)
    return value.clamp(0, 1)
'''


def changes(family: str) -> set[str]:
    return {m.change for m in mutants("a.py", SOURCE) if m.family == family}


@pytest.mark.parametrize(
    ("family", "wanted"),
    [
        ("operator", {"part / whole -> part * whole", "not part -> part"}),
        ("comparison", {"whole < 1 -> whole <= 1", "whole < 1 -> whole >= 1"}),
        ("constant", {"3 -> 4", "3 -> 0", "0.5 -> 1.0", "1 -> 2", "1 -> 0"}),
        (
            "bound",
            {
                "max(part / whole, least) -> least",
                "max(part / whole, least) -> min(part / whole, least)",
                "value.clamp(0, 1) -> value",
            },
        ),
        ("return", {"return value.clamp(0, 1) -> return None"}),
        ("keyword", {"check(value, whole) -> check(whole, value)"}),
        ("statement", {"check(value, whole) -> pass", "value += LIMIT -> pass"}),
    ],
)
def test_the_changes_of_a_family(family: str, wanted: set[str]) -> None:
    assert wanted <= changes(family)


def test_what_changes_no_result_is_left_alone() -> None:
    said = " ".join(m.change for m in mutants("a.py", SOURCE))
    assert "interest" not in said
    assert "small" not in said
    assert "import" not in said


def test_each_mutant_is_another_program() -> None:
    plain = ast.unparse(ast.parse(SOURCE))
    made = [changed_source(SOURCE, m.number) for m in mutants("a.py", SOURCE)]
    assert len(set(made)) == len(made)
    assert plain not in made


def test_a_statement_is_asked_for_by_its_own_lines() -> None:
    assert statement_span(SOURCE, 3) is None
    assert statement_span(SOURCE, 7) == (7, 7)
    assert statement_span(SOURCE, 9) == (9, 9)
    # A default in the head of a function: all of it.
    assert statement_span(SOURCE, 5) == (5, 12)


TESTS = '''"""Of no interest."""
import math
import random
import pytest
LIMIT = 3
OTHER = LIMIT + 1

@pytest.fixture
def drawn():
    return random.random()

def test_a(drawn):
    assert drawn < OTHER

def test_b():
    """Neither."""
    assert math.pi > 3
'''


def test_a_test_is_made_of_what_its_names_lead_to() -> None:
    parts = parts_of(TESTS)
    assert set(parts) == {"test_a", "test_b"}
    docstring = parts["test_a"].pop(0)
    assert docstring == "'Of no interest.'"
    assert [text.splitlines()[0] for text in parts["test_a"]] == [
        "import random",
        "import pytest",
        "LIMIT = 3",
        "OTHER = LIMIT + 1",
        "@pytest.fixture",
        "def test_a(drawn):",
    ]
    assert [text.splitlines()[0] for text in parts["test_b"][1:]] == [
        "import math",
        "def test_b():",
    ]


def test_every_reason_is_of_a_mutant_that_is_there() -> None:
    sources = read_sources()
    for file, survivors in KNOWN.items():
        lines = [line.strip() for line in sources[file].splitlines()]
        there = {
            (lines[m.line - 1], f"{m.family}: {m.change}") for m in mutants(file, sources[file])
        }
        said = {(survivor.text, change) for survivor in survivors for change in survivor.changes}
        assert said - there == set()
