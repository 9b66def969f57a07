"""Which curricula of ours read their problems, where others make them up."""

from __future__ import annotations

from collections.abc import Mapping

OF_LIBRARIES: Mapping[str, str] = {"verifiers": "environment", "inspect": "task"}
"""those whose problems a task of another library poses, and the option that names it"""
OF_ROWS = frozenset({"files", *OF_LIBRARIES})
"""those whose problems are rows: what is held out has an end, and solutions may be missing"""
