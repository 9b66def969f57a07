"""Every block of YAML, Python, JSON and TOML on the pages is read or run by what it is for."""

from __future__ import annotations

import ast
import json
import re
import runpy
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from pydantic import ValidationError

from curricula.prompt_files.prompt import read_prompt
from curricula.prompt_files.spec import PromptSource
from curricula.rows.conversation import Columns
from curricula.rows.layouts import read_row
from engines.sglang.topology import Topology
from flows.explain import explain
from flows.load import load_recipe, parse_yaml
from flows.path import written_form
from flows.recipe import Expert, Recipe
from flows.reports.report import Report
from infra.config import Config
from infra.errors import InputError
from rewards.constraints.constraints import obeys
from tasks.stage_kinds import PATH_KINDS
from tests.integration.agents.test_real_harnesses import OPENCODE_SETTINGS, QWEN_SETTINGS
from tests.parts.doc_blocks import ROOT, Block, blocks, languages, named, snippets

pytestmark = pytest.mark.unit

LEFT_OUT = {"...": None}
"""how `{...}` reads: settings that the page does not repeat"""
MISSING = ": is missing"


def test_no_block_is_of_a_language_that_nothing_here_reads() -> None:
    prose = {"text"}  # a prompt, read by a model
    assert languages() - prose == {"bash", "python", "yaml", "json", "toml"}


@named(blocks("yaml"))
def test_parts_of_recipes_are_what_recipes_take(block: Block, tmp_path: Path) -> None:
    """Fields that are left out may be missing; what stands there must be right."""
    for text in _variants(block.text):
        written = parse_yaml(text)
        if "extends" in written:
            file = tmp_path / "recipe.yaml"
            file.write_text(text)
            load_recipe(str(file))
            continue
        faults = _least_faults(written)
        assert not faults, f"{block.page}: {faults}\n{text}"


def _variants(text: str) -> Iterator[str]:
    """Lines that write one key at one depth are alternatives: each in a text of its own."""
    lines = text.splitlines()
    keys = [re.match(r"( *)([\w-]+):", line) for line in lines]
    heads = [match[0] if match else "" for match in keys]
    twice = [n for n, head in enumerate(heads) if head and _is_repeated(heads, n)]
    if not twice:
        yield text
    for kept in twice:
        yield "\n".join(line for n, line in enumerate(lines) if n == kept or n not in twice)


def _is_repeated(heads: list[str], n: int) -> bool:
    """Whether a neighbour, with nothing but such lines and comments between, begins alike."""
    near = [heads[m] for m in (n - 1, n + 1) if 0 <= m < len(heads)]
    return heads[n] in near


def _least_faults(written: dict[str, Any]) -> list[str]:
    """As what the fields can be: one model's, or a stage's or an expert's and a recipe's."""
    models = (Recipe, Topology, *map(_settings, PATH_KINDS))
    of_one = [model for model in models if set(written) <= set(model.model_fields)]
    if of_one:
        return min((_faults(model, written) for model in of_one), key=len)
    rest, faults = dict(written), list[str]()
    for key in set(written) & {*PATH_KINDS, *Expert.model_fields}:
        model = written_form(key) if key in PATH_KINDS else Expert
        faults += _faults(model, {key: rest.pop(key)})
    return faults + (_faults(Recipe, rest) if rest else [])


def _settings(kind: str) -> Any:
    return written_form(kind).model_fields[kind].annotation


def _faults(model: type[Config], written: dict[str, Any]) -> list[str]:
    whole = dict(_recipe("cpu-smoke")) if model is Recipe else {}
    if "folder" in written.get("base", {}):
        whole.pop("base", None)  # which is a random one
    try:
        made = model.model_validate(_filled(_merged(whole, written)))
        assert model.model_validate_json(made.model_dump_json()) == made, "kept, then read again"
    except ValidationError as error:
        return [line for line in explain(error, model) if MISSING not in line]
    return []


@cache
def _recipe(name: str) -> dict[str, Any]:
    return load_recipe(name).model_dump(mode="json")


def _merged(old: Any, new: Any) -> Any:
    if isinstance(old, dict) and isinstance(new, dict):
        old, new = cast("dict[str, Any]", old), cast("dict[str, Any]", new)
        if new == LEFT_OUT:
            return old
        keys = [*old, *(key for key in new if key not in old)]
        return {k: _merged(old.get(k), new[k]) if k in new else old[k] for k in keys}
    return new


def _filled(part: Any) -> Any:
    """With a shipped recipe's settings for those of a stage that are left out."""
    if isinstance(part, dict):
        part = cast("dict[str, Any]", part)
        return {k: _shipped(k) if v == LEFT_OUT else _filled(v) for k, v in part.items()}
    return [_filled(each) for each in cast("Any", part)] if isinstance(part, list) else part


def _shipped(kind: str) -> Any:
    for name in ("cpu-smoke", "cpu-demo-opd"):
        recipe = _recipe(name)
        for owner in (*recipe["experts"].values(), recipe["unified"]):
            for stage in owner["path"]:
                if kind in stage:
                    return stage[kind]
    return {}


