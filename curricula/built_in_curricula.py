"""Curricula by name: ours, or a user's class by dotted path; and facts about ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engines.types import Curriculum, Environment
from infra.errors import InputError
from infra.hooks import construct, require_methods, resolve

WITH_TOOLS = "curricula.mcp.mcp_tools:with_tools"
"""named by settings with `mcp` alone, so that no other stage runs again after an edit"""
BUILT_IN: Mapping[str, str] = {
    "reasoning": "curricula.reasoning:Reasoning",
    "reasoning-gym": "curricula.library_tasks:ReasoningGym",
    "agent": "curricula.agent:Agent",
    "coding": "curricula.coding.coding:Coding",
    "browsing": "curricula.browsing:Browsing",
    "functions": "curricula.functions:Functions",
    "files": "curricula.prompt_files.prompt_curriculum:Files",
    "general": "curricula.general:General",
    "needle": "curricula.needle:Needle",
    "instructions": "curricula.instructions.instructions:Instructions",
    "verifiers": "curricula.library_tasks:Verifiers",
    "inspect": "curricula.library_tasks:Inspect",
}
FLAWS: Mapping[str, str] = {
    "noise": "have one wrong or missing token",
    "obliging": "do what the user wants, against a policy too",
    "hasty": "edit before the tests ran",
    "impatient": "answer one page too early",
}
"""options of these that say which share of demonstrations is flawed, and how"""
OF_LIBRARIES: Mapping[str, str] = {"verifiers": "environment", "inspect": "task"}
"""those whose problems a task of another library poses, and the option that names it"""
OF_ROWS = frozenset({"files", *OF_LIBRARIES})
"""those whose problems are rows: what is held out has an end, and solutions may be missing"""


def build(name: str, options: Mapping[str, Any] | None = None, mcp: object = None) -> Curriculum:
    """The curriculum `name` (built in, or `module:attribute`) made with its options; its problems
    have the tools of an MCP server, if `mcp` are the settings of one.

    Raises `InputError` for an unknown name, a path that does not lead to a curriculum, or options
    that it does not take.
    """
    factory = resolve("curriculum", name, BUILT_IN)
    curriculum = construct("curriculum", name, factory, options or {})
    require_methods("curriculum", name, curriculum, ("problems", "demonstrations", "environment"))
    return curriculum if mcp is None else resolve("tools", WITH_TOOLS, {})(curriculum, mcp)


def build_environment(name: str, options: Mapping[str, Any]) -> Environment:
    """The environment of a curriculum. Raises `InputError` where it has none."""
    environment = build(name, options).environment()
    if environment is None:
        raise InputError(f"curriculum {name!r} has no environment")
    return environment
