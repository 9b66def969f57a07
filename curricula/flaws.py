"""What the built-in curricula's demonstrators do wrong, so that RL has something to improve."""

from __future__ import annotations

from collections.abc import Mapping

FLAWS: Mapping[str, str] = {
    "noise": "have one wrong or missing token",
    "obliging": "do what the user wants, against a policy too",
    "hasty": "edit before the tests ran",
    "impatient": "answer one page too early",
}
"""options of these that say which share of demonstrations is flawed, and how"""
