"""Finds a part by name: one of ours, or a user's `module:attribute`, and builds it from options.

Everything that can be wrong with what a person wrote becomes an `InputError` that says what is
allowed, so that a recipe is refused when it is loaded and not in the middle of a run.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from infra.config import check_kind
from infra.errors import InputError
from infra.secret_references import resolved, without_secrets

_MOST_LISTED = 12
_EXITS = "raised SystemExit({}): it must not end the program; remove sys.exit() or exit()"


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    """` Did you mean 'x'?` for the nearest allowed name, else nothing."""
    near = difflib.get_close_matches(name, list(allowed), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def resolve(kind: str, name: str, builtins: Mapping[str, str]) -> Callable[..., Any]:
    """The callable behind a name.

    `builtins` maps our names to `module:attribute`; any other name must itself be of that form.
    """
    path = builtins.get(name, name)
    if ":" not in path:
        raise InputError(
            f"unknown {kind} {name!r}.{did_you_mean(name, builtins)} Built in: "
            f"{', '.join(sorted(builtins))}; or your own as `module:attribute`."
        )
    module_name, _, attribute = path.partition(":")
    found = _import(kind, name, module_name)
    for part in attribute.split("."):
        if not hasattr(found, part):
            public = [key for key in vars(found) if not key.startswith("_")]
            raise InputError(
                f"{kind} {name!r}: module {module_name!r} has no {attribute!r}."
                f"{did_you_mean(part, public) or f' It has: {_listed(public)}.'}"
            )
        found = getattr(found, part)
    if not callable(found):
        raise InputError(
            f"{kind} {name!r} is {type(found).__name__}, which cannot be called: name a class or a "
            f"function that takes the options."
        )
    return found


def _listed(names: list[str]) -> str:
    listed = ", ".join(names[:_MOST_LISTED]) or "nothing"
    return listed + (", ..." if len(names) > _MOST_LISTED else "")


def construct(kind: str, name: str, factory: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    """`factory(**options)` with the secrets that they refer to; wrong options are explained."""
    check_options(kind, name, factory, options)
    try:
        return factory(**resolved(options))
    except InputError as error:
        raise InputError(f"{kind} {name!r}: {without_secrets(str(error), options)}") from error
    except (TypeError, ValueError) as error:
        said = re.sub(r"^.* missing \d+ required \S+ arguments?: ", "it lacks ", str(error))
        raise InputError(
            f"{kind} {name!r} does not accept its options {dict(options)}:"
            f" {without_secrets(said, options)}"
        ) from error
    except SystemExit as error:
        raise InputError(f"{kind} {name!r}: its constructor {_EXITS.format(error)}") from error


def construct_with(
    kind: str,
    name: str,
    factory: Callable[..., Any],
    options: Mapping[str, Any],
    offered: Mapping[str, Any],
    *,
    refusal: str,
) -> Any:
    """`construct`, with those of `offered` that the constructor has parameters for. `refusal` says
    why options must not have their names."""
    if taken := sorted(offered.keys() & options.keys()):
        raise InputError(f"{kind} {name!r}: options.{taken[0]}: {refusal}; remove it here")
    known = inspect.signature(factory).parameters
    wanted = {key: value for key, value in offered.items() if key in known}
    return construct(kind, name, factory, {**options, **wanted})


def require_methods(kind: str, name: str, part: object, methods: Iterable[str]) -> None:
    missing = [method for method in methods if not callable(getattr(part, method, None))]
    if missing:
        raise InputError(
            f"{kind} {name!r}: {type(part).__name__} lacks {', '.join(f'{m}()' for m in missing)}; "
            f"a {kind} needs {', '.join(f'{m}()' for m in methods)}."
        )


def require_no_options(kind: str, name: str, options: Mapping[str, Any]) -> None:
    if options:
        raise InputError(f"{kind} {name!r} has no options; remove {', '.join(options)}.")


def _import(kind: str, name: str, module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module + ".").startswith(error.name + "."):
            raise InputError(
                f"{kind} {name!r}: no module {error.name!r} can be imported; list its file or "
                f"package folder in the recipe's `hooks:`, or install it."
            ) from error
        raise InputError(f"{kind} {name!r}: importing {module!r} failed: {error}") from error
    except SystemExit as error:
        raise InputError(f"{kind} {name!r}: importing {module!r} {_EXITS.format(error)}") from error
    except Exception as error:
        raise InputError(
            f"{kind} {name!r}: importing {module!r} failed: {type(error).__name__}: {error}"
        ) from error


def check_options(
    kind: str, name: str, factory: Callable[..., Any], options: Mapping[str, Any]
) -> None:
    """Raises `InputError` for an option that the factory does not take, and for a value that its
    parameter's annotation excludes: Python would take "false" for true."""
    try:
        parameters = _signature(factory).parameters
    except ValueError:  # a callable of a C extension tells nothing of its parameters
        return
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    allowed = [p.name for p in parameters.values() if p.kind is not p.POSITIONAL_ONLY]
    for option, value in options.items():
        if option in allowed:
            kinds = _kinds_of(parameters[option])
            if kinds:
                check_kind(f"{kind} {name!r}: option {option!r}", value, kinds)
        elif not takes_any:
            raise InputError(
                f"{kind} {name!r} has no option {option!r}.{did_you_mean(option, allowed)} "
                f"Allowed: {', '.join(allowed) or 'none'}."
            )


def _signature(factory: Callable[..., Any]) -> inspect.Signature:
    """With annotations as types where their names can be found; else as they are written."""
    try:
        return inspect.signature(factory, eval_str=True)
    except (NameError, AttributeError, TypeError, SyntaxError):
        return inspect.signature(factory)


_KINDS: Mapping[Any, str] = {
    bool: "bool", int: "int", float: "float", str: "str", type(None): "null",
}  # fmt: skip


def _kinds_of(parameter: inspect.Parameter) -> list[str]:
    """The kinds of plain value that a parameter is annotated with; empty where it says none, or
    one that is not looked at here."""
    given: Any = parameter.annotation
    union = typing.get_origin(given) in (typing.Union, types.UnionType)
    parts = typing.get_args(given) if union else (given,)
    kinds = [_KINDS.get(part, "") if isinstance(part, type) else "" for part in parts]
    if not all(kinds):
        return []
    return [*kinds, "null"] if parameter.default is None and "null" not in kinds else kinds
