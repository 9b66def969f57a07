"""What a running server says of itself: how it is found, how it has to be left, and whether it can
take a model and generate with it what servers of ours would.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from engines.families.common.model_config import usable_positions
from engines.sglang.arguments import own_type, server_options
from engines.sglang.http import NoConnection, Refused, call, read_text
from engines.sglang.routed_batch import pack
from engines.sglang.server_options import RESULT_NEUTRAL
from engines.sglang.servers.server_units import ServerTerms
from engines.sglang.spec import FleetSpec
from engines.types import TokenIds
from engines.weights.transport import CHECK_S, CONTROL_S
from infra.errors import EngineError, InputError

_LAYER = re.compile(r"\blayers\.(\d+)\.")
_VOCABULARY = re.compile(r"valid range is \[0, (\d+)\)")
_NO_TOKEN = 10**9
_SECRETS = ("api_key", "admin_api_key")
_PROBE_S = 60.0
_TOKENS = 8
_PROMPT = [1, 2, 3, 4]
_SAMPLING: dict[str, Any] = {
    "max_new_tokens": _TOKENS,
    "temperature": 1.0,
    "sampling_seed": 17,
    "ignore_eos": True,
}
_SHAPE = (
    "architectures",
    "attention_bias",
    "first_k_dense_replace",
    "head_dim",
    "hidden_act",
    "hidden_activation",
    "hidden_size",
    "intermediate_size",
    "kv_lora_rank",
    "layer_types",
    "n_group",
    "norm_topk_prob",
    "num_attention_heads",
    "num_experts_per_tok",
    "num_hidden_layers",
    "num_key_value_heads",
    "partial_rotary_factor",
    "q_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "query_pre_attn_scalar",
    "rms_norm_eps",
    "rope_local_base_freq",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "routed_scaling_factor",
    "sliding_window",
    "sliding_window_pattern",
    "tie_word_embeddings",
    "topk_group",
    "v_head_dim",
    "vocab_size",
)
"""fields of config.json that a server fixes when it starts"""
_OURS = (
    "attention_backend",
    "device",
    "enable_deterministic_inference",
    "sampling_backend",
)
"""options that servers of ours get for the host and that change results"""
_LOSSY: Mapping[str, tuple[Any, ...]] = {
    "json_model_override_args": ("{}", None, ""),
    "kv_cache_dtype": ("auto",),
    "quantization": (None,),
    "speculative_algorithm": (None,),
}
"""options that servers of ours do not get, with the values that change nothing"""
_SHORT = {"half": "float16", "float": "float32"}
"""SGLang's other names of types"""


@dataclass(frozen=True, slots=True)
class FoundServer:
    """One server, without a restart or a push since. Where it does not say a number, it is None."""

    url: str
    num_ranks: int
    model_path: str
    """where it read its weights"""
    started_path: str
    version: str
    """of its weights, as it calls them. Example: "default" """
    started_version: str
    checksum: str
    """of the weights in its memory; empty where it offers none"""
    architectures: tuple[str, ...]
    num_layers: int | None
    vocab: int | None
    context_length: int | None
    release: str
    """of SGLang. Example: "0.5.23" """
    options: Mapping[str, Any] = field(repr=False)
    """SGLang's server arguments that are no secret"""

    @property
    def can_be_restored(self) -> bool:
        """Return whether its weights are those of its model path, as far as one can see: others
        that were pushed to it have a version of their own and no path."""
        return self.version == self.started_version or self.model_path != self.started_path


def find_servers(addresses: Iterable[str]) -> tuple[str, ...]:
    """The addresses of servers, with those that a router knows in place of the router's own.

    Raises InputError where neither answers, EngineError for a router without servers.
    """
    found = [url for address in addresses for url in _servers_at(address)]
    return tuple(dict.fromkeys(found))


