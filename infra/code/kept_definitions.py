"""Keeps the definitions that were read in the home, for the next process: a command, and each
stage's job, would parse hundreds of files again of which none has changed."""

from __future__ import annotations

import hashlib
import sys
from contextlib import suppress
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

from infra.code import definitions
from infra.code.definitions import KNOWN, Definition, Module
from infra.data_files.remembered import recall, remember

MOST_MODULES = 2_000
"""modules that are kept: ours, and as many again that an edit has changed"""
FEWEST_NEW = 50
"""new definitions for which the file is written: fewer are read again sooner"""
NUM_KEPT: list[int] = []
"""how many definitions the home has, as its only item; empty until they were loaded"""


def load_kept_definitions() -> None:
    """Take what earlier processes read as known."""
    if NUM_KEPT:
        return
    NUM_KEPT.append(0)
    with suppress(KeyError, TypeError, ValueError):
        for key, told in (recall("definitions", _reader(), "whole") or {}).items():
            KNOWN.setdefault(key, _module(told))
    NUM_KEPT[0] = _num_read()


def keep_definitions() -> None:
    """Keep what is known now for the processes to come, if much of it is new."""
    if _num_read() < NUM_KEPT[0] + FEWEST_NEW:
        return
    used = {key: module for key, module in KNOWN.items() if module.source}
    kept = KNOWN if len(KNOWN) <= MOST_MODULES else used
    remember("definitions", _reader(), "whole", {k: _told(m) for k, m in list(kept.items())})
    NUM_KEPT[0] = _num_read()


def _num_read() -> int:
    return sum(len(module.read) for module in list(KNOWN.values()))


@cache
def _reader() -> str:
    """Return how files are read: another version reads them anew."""
    source = Path(definitions.__file__).read_bytes()
    return f"{sys.version_info[:2]} {hashlib.sha256(source).hexdigest()}"


def _told(module: Module) -> dict[str, Any]:
    read = {
        name: [found.digest, *(sorted(getattr(found, each)) for each in _SETS)]
        for name, found in list(module.read.items())
    }
    return {
        "package": module.package, "is_package": module.is_package,
        "names": sorted(module.names), "types": sorted(module.types),
        "bindings": module.bindings, "bases": module.bases, "methods": module.methods,
        "read": read,
    }  # fmt: skip


_SETS = [each.name for each in fields(Definition) if each.name != "digest"]


def _module(told: dict[str, Any]) -> Module:
    read = {
        name: Definition(digest, *map(frozenset, sets))
        for name, (digest, *sets) in told.pop("read").items()
    }
    names, types = set(told.pop("names")), set(told.pop("types"))
    bases = {name: tuple(bases) for name, bases in told.pop("bases").items()}
    return Module(**told, names=names, types=types, bases=bases, read=read)
