"""Options passed through to SGLang, as `tributary check` sees them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from engines.sglang.server_options import ALLOWED, check_options, check_parallel, describe, table
from infra.errors import InputError

pytestmark = pytest.mark.unit


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