def look_at(url: str) -> FoundServer:
    """Ask a server all that there is to know. Raises EngineError if it does not answer."""
    model = call(url, "/model_info", timeout=CONTROL_S)
    info = call(url, "/server_info", timeout=CONTROL_S)
    checksum, names = _weights(url)
    layers = [int(found[1]) for name in names if (found := _LAYER.search(name))]
    return FoundServer(
        url=url,
        num_ranks=int(info["tp_size"]),
        model_path=str(model["model_path"]),
        started_path=str(info["model_path"]),
        version=str(model["weight_version"]),
        started_version=str(info["weight_version"]),
        checksum=checksum,
        architectures=tuple(model.get("architectures") or ()),
        num_layers=max(layers) + 1 if layers else None,
        vocab=_vocabulary(url),
        context_length=_context_length(url),
        release=str(info.get("version", "")),
        options={name: value for name, value in info.items() if name not in _SECRETS},
    )


def _servers_at(address: str) -> list[str]:
    try:
        call(address, "/model_info", timeout=CONTROL_S)
        return [address]
    except NoConnection as error:
        raise InputError(
            f"nobody answers at {address}: start the server, or correct the address ({error})"
        ) from error
    except Refused as error:
        if "(401)" in str(error) or "(403)" in str(error):
            raise InputError(
                f"{address} asks for another key: export it as EXTERNAL_FLEET_KEY, or put it in the"
                " block that `storage.credentials` names"
            ) from error
    try:
        workers: list[dict[str, Any]] = call(address, "/workers", timeout=CONTROL_S)["workers"]
    except EngineError as error:
        raise InputError(
            f"{address} is neither an SGLang server nor an sglang-router ({error}); give the"
            " address of one"
        ) from error
    if not workers:
        raise EngineError(f"the router at {address} knows no server; register servers with it")
    return [str(worker["url"]).rstrip("/") for worker in workers]


def _weights(url: str) -> tuple[str, set[str]]:
    """Checksum and names of the tensors in its memory; empty where it does not tell."""
    try:
        checked = call(url, "/weights_checker", {"action": "checksum"}, timeout=CHECK_S)
    except Refused:  # an older SGLang
        return "", set()
    names = {name for rank in checked.get("ranks") or () for name in rank.get("checksums") or ()}
    return str(checked.get("per_engine_checksum") or ""), names


def _vocabulary(url: str) -> int | None:
    """From how it refuses to score a token that no vocabulary has."""
    body = {
        "input_ids": [1],
        "sampling_params": {"max_new_tokens": 1},
        "return_logprob": True,
        "token_ids_logprob": [_NO_TOKEN],
    }
    try:
        read_text(url, "/generate", body, timeout=CONTROL_S)
    except Refused as error:
        found = _VOCABULARY.search(str(error))
        return int(found[1]) if found else None
    return None


def _context_length(url: str) -> int | None:
    try:
        cards = json.loads(read_text(url, "/v1/models", timeout=CONTROL_S))["data"]
        return int(cards[0]["max_model_len"])
    except (Refused, ValueError, LookupError, TypeError):
        return None


def answers_batches(url: str, *, repeats_seeds: bool) -> bool:
    """Return whether a batch may carry a seed for each of its sequences, which needs our plugin
    there.

    With `repeats_seeds` it has to sample the same tokens again for the same seed, else InputError.
    """
    try:
        both = _sampled(url, 2)
        is_batch = True
    except Refused:
        both = _sampled(url, 1) + _sampled(url, 1)
        is_batch = False
    if repeats_seeds and both[0] != both[1]:
        raise InputError(
            f"fleet.external: {url} samples other tokens when it gets the same seed again, and this"
            " stage needs equal ones: start it with --enable-deterministic-inference; on a CPU it"
            " also needs Tributary's plugin (install tributary beside SGLang there)"
        )
    return is_batch


def _sampled(url: str, count: int) -> list[list[int]]:
    """Tokens of each of `count` equal sequences of one request."""
    prompts: list[TokenIds] = [_PROMPT] * count
    text = read_text(url, "/generate", pack(prompts, [_SAMPLING] * count), timeout=_PROBE_S)
    try:
        return [list(reply["output_ids"]) for reply in json.loads(text)]
    except (ValueError, LookupError, TypeError) as error:
        raise EngineError(f"{url} answered no sequences ({error!r}): {text[:300]}") from error


