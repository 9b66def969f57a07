"""`tributary test-hook`: the contract that a part of the user's own must keep, and which
kind of part a name leads to."""

from __future__ import annotations

import inspect
import json as json_text
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias, get_args

from rich.markup import escape

from engines.algorithms.parts import Need
from flows.checks.hook_checks import Contract, faults_of, hook_problems
from flows.checks.trial.tried_parts import OfDomain, findings_about
from flows.command.app import CommandConsole, print_json
from flows.load import load_recipe
from flows.recipe import Recipe
from infra.errors import InputError, TributaryError
from infra.hooks import check_options, resolve
from infra.user_files import install_hooks, read_hooks
from rewards.built_in_rewards import framework_of

Kind: TypeAlias = Contract | OfDomain
CONTRACTS: Mapping[str, Contract] = {kind: kind for kind in get_args(Contract)}
OF_DOMAIN: Mapping[str, OfDomain] = {kind: kind for kind in get_args(OfDomain)}
_METHODS: Mapping[str, Kind] = {
    "run": "driver",
    "problems": "curriculum",
    "pick": "data-source",
    "keep": "group-filter",
    "keeps": "buffer",
    "__call__": "reward",
}
"""that only a class of this kind has"""
_ARGUMENTS: Mapping[str, Kind] = {
    "StepTokens": "advantage",
    "LossInputs": "loss",
    "Transcript": "reward",
}
"""the type of a function's argument, by which its kind is known"""
_WORDS: Mapping[str, Kind] = {
    "reward": "reward",
    "score": "reward",
    "advantage": "advantage",
    "advantages": "advantage",
    "loss": "loss",
}
"""a word in a function's name, by which its kind is known if nothing else shows it"""


def show_hook(
    path: str,
    kind: str,
    options: str,
    needs: str,
    domains: str,
    curriculum: str,
    json: bool,
    console: CommandConsole,
) -> int:
    """Print each broken promise; 0 if there is none, 1 otherwise."""
    declared, given = _needs(needs), _options(options)
    wanted = kind_named(kind) if kind else None
    name, curriculum = _importable(path, curriculum)
    found = wanted or kind_of(name)
    faults, notes = _tried(found, name, given, declared, _listed(domains), curriculum)
    if json:
        said = {"name": name, "kind": found, "keeps": not faults}
        print_json(said | {"faults": faults, "notes": notes})
        return 1 if faults else 0
    for note in notes:
        console.print(f"[yellow]note[/] {escape(note)}", highlight=False)
    for fault in faults:
        console.print(f"[red]fails[/] {escape(fault)}", highlight=False)
    if not faults:
        console.print(f"[green]keeps the contract[/] of a custom {found}: {name}")
    return 1 if faults else 0


def _tried(
    kind: Kind,
    name: str,
    options: dict[str, Any],
    needs: list[Need],
    domains: list[str],
    curriculum: str,
) -> tuple[list[str], list[str]]:
    """Broken promises, and what is only to be known."""
    if of_domain := OF_DOMAIN.get(kind):
        tried_on = curriculum or curriculum_beside(name)
        found = findings_about(of_domain, name, options, tried_on)
        return list(found.problems), list(found.cautions)
    faults = faults_of(CONTRACTS[kind], name, options, needs=needs, domains=domains)
    return [f"{fault.check}: {fault.saw}" for fault in faults], []


def _importable(path: str, curriculum: str) -> tuple[str, str]:
    """Each as `module:attribute`, also found in the command's folder or written as
    `file.py:attribute`; and the curriculum of a recipe beside the file, if none is named."""
    file, colon, attribute = path.rpartition(":")
    if not colon or not attribute or not file:
        part = f"{path}:my_reward" if path.endswith(".py") else "my_parts.py:my_reward"
        raise InputError(
            f"test-hook {path}: write the file and the part in it, with a colon between, as in"
            f" {part}"
        )
    named = [name for name in (path, curriculum) if name.rpartition(":")[0].endswith(".py")]
    files = list(dict.fromkeys(Path(name.rpartition(":")[0]).resolve() for name in named))
    name, tried_on = map(_module_name, (path, curriculum))
    if files:
        beside = next((found for found in map(_recipe_beside, files) if found), None)
        hooks = [str(file) for file in files]
        if wrong := list(hook_problems(hooks, [])):
            raise InputError("test-hook: " + "; ".join(wrong))
        if beside is not None:
            hooks = list(dict.fromkeys([*hooks, *beside.hooks]))
            tried_on = tried_on or _curriculum_of(beside, name)
        install_hooks(read_hooks(hooks, beside.data if beside else ()))
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    return name, tried_on


