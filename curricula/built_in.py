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
