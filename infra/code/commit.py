"""What git says of the code that a stage runs."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from infra.code.identity import CodeIdentity
from infra.home import SOURCE_ROOT


def with_commit(identity: CodeIdentity) -> CodeIdentity:
    """The same, with what git says of it, which takes a moment."""
    commit, dirty = _git_state(SOURCE_ROOT, list(identity.files))
    return identity.model_copy(update={"commit": commit, "dirty": dirty})


def _git_state(root: Path, files: Sequence[str]) -> tuple[str, bool]:
    """Commit of the checkout and whether one of the files differs from it."""
    if not (root / ".git").exists():
        return "", False
    try:
        commit = _git(root, "rev-parse", "HEAD").strip()
        return commit, bool(_git(root, "status", "--porcelain", "--", *files).strip())
    except (OSError, subprocess.SubprocessError):
        return "", False


def _git(root: Path, *arguments: str) -> str:
    # Without the lock option `status` may rewrite the index under another git command's feet.
    command = ["git", "--no-optional-locks", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout
