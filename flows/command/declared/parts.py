"""Parts of one's own, and models given to others."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from flows.command.app import Json, app, console, examples

Addresses = Annotated[list[str], Parameter(negative=(), consume_multiple=True)]
Way = Literal["auto", "broadcast", "disk"]


@app.command(
    help_epilogue=examples(
        "publish agent-rl --to http://10.0.0.7:30000",
        "publish ./model --to http://host:8000 --by disk --json",
    )
)
def publish(
    model: str, /, *, to: Addresses, by: Way = "auto", root: str = "", json: Json = False
) -> int:
    """Push a model's weights to running SGLang servers of others, all or none.

    Their key, if they ask for one, comes from the environment variable EXTERNAL_FLEET_KEY.

    Args:
        model: A model folder, a digest (or its beginning), or a stage's name in the latest run.
        to: Addresses of servers, or of a router that knows them: http://HOST:PORT
        by: How weights travel. auto: broadcast, and disk where that does not work. disk: the
            servers read the folder themselves, under this very path.
        root: The store to look in; default: the latest run's.
    """
    from flows.command.publish import publish_model

    return publish_model(model, to, by, root, json, console)


@app.command(
    name="test-hook",
    help_epilogue=examples(
        "test-hook my_parts:my_advantage",
        "test-hook my_domain.py:Sums --kind curriculum",
        "test-hook my_parts:Grader --options '{\"weight\": 0.5}' --json",
    ),
)
def check_hook(
    path: str,
    /,
    *,
    kind: str = "",
    options: str = "",
    needs: str = "spread",
    domains: str = "a,b",
    curriculum: str = "",
    json: Json = False,
) -> int:
    """Test a part of your own by itself against its contract.

    Exit code 1 when it breaks it.

    Args:
        path: `module:attribute`, or `file.py:attribute`.
        kind: advantage, loss, data-source, group-filter, buffer, driver, curriculum or reward;
            default: from a class's methods, or from the type of a function's argument.
        options: Its options as JSON.
        needs: What an advantage needs, as a recipe says it: spread, batch, critic, teachers,
            reference.
        domains: The domains that a data source picks from.
        curriculum: Whose problems and demonstrations a driver or a reward is tried on; default:
            the one in its own file, if there is just one, else `reasoning`.
    """
    from flows.command.hooks import show_hook

    return show_hook(path, kind, options, needs, domains, curriculum, json, console)


@app.command(
    help_epilogue=examples(
        "admit recipe.yaml",
        "admit recipe.yaml --domain coding --count 200 --to findings.jsonl",
    )
)
def admit(
    recipe: str,
    /,
    *,
    domain: str = "",
    split: Literal["sft", "rl", "distill", "heldout"] = "rl",
    count: int = 20,
    seed: int = 0,
    to: str = "",
    json: Json = False,
) -> int:
    """Try whether problems of a domain are fit to train on, without a model.

    A problem is refused, with the reason, unless its own solution scores 1 twice, doing nothing
    scores 0, random actions score next to nothing, no tool shows the solution, and it is quick.
    Exit code 1 if any is refused.

    Args:
        recipe: A YAML file, or the name of a shipped recipe.
        domain: One of the recipe's domains; needed where it has several that can be tried.
        split: Whose problems.
        count: How many problems.
        seed: Which problems.
        to: A file for all findings: one JSON object a line, with `id`, `admitted` and `reasons`.
    """
    from flows.command.admit import show_admission

    return show_admission(recipe, domain, split, count, seed, to, json, console)
