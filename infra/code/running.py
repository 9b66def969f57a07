"""Which of our files a warm process may run: derived from what its modules import and name.

Wider than a stage's code identity (`infra.code.identity`): a process that outlives stages may run
any part that its modules can name, and a file of settings counts as well.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from infra.code.identity import PACKAGES, files_of
from infra.home import SOURCE_ROOT

_NAMED = re.compile(
    # imports, in functions too
    rb"^\s*(?:from|import) +([\w.]+)(?: +import +(?:\(([^)]*)\)|([^#\n]*)))?"
    # "package.module", "package.module:attribute"
    rb"|[\"']([a-z]\w*(?:\.\w+)+)(?::\w+)?[\"']",
    re.MULTILINE,
)


def running_code(modules: Sequence[str], root: Path = SOURCE_ROOT) -> str:
    """sha256 hex over our files that processes of these modules may run."""
    digest = hashlib.sha256()
    for file, content in sorted(running_files(modules, root).items()):
        digest.update(f"{file.relative_to(root).as_posix()}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def running_files(modules: Sequence[str], root: Path = SOURCE_ROOT) -> dict[Path, bytes]:
    """The files by path, with their contents."""
    found: dict[Path, bytes] = {}
    pending = list(modules)
    seen: set[str] = set()
    while pending:
        if (name := pending.pop()) in seen:
            continue
        seen.add(name)
        for file in files_of(root, name):
            if file not in found:
                found[file] = file.read_bytes()
                pending += _named_in(found[file])
    return found


def _named_in(content: bytes) -> Iterator[str]:
    """Dotted names of ours that a file imports or holds as a string."""
    for module, several, one, text in _NAMED.findall(content):
        base = (module or text).decode()
        if base.partition(".")[0] in PACKAGES:
            yield base
            for attribute in (several or one).decode().split(","):
                yield f"{base}.{attribute.strip().partition(' ')[0]}"
