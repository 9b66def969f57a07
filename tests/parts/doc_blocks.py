"""The pages of the documentation, and the blocks of code on them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted((ROOT / "docs").glob("*.md")),
    *(ROOT / n for n in ("README.md", "CONTRIBUTING.md")),
]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.S | re.M)


class Block(NamedTuple):
    page: str
    text: str


def blocks(language: str) -> list[Block]:
    return [
        Block(page.name, text)
        for page in PAGES
        for found, text in _BLOCK.findall(page.read_text())
        if found == language
    ]


def snippets(page: str, language: str) -> list[str]:
    """The blocks of one page, in order."""
    return [block.text for block in blocks(language) if block.page == page]


def languages() -> set[str]:
    return {found for page in PAGES for found, _ in _BLOCK.findall(page.read_text())}


def named(found: list[Block]) -> Any:
    return pytest.mark.parametrize(
        "block", found, ids=[f"{block.page}-{n}" for n, block in enumerate(found)]
    )
