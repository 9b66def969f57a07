"""The user's own files: read once, carried with each job, importable by their own names.

They are copied to a folder named by their content and put at the *end* of the module path: a user's
folder named `tasks/` cannot shadow ours, and nothing beside the named files becomes importable.
"""

from __future__ import annotations

import hashlib
import importlib
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from infra.errors import InputError
from infra.home import home


def read_hooks(paths: Sequence[str]) -> dict[str, str]:
    """Text by relative path, e.g. `{"fourth.py": "...", "my_expert/__init__.py": "..."}`."""
    texts: dict[str, str] = {}
    for path in map(Path, paths):
        files = [path] if path.is_file() else sorted(path.rglob("*.py"))
        if not files:
            raise InputError(f"hooks: {path} is missing or holds no Python file")
        for file in files:
            texts[str(file.relative_to(path.parent))] = file.read_text()
    return texts


def install_hooks(texts: Mapping[str, str]) -> list[Path]:
    """Write the files under their content's name and make them importable; returns the files."""
    if not texts:
        return []
    name = hashlib.sha256(repr(sorted(texts.items())).encode()).hexdigest()[:16]
    folder = home() / "hooks" / name
    _forget_others(folder)
    if not folder.is_dir():
        draft = folder.with_name(f"{name}.{id(texts):x}")
        for relative, text in texts.items():
            (draft / relative).parent.mkdir(parents=True, exist_ok=True)
            (draft / relative).write_text(text)
        _publish(draft, folder)
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    return [folder / relative for relative in sorted(texts)]


def _forget_others(folder: Path) -> None:
    """Drop what this process imported of other versions: a warm one outlives many recipes."""
    hooks = folder.parent
    for path in [p for p in sys.path if Path(p).parent == hooks and Path(p) != folder]:
        sys.path.remove(path)
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and hooks in Path(file).parents and folder not in Path(file).parents:
            del sys.modules[name]
    importlib.invalidate_caches()


def _publish(draft: Path, folder: Path) -> None:
    try:
        draft.rename(folder)
    except OSError:  # another process wrote the same content first
        shutil.rmtree(draft)
