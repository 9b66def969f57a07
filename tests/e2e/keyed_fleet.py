"""A stage's work on a fleet that asks for a key, and what a stranger can do there.

Run it as `python -m tests.e2e.keyed_fleet FOLDER`:
a process of its own, for Ray reads how it authenticates once a process.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import httpx

from engines.sglang.fleet import Fleet
from engines.sglang.spec import FleetSpec
from engines.types import Generation, Sampling
from infra.access import basic, bearer, key
from infra.home import home
from infra.stack import load_stack
from infra.stack.stack_ports import open_ports
from tests.parts.tiny import tiny_model
from tests.parts.whole_weights import push

_GREEDY = Sampling(8, temperature=0.0)
_WRONG = {"Authorization": "Bearer wrong"}
_GENERATION = ("generate", "v1/completions")
_UPDATES = (
    "pause_generation", "begin_weight_update", "update_weights_from_tensor",
    "update_weights_from_disk", "update_weights_from_distributed", "init_weights_update_group",
    "end_weight_update", "flush_cache", "continue_generation", "abort_request",
)  # fmt: skip


async def main(folder: Path) -> None:
    first, second = (tiny_model(folder / str(seed), seed=seed) for seed in range(2))
    # SGLang then logs its arguments, and would show its metrics to everybody
    spec = FleetSpec(sglang={"log_level": "info", "enable_metrics": True})
    async with await Fleet.lease(spec, first, 1, 1, pool_servers=1, holder="test") as fleet:
        before = await fleet.client.generate([1, 2, 3], _GREEDY)
        await asyncio.to_thread(push, second, fleet.server_urls, 5)
        after = await fleet.client.generate([1, 2, 3], _GREEDY)
        await fleet.load(first, 6)
        _refuses_strangers(fleet)
        _answers_no_other_site(fleet)
        _listens_on_every_address(fleet)
        again = await fleet.client.generate([1, 2, 3], _GREEDY)
    assert [_versions(turn) for turn in (before, after, again)] == [{0}, {5}, {6}]
    logs = "".join(file.read_text() for file in (home() / "logs" / "fleet").glob("server-*.log"))
    assert "server_args=" in logs
    assert key() not in logs
    assert before.token_ids.tolist() == again.token_ids.tolist() != after.token_ids.tolist()


def _refuses_strangers(fleet: Fleet) -> None:
    """Router and server; the router knows nothing of weights."""
    body = {"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 1}}
    asked = [(fleet.router_url, path) for path in (*_GENERATION, "flush_cache")]
    asked += [(url, path) for url in fleet.server_urls for path in (*_GENERATION, *_UPDATES)]
    for url, path in asked:
        for headers in ({}, _WRONG):
            reply = httpx.post(
                f"{url}/{path}", json=body, headers=headers, timeout=30, trust_env=False
            )
            assert reply.status_code in (401, 403), (url, path, reply.status_code)
    metrics = [f"{url}/metrics" for url in fleet.server_urls]
    for url in metrics:
        for headers in ({}, _WRONG, bearer()):
            assert httpx.get(url, headers=headers, trust_env=False).status_code == 401, url
        assert "# TYPE" in httpx.get(f"{url}/", headers=basic(), trust_env=False, timeout=30).text
    assert "sglang" not in httpx.get(f"{fleet.router_url}/engine_metrics", trust_env=False).text
    workers = f"{fleet.router_url}/workers"
    assert httpx.get(workers, trust_env=False).status_code == 401
    assert (
        httpx.post(workers, json={"url": "http://127.0.0.1:9"}, trust_env=False).status_code == 401
    )
    known = httpx.get(workers, headers=bearer(), trust_env=False)
    assert known.status_code == 200
    assert key() not in known.text


def _answers_no_other_site(fleet: Fleet) -> None:
    """A browser lets a page read an answer of another origin only if a header names that origin."""
    asks = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    asks |= {"Access-Control-Request-Headers": "authorization,content-type"}
    for url in (fleet.router_url, *fleet.server_urls):
        for path in ("health", "model_info", "generate", "update_weights_from_disk", "workers"):
            for method in ("OPTIONS", "GET", "POST"):
                for headers in (asks, asks | bearer()) if method != "POST" else (asks,):
                    reply = httpx.request(
                        method, f"{url}/{path}", headers=headers, timeout=30, trust_env=False
                    )
                    allowed = reply.headers.get("access-control-allow-origin", "")
                    assert "evil.example" not in allowed, (method, url, path)
                    assert allowed != "*", (method, url, path)


def _listens_on_every_address(fleet: Fleet) -> None:
    stack = load_stack()
    assert stack is not None
    ports = {int(url.rpartition(":")[2]) for url in (fleet.router_url, *fleet.server_urls)}
    assert ports <= set(open_ports(stack))


def _versions(turn: Generation) -> set[int]:
    return set(turn.weight_versions.sampled)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
