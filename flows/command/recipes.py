"""`tributary save` and `recipes`."""

from __future__ import annotations

from collections.abc import Sequence

from flows.command.output import CommandConsole, print_json, text_table
from flows.differences import listed
from flows.page.form import renew_lists
from flows.running.prefect_api import PrefectApi
from flows.saved import known_recipes, remove_recipe, save_recipe
from infra.stack import load_stack


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
    rows = [(r.name, "shipped" if r.is_shipped else "saved", str(r.file)) for r in known]
    console.print(text_table(["recipe", "from", "file"], rows))
    return 0


def _renew() -> str:
    """The page with the forms; empty while the server is down: `tributary up` renews them."""
    stack = load_stack()
    if stack is None:
        return ""
    renew_lists(PrefectApi(stack.prefect_api))
    return f"{stack.prefect_ui}/deployments"
