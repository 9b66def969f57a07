"""Deterministic verifiers of a reply's shape: lists, separators, repetition, JSON, paragraphs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rewards.constraint_kinds import Check, within
from rewards.text import lines_of, without_mark, words_of


def repetition(reply: str, *, unit: str, times: int, separator: str, end: str = "") -> bool:
    """The unit, so many times, with the separator between, and nothing else."""
    return reply == separator.join([unit] * times) + end


def joined(reply: str, *, separator: str, end: str = "") -> bool:
    """Only words, with just this separator between them and this end after the last."""
    found = words_of(reply)
    return bool(found) and reply == separator.join(found) + end


def numbered_list(
    reply: str, *, items: Sequence[str], mark: str = ". ", separator: str = "\n", end: str = ""
) -> bool:
    """These items, numbered from 1, in this order, and nothing else."""
    return reply == separator.join(f"{i}{mark}{item}" for i, item in enumerate(items, 1)) + end


def bullet_list(reply: str, *, count: int | None = None) -> bool:
    """Every line is an item `- ...`; `count` of them if said."""
    found = lines_of(reply)
    is_list = bool(found) and all(line.startswith("- ") and without_mark(line) for line in found)
    return is_list and (count is None or len(found) == count)


def item_count(reply: str, **bounds: Any) -> bool:
    """`exactly`, `at_least`, `at_most` lines that are not empty."""
    return within(len(lines_of(reply)), **bounds)


def paragraph_count(reply: str, **bounds: Any) -> bool:
    """`exactly`, `at_least`, `at_most` blocks with an empty line between them."""
    return within(len([block for block in reply.split("\n\n") if block.strip()]), **bounds)


def is_json(reply: str) -> bool:
    """The whole reply is one JSON value, without duplicate keys."""
    return _parse(reply) is not None


def json_keys(reply: str, *, keys: Sequence[str]) -> bool:
    """The reply is a JSON object with these keys and no others."""
    value = _parse(reply)
    return isinstance(value, dict) and set(value) == set(keys)


def _parse(reply: str) -> Any:
    """The JSON value, or None (also for a bare `null`, which answers nothing)."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("duplicate key")
        return dict(pairs)

    def no_number(name: str) -> Any:
        raise ValueError(f"{name} is not JSON, although Python's parser takes it")

    try:
        return json.loads(reply, object_pairs_hook=unique, parse_constant=no_number)
    except (ValueError, RecursionError):
        return None


KINDS: dict[str, Check] = {
    "repetition": repetition,
    "joined": joined,
    "numbered_list": numbered_list,
    "bullet_list": bullet_list,
    "item_count": item_count,
    "paragraph_count": paragraph_count,
    "json": is_json,
    "json_keys": json_keys,
}
