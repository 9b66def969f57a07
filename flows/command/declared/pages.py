"""What Prefect's page offers and says: recipes by name, and who hears of failures."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from flows.command.app import Json, Set, app, console, examples


@app.command(help_epilogue=examples("save mine/recipe.yaml", "save cpu-demo longer --set seed=1"))
def save(recipe: str, name: str = "", /, *, set_: Set | None = None) -> int:
    """Save a recipe under a name: commands take it, and the forms of Prefect's page list it.

    What it says now is kept, whatever becomes of its file; one of the same name is replaced.

    Args:
        recipe: A YAML file, or the name of a shipped or saved recipe.
        name: A name for it and its runs; default: the recipe's own.
    """
    from flows.command.recipes import save as save_recipe

    return save_recipe(recipe, name, set_ or [], console)


@app.command(help_epilogue=examples("recipes", "recipes --json", "recipes --remove longer"))
def recipes(*, remove: str = "", json: Json = False) -> int:
    """List the recipes that have a name: shipped ones, and those that `save` saved.

    Args:
        remove: First forget this saved recipe. Its runs and their artifacts stay.
    """
    from flows.command.recipes import show_recipes

    return show_recipes(remove, json, console)


@app.command(
    help_epilogue=examples("notify https://hooks.example.com/T0/B0", "notify", "notify --off")
)
def notify(url: str = "", /, *, off: Annotated[bool, Parameter(negative=())] = False) -> int:
    """Tell someone of each run that fails or crashes, through a webhook.

    Args:
        url: A webhook that takes JSON, e.g. of Slack, Mattermost or Discord; empty shows whether
            one is told.
        off: Tell nobody any more.
    """
    from flows.command.notify import show_notify

    return show_notify(url, off, console)