def _module_name(path: str) -> str:
    file, _, attribute = path.rpartition(":")
    return f"{Path(file).stem}:{attribute}" if file.endswith(".py") else path


def _recipe_beside(file: Path) -> Recipe | None:
    """The first recipe in the file's folder that lists it under `hooks`: its other files may be
    imported too."""
    for found in sorted(file.parent.glob("*.yaml")):
        with suppress(TributaryError, OSError):  # another kind of file, or not tried here
            recipe = load_recipe(str(found))
            if str(file) in recipe.hooks:
                return recipe
    return None


def _curriculum_of(recipe: Recipe, reward: str) -> str:
    """Return the curriculum of the first domain with this reward."""
    named = (d for d in recipe.domains if reward in (term.name for term in d.rewards))
    return next((domain.curriculum.name for domain in named), "")


def _needs(text: str) -> list[Need]:
    given = _listed(text)
    if unknown := set(given) - set(get_args(Need)):
        raise InputError(
            f"test-hook: --needs has {', '.join(sorted(unknown))}; it is a list, separated by"
            f" commas, of {', '.join(get_args(Need))}"
        )
    return [need for need in get_args(Need) if need in given]


def _listed(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _options(text: str) -> dict[str, Any]:
    try:
        found = json_text.loads(text or "{}")
    except json_text.JSONDecodeError as error:
        raise InputError(
            f"test-hook: --options is not valid JSON, as '{{\"beta\": 0.1}}' is: {error}"
        ) from None
    if not isinstance(found, dict):
        raise InputError("test-hook: --options must be a JSON object, e.g. '{\"beta\": 0.1}'")
    return found


def kind_named(kind: str) -> Kind:
    """Raises InputError for one that there is not."""
    if found := CONTRACTS.get(kind) or OF_DOMAIN.get(kind):
        return found
    kinds = ", ".join([*CONTRACTS, *OF_DOMAIN])
    raise InputError(f"test-hook: --kind is one of {kinds}; not {kind!r}")


def kind_of(name: str) -> Kind:
    """Tell the kind by a class's methods, or by the type of a function's argument. Raises
    InputError."""
    found: Any = resolve("hook", name, {})
    if inspect.isclass(found):
        for method, kind in _METHODS.items():
            if inspect.isfunction(getattr(found, method, None)):
                return kind
    else:
        check_options("hook", name, found, {})
        annotations = [str(a) for a in getattr(found, "__annotations__", {}).values()]
        for marker, kind in _ARGUMENTS.items():
            if any(marker in annotation for annotation in annotations):
                return kind
        names = _parameters(found)
        if names[:1] in (["transcript"], ["transcripts"]) or framework_of(names):
            return "reward"
        words = re.findall(r"[a-z]+", name.rpartition(":")[2].lower())
        meant: set[Kind] = {_WORDS[word] for word in words if word in _WORDS}
        if len(meant) == 1:
            return meant.pop()
    raise InputError(
        f"test-hook: {name} does not show its kind: annotate a function's argument as `StepTokens`"
        " (an advantage), `LossInputs` (a loss) or `Transcript` (a reward), or give --kind with one"
        f" of {', '.join([*CONTRACTS, *OF_DOMAIN])}"
    )


def curriculum_beside(name: str) -> str:
    """The curriculum in the file of a user's part, if there is just one and it shows
    demonstrations without options; else `reasoning`."""
    if ":" not in name:
        return "reasoning"
    resolve("hook", name, {})
    module = sys.modules[name.partition(":")[0]]
    found: list[tuple[str, Any]] = [
        (attribute, part)
        for attribute, part in vars(module).items()
        if inspect.isclass(part) and part.__module__ == module.__name__
        if all(inspect.isfunction(getattr(part, m, None)) for m in ("problems", "demonstrations"))
    ]
    if len(found) != 1:
        return "reasoning"
    ((attribute, part),) = found
    try:
        return f"{module.__name__}:{attribute}" if part().demonstrations(1, 0) else "reasoning"
    except Exception:  # it is tried by itself, as a curriculum
        return "reasoning"


def _parameters(found: Any) -> list[str]:
    try:
        return list(inspect.signature(found).parameters)
    except (TypeError, ValueError):
        return []
