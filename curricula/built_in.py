"""The built-in curricula: where each name leads."""

from __future__ import annotations

from collections.abc import Mapping

BUILT_IN: Mapping[str, str] = {
    "reasoning": "curricula.reasoning:Reasoning",
    "reasoning-gym": "curricula.reasoning_gym:ReasoningGym",
    "agent": "curricula.agent:Agent",
    "coding": "curricula.coding.curriculum:Coding",
    "browsing": "curricula.browsing.curriculum:Browsing",
    "functions": "curricula.functions.curriculum:Functions",
    "files": "curricula.prompt_files.curriculum:Files",
    "general": "curricula.general:General",
    "verifiers": "curricula.library_tasks:Verifiers",
    "inspect": "curricula.library_tasks:Inspect",
}
OF_LIBRARIES: Mapping[str, str] = {"verifiers": "environment", "inspect": "task"}
"""those whose problems a task of another library poses, and the option that names it"""
OF_ROWS = frozenset({"files", *OF_LIBRARIES})
"""those whose problems are rows: what is held out has an end, and solutions may be missing"""
