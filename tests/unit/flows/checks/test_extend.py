"""A recipe that extends another."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from flows.load import load_recipe
from flows.recipe import Recipe
from infra.errors import InputError
from tasks.rl.spec import RlSettings
from tests.parts.recipe_parts import settings_of

pytestmark = pytest.mark.unit

HEAD = "extends: cpu-smoke\nname: x\n"


def write(folder: Path, text: str, name: str = "mine") -> str:
    file = folder / f"{name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(textwrap.dedent(text))
    return str(file)


def extended(folder: Path, text: str, *changes: str) -> Recipe:
    return load_recipe(
        write(folder, f"extends: cpu-smoke\nname: mine\n{textwrap.dedent(text)}"), changes
    )


def test_what_is_not_written_is_as_in_the_other(tmp_path: Path) -> None:
    other = load_recipe("cpu-smoke").model_dump()
    assert extended(tmp_path, "seed: 3").model_dump() == other | {"name": "mine", "seed": 3}


def test_mappings_merge_however_deep(tmp_path: Path) -> None:
    made = extended(
        tmp_path, "base: {random: {layers: 3}}\nresources: {stages: {evaluate: {servers: 1}}}"
    )
    other = load_recipe("cpu-smoke")
    assert made.base.random is not None
    assert other.base.random is not None
    assert made.base.random == other.base.random.model_copy(update={"layers": 3})
    assert made.resources.stages["evaluate"].servers == 1
    assert made.resources.stages["evaluate"].trainer.dp == 2


def test_a_path_is_replaced_whole_or_changed_by_kind_or_position(tmp_path: Path) -> None:
    whole = "experts: {agent: {path: [{rl: {steps: 1, optimizer: {lr: 0.1}}}]}}"
    assert [s.kind for s in extended(tmp_path, whole).experts["agent"].path] == ["rl"]
    for key in ("rl", "1: {rl"):
        end = "}" if key != "rl" else ""
        changed = f"experts: {{agent: {{path: {{{key}: {{steps: 7}}{end}}}}}}}"
        made = extended(tmp_path, changed).experts
        assert [s.kind for s in made["agent"].path] == ["sft", "rl"]
        settings = settings_of(made["agent"].path, RlSettings)
        assert (settings.steps, settings.problems_per_step) == (7, 4)
        assert settings_of(made["general"].path, RlSettings).steps == 2


def test_null_takes_out_what_the_other_has(tmp_path: Path) -> None:
    made = extended(tmp_path, "experts: {general: null}\nunified: null")
    assert list(made.experts) == ["reasoning", "agent"]
    assert made.unified is None


def test_a_change_on_the_command_line_comes_last(tmp_path: Path) -> None:
    assert extended(tmp_path, "seed: 3", "seed=4", "experts.agent.path.rl.steps=9").seed == 4


def test_a_chain_of_files_is_relative_to_each_of_them(tmp_path: Path) -> None:
    write(tmp_path, "extends: cpu-smoke\nname: a\nhooks: [one.py]\ndata: [x.txt]", "lib/a")
    write(
        tmp_path,
        "extends: lib/a.yaml\nname: b\nhooks: [two.py]\nbase: {random: null, folder: m}",
        "b",
    )
    made = load_recipe(write(tmp_path, "extends: ../b.yaml\nname: c", "sub/c"))
    assert made.hooks == [str(tmp_path / "lib/one.py"), str(tmp_path / "two.py")]
    assert made.data == [str(tmp_path / "lib/x.txt")]
    assert made.base.folder == str(tmp_path / "m")


@pytest.mark.parametrize(
    ("root", "place"),
    [
        ("store", "file://{here}/sub/store"),
        ("file://../store", "file://{here}/store"),
        ("/data/store", "/data/store"),
        ("~/store", "~/store"),
        ("$SCRATCH/store", "$SCRATCH/store"),
        ("file://$TRIBUTARY_HOME/store", "file://$TRIBUTARY_HOME/store"),
        ("s3://bucket/prefix", "s3://bucket/prefix"),
    ],
)
def test_a_store_is_relative_to_the_recipe_and_not_to_the_process_that_opens_it(
    tmp_path: Path, root: str, place: str
) -> None:
    text = f'extends: cpu-smoke\nname: a\nstorage: {{root: "{root}"}}'
    assert load_recipe(write(tmp_path, text, "sub/a")).storage.root == place.format(here=tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("extends: cpu-dmeo\nname: x", "extends: no recipe `cpu-dmeo`.*did you mean `cpu-demo`"),
        ("extends: [a, b]\nname: x", r"extends: give one file or one shipped recipe, not \["),
        ("extends: mine.yaml\nname: x", "no recipe can extend itself: .*mine.yaml extends .*mine"),
        ("extends: other.yaml\nname: x", "no recipe can extend itself: .*other.yaml ext"),
        ("extends: cpu-smoke", "name: is missing"),
        ("extends: cpu-smoke\nname: x\nseeed: 1", r"seeed: unknown field; did you mean `seed`\?$"),
        ("extends: wrong.yaml\nname: x", r"seeed: unknown field.*\(in .*wrong.yaml\)"),
        ("extends: wrong.yaml\nname: x", r"path.1.rl.stepz: unknown field.*\(in .*wrong.yaml\)"),
        (f"{HEAD}experts: {{agent: {{path: {{opd: {{}}}}}}}}", "mine.yaml: experts.agent.*opd"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_file(tmp_path: Path, text: str, said: str) -> None:
    write(tmp_path, "extends: mine.yaml\nname: y", "other")
    wrong = "extends: cpu-smoke\nname: z\nseeed: 1\nexperts: {agent: {path: {rl: {stepz: 1}}}}"
    write(tmp_path, wrong, "wrong")
    with pytest.raises(InputError, match=f"(?s){said}"):
        load_recipe(write(tmp_path, text))
