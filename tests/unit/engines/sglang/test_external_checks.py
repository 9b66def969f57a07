"""Servers of others, as they describe themselves: what is refused before anything is changed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from engines.sglang.external.found_server import FoundServer, check_results, check_shape
from engines.sglang.spec import FleetSpec
from infra.errors import InputError

pytestmark = pytest.mark.unit

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 128,
    "intermediate_size": 256,
    "max_position_embeddings": 512,
    "num_hidden_layers": 4,
    "vocab_size": 512,
}
FOUND = FoundServer(
    url="http://10.0.0.2:30000",
    num_ranks=1,
    model_path="/only/there",
    started_path="/only/there",
    version="default",
    started_version="default",
    checksum="9f2c",
    architectures=("Qwen3ForCausalLM",),
    num_layers=4,
    vocab=512,
    context_length=512,
    release="0.5.23",
    options={
        "attention_backend": "torch_native",
        "device": "cpu",
        "dtype": "float32",
        "enable_deterministic_inference": True,
        "json_model_override_args": "{}",
        "kv_cache_dtype": "auto",
        "quantization": None,
        "sampling_backend": "pytorch",
        "speculative_algorithm": None,
    },
)


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engines.sglang.arguments.has_cuda", lambda: False)
    monkeypatch.setattr("engines.sglang.external.found_server.version", lambda _: "0.5.23")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def test_a_server_like_ours_passes(model: Path) -> None:
    check_shape(FOUND, model)
    check_results(FOUND, FleetSpec(), model)
    lenient = replace(FOUND, num_layers=None, vocab=None, context_length=None, architectures=())
    check_shape(lenient, model)
    check_results(lenient, FleetSpec(), model)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"architectures": ("LlamaForCausalLM",)}, "architectures ['LlamaForCausalLM']"),
        ({"num_layers": 6}, "num_hidden_layers 6, and"),
        ({"vocab": 1024}, "vocab_size 1024, and"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(
    model: Path, change: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError) as told:
        check_shape(replace(FOUND, **change), model)
    assert f"{FOUND.url} serves a model with {says}" in str(told.value)


@pytest.mark.parametrize("name", ["rope_theta", "routed_scaling_factor", "q_lora_rank"])
def test_a_config_that_can_be_read_here_is_compared_field_by_field(
    name: str, model: Path, tmp_path: Path
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "config.json").write_text(json.dumps(CONFIG | {name: 64}))
    with pytest.raises(InputError, match=rf"{name} 64, and .* has None"):
        check_shape(replace(FOUND, model_path=str(theirs)), model)


@pytest.mark.parametrize(
    ("name", "theirs", "says"),
    [
        ("dtype", "bfloat16", "has dtype bfloat16, and this stage needs float32: start it with"),
        ("device", "cuda", "needs cpu"),
        ("sampling_backend", "flashinfer", "needs pytorch"),
        ("enable_deterministic_inference", False, "start it with --enable-deterministic-inference"),
        ("kv_cache_dtype", "fp8_e5m2", "needs auto"),
        ("quantization", "fp8", "start it without --quantization"),
        ("speculative_algorithm", "EAGLE", "needs None"),
    ],
)
def test_an_option_that_changes_results_is_named_with_both_values(
    model: Path, name: str, theirs: Any, says: str
) -> None:
    found = replace(FOUND, options={**FOUND.options, name: theirs})
    with pytest.raises(InputError) as told:
        check_results(found, FleetSpec(), model)
    assert f"{FOUND.url} has {name} {theirs}" in str(told.value)
    assert says in str(told.value)


def test_what_the_recipe_asks_for_is_what_the_servers_must_have(model: Path) -> None:
    spec = FleetSpec(sglang={"dtype": "bfloat16", "max_running_requests": 3})
    with pytest.raises(InputError, match="has dtype float32, and this stage needs bfloat16"):
        check_results(FOUND, spec, model)
    rounded = replace(FOUND, options={**FOUND.options, "dtype": "bfloat16"})
    check_results(rounded, spec, model)
    with pytest.raises(InputError, match="context_length 512, and this stage needs at least 600"):
        check_results(FOUND, FleetSpec(context_length=600), model)
    with pytest.raises(InputError, match=r"has SGLang 0\.5\.22, and this stage needs 0\.5\.23"):
        check_results(replace(FOUND, release="0.5.22"), FleetSpec(), model)


def test_weights_that_are_in_no_folder_cannot_be_given_back() -> None:
    assert FOUND.can_be_restored
    assert not replace(FOUND, version="7").can_be_restored
    assert replace(FOUND, version="7", model_path="/published/by/disk").can_be_restored


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("10.0.0.2:30000", "write http://HOST:PORT"),
        ("https://10.0.0.2:30000", "write http://HOST:PORT"),
        ("http://10.0.0.2", "write http://HOST:PORT"),
        ("http://10.0.0.2:30000/v1", "write http://HOST:PORT"),
        ("http://10.0.0.2:port", "is no address"),
        ("http://:secret@10.0.0.2:30000", "EXTERNAL_FLEET_KEY"),
    ],
)
def test_a_wrong_address_is_refused(address: str, says: str) -> None:
    with pytest.raises(ValidationError, match=says) as told:
        FleetSpec(external=(address,))
    assert "secret" not in str(told.value.errors()[0]["msg"])


def test_an_address_is_named_once_and_may_end_with_a_slash() -> None:
    assert FleetSpec(external=("http://a:1/",)).external == ("http://a:1",)
    with pytest.raises(ValidationError, match="names an address twice"):
        FleetSpec(external=("http://a:1/", "http://a:1"))