def test_what_is_wrong_in_a_part_is_found(tmp_path: Path) -> None:
    """Also where other parts are left out."""
    extended = "extends: cpu-demo\nexperts: {agent: {path: {rl: {stepz: 1}}}}"
    for wrong in (
        "rl: {evaluate: {evry: 5}}",
        "experts:\n  reasoning:\n    path:\n      - sft: {...}\n      - rl: {step: 4}",
        "path: [{sft: {...}}, {rollot: {...}}]",
        "domain: {max_new_token: 5}",
        "rl: {algorithm: {preset: gspo}}\nresource: {}",
    ):
        with pytest.raises(AssertionError):
            test_parts_of_recipes_are_what_recipes_take(Block("wrong", wrong), tmp_path)
    with pytest.raises(InputError, match="stepz"):
        test_parts_of_recipes_are_what_recipes_take(Block("wrong", extended), tmp_path)
    assert len(list(_variants("rl:\n  algorithm: {a: 1}\n  algorithm: {b: 1}\nx: 1"))) == 2
    assert yaml.safe_load(next(_variants("path: []\npath: [x]"))) == {"path": []}


_STARTER = re.sub(
    r"^from (my_|__future__).*$", "",
    "\n".join(
        (ROOT / f"flows/starter/my_{part}.py").read_text()
        for part in ("environment", "reward", "domain")
    ),
    flags=re.M,
)  # fmt: skip
_CRITIC = """
from pathlib import Path
import torch
from transformers import AutoModelForTokenClassification
from tests.parts.tiny import tiny_model
artifact, ids = Path("artifact"), torch.tensor([[1, 2, 3]])
tiny_model(artifact / "critic")
"""
_OWN_STAGE = (ROOT / "examples/own_stage/interpolate.py").read_text()
_BEFORE = {
    "add-an-expert.md": _STARTER,
    "tutorial-own-reward.md": _STARTER,
    "algorithms.md": _CRITIC,
    "extend.md": f"{_OWN_STAGE}\n{snippets('extend.md', 'python')[1]}\n",
}
"""what a page takes for granted before its blocks, such as the file that they change"""


_OUTLINE = re.compile(r"(: |^ +)\.\.\.", re.M)
_ASKS = "OpenAI("
"""a block that asks a server: tests/integration/sglang/test_serve.py runs it"""
_PYTHON = [block for block in blocks("python") if _ASKS not in block.text]


@named([block for block in _PYTHON if not _OUTLINE.search(block.text)])
def test_python_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lists").mkdir()
    for name in ("words.txt", "lists/verbs.txt"):
        (tmp_path / name).write_text("ant bee")
    monkeypatch.setenv("TRIBUTARY_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "block.py"
    file.write_text(f"{_BEFORE.get(block.page, '')}\n\n{block.text}")
    runpy.run_path(str(file), run_name="block")


@named([block for block in _PYTHON if _OUTLINE.search(block.text)])
def test_outlines_have_the_signatures_of_what_they_outline(block: Block) -> None:
    """Their bodies are left out: they are compared with the example or contract that has them."""
    outlined = _signatures(block.text)
    assert outlined
    sources = [*(ROOT / "examples").rglob("*.py"), ROOT / "engines/types.py"]
    known = [_signatures(path.read_text()) for path in sources]
    for name, arguments in outlined.items():
        found = [each[_CALLED.get(name, name)] for each in known if _CALLED.get(name, name) in each]
        assert arguments in found, f"{block.page}: {name}{arguments}, and not {found}"


_CALLED = {
    "MyEnvironment.start": "Environment.start",
    "MyEpisode.step": "Episode.step",
    "MyEpisode.close": "Episode.close",
}
"""contracts, by what fulfils them in an outline"""


def _signatures(text: str) -> dict[str, str]:
    """Parameters and results as written, by `Class.method` or `function`."""
    made: dict[str, str] = {}
    for node in ast.parse(text).body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        for each in inside:
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                result = f" -> {ast.unparse(each.returns)}" if each.returns else ""
                made[prefix + each.name] = f"({ast.unparse(each.args)}){result}"
    return made


@named(blocks("json"))
def test_json_is_what_a_command_prints_a_row_of_data_or_a_harness_is_set_to(block: Block) -> None:
    if block.page == "train-your-agent.md":
        settings = json.loads(block.text)
        assert any(_keys(settings) <= _keys(known) for known in (QWEN_SETTINGS, OPENCODE_SETTINGS))
        return
    if block.text.startswith("{\n"):
        assert set(json.loads(block.text)) <= set(Report.model_fields)
        return
    for line in block.text.splitlines():
        row = json.loads(line)
        if "question" in row:
            reference = read_prompt(row, PromptSource(files=["questions.jsonl"])).reference
            assert reference
            assert all(obeys("Tea is good.", c) for c in reference.get("constraints", ()))
        else:
            assert read_row(row, Columns(), "auto").messages[-1].role == "assistant"


def _keys(value: Any, path: str = "") -> set[str]:
    """Of a tree of settings, each with those above it."""
    if not isinstance(value, dict):
        return {path}
    return {path}.union(*(_keys(inner, f"{path}/{key}") for key, inner in value.items()))


@named(blocks("toml"))
def test_toml_is_the_configuration_that_codex_is_tested_with(block: Block) -> None:
    assert tomllib.loads(block.text)
    assert block.text in (ROOT / "tests/integration/agents/test_real_harnesses.py").read_text()
