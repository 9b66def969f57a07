"""Declares what takes models further, tries parts of one's own, starts fleets and frees space."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from flows.command.app import Json, Root, app, artifacts_app, console, examples, fleet_app

Several = Annotated[list[str] | None, Parameter(negative=(), consume_multiple=True)]
Switch = Annotated[bool, Parameter(negative=())]


@app.command(
    help_epilogue=examples(
        "serve agent-rl",
        "serve new=@best old=hf:Qwen/Qwen3-0.6B --port 8000",
        "serve ./exported --host 0.0.0.0 --api-key-from MY_KEY",
    )
)
def serve(
    *models: str,
    port: Annotated[int, Parameter(validator=Number(gte=1, lte=65535))] = 8000,
    host: str = "127.0.0.1",
    api_key_from: str = "",
    tool_parser: str = "",
    reasoning_parser: str = "",
    servers: int = 1,
    tp: int = 1,
    sglang: Several = None,
    root: Root = "",
) -> int:
    """Serve models over OpenAI's API until Ctrl-C; requests choose one by its name.

    Args:
        models: Digests (or their beginnings), stages (of the latest run, or RUN/STAGE), aliases in
            MLflow (@best, NAME@best), HF folders, ORG/NAME or hf:ORG/NAME@REVISION of a hub, GGUF
            files; NAME=MODEL names one.
        port: Where to listen.
        host: Which address to listen on.
        api_key_from: Environment variable with the key that requests must carry; by default it is
            what the file `key` in the home says.
        tool_parser: SGLang's parser of tool calls; none: no parsing; default: by the chat template.
        reasoning_parser: SGLang's parser of thinking; none: no parsing; default: by the template.
        servers: How many servers each model gets.
        tp: How many devices each server gets.
        sglang: SGLang server arguments as NAME=VALUE, e.g. context_length=8192.
    """
    from flows.command.models.serve import ServeOptions
    from flows.command.models.serve import serve as run

    options = ServeOptions(
        host, port, api_key_from, tool_parser, reasoning_parser, servers, tp, sglang or [], root
    )
    return run(models, options, console)


@app.command(
    help_epilogue=examples("chat agent-rl", "chat @best --thinking", "chat ./model < questions.txt")
)
def chat(
    model: str,
    /,
    *,
    system: str = "",
    temperature: float = 0.7,
    max_tokens: int | None = None,
    thinking: Switch = False,
    root: Root = "",
) -> int:
    """Converse with a model; through a pipe, each line is a message and only answers are printed.

    Args:
        model: As for `serve`.
        system: A system message.
        temperature: Of sampling; 0 always takes the likeliest token.
        max_tokens: Longest answer; default: what the context has room for, at most 512.
        thinking: Let the model think first; one whose template always opens a thought always does.
    """
    from flows.command.models.chat_command import ChatOptions
    from flows.command.models.chat_command import chat as run

    return run(model, ChatOptions(system, temperature, max_tokens, thinking), root, console)


@app.command(
    help_epilogue=examples("export agent-rl ./agent", "export @best ./best --license apache-2.0")
)
def export(model: str, folder: str, /, *, license: str = "", root: Root = "") -> int:
    """Write a model as an HF folder with its card and its lineage. Overwrites nothing.

    Args:
        model: As for `serve`.
        folder: Where to; made if missing, must be empty.
        license: What the card states, e.g. apache-2.0; default: the base model's, if it is known.
    """
    from flows.command.models.export import export as run

    return run(model, folder, license, root, console)


@app.command(
    help_epilogue=examples(
        "push @best s3://bucket/models/best", "push agent-rl hf:my-org/agent --public"
    )
)
def push(
    model: str, to: str, /, *, license: str = "", public: Switch = False, root: Root = ""
) -> int:
    """Export a model to a bucket or to a hub (HF_ENDPOINT, HF_TOKEN).

    Args:
        model: As for `serve`.
        to: An empty prefix such as s3://BUCKET/PREFIX, or hf:ORG/NAME[@BRANCH]: one more commit.
        license: As for `export`.
        public: Let everybody see a repository that this creates; it is private otherwise.
    """
    from flows.command.models.export import push as run

    return run(model, to, license, public, root, console)


@app.command(
    help_epilogue=examples(
        "convert ./model ./megatron", "convert ./megatron ./model --like hf:Qwen/Qwen3-0.6B"
    )
)
def convert(source: str, folder: str, /, *, like: str = "", root: Root = "") -> int:
    """Convert a model from HF to Megatron's dist_checkpointing or back, and compare logits.

    Args:
        source: As for `serve`, or a dist_checkpointing folder.
        folder: Where to; made if missing, must be empty.
        like: A model with the configuration and tokenizer, for a dist_checkpointing folder that has
            none beside it.
    """
    from flows.command.models.export import convert as run

    return run(source, folder, like, root, console)


@app.command(
    help_epilogue=examples("align agent-rl", "align hf:Qwen/Qwen3-0.6B --dtype bf16 --json")
)
def align(
    model: str,
    /,
    *,
    dtype: Literal["fp32", "bf16"] = "fp32",
    tokens: int = 32,
    root: Root = "",
    json: Json = False,
) -> int:
    """Run a model in the trainer, in SGLang and in transformers, and name what first differs.

    All get the same random tokens, each on one device. Exit code 1 if a module's output differs by
    more than the type's rounding explains: 1e-4 in fp32, 0.1 in bf16.

    Args:
        model: As for `serve`.
        dtype: Type of weights and sums.
        tokens: How many tokens; more than a sliding window has, to see its mask.
    """
    from flows.command.models.export import align as run

    return run(model, dtype, tokens, root, json, console)


@artifacts_app.command(help_epilogue=examples("artifacts gc", "artifacts gc --keep-runs 1 --yes"))
def gc(*, keep_runs: int = 3, yes: Switch = False, json: Json = False, root: str = "") -> int:
    """Show which artifacts nothing needs and what they would free; with --yes, delete them.

    Kept are those of running runs, of the newest runs of each recipe, of aliases in MLflow, pinned
    ones, and all that is younger than an hour.

    Args:
        keep_runs: How many runs of each recipe keep their artifacts and their report.
        yes: Delete.
        root: The store; default: the latest run's.
    """
    from flows.command.models.collect import collect

    return collect(keep_runs, yes, json, root, console)


@artifacts_app.command(help_epilogue=examples("artifacts pin agent-rl --note paper"))
def pin(artifact: str, /, *, note: str = "", root: Root = "") -> int:
    """Keep an artifact whatever `gc` finds.

    Args:
        artifact: A digest (or its beginning), a stage, or an alias.
        note: Why.
    """
    from flows.command.models.collect import pin as run

    return run(artifact, note, root, console)


@artifacts_app.command(help_epilogue=examples("artifacts unpin agent-rl"))
def unpin(artifact: str, /, *, root: Root = "") -> int:
    """Let `gc` delete an artifact that nothing else needs.

    Args:
        artifact: A digest (or its beginning), a stage, or an alias.
    """
    from flows.command.models.collect import unpin as run

    return run(artifact, root, console)


Addresses = Annotated[list[str], Parameter(negative=(), consume_multiple=True)]
Way = Literal["auto", "broadcast", "disk"]


@app.command(
    help_epilogue=examples(
        "publish agent-rl --to http://10.0.0.7:30000",
        "publish ./model --to http://host:8000 --by disk --json",
    )
)
def publish(
    model: str, /, *, to: Addresses, by: Way = "auto", root: Root = "", json: Json = False
) -> int:
    """Push a model's weights to running SGLang servers of others, all or none.

    Their key, if they ask for one, comes from the environment variable EXTERNAL_FLEET_KEY.

    Args:
        model: A model folder, a digest (or its beginning), or a stage as RUN/STAGE.
        to: Addresses of servers, or of a router that knows them: http://HOST:PORT
        by: How weights travel. auto: broadcast, and disk where that does not work. disk: the
            servers read the folder themselves, under this very path.
    """
    from flows.command.models.export import publish_model

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
            reference, turns, components.
        domains: The domains that a data source picks from.
        curriculum: Whose problems and demonstrations a driver or a reward is tried on, e.g.
            `file.py:Class`; default: that of a recipe in its folder that names it, or the one in
            its own file, if there is just one, else `reasoning`.
    """
    from flows.command.hook_commands import show_hook

    return show_hook(path, kind, options, needs, domains, curriculum, json, console)


