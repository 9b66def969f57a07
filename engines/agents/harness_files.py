"""What a harness finds in its folder: its program, its problem, and the files of the problem."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import cast

from engines.types import Problem
from infra.errors import InputError

PROBLEM = "problem.json"


def program_files(module: str) -> dict[str, bytes]:
    """Contents by name of a module, or of a package with all that lies in it; none of the empty
    name. Raises InputError for one that is not there."""
    if not module:
        return {}
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise InputError(f"program: no module {module!r}; list its file under `hooks`")
    origin = Path(spec.origin)
    if not spec.submodule_search_locations:
        return {origin.name: origin.read_bytes()}
    files = (file for file in sorted(origin.parent.rglob("*")) if file.is_file())
    kept = (file for file in files if "__pycache__" not in file.parts)
    return {file.relative_to(origin.parents[1]).as_posix(): file.read_bytes() for file in kept}


def files_of_problem(problem: Problem) -> dict[str, bytes]:
    """The problem as JSON, without its reference, and what its metadata has under `files`: texts by
    name."""
    said = {"id": problem.id, "messages": [_message(m.role, m.content) for m in problem.messages]}
    said["tools"] = [asdict(tool) for tool in problem.tools]
    given = problem.metadata.get("files", {})
    if not isinstance(given, Mapping):
        raise InputError(f"problem {problem.id}: metadata.files must map names to texts")
    files = cast("Mapping[str, str]", given)
    found = {name: text.encode() for name, text in files.items()}
    return {**found, PROBLEM: json.dumps(said, default=dict).encode()}


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
