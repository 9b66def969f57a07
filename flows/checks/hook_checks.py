"""The files under `hooks`: installed, looked at without running them, and which promises a part in
them breaks, by the contract of its kind.

Advantages, losses, data sources, group filters and buffers are tried by themselves. Drivers,
curricula and rewards are tried as a domain of theirs would use them (`flows.checks.trial`).
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from engines.algorithms.parts import Need
from engines.draws import Fault
from flows.recipe import Recipe
from infra.code.identity import PACKAGES
from infra.data_files.heads import other_kind_of
from infra.errors import InputError
from infra.user_files import HOOK_COPY, InstalledFiles, install_hooks, read_hooks, same_names

_OURS = PACKAGES | {"tests"}


def own_files(recipe: Recipe) -> InstalledFiles:
    """Return a recipe's own files, importable in this process from now on. Every command that takes
    a recipe and calls a part of it begins so. Raises InputError."""
    return install_hooks(read_hooks(recipe.hooks, recipe.data))


def hook_problems(hooks: Sequence[str], data: Sequence[str]) -> Iterator[str]:
    """Files that are missing, unreadable, no Python, or named so that Python finds another."""
    found = [*_files(hooks), *(f"hooks: {line}" for line in same_names(hooks))]
    yield from found
    if not found:
        try:
            read_hooks(hooks, data)
        except InputError as error:
            yield str(error)


def _files(hooks: Sequence[str]) -> Iterator[str]:
    for hook in hooks:
        path = Path(hook)
        if not path.exists():
            yield f"hooks: {hook} is missing"
        elif path.is_file() and path.suffix != ".py":
            yield f"hooks: {hook} is not a Python file"
        elif not path.stem.isidentifier():
            yield (
                f"hooks: {path.name} cannot be imported under that name; rename it to"
                " letters, digits and `_`, e.g. my_hook.py"
            )
        else:
            yield from _shadows(path)
            yield from _unreadable(path)


def _shadows(path: Path) -> Iterator[str]:
    """Hooks come last on the module path: a name that is taken means the other module."""
    taken = _taken(path)
    if taken:
        yield (
            f"hooks: {path.name} has the name of {taken}, and Python would import that one; rename"
            f" it, e.g. my_{path.name}"
        )


def _taken(path: Path) -> str:
    name = path.stem
    if name in sys.stdlib_module_names:
        return "a module of Python's own library"
    if name in _OURS:
        return "one of Tributary's packages"
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # a module in a broken state
        return ""
    origin = Path(found.origin) if found is not None and found.origin else None
    if origin is None or not origin.is_file() or HOOK_COPY.search(str(origin)):
        return ""
    is_itself = origin in (path.resolve(), path.resolve() / "__init__.py")
    return "" if is_itself else "an installed module"


def _unreadable(path: Path) -> Iterator[str]:
    for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
        name = file.relative_to(path.parent)
        if said := other_kind_of(file):
            yield f"hooks: {name}: {said.partition(';')[0]}; give Python code"
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                text = importlib.util.decode_source(file.read_bytes())
                compile(text, str(name), "exec", dont_inherit=True)
        except SyntaxError as error:
            line = f"line {error.lineno}: " if error.lineno else ""
            yield f"hooks: {name}: {line}{error.msg}"
        except UnicodeDecodeError as error:
            yield f"hooks: {name}: {error}; save the file as UTF-8"
        except ValueError as error:
            yield f"hooks: {name}: {error}"


Contract: TypeAlias = Literal["advantage", "loss", "data-source", "group-filter", "buffer"]
"""kinds that are tried by themselves"""


def faults_of(
    kind: Contract,
    name: str,
    options: Mapping[str, Any],
    *,
    needs: Collection[Need] = ("spread",),
    domains: Sequence[str] = (),
    is_beside_training: bool = False,
) -> Sequence[Fault]:
    """Return every broken promise. Raises InputError for a wrong path or option.

    `needs` are the advantage's, `domains` those that a data source picks from. Imports torch for
    an advantage or a loss.
    """
    match kind:
        case "advantage" | "loss":
            return _of_algorithm(kind, name, options, needs)
        case "data-source":
            return _of_source(name, options, domains, is_beside_training)
        case "group-filter":
            from engines.rollout.filters import build, filter_faults

            return filter_faults(build(name, options, "spread" in needs))
        case "buffer":
            from engines.rollout.buffers import build_rule, rule_faults

            rule = build_rule(name, options)
            return () if rule is None else rule_faults(rule)


def _of_algorithm(
    kind: Literal["advantage", "loss"],
    name: str,
    options: Mapping[str, Any],
    needs: Collection[Need],
) -> Sequence[Fault]:
    from engines.algorithms.contract import advantage_faults, loss_faults
    from engines.algorithms.parts import custom

    part = custom(kind, name, dict(options))
    return advantage_faults(part, needs) if kind == "advantage" else loss_faults(part)


def _of_source(
    name: str, options: Mapping[str, Any], domains: Sequence[str], is_beside_training: bool
) -> Sequence[Fault]:
    from engines.rollout.sources import DataSource, build_source, require_can_learn, source_faults

    def make() -> DataSource:
        source = build_source(name, options, domains, seed=0)
        assert source is not None
        return source

    found = build_source(name, options, domains, seed=0)
    if found is None:
        return ()
    require_can_learn(name, found, is_beside_training)
    return source_faults(make, domains)
