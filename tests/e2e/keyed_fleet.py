"""What a stranger can do at a stage's servers and their router, which ask for a key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import httpx

from infra.access import basic, bearer, key

_WRONG = {"Authorization": "Bearer wrong"}
_GENERATION = ("generate", "v1/completions")
_UPDATES = (
    "pause_generation", "begin_weight_update", "update_weights_from_tensor",
    "update_weights_from_disk", "update_weights_from_distributed", "init_weights_update_group",
    "end_weight_update", "flush_cache", "continue_generation", "abort_request",
)  # fmt: skip


def refuse_strangers(router: str, servers: Sequence[str]) -> None:
    """By their addresses; the router knows nothing of weights."""
    body = {"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 1}}
    asked = [(router, path) for path in (*_GENERATION, "flush_cache")]
    asked += [(url, path) for url in servers for path in (*_GENERATION, *_UPDATES)]
    for url, path in asked:
        for headers in ({}, _WRONG):
            reply = httpx.post(
                f"{url}/{path}", json=body, headers=headers, timeout=30, trust_env=False
            )
            assert reply.status_code in (401, 403), (url, path, reply.status_code)
    metrics = [f"{url}/metrics" for url in servers]
    for url in metrics:
        for headers in ({}, _WRONG, bearer()):
            assert httpx.get(url, headers=headers, trust_env=False).status_code == 401, url
        assert "# TYPE" in httpx.get(f"{url}/", headers=basic(), trust_env=False, timeout=30).text
    assert "sglang" not in httpx.get(f"{router}/engine_metrics", trust_env=False).text
    workers = f"{router}/workers"
    assert httpx.get(workers, trust_env=False).status_code == 401
    assert (
        httpx.post(workers, json={"url": "http://127.0.0.1:9"}, trust_env=False).status_code == 401
    )
    known = httpx.get(workers, headers=bearer(), trust_env=False)
    assert known.status_code == 200
    assert key() not in known.text


def answer_no_other_site(urls: Iterable[str]) -> None:
    """A browser lets a page read an answer of another origin only if a header names that origin."""
    asks = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    asks |= {"Access-Control-Request-Headers": "authorization,content-type"}
    for url in urls:
        for path in ("health", "model_info", "generate", "update_weights_from_disk", "workers"):
            for method in ("OPTIONS", "GET", "POST"):
                for headers in (asks, asks | bearer()) if method != "POST" else (asks,):
                    reply = httpx.request(
                        method, f"{url}/{path}", headers=headers, timeout=30, trust_env=False
                    )
                    allowed = reply.headers.get("access-control-allow-origin", "")
                    assert "evil.example" not in allowed, (method, url, path)
                    assert allowed != "*", (method, url, path)
