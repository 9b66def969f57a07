"""The base: a random model that transformers would have written, and what an import refuses."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

import infra.home as home_module
from curricula.built_in_curricula import build
from curricula.vocabulary import LEXICON, PHRASES
from engines.chat import Chat
from infra.errors import InputError
from tasks.base.body import run
from tasks.base.import_folder import import_model
from tasks.base.random_model import write_random_model
from tasks.base.spec import BaseSpec, RandomModel
from tasks.model_folder.folder_report import report_model
from tests.parts.chat_parts import random_base
from tests.parts.stage_parts import stage_context

pytestmark = pytest.mark.unit

SMALL = {"hidden_size": 32, "layers": 2, "heads": 2, "kv_heads": 1, "head_dim": 16, "ffn_size": 48}
CURRICULA = ("reasoning", "agent", "general")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's own base, from fewer texts."""
    spec = BaseSpec.model_validate(
        {
            "settings": {"random": {"tokenizer_texts": 300}},
            "curricula": [{"name": name, "options": {"noise": 0.3}} for name in CURRICULA],
        }
    )
    context = stage_context(tmp_path_factory.mktemp("base"), "base", {})
    metrics = asyncio.run(run(spec, context))
    assert metrics["parameters"] == 656_768
    assert metrics["vocabulary"] <= 512
    return context.out


def test_every_word_of_the_lexicon_and_every_phrase_is_one_token(base: Path):
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
    for text in (*LEXICON, *PHRASES, "search", "color", "owner"):
        assert len(tokenizer.encode(text).ids) == 1, text


def test_digits_and_counted_letters_stand_alone(base: Path):
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
    assert tokenizer.encode("97+30").tokens == ["9", "7", "+", "3", "0"]
    assert tokenizer.encode("XXYZ").tokens == ["X", "X", "Y", "Z"]


def test_demonstrations_of_every_curriculum_are_short_and_read_back_as_they_were(base: Path):
    chat = Chat.load(base)
    for name in CURRICULA:
        for shown in build(name, {}).demonstrations(20, seed=1):
            tokens, mask = chat.training_ids(shown.problem, shown.turns)
            assert len(tokens) < 64
            last = max(i for i, m in enumerate(mask) if not m) + 1
            assert chat.parse(shown.problem, tokens[last:]).message() == shown.turns[-1]


def test_the_same_spec_gives_the_same_bytes_and_another_seed_other_weights(tmp_path: Path):
    def digest(name: str, seed: int) -> dict[str, str]:
        folder = tmp_path / name
        folder.mkdir()
        demonstrations = build("reasoning", {}).demonstrations(50, seed=0)
        write_random_model(folder, RandomModel(**SMALL), list(demonstrations), seed)
        return {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in folder.iterdir()}

    one, two, other = digest("one", 0), digest("two", 0), digest("other", 1)
    assert one == two
    assert [name for name in one if one[name] != other[name]] == ["model.safetensors"]


def test_weights_start_at_the_scale_that_lets_copying_form(base: Path):
    weights = load_file(base / "model.safetensors")
    at = "model.layers.0"
    for name, std in (
        ("model.embed_tokens.weight", 0.2),
        (f"{at}.self_attn.q_proj.weight", 128**-0.5),
        (f"{at}.mlp.gate_proj.weight", 128**-0.5),
        (f"{at}.self_attn.o_proj.weight", 0.1 * 128**-0.5),
        (f"{at}.mlp.down_proj.weight", 0.1 * 256**-0.5),
    ):
        assert np.std(weights[name]) == pytest.approx(std, rel=0.03), name


def test_a_vocabulary_too_small_for_bytes_and_phrases_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match=r"vocab_size is 256.*need 2\d\d"):
        write_random_model(tmp_path, RandomModel(**SMALL, vocab_size=256), [], seed=0)


def test_an_import_is_a_copy_that_leaves_other_formats_behind_and_never_fills_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    source, target = random_base(tmp_path / "source"), tmp_path / "target"
    (source / "pytorch_model.bin").write_bytes(b"x")
    target.mkdir()
    metrics = import_model(source.as_uri(), target)
    assert metrics["parameters"] > 0
    names = {f.name for f in source.iterdir()} - {"pytorch_model.bin"}
    assert {f.name for f in target.iterdir()} == names
    monkeypatch.setattr(home_module, "_MOST_SHARE", 1e-9)
    with pytest.raises(InputError, match=r"base.folder: file:///.* has more than .* GB"):
        import_model(source.as_uri(), target)


NORM = "model.norm.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return random_base(tmp_path / "model")


def test_an_import_brings_what_the_model_needs_and_nothing_else(
    folder: Path, tmp_path: Path
) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"x")
    save_file({"lora": np.ones(2, np.float32)}, folder / "adapter_model.safetensors")
    (copy := tmp_path / "copy").mkdir()
    assert import_model(folder.as_uri(), copy)["parameters"] > 0
    names = {file.name for file in folder.iterdir()}
    assert {f.name for f in copy.iterdir()} == names - {
        "pytorch_model.bin", "adapter_model.safetensors",
    }  # fmt: skip


def test_links_within_a_folder_or_a_hub_s_cache_and_to_weights_are_followed(
    folder: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "models--a--b"
    made = cache / "snapshots" / ("c" * 40)
    (cache / "blobs").mkdir(parents=True)
    made.mkdir(parents=True)
    for number, file in enumerate(sorted(folder.iterdir())):
        kept = folder if file.suffix == ".safetensors" else cache / "blobs"
        file.rename(kept / str(number))
        (made / file.name).symlink_to(os.path.relpath(kept / str(number), made))
    (made / "LICENSE").symlink_to("config.json")
    for place in (made, tmp_path / "linked"):
        if place != made:
            place.symlink_to(made)
        assert report_model(str(place)).problems == ()


def test_an_import_refuses_what_a_check_refuses(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"base\.folder: .*nowhere is missing"):
        import_model(str(tmp_path / "nowhere"), tmp_path)


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
@pytest.mark.parametrize("kind", ["BF16", "F16", "F32"])
def test_an_import_refuses_weights_that_are_no_numbers(
    folder: Path, tmp_path: Path, value: float, kind: str
) -> None:
    weights = load_file(folder / "model.safetensors")
    _save_as(weights, kind, folder)
    (copy := tmp_path / "copy").mkdir()
    import_model(str(folder), copy)
    weights[NORM][-1] = value
    _save_as(weights, kind, folder)
    assert report_model(str(folder)).problems == ()
    with pytest.raises(InputError, match=r"model\.safetensors: model\.norm\.weight holds NaN"):
        import_model(str(folder), copy)


def _save_as(weights: dict[str, np.ndarray], kind: str, folder: Path) -> None:
    """numpy has no bfloat16: the upper half of a float32's bits."""
    header: dict[str, Any] = {}
    data = b""
    for name, weight in weights.items():
        bits = (weight.view(np.uint32) >> 16).astype("<u2") if kind == "BF16" else weight
        written = bits.astype({"F16": "<f2"}.get(kind, bits.dtype)).tobytes()
        offsets = [len(data), len(data) + len(written)]
        header[name] = {"dtype": kind, "shape": weight.shape, "data_offsets": offsets}
        data += written
    text = json.dumps(header).encode()
    file = folder / "model.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text + data)
