"""Keeps recipes in this home, found by name: `tributary save` and `recipes`; `init` writes one to
begin from.

$TRIBUTARY_HOME/recipes/<name>.yaml    a whole recipe: nothing in it depends on where it came from
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from flows.command.app import CommandConsole, print_json, text_table
from flows.diff import Difference, differences, listed
from flows.explain import nearest
from flows.load import (
    SHIPPED,
    as_yaml,
    is_name,
    read_recipe,
    saved_folder,
    shipped_recipes,
    validate_recipe,
)
from flows.page.form import renew_lists
from flows.recipe import MAX_NAME
from flows.running.prefect_api import PrefectApi
from infra.errors import InputError
from infra.home import write_whole
from infra.stack import load_stack

STARTER = Path(__file__).parents[1] / "starter"
FILES = (
    "recipe.yaml", "my_domain.py", "my_environment.py", "my_reward.py", "test_my_domain.py",
    "pytest.ini", "README.md",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class KnownRecipe:
    """A recipe with a name. Example: KnownRecipe("cpu-demo", True, Path(".../cpu-demo.yaml"))"""

    name: str
    is_shipped: bool
    file: Path


@dataclass(frozen=True, slots=True)
class Saved:
    """A recipe that has just been saved."""

    name: str
    file: Path
    is_new: bool
    """there was none of its name that could be read"""
    changed: list[Difference]
    """what differs from the one that it replaces"""


def known_recipes() -> list[KnownRecipe]:
    """The shipped ones, then the saved ones, each by name."""
    shipped = [KnownRecipe(name, True, SHIPPED / f"{name}.yaml") for name in shipped_recipes()]
    files = sorted(saved_folder().glob("*.yaml"))
    return shipped + [KnownRecipe(file.stem, False, file) for file in files]


def save_recipe(recipe: str, name: str = "", changes: Sequence[str] = ()) -> Saved:
    """Keep a recipe under a name (default: its own), which its runs then bear; one of that name is
    replaced. Raises InputError for a recipe that cannot run, and for a shipped one's name."""
    path, written = read_recipe(recipe, [*changes, *([f"name={name}"] if name else [])])
    known = validate_recipe(written.data, str(path), written)
    _require_free(known.name)
    file = saved_folder() / f"{known.name}.yaml"
    before = _saved_before(file)
    changed = [] if before is None else list(differences(before, written.data))
    write_whole(file, as_yaml(written.data))
    return Saved(known.name, file, before is None, changed)


def _saved_before(file: Path) -> dict[str, Any] | None:
    """None where there is none, or one that nobody can run any more."""
    try:
        return read_recipe(str(file))[1].data if file.exists() else None
    except InputError:
        return None


def remove_recipe(name: str) -> Path:
    """Forget a saved recipe; its runs stay. Raises InputError."""
    file = saved_folder() / f"{name}.yaml"
    if name in shipped_recipes():
        raise InputError(f"recipe {name} is shipped with Tributary and cannot be removed")
    if not is_name(name) or not file.is_file():
        saved = [known.name for known in known_recipes() if not known.is_shipped]
        found = ", ".join(saved) or "none"
        raise InputError(f"no saved recipe `{name}`; saved: {found}{nearest(name, saved)}")
    file.unlink()
    return file


def _require_free(name: str) -> None:
    if name in shipped_recipes():
        raise InputError(
            f"`{name}` is the name of a shipped recipe; give yours another one of at most"
            f" {MAX_NAME} characters: tributary save RECIPE NAME"
        )


def save(recipe: str, name: str, changes: Sequence[str], console: CommandConsole) -> int:
    saved = save_recipe(recipe, name, changes)
    console.say(f"saved {saved.name}: {saved.file}")
    if saved.changed:
        console.say(f"it replaces one that differs:\n{listed(saved.changed)}")
    elif not saved.is_new:
        console.say("it was saved before; nothing has changed.")
    if where := _renew():
        console.say(f"the forms list it: {where}")
    console.say(f"start it with: tributary run {saved.name}")
    return 0


def show_recipes(remove: str, json: bool, console: CommandConsole) -> int:
    if remove:
        remove_recipe(remove)
        _renew()
    known = known_recipes()
    if json:
        print_json([{"name": r.name, "shipped": r.is_shipped, "file": str(r.file)} for r in known])
        return 0
    console.print(text_table(["recipe", "what it is"], [(r.name, _about(r)) for r in known]))
    return 0


def _about(recipe: KnownRecipe) -> str:
    """The first sentence of the comment on top of a shipped one; of a saved one, its file."""
    if not recipe.is_shipped:
        return f"saved: {recipe.file}"
    lines = takewhile(lambda line: line.startswith("#"), recipe.file.read_text().splitlines())
    comment = " ".join(line.removeprefix("#").strip() for line in lines)
    return re.split(r"(?<=[.?:]) ", comment)[0].rstrip(".:")


def _renew() -> str:
    """The page with the forms; empty while the server is down: `tributary up` renews them."""
    stack = load_stack()
    if stack is None:
        return ""
    renew_lists(PrefectApi(stack.prefect_api))
    return f"{stack.prefect_ui}/deployments"


def write_starter(folder: str, console: CommandConsole) -> int:
    """Write the starter's files, all or none, and say what to do next; -> exit code.

    Raises InputError where one of them exists already, or the folder cannot be written.
    """
    target = Path(folder).expanduser()
    present = [name for name in FILES if os.path.lexists(target / name)]
    if present:
        raise InputError(
            f"init {folder}: {', '.join(present)} exist{'s' if len(present) == 1 else ''} there"
            " already, and init overwrites nothing; give another folder"
        )
    _write(target)
    shown = shlex.quote(folder)
    recipe = shlex.quote(str(Path(folder) / "recipe.yaml"))
    for line in (
        f"wrote {', '.join(FILES)} in {folder}",
        "next:",
        f"  {_pytest()} {shown}",
        f"  tributary check {recipe}",
        "  tributary up",
        f"  tributary run {recipe}",
        "then change my_reward.py, and the first part of my_domain.py and my_environment.py",
    ):
        console.say(line)
    return 0


def _pytest() -> str:
    """Return it as it can be typed in this shell: with its path, if only the command is on PATH."""
    found, ours = shutil.which("pytest"), Path(sys.executable).with_name("pytest")
    return "pytest" if found and Path(found).samefile(ours) else str(ours)


def _write(target: Path) -> None:
    written: list[Path] = []
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            content = (STARTER / name).read_bytes()
            with (target / name).open("xb") as file:
                written.append(target / name)
                file.write(content)
    except OSError as error:
        for file in written:
            file.unlink(missing_ok=True)
        why = "is a file" if target.is_file() else error.strerror
        raise InputError(
            f"init: {error.filename or target}: {why}; give a folder that you may write to"
        ) from None