def check_shape(found: FoundServer, model: Path) -> None:
    """Raise InputError if the server cannot take the weights of this HF folder."""
    config = _config(model)
    for name, theirs, ours in _shape_pairs(found, config):
        if theirs != ours:
            raise InputError(
                f"{found.url} serves a model with {name} {theirs}, and {model} has {ours}: give a"
                " model of the architecture that the server was started with, or start it with"
                " this one"
            )


def check_server(found: FoundServer, terms: ServerTerms) -> None:
    """Raise InputError if it cannot take the model, or would not generate what ours do with it."""
    check_shape(found, terms.model)
    check_results(found, terms.spec, terms.model)


def takes_batches(url: str, terms: ServerTerms) -> bool:
    """Tell whether a server takes batches, by a probe; servers of ours repeat seeds where their
    options say so."""
    wanted = server_options(terms.spec, terms.model, port=0, tp=1, first_device=0)
    repeats_seeds = bool(wanted.get("enable_deterministic_inference"))
    return answers_batches(url, repeats_seeds=repeats_seeds)


def check_results(found: FoundServer, spec: FleetSpec, model: Path) -> None:
    """Raise InputError if the server would not generate what one of ours does."""
    release = version("sglang")
    if found.release != release:
        raise _differs(found, "SGLang", found.release, release, "install that release there")
    wanted = server_options(spec, model, port=0, tp=found.num_ranks, first_device=0)
    names = {*_OURS, *spec.sglang} - RESULT_NEUTRAL - {"dtype"}
    for name in sorted(names & wanted.keys()):
        theirs = found.options.get(name)
        if theirs != wanted[name]:
            raise _differs(found, name, theirs, wanted[name], _advice(name, theirs, wanted[name]))
    for name, harmless in _LOSSY.items():
        theirs = found.options.get(name)
        if name not in spec.sglang and theirs not in harmless:
            raise _differs(found, name, theirs, harmless[0], _advice(name, theirs, harmless[0]))
    _check_dtype(found, wanted, model)
    longest = spec.context_length or usable_positions(_config(model)) or 0
    if found.context_length is not None and found.context_length < longest:
        advice = f"start it with --context-length {longest} or more, or lower fleet.context_length"
        raise _differs(found, "context_length", found.context_length, f"at least {longest}", advice)


def _shape_pairs(found: FoundServer, config: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Name, theirs and ours of all that both say."""
    if found.architectures and config.get("architectures"):
        yield "architectures", list(found.architectures), config["architectures"]
    for name, theirs in (("num_hidden_layers", found.num_layers), ("vocab_size", found.vocab)):
        if theirs is not None and name in config:
            yield name, theirs, config[name]
    try:
        other = _config(Path(found.model_path))
    except InputError:
        return  # on another host, or a name on a hub
    for name in _SHAPE:
        yield name, other.get(name), config.get(name)


def _check_dtype(found: FoundServer, wanted: Mapping[str, Any], model: Path) -> None:
    """By itself SGLang takes the model's own type, and float16 in place of float32."""
    own, theirs, ours = own_type(model), str(found.options.get("dtype")), str(wanted["dtype"])
    by_itself = "float16" if own == "float32" else own
    if _SHORT.get(ours, ours) != (by_itself if theirs == "auto" else _SHORT.get(theirs, theirs)):
        raise _differs(found, "dtype", theirs, ours, _advice("dtype", theirs, ours))


def _config(model: Path) -> dict[str, Any]:
    try:
        return json.loads((model / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise InputError(
            f"{model / 'config.json'} cannot be read ({error}): is this an HF folder?"
        ) from error


def _advice(name: str, theirs: Any, ours: Any) -> str:
    flag = f"--{name.replace('_', '-')}"
    start = f"start it with {flag}" if ours is True else f"start it without {flag}"
    if ours not in (True, False, None):
        start = f"start it with {flag} {ours}"
    return f"{start}, or write `fleet.sglang.{name}: {json.dumps(theirs)}` for all servers"


def _differs(found: FoundServer, name: str, theirs: Any, ours: Any, advice: str) -> InputError:
    return InputError(
        f"fleet.external: {found.url} has {name} {theirs}, and this stage needs {ours}: {advice}"
    )
