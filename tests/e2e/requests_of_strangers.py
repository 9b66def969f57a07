"""What somebody without the key asks of every port, path and process that the stack has.

Run as a program by another user, or from another network: it reads what there is as JSON on its
input, and tells what it got. Nothing of ours is imported, so that anybody can run it.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_JSON = {"Content-Type": "application/json"}
_EVIL = "http://evil.example"
_CROSS_SITE = {"Origin": _EVIL, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"}
WAYS: dict[str, dict[str, str]] = {
    "without a key": {},
    "with a wrong key": {"Authorization": "Bearer 0123456789abcdef"},
    "with a wrong password": {"Authorization": "Basic dHJpYnV0YXJ5OjAxMjM0NTY3ODlhYmNkZWY="},
    "as a page of another site": {**_CROSS_SITE, "Cookie": "tributary-x=0123456789abcdef"},
    "as a page whose name leads here": {"Host": "evil.example", "Origin": _EVIL},
}
"""headers that each request is sent with"""
_MLFLOW, _JOBS = "/api/2.0/mlflow", "/api/jobs/"
REQUESTS: dict[str, tuple[str, str, Any]] = {
    "list deployments": ("POST", "/api/deployments/filter", {}),
    "start a flow with a command": (
        "POST",
        "/api/deployments/00000000-0000-0000-0000-000000000000/create_flow_run",
        {"job_variables": {"command": "id"}, "enforce_parameter_schema": False},
    ),
    "read secret blocks": ("POST", "/api/block_documents/filter", {"include_secrets": True}),
    "make a secret block": ("POST", "/api/block_documents/", {"name": "x", "data": {}}),
    "make a flow": ("POST", "/api/flows/", {"name": "x"}),
    "make a work pool": ("POST", "/api/work_pools/", {"name": "x", "type": "process"}),
    "change the work pool": ("PATCH", "/api/work_pools/tributary", {"base_job_template": {}}),
    "make an automation": ("POST", "/api/automations/", {"name": "x", "trigger": {}}),
    "set a variable": ("POST", "/api/variables/", {"name": "x", "value": "1"}),
    "read flow runs": ("POST", "/api/flow_runs/filter", {}),
    "read logs": ("POST", "/api/logs/filter", {}),
    "write logs": ("POST", "/api/logs/", [{"name": "x", "level": 20, "message": "x"}]),
    "read settings": ("GET", "/api/admin/settings", None),
    "clear Prefect's database": ("POST", "/api/admin/database/clear", {"confirm": True}),
    "submit a job": ("POST", _JOBS, {"entrypoint": "id"}),
    "submit a job to an agent": ("POST", "/api/job_agent/jobs/", {"entrypoint": "id"}),
    "stop a job": ("POST", f"{_JOBS}x/stop", {}),
    "read jobs": ("GET", _JOBS, None),
    "upload a package": ("PUT", "/api/packages/gcs/_ray_pkg_x.zip", {}),
    "read Ray's logs": ("GET", "/api/v0/logs/file?node_ip=127.0.0.1&filename=raylet.out", None),
    "profile a process": ("GET", "/worker/traceback?pid=1&ip=127.0.0.1", None),
    "stop a Serve application": ("DELETE", "/api/serve/applications/", None),
    "make an experiment": ("POST", f"{_MLFLOW}/experiments/create", {"name": "x"}),
    "delete an experiment": ("POST", f"{_MLFLOW}/experiments/delete", {"experiment_id": "0"}),
    "search runs": ("POST", f"{_MLFLOW}/runs/search", {"experiment_ids": ["0", "1"]}),
    "register a model": ("POST", f"{_MLFLOW}/registered-models/create", {"name": "x"}),
    "write an artifact": ("PUT", "/api/2.0/mlflow-artifacts/artifacts/x", "x"),
    "read an artifact": ("GET", "/get-artifact?path=../../etc/passwd&run_uuid=x", None),
    "list artifacts": ("GET", "/ajax-api/2.0/mlflow/artifacts/list?run_id=x", None),
    "ask for GraphQL": ("POST", "/graphql", {"query": "{ __typename }"}),
    "generate": ("POST", "/generate", {"input_ids": [1], "sampling_params": {"max_new_tokens": 1}}),
    "chat": ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
    "swap weights": ("POST", "/update_weights_from_disk", {"model_path": "/tmp/x"}),
    "update weights": ("POST", "/update_weights_from_tensor", {}),
    "begin an update": ("POST", "/begin_weight_update", {}),
    "join a weight group": ("POST", "/init_weights_update_group", {}),
    "read weights": ("POST", "/get_weights_by_name", {"name": "lm_head.weight"}),
    "save weights": ("POST", "/save_remote_model", {}),
    "load a LoRA": ("POST", "/load_lora_adapter", {"lora_name": "x", "lora_path": "/tmp/x"}),
    "dump requests": ("POST", "/configure_logging", {"dump_requests_folder": "/tmp/x"}),
    "release memory": ("POST", "/release_memory_occupation", {}),
    "profile": ("POST", "/start_profile", {"output_dir": "/tmp/x"}),
    "continue": ("POST", "/continue_generation", {}),
    "pause": ("POST", "/pause_generation", {}),
    "abort": ("POST", "/abort_request", {"abort_all": True}),
    "flush": ("POST", "/flush_cache", {}),
    "flush by GET": ("GET", "/flush_cache", None),
    "server's options": ("GET", "/server_info", None),
    "add a worker": ("POST", "/workers", {"url": "http://127.0.0.1:9"}),
    "add a worker as before": ("POST", "/add_worker?url=http://127.0.0.1:9", None),
    "remove a worker": ("DELETE", "/workers/http%3A%2F%2F127.0.0.1%3A9", None),
    "a session of the gateway": ("POST", "/v1/messages", {"messages": [], "max_tokens": 1}),
    "count tokens": ("POST", "/v1/messages/count_tokens", {"messages": []}),
    "log in with a made-up link": ("GET", "/login/made-up/", None),
    "metrics": ("GET", "/metrics", None),
    "files above": ("GET", "/static/..%2f..%2f..%2f..%2fetc/passwd", None),
}
"""by what each is for; every port gets all of them"""


def _status(address: str, port: int, method: str, path: str, body: Any, way: dict[str, str]) -> int:
    """Of an HTTP answer; 0 where none is given."""
    connection = http.client.HTTPConnection(address, port, timeout=2)
    try:
        sent = None if body is None else json.dumps(body)
        connection.request(method, path, sent, _JSON | way)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def of_port(address: str, port: int) -> tuple[int, list[str]]:
    """How many were sent, and those that got what they asked for. A port at which nobody speaks
    HTTP is asked in one way."""
    sent, got = 0, []
    with contextlib.suppress(OSError):
        socket.create_connection((address, port), timeout=2).close()
        for way, headers in WAYS.items():
            statuses = {
                name: _status(address, port, *asked, headers) for name, asked in REQUESTS.items()
            }
            sent += len(statuses)
            got += [
                f"{name} {way}: {address}:{port} {status}"
                for name, status in statuses.items()
                if 200 <= status < 400
            ]
            if not any(statuses.values()):
                break
    return sent, got


def _begun(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read(1)


def _of_machine(there: dict[str, Any]) -> list[str]:
    """What of processes, files and sockets could be reached."""
    got: list[str] = []

    def tried(name: str, attempt: Any) -> None:
        with contextlib.suppress(OSError):
            attempt()
            got.append(name)

    for pid in there.get("pids", ()):
        for what in ("environ", "mem", "maps", "auxv"):
            tried(f"/proc/{pid}/{what}", lambda p=f"/proc/{pid}/{what}": _begun(p))
        for what in ("cwd", "root", "exe"):
            tried(f"/proc/{pid}/{what}", lambda p=f"/proc/{pid}/{what}": os.readlink(p))
        tried(f"/proc/{pid}/fd", lambda p=f"/proc/{pid}/fd": os.listdir(p))
        tried(f"signal {pid}", lambda p=pid: os.kill(p, 0))
        tried(f"limits {pid}", lambda p=pid: os.sched_setaffinity(p, [0]))
    for path in there.get("folders", ()):
        tried(f"list {path}", lambda p=path: os.listdir(p))
        tried(f"write in {path}", lambda p=path: os.mkdir(f"{p}/of-a-stranger"))
    for path in there.get("files", ()):
        tried(f"read {path}", lambda p=path: os.open(p, os.O_RDONLY | os.O_NONBLOCK))
        tried(f"write {path}", lambda p=path: os.open(p, os.O_WRONLY | os.O_NONBLOCK))
    for path in there.get("sockets", ()):
        tried(f"connect {path}", lambda p=path: socket.socket(socket.AF_UNIX).connect(p))
    return got


def main() -> None:
    there = json.load(sys.stdin)
    pool = ThreadPoolExecutor(16)
    list(pool.map(lambda _: _status("127.0.0.1", 1, "POST", "/", {}, {}), range(16)))
    if there["uid"]:  # all that is imported on the way is here now: it may be root's alone
        os.setgroups([])
        os.setgid(there["uid"])
        os.setuid(there["uid"])
    pairs = [(address, port) for address in there["addresses"] for port in there["ports"]]
    with pool:
        answers = list(pool.map(lambda pair: of_port(*pair), pairs))
    got = [each for _, found in answers for each in found] + _of_machine(there)
    print(json.dumps({"sent": sum(sent for sent, _ in answers), "got": got}))


if __name__ == "__main__":
    main()
