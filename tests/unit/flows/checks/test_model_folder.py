"""Model folders: what `tributary check` refuses before anything runs, and what it only mentions."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import fsspec
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from flows.checks.recipe_checks import cautions, check_recipe
from flows.load import load_recipe
from flows.post_train import plan_post_train
from flows.recipe import Recipe
from infra.errors import InputError
from infra.home import SOURCE_ROOT
from tasks.model_folder.folder_report import report_model
from tests.parts.chat_parts import LLAMA_TOKENS, NOT_A_PREFIX, chat_folder, random_base
from tests.parts.recipe_parts import unreachable_s3

pytestmark = pytest.mark.unit

Break = Callable[[Path], object]
ROTARY = "model.layers.0.self_attn.rotary_emb.inv_freq"
EMBEDDING, NORM = "model.embed_tokens.weight", "model.norm.weight"
_ONE_SCREEN = 24
_WHOLE = ("tokenizer.json", "config.json", "tokenizer_config.json", "generation_config.json")


def _json(file: str, **changes: Any) -> Break:
    """Fields set, or taken out where the value is `...`."""

    def change(folder: Path) -> None:
        path = folder / file
        content = json.loads(path.read_text()) | changes
        kept = {key: value for key, value in content.items() if value is not ...}
        path.write_text(json.dumps(kept))

    return change


def _config(**changes: Any) -> Break:
    return _json("config.json", **changes)


def _text(file: str, text: str | bytes) -> Break:
    data = text.encode() if isinstance(text, str) else text
    return lambda folder: (folder / file).write_bytes(data)


def _gone(*files: str) -> Break:
    return lambda folder: [(folder / file).unlink() for file in files]


def _weights(**changes: np.ndarray | None) -> Break:
    """Tensors put in, in another's place, or taken out; `__` stands for a dot."""

    def change(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        for name, value in changes.items():
            weights.pop(name.replace("__", "."), None)
            if value is not None:
                weights[name.replace("__", ".")] = value
        save_file(weights, folder / "model.safetensors")

    return change


def _all(*breaks: Break) -> Break:
    return lambda folder: [each(folder) for each in breaks]


def _cut(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def _sharded(folder: Path) -> None:
    """The weights in two files with an index."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    file_of = {name: f"model-{1 + (name == NORM)}-of-2.safetensors" for name in weights}
    for file in set(file_of.values()):
        save_file({n: w for n, w in weights.items() if file_of[n] == file}, folder / file)
    index = {"metadata": {}, "weight_map": file_of}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _other_shard(folder: Path) -> None:
    save_file({"other": np.ones(2, np.float32)}, folder / "model-2-of-2.safetensors")


def _pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def _huge(file: str) -> Break:
    return lambda folder: os.truncate(folder / file, 2 << 30)  # no disk holds them


def _nested(folder: Path) -> None:
    header = b"[" * 500_000
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)


def _header(more: str = "", **changes: Any) -> Break:
    """The head of the weights' file says something else of one tensor, and `more` at its end."""

    def change(folder: Path) -> None:
        file = folder / "model.safetensors"
        content = file.read_bytes()
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        header[NORM] |= changes
        text = f"{json.dumps(header)[:-1]}{more}}}".encode()
        file.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])

    return change


def _link(name: str) -> Break:
    """A file of the folder is a link to one of its reader's."""

    def change(folder: Path) -> None:
        (folder.parent / "secret").write_text("{}")
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to("../secret")

    return change


