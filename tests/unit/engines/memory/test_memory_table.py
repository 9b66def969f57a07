"""The table of shapes in the docs is what the code computes now."""

from __future__ import annotations

import pytest

from tests.parts.memory_table import PAGE, into_page

pytestmark = pytest.mark.unit


def test_the_table_of_the_docs_is_computed_by_this_code() -> None:
    text = PAGE.read_text()
    assert into_page(text) == text, "run `python -m tests.parts.memory_table`"
