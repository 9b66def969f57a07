"""Proxies of the environment are for the outside; answers end with their last use."""

from __future__ import annotations

import gc
import os

import httpx
import pytest

from flows.running.prefect_api import PrefectApi
from infra.processes.network import bypass, bypass_env, forget_proxies, goes_by_proxies, unusable
from infra.stack.cluster import Cluster
from infra.stack.record import Stack
from infra.stack.services import prefect_service_env, service_env
from infra.tracking.rest import MlflowRest
from tests.parts.json_server import json_server
from tests.parts.machine import PROXIES

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a company's network; changes of this process's environment end with the test."""
    for name in ("NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name in PROXIES:
        monkeypatch.setenv(name, "http://127.0.0.1:9")


def test_servers_here_are_reached_without_the_proxy_and_others_with_it() -> None:
    with json_server(lambda path, body: (200, {"path": path})) as port:
        url = f"http://127.0.0.1:{port}/here"
        with pytest.raises(httpx.ConnectError):
            httpx.get(url)
        bypass()
        assert httpx.get(url).json() == {"path": "/here"}
        assert httpx.get(url.replace("127.0.0.1", "localhost")).is_success
    with pytest.raises(httpx.ConnectError):
        httpx.get("http://tributary.invalid/")
    assert os.environ["HTTP_PROXY"] == os.environ["https_proxy"] == "http://127.0.0.1:9"


def test_what_no_proxy_says_already_is_kept_in_both_spellings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NO_PROXY", ".lab.example, 10.0.0.0/8")
    monkeypatch.setenv("no_proxy", "localhost,mirror")
    text = ".lab.example,10.0.0.0/8,localhost,mirror,127.0.0.1,::1,10.1.2.3"
    assert bypass_env("10.1.2.3", "") == {"NO_PROXY": text, "no_proxy": text}
    monkeypatch.setenv("no_proxy", "*")
    assert bypass_env()["NO_PROXY"] == "*"


def test_services_and_jobs_bypass_the_proxy_for_the_stack_s_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    ports = dict.fromkeys(("prefect", "mlflow", "ray_gcs", "ray_dashboard"), 1)
    stack = Stack(mark="m", ports=ports, host="0.0.0.0", address="10.1.2.3")
    assert stack.env()["NO_PROXY"] == stack.env()["no_proxy"] == "127.0.0.1,localhost,::1,10.1.2.3"
    assert Stack(mark="m", ports=ports, head="10.9.9.9:6379").env()["NO_PROXY"].endswith("10.9.9.9")
    env = service_env(stack, "ray")
    assert (env["HTTP_PROXY"], env["ALL_PROXY"]) == ("http://127.0.0.1:9", "socks5://127.0.0.1:9")
    left = prefect_service_env(stack, "prefect-worker")
    assert "HTTP_PROXY" in left
    assert [name for name in ("ALL_PROXY",) if name not in left] == unusable()


def test_servers_of_others_are_asked_by_the_proxy_unless_they_are_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert goes_by_proxies("https://api.example/v1")
    assert not goes_by_proxies("http://127.0.0.1:8000/v1")
    assert not goes_by_proxies("http://localhost/v1")
    assert not goes_by_proxies("http://[::1]:8000")
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    assert goes_by_proxies("https://api.example/v1") is not bool(unusable())
    Cluster("https://ray.example")  # httpx would refuse to begin


def test_a_router_has_no_proxy_at_all() -> None:
    forget_proxies()
    assert not [name for name in os.environ if name.lower() in ("http_proxy", "https_proxy")]


@pytest.mark.parametrize("what", ["MLflow", "Ray", "Prefect"])
def test_no_answer_stays_in_memory_after_its_use(what: str) -> None:
    said = {"run": {}, "metadata": {}, "x": "y" * 1000}
    with json_server(lambda path, body: (200, said)) as port:
        url = f"http://127.0.0.1:{port}"
        ask = {
            "MLflow": lambda: MlflowRest(url).run("r"),
            "Ray": lambda: Cluster(url).metadata("j"),
            "Prefect": lambda: PrefectApi(url).call("GET", "/flow_runs/r"),
        }[what]
        gc.collect()
        gc.disable()
        try:
            for _ in range(5):
                ask()
            kept = sum(type(each) is httpx.Response for each in gc.get_objects())
        finally:
            gc.enable()
    assert kept == 0