def _emptied(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def _a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("not a folder")


def _rewriting_template(folder: Path) -> None:
    """One whose earlier turns change, with its own tokenizer."""
    other = chat_folder(folder / "other", NOT_A_PREFIX, LLAMA_TOKENS, "<|eot|>")
    (folder / "chat_template.jinja").unlink()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((other / name).read_bytes())


def _smaller_embedding(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights[EMBEDDING] = weights[EMBEDDING][:300].copy()
    save_file(weights, folder / "model.safetensors")
    _config(vocab_size=300)(folder)


OTHER_ROPE = {"rope_type": "dynamic", "factor": 2.0}
LLAMA3_ROPE = {"rope_type": "llama3", "factor": 8.0}
FP8 = {"quant_method": "fp8"}
OUTPUT = np.full((512, 32), 0.5, np.float32)
MISMATCHED = _all(_weights(lm_head__weight=OUTPUT), _config(tie_word_embeddings=True))
POINTER = "version https://git-lfs.github.com/spec/v1"
DOUBLES = {"type": "Replace", "pattern": {"Regex": "."}, "content": "xx"}
DOUBLED = {"type": "Sequence", "normalizers": [DOUBLES] * 40}
BROKEN_MAP = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
UP_PROJECTION = {"model__layers__0__mlp__up_proj__weight": np.ones((32, 32), np.int8)}

BROKEN: dict[str, tuple[Break, str]] = {
    **{f"huge {name}": (_huge(name), f"{name}: has 2147483648 bytes") for name in _WHOLE},
    **{f"nested {name}": (_text(name, '{"a":' * 200_000), f"{name}: ") for name in _WHOLE},
    "nested header": (_nested, "is no safetensors file, or its header is damaged"),
    "endless layers": (_config(num_hidden_layers=10**9), "describes 1000000000 layers"),
    "architectures a number": (_config(architectures=5), "architectures is 5; Qwen3ForC"),
    "endless size": (_header(shape=[float("inf")]), "its header is damaged"),
    "place before the file": (_header(data_offsets=[-128, 0]), "its header is damaged"),
    "text that doubles": (_json("tokenizer.json", normalizer=DOUBLED), "its normalizer makes more"),
    "a long prefix": (
        _json("tokenizer.json", normalizer={"type": "Prepend", "prepend": "x" * 999}),
        "its normalizer makes more than 100 characters of one",
    ),
    "tokenizer panics": (_json("tokenizer.json", normalizer=BROKEN_MAP), "contains no valid tok"),
    **{
        f"link to a secret: {name}": (_link(name), f"{name}: is a link that leads out of the fold")
        for name in ("LICENSE", "README.md", "words.txt", "config.json", "credentials.json")
    },
    "no folder": (shutil.rmtree, "is missing; give a folder with config.json"),
    "empty folder": (_emptied, "is empty; give a folder with"),
    "a file": (_a_file, "is a file; give a folder with"),
    "no config": (_gone("config.json"), "config.json: is missing"),
    "config cut off": (_text("config.json", '{"model_type": '), "config.json: is not valid JSON"),
    "config not UTF-8": (_text("config.json", b"{\xff}"), "config.json: is not valid JSON"),
    "config a list": (_text("config.json", "[]"), "config.json: must hold a JSON object"),
    "other family": (_config(model_type="gpt2"), "model_type 'gpt2' is not supported"),
    "no family": (_config(model_type=...), "model_type None is not supported"),
    "classifier": (_config(architectures=["Qwen3ForTokenClassification"]), "Qwen3ForCausalLM is e"),
    "no width": (_config(hidden_size=...), "hidden_size must be a positive integer, got None"),
    "layers as text": (_config(num_hidden_layers="1"), "num_hidden_layers must be a positive int"),
    "NaN": (_config(rms_norm_eps=float("nan")), "rms_norm_eps must be a finite number above 0"),
    "endless rope": (_config(rope_parameters={"rope_theta": float("inf")}), "rope_theta must be a"),
    "heads": (_config(num_attention_heads=3, num_key_value_heads=2), "(2) must divide num_att"),
    "head size": (_config(head_dim=15), "head_dim must be even"),
    "windows": (_config(use_sliding_window=True), "sliding-window attention is not supported"),
    "rope scaling": (_config(rope_parameters=OTHER_ROPE), "rope type 'dynamic' is not supported"),
    "rope half said": (_config(rope_parameters=LLAMA3_ROPE), "'llama3' lacks low_freq_factor"),
    "rope said twice": (_config(rope_scaling=LLAMA3_ROPE), "write all in rope_parameters"),
    "rope a number": (_config(rope_scaling=2), "rope_scaling must be an object, got 2"),
    "quantised": (_config(quantization_config=FP8), "quantization_config is set (fp8)"),
    "other activation": (_config(hidden_act="gelu"), "hidden_act 'gelu' is not supported"),
    "no tokenizer": (_gone("tokenizer.json"), "tokenizer.json: is missing; a model folder needs"),
    "tokenizer cut off": (_text("tokenizer.json", '{"model": '), "tokenizer.json: contains no"),
    "tokenizer settings": (_text("tokenizer_config.json", "[1]"), "must hold a JSON object"),
    "larger tokenizer": (_smaller_embedding, "config.json has vocab_size 300"),
    "no template": (_gone("chat_template.jinja"), "chat_template.jinja: is missing"),
    "template's syntax": (_text("chat_template.jinja", "{% for %}"), "does not compile: line 1"),
    "template not UTF-8": (_text("chat_template.jinja", b"\xff."), "is not UTF-8 text"),
    "template fails": (
        _text("chat_template.jinja", "{{ messages[0].content.nothing() }}"),
        "the chat template cannot render the turns (user)",
    ),
    "template divides": (_text("chat_template.jinja", "{{ 1 / 0 }}"), "division by zero"),
    "template is mute": (_text("chat_template.jinja", "hello"), "drops the turn's text"),
    "template rewrites": (_rewriting_template, "does not keep the prefix"),
    "unknown end": (_json("generation_config.json", eos_token_id=9999), "9999 is not in"),
    "end as text": (_json("generation_config.json", eos_token_id="</s>"), "must be a token id or"),
    "no end": (
        _all(
            _json("generation_config.json", eos_token_id=...),
            _config(eos_token_id=...),
            _json("tokenizer_config.json", eos_token=...),
        ),
        "generation_config.json: names no end token",
    ),
    "no weights": (_gone("model.safetensors"), "model.safetensors: is missing"),
    "pickled weights": (_pickled, "pytorch_model.bin is not read, as only safetensors are"),
    "weights cut short": (_cut, "model.safetensors: is cut short within model."),
    "weights are text": (_text("model.safetensors", "see the hub"), "model.safetensors: is text"),
    "weights are a pointer": (_text("model.safetensors", POINTER), "run `git lfs pull`"),
    "tokenizer is a pointer": (_text("tokenizer.json", POINTER), "tokenizer.json: is not there"),
    "a pipe": (lambda folder: os.mkfifo(folder / "words.txt"), "words.txt: is no file; remove it"),
    "config is a page": (_text("config.json", "<!doctype html>"), "config.json: is a web page"),
    "overlap": (_header(data_offsets=[0, 128]), f"{EMBEDDING} lies over {NORM}: it begins"),
    "a gap": (_header(data_offsets=[90500, 90628]), f"{NORM} leaves a gap after model.layers.0."),
    "beyond": (_header(shape=[64], data_offsets=[90496, 90752]), f"cut short within {NORM}"),
    "a tensor twice": (_header(f', "{NORM}": 1'), f"damaged: the key '{NORM}' stands twice"),
    "axes without end": (_header(shape=[9] * 100_000), "its header is damaged"),
    "weights are empty": (_text("model.safetensors", ""), "is no safetensors file"),
    "missing tensor": (_weights(model__norm__weight=None), "lacks 1 tensor (model.norm.weight)"),
    "more layers": (_config(num_hidden_layers=2), "lacks 11 tensors (model.layers.1"),
    "surplus tensor": (_weights(score__weight=np.ones(2)), "holds 1 tensor (score.weight)"),
    "wrong shape": (
        _weights(model__norm__weight=np.ones(7, np.float32)),
        "model.norm.weight has shape 7, but config.json says 32",
    ),
    "whole numbers": (_weights(**UP_PROJECTION), "in type I8; weights must be F32, BF16 or F16"),
    "not tied": (_config(tie_word_embeddings=False), "set tie_word_embeddings: true"),
    "tied to another": (MISMATCHED, "lm_head.weight differs from model.embed_tokens.weight"),
    "missing file": (
        _all(_sharded, _gone("model-2-of-2.safetensors")),
        "names model-2-of-2.safetensors, missing 1 of 2 files",
    ),
    "other file": (_all(_sharded, _other_shard), "holds model.norm.weight, which it does not"),
    "no index": (
        _all(_sharded, _gone("model.safetensors.index.json")),
        "model.safetensors.index.json: is missing",
    ),
    "no map": (_all(_sharded, _text("model.safetensors.index.json", "{}")), "no `weight_map`"),
}  # fmt: skip


@contextmanager
def _as_nobody() -> Generator[None]:
    """Not as root, who may read everything."""
    was_root = os.geteuid() == 0
    if was_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if was_root:
            os.seteuid(0)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_base(tmp_path_factory.mktemp("good") / "base")


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    """A copy of the good folder, to be broken."""
    return shutil.copytree(good, tmp_path / "model")


def _recipe(folder: Path | str) -> Recipe:
    """With one expert, as each case renders what its domain asks."""
    domain = "{curriculum: {name: reasoning}, rewards: [{name: math, outcome: true}]}"
    expert = f"{{domain: {domain}, path: [{{sft: {{steps: 9, optimizer: {{lr: 1e-3}}}}}}]}}"
    changes = [f"experts={{sums: {expert}}}", "unified=null", "resources.stages={}"]
    return load_recipe("cpu-smoke", [f"base={{folder: '{folder}'}}", *changes])


def _refusal(folder: Path | str) -> str:
    recipe = _recipe(folder)
    with pytest.raises(InputError) as caught:
        check_recipe(recipe, plan_post_train(recipe))
    return str(caught.value)


def test_a_good_folder_is_accepted_and_nothing_is_said_of_it(folder: Path) -> None:
    recipe = _recipe(folder)
    plan = plan_post_train(recipe)
    check_recipe(recipe, plan)
    assert [line for line in cautions(recipe, plan) if line.startswith("base.folder")] == []


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_folder_is_refused_with_its_cause_in_one_screen(name: str, folder: Path) -> None:
    breaks, said = BROKEN[name]
    breaks(folder)
    refusal = _refusal(folder)
    assert said in refusal
    assert f"base.folder: {folder}" in refusal
    assert len(refusal.splitlines()) <= 6
    assert sum(1 + len(line) // 80 for line in refusal.splitlines()) <= _ONE_SCREEN
    for internal in ("Traceback", "site-packages", str(SOURCE_ROOT), "Error("):
        assert internal not in refusal


def test_what_this_user_may_not_read_is_refused(good: Path) -> None:
    place = Path(mkdtemp())  # pytest's own folders let nobody else in
    place.chmod(0o755)
    try:
        folder = shutil.copytree(good, place / "model")
        (folder / "model.safetensors").chmod(0)
        (folder / "tokenizer.json").chmod(0)
        with _as_nobody():
            problems = " ".join(report_model(str(folder)).problems)
            assert "model.safetensors: cannot be read: Permission denied" in problems
            assert "tokenizer.json: cannot be read: Permission denied" in problems
        folder.chmod(0)
        with _as_nobody():
            assert "cannot be read: Permission denied" in report_model(str(folder)).problems[0]
    finally:
        shutil.rmtree(place)


def test_a_kind_of_store_that_is_not_known_is_refused() -> None:
    assert "base.folder: s4://bucket/model cannot be opened" in _refusal("s4://bucket/model")


def test_a_folder_out_of_reach_is_left_to_its_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    unreachable_s3(monkeypatch)
    recipe = _recipe("s3://bucket/out-of-reach")
    plan = plan_post_train(recipe)
    check_recipe(recipe, plan)
    (told,) = [line for line in cautions(recipe, plan) if line.startswith("base.folder")]
    assert "is checked when its stage starts" in told
    assert "Check the network and AWS_ENDPOINT_URL" in told


def test_a_folder_far_away_is_read_by_ranges(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever stands in for S3: names, sizes, headers and the small files are enough."""
    _sharded(folder := shutil.copytree(good, tmp_path / "model"))
    far = fsspec.filesystem("memory")
    far.put(str(folder), "/far/model", recursive=True)
    fetched: list[str] = []
    read = type(far).cat_file

    def noted(self: Any, path: str, *range: Any, **more: Any) -> bytes:
        fetched.append(path)
        return read(self, path, *range, **more)

    monkeypatch.setattr(type(far), "cat_file", noted)
    assert report_model("memory://far/model").problems == ()
    assert sum(path.endswith(".safetensors") for path in fetched) == 2
    (folder / "chat_template.jinja").write_text("{{ nothing.at.all }}")
    far.put(str(folder / "chat_template.jinja"), "/far/model/chat_template.jinja")
    (told,) = report_model("memory://far/model").problems
    assert told.startswith("memory://far/model/chat_template.jinja: the chat template cannot")


def test_tables_of_rotary_angles_are_mentioned_once_and_no_more(folder: Path) -> None:
    table = np.ones(8, np.float32)
    _weights(**{ROTARY.replace(".", "__"): table, "model__rotary_emb__inv_freq": table})(folder)
    recipe = _recipe(folder)
    plan = plan_post_train(recipe)
    check_recipe(recipe, plan)
    (told,) = [line for line in cautions(recipe, plan) if line.startswith("base.folder")]
    assert "2 tensors" in told
    assert ROTARY in told
