"""The table of options against the pinned SGLang."""

from __future__ import annotations

import inspect
import re
import typing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from engines.sglang.arguments import server_options
from engines.sglang.server_options import ALLOWED, RESULT_NEUTRAL, describe, table
from engines.sglang.spec import FleetSpec
from tests.parts.sglang_python import SglangPython
from tests.parts.tiny import tiny_model

pytestmark = pytest.mark.integration


def test_the_table_is_that_of_the_pinned_server_args(seen: dict[str, Any]) -> None:
    """Made anew by the command below when SGLang is upgraded; see the script's last line."""
    assert seen["table"] == table()


def test_every_option_that_is_named_here_exists() -> None:
    used = server_options(FleetSpec(context_length=9), Path("m"), 1, 1, 0)
    assert set(RESULT_NEUTRAL) | set(used) <= set(table())


CHANGED: dict[str, object] = {
    "attention_backend": "triton",
    "attn_cp_size": 2,
    "attn_dp_size": 2,
    "chunked_prefill_size": 512,
    "cuda_graph_bs_decode": [1, 2],
    "cuda_graph_max_bs_decode": 8,
    "decode_attention_backend": "torch_native",
    "decode_log_interval": 7,
    "disable_cuda_graph": False,
    "disable_cuda_graph_padding": True,
    "disable_custom_all_reduce": True,
    "disable_overlap_schedule": False,
    "disable_radix_cache": True,
    "dist_timeout": 77,
    "dtype": "bfloat16",
    "enable_deterministic_inference": False,
    "enable_fp32_lm_head": True,
    "enable_memory_saver": True,
    "enable_metrics": True,
    "enable_mixed_chunk": True,
    "enable_p2p_check": True,
    "enable_request_time_stats_logging": True,
    "enable_tf32_matmul": True,
    "enable_torch_compile": True,
    "enable_trace": True,
    "gc_threshold": [1000],
    "kv_cache_dtype": "fp8_e5m2",
    "log_level": "info",
    "log_level_http": "error",
    "log_requests": True,
    "log_requests_level": 1,
    "log_requests_target": ["stdout"],
    "max_prefill_tokens": 999,
    "max_queued_requests": 9,
    "max_running_requests": 5,
    "mem_fraction_static": 0.3,
    "model_loader_extra_config": '{"enable_multithread_load": true}',
    "numa_node": [0],
    "otlp_traces_endpoint": "localhost:1",
    "page_size": 4,
    "prefill_attention_backend": "torch_native",
    "prefill_max_requests": 3,
    "radix_eviction_policy": "lfu",
    "rl_on_policy_target": "fsdp",
    "sampling_backend": "flashinfer",
    "schedule_conservativeness": 0.7,
    "schedule_policy": "lpm",
    "sleep_on_idle": False,
    "soft_watchdog_timeout": 44.0,
    "stream_interval": 3,
    "torch_compile_max_bs": 4,
    "triton_attention_num_kv_splits": 4,
    "watchdog_timeout": 123.0,
    "weight_loader_disable_mmap": True,
    "weight_loader_prefetch_checkpoints": True,
}
"""option -> another value than a server of ours has without it"""


def seen_by_sglang(asked: dict[str, Any]) -> dict[str, Any]:
    """Its table of options, and each of the changed ones without and with the change; where SGLang
    may be imported."""
    from sglang.srt.server_args import ServerArgs

    def made(options: dict[str, Any]) -> Any:
        spec = FleetSpec(sglang=options)
        return ServerArgs(**server_options(spec, Path(asked["model"]), 30000, 4, 0))

    hints = typing.get_type_hints(ServerArgs, include_extras=True)
    fields = {name: hints.get(name) for name in inspect.signature(ServerArgs).parameters}
    plain = made({})
    options = {
        name: (getattr(plain, name), getattr(made({name: value}), name))
        for name, value in asked["changed"].items()
    }
    return {"options": options, "table": describe(fields)}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory, sglang_python: SglangPython) -> dict[str, Any]:
    model = tiny_model(tmp_path_factory.mktemp("model"))
    return sglang_python(seen_by_sglang, {"model": str(model), "changed": CHANGED})


def test_every_option_that_is_passed_on_reaches_the_server(seen: dict[str, Any]) -> None:
    """SGLang's own class takes it, keeps it, and has another value without it."""
    assert set(CHANGED) == ALLOWED
    for name, value in CHANGED.items():
        plain, passed = seen["options"][name]
        assert passed == value, name
        assert plain != value, name


def test_every_option_that_is_passed_on_is_read_by_sglang() -> None:
    source = find_spec("sglang")
    assert source is not None
    assert source.submodule_search_locations is not None
    root = Path(next(iter(source.submodule_search_locations))) / "srt"
    declares = ("server_args.py", "field_order.py")
    files = [path for path in root.rglob("*.py") if path.name not in declares]
    files = [path for path in files if path.parent.name != "fields"]
    text = "\n".join(path.read_text() for path in files)
    names = set(re.findall(r"\.(\w+)", text)) | set(re.findall(r"[\"'](\w+)[\"']", text))
    assert names >= ALLOWED, ALLOWED - names
