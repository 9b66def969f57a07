"""Options passed through to SGLang, as `tributary check` sees them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from engines.sglang.arguments import idle_at_external, idle_on_cpu, idle_options
from engines.sglang.server_options import ALLOWED, check_options, check_parallel, describe, table
from infra.errors import InputError

pytestmark = pytest.mark.unit


GRAPHS_OFF = {"disable_cuda_graph": True}
BOTH = {"prefill_attention_backend": "triton", "decode_attention_backend": "triton"}


@pytest.mark.parametrize(
    ("name", "value", "idle", "working"),
    [
        ("log_requests_level", 2, {}, {"log_requests": True}),
        ("log_requests_target", ["stdout"], {"log_requests": False}, {"log_requests": True}),
        ("otlp_traces_endpoint", "h:1", {}, {"enable_trace": True}),
        ("enable_request_time_stats_logging", True, {"log_level": "error"}, {"log_level": "info"}),
        ("decode_log_interval", 7, {}, {"enable_metrics": True}),
        ("torch_compile_max_bs", 4, {}, {"enable_torch_compile": True}),
        ("cuda_graph_bs_decode", [1], GRAPHS_OFF, {}),
        ("cuda_graph_max_bs_decode", 8, GRAPHS_OFF, {}),
        ("disable_cuda_graph_padding", True, GRAPHS_OFF, {"disable_cuda_graph": False}),
        ("radix_eviction_policy", "lfu", {"disable_radix_cache": True}, {}),
        ("enable_mixed_chunk", True, {"chunked_prefill_size": -1}, {"chunked_prefill_size": 8}),
        ("triton_attention_num_kv_splits", 4, {"attention_backend": "fa3"}, {}),
        ("attention_backend", "fa3", BOTH, {"decode_attention_backend": "triton"}),
    ],
)
def test_an_option_that_does_nothing_beside_others_is_named(
    name: str, value: object, idle: dict[str, object], working: dict[str, object]
) -> None:
    (said,) = idle_options({name: value, **idle}, tp=1)
    assert said.startswith(f"{name} has no effect")
    assert not list(idle_options({name: value, **working}, tp=1))
    assert not list(idle_options({name: None, **idle}, tp=1))


def test_options_of_several_ranks_of_gpus_and_of_own_servers_are_named_elsewhere() -> None:
    given = {"disable_custom_all_reduce": True, "enable_p2p_check": False}
    (said,) = idle_options(given, tp=1)
    assert said.startswith("disable_custom_all_reduce has no effect with tp_per_server 1")
    assert not list(idle_options(given, tp=2))
    assert idle_on_cpu(given | {"numa_node": [0], "page_size": 4}) == [
        *("disable_custom_all_reduce", "numa_node")
    ]
    there = {"page_size": 4, "dtype": "bfloat16", "max_running_requests": 5, "enable_trace": False}
    assert idle_at_external(there) == ["page_size"], "dtype is compared with what servers have"


def test_known_options_of_the_right_kind_pass() -> None:
    check_options({"max_running_requests": 64, "schedule_policy": "fcfs", "log_requests": True})
    check_options({"chunked_prefill_size": -1, "page_size": None, "numa_node": [0]})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_running_request": 64}, "did you mean max_running_requests"),
        ({"max_running_requests": "many"}, "takes int or null, got 'many'"),
        ({"max_running_requests": True}, "got True"),
        ({"schedule_policy": "fifo"}, "takes dfs-weight or fcfs or .*, got 'fifo'"),
        ({"dtype": "int8"}, "takes auto or bfloat16 or .*, got 'int8'"),
        ({"attn_dp_size": 0}, "is 0; write a number of 1 or more"),
        ({"page_size": 0}, "is 0; write a number of 1 or more"),
        ({"chunked_prefill_size": -2}, "is -2; write a number of -1 or more"),
        ({"mem_fraction_static": 5}, "is 5; write a number from 0.01 to 0.99"),
        ({"log_requests_level": 4}, "is 4; write a number from 0 to 3"),
        ({"cuda_graph_bs_decode": [1, 0]}, r"is \[1, 0\]; write a number of 1 or more"),
        ({"cuda_graph_bs_decode": ["a"]}, "write a list of whole numbers"),
        ({"log_requests_target": [1]}, "write a list of texts"),
        ({"watchdog_timeout": float("inf")}, "is inf; write a number of 0.001 or more"),
        ({"log_level": "INFO"}, "is 'INFO'; write one of debug, info, warning, error, critical"),
        ({"model_loader_extra_config": "[1]"}, r"is '\[1\]'; write a JSON object as text"),
        ({"otlp_traces_endpoint": ""}, "is empty; write a text"),
        ({"tp_size": 2}, "tp_per_server"),
        ({"dp_size": 2}, "refuses new weights .* attn_dp_size"),
        ({"enable_dp_attention": True}, "attn_dp_size"),
        ({"nnodes": 2}, "one host; serve on several with `tributary fleet up`"),
        ({"dist_init_addr": "10.0.0.1:5000"}, "hosts_per_server"),
        ({"disaggregation_mode": "prefill"}, "whole requests"),
        ({"model_path": "x"}, "stage's input"),
        ({"quantization": "fp8"}, "whole weights"),
        ({"json_model_override_args": "{}"}, "another model"),
        ({"load_format": "dummy"}, "another model"),
        ({"chat_template": "x"}, "token ids"),
        ({"tokenizer_path": "x"}, "token ids"),
        ({"tool_call_parser": "qwen"}, "token ids"),
        ({"sampling_defaults": "model"}, "request says itself"),
        ({"preferred_sampling_params": "{}"}, "request says itself"),
        ({"random_seed": 3}, "request says itself"),
        ({"speculative_algorithm": "NGRAM"}, "drafts"),
        ({"ep_size": 2}, "than by its tp"),
        ({"base_gpu_id": 1}, "fleet chooses"),
        ({"device": "cuda"}, "by what the host has"),
        ({"enable_lmcache": True}, "no test shows"),
        ({"num_continuous_decode_steps": 2}, "nothing in the pinned SGLang uses it"),
        ({"show_time_cost": True}, "nothing in the pinned SGLang uses it"),
        ({"triton_attention_reduce_in_fp32": True}, "nothing in the pinned SGLang uses it"),
    ],
)
def test_a_wrong_option_is_refused_with_advice(options: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        check_options(options)


def test_a_model_that_only_answers_rewards_may_be_quantised() -> None:
    check_options({"quantization": "fp8", "max_running_requests": 4}, is_role=True)
    with pytest.raises(InputError, match="token ids"):
        check_options({"chat_template": "x"}, is_role=True)


def test_every_option_of_the_table_is_passed_on_or_refused_by_name() -> None:
    assert set(table()) >= ALLOWED
    for name in set(table()) - ALLOWED:
        with pytest.raises(InputError, match=rf"fleet\.sglang\.{name} "):
            check_options({name: None})


def test_attention_is_shared_among_the_ranks_of_a_server() -> None:
    check_parallel({"attn_dp_size": 2}, tp=4)
    check_parallel({}, tp=1)
    with pytest.raises(InputError, match=r"is 4, which does not divide .* \(2\)"):
        check_parallel({"attn_dp_size": 2, "attn_cp_size": 2}, tp=2)


def test_annotations_become_kinds() -> None:
    from types import SimpleNamespace
    from typing import Annotated, Literal

    fields = {
        "a": int | None,
        "b": Annotated[list[str], "help"],
        "c": Literal["x", "y"],
        "d": type(sys),
        "e": dict[str, int] | str,
        "f": Annotated[str | None, SimpleNamespace(choices=["x", "y"])],
        "g": Annotated[int, SimpleNamespace(choices=[0, 1])],
    }
    assert describe(fields) == {
        "a": ["int", "null"],
        "b": ["list"],
        "c": ["=x", "=y"],
        "d": [],
        "e": ["dict", "str"],
        "f": ["=x", "=y", "null"],
        "g": ["int"],
    }


def test_checking_options_loads_no_engine() -> None:
    code = (
        "import sys; from engines.sglang.server_options import check_options;"
        "check_options({'log_level': 'info'});"
        "print([m for m in ('torch', 'sglang', 'ray', 'triton') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