@app.command(
    help_epilogue=examples(
        "judge-check letters.yaml pairs.jsonl",
        "judge-check letters.yaml pairs.jsonl --reward letters/clear",
        "judge-check a.yaml p.jsonl --at http://127.0.0.1:8000/v1 --model m",
    )
)
def judge_check(
    recipe: str,
    /,
    *files: str,
    reward: str = "",
    at: str = "",
    model: str = "",
    api_key_from: str = "",
    rows: int = 50,
    columns: Several = None,
    own: str = "",
    both_orders: bool = False,
    json: Json = False,
) -> int:
    """Show how far a recipe's judge can be trusted: on pairs of a better and a worse answer.

    It judges both answers, and the worse one with padding and with a request for the highest score:
    four calls a pair and vote. Exit code 1 if it may be guessing.

    Args:
        recipe: A YAML file, or the name of a recipe.
        files: JSONL, JSON, CSV or Parquet files of pairs or ranked lists, as for `preview`.
        reward: Which judge, as EXPERT/REWARD; needed where the recipe has several.
        at: Where a served judge is reached, e.g. by `tributary serve`: http://127.0.0.1:8000/v1.
        model: What that address calls the judge.
        api_key_from: Environment variable with the key of that address; on this machine the default
            is the home's, which `tributary serve` asks for.
        rows: How many rows to ask about, from the first on.
        columns: Names of the columns, e.g. chosen=good rejected=bad.
        own: What rows call the judge's model; the default is its name in the recipe.
        both_orders: Ask for the better of both side by side, too: two more calls a pair.
    """
    from flows.command.models.judge_check import JudgeAddress, check_judge

    address = JudgeAddress(at, model, api_key_from)
    how = (rows, columns or [], own, both_orders, json)
    return check_judge(recipe, files, reward, address, *how, console)


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
        recipe: A YAML file, or the name of a shipped or saved recipe.
        domain: One of the recipe's domains; needed where it has several that can be tried.
        split: Whose problems.
        count: How many problems.
        seed: Which problems.
        to: A file for all findings: one JSON object a line, with `id`, `admitted` and `reasons`.
    """
    from flows.command.admit import show_admission

    return show_admission(recipe, domain, split, count, seed, to, json, console)


@fleet_app.command(
    help_epilogue=examples("fleet up topology.yaml", "fleet up topology.yaml --on 10.0.0.2")
)
def up(topology: str, /, *, on: str = "", root: str = "") -> int:
    """Serve the models of a topology file over OpenAI's API until Ctrl-C.

    Args:
        topology: A YAML file with fleets, and with the hosts that they lie on if there are several.
        on: This host's address in the file; default: the first host, which has the routers.
        root: The store to look for models in; default: the latest run's.
    """
    from flows.command.models.serve import up as run

    return run(topology, on, root, console)


@fleet_app.command(help_epilogue=examples("fleet check topology.yaml"))
def check(topology: str, /, *, json: Json = False) -> int:
    """Show on which devices the servers of a topology file would lie, or why they cannot.

    Args:
        topology: A YAML file, as for `fleet up`.
    """
    from flows.command.models.serve import check as run

    return run(topology, json, console)
