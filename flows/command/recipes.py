"""`tributary save`, `recipes` and `recipes remove`."""

from __future__ import annotations

import json as json_text
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from flows.differences import listed
from flows.page.recipe_list import renew_lists
from flows.running.prefect_api import PrefectApi
from flows.saved import known_recipes, remove_recipe, save_recipe
from infra.stack import load_stack


def save(recipe: str, name: str, changes: Sequence[str], console: Console) -> int:
    saved = save_recipe(recipe, name, changes)
    _say(console, f"saved {saved.name}: {saved.file}")
    if saved.changed:
        _say(console, f"it replaces one that differs:\n{listed(saved.changed)}")
    elif not saved.is_new:
        _say(console, "it was saved before; nothing has changed.")
    _renew(console)
    _say(console, f"start it with: tributary run {saved.name}")
    return 0


def show_recipes(json: bool, console: Console) -> int:
    known = known_recipes()
    if json:
        rows = [{**asdict(one), "file": str(one.file)} for one in known]
        console.print_json(json_text.dumps(rows))
        return 0
    table = Table("recipe", "from", "file")
    for one in known:
        table.add_row(one.name, "shipped" if one.is_shipped else "saved", str(one.file))
    console.print(table)
    return 0


def remove(name: str, console: Console) -> int:
    _say(console, f"removed {remove_recipe(name)}; runs of it stay.")
    _renew(console)
    return 0


def _renew(console: Console) -> None:
    """The forms of a server that is down are renewed by `tributary up`."""
    stack = load_stack()
    if stack is not None and renew_lists(PrefectApi(stack.prefect_api)):
        _say(console, f"the forms at {stack.prefect_ui}/deployments list it now as it is.")


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
