"""`make rounds`: rounds of self-distillation on Prefect's schedule, with nobody watching.

A stack of its own gets a schedule that triggers `distill-rounds` every half minute. Each trigger
trains one round of the demo's agent; those that come meanwhile are skipped, and after three rounds
the recipe says that it is enough. Printed, and written to `build/rounds.json`: the curve, which
round became `@best`, and how each trigger ended. Exit 1 unless three rounds are done, the alias
points at the round that the rule promoted, and the last trigger says why it trained nothing.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from flows.catalog import plan_of
from flows.recipe import Storage
from flows.reports.report import Report, build_report
from flows.running.records import RunRecord, runs_of, store_of
from infra.access import basic
from infra.stack import Stack, down, up
from tests.programs.bench.rows import Row, show, write

BUILD = Path("build")
ROUNDS = 3
EVERY_S = 30
LIMIT_S = 3600.0
POLL_S = 5.0
EXPERT = "agent"
CHANGES = (
    "name=rounds-proof",
    "experts.agent.path.sft.steps=250",
    "experts.agent.path.rl.steps=4",
    "evaluate.samples=2",
    f"rounds.most={ROUNDS}",
    f"rounds.patience={ROUNDS}",
    "rounds.promote=higher",
)


def main() -> int:
    BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tr-", ignore_cleanup_errors=True) as home:
        os.environ["TRIBUTARY_HOME"] = home
        try:
            rows = _watch(up(lambda text: print(text, file=sys.stderr)))
        finally:
            down()
    show(rows, "scheduled rounds")
    write(rows, BUILD / "rounds.json")
    return 0 if all(row.holds for row in rows) else 1


def _watch(stack: Stack) -> list[Row]:
    """Until a trigger says that the series is over."""
    deployment = _get(f"{stack.prefect_api}/deployments/name/distill-rounds/distill-rounds")
    given = {"recipe": "cpu-demo", "expert": EXPERT, "overrides": "\n".join(CHANGES)}
    schedule = {"schedule": {"interval": EVERY_S}, "active": True, "parameters": given}
    url = f"{stack.prefect_api}/deployments/{deployment['id']}/schedules"
    httpx.post(url, json=[schedule], timeout=30, headers=basic()).raise_for_status()
    deadline = time.monotonic() + LIMIT_S
    ended: list[dict[str, Any]] = []
    while not _is_over(ended) and time.monotonic() < deadline:
        time.sleep(POLL_S)
        before = len(ended)
        ended = _ended(stack, deployment["id"])
        for state in ended[before:]:
            print(f"{state['name']}: {state['message']}", file=sys.stderr, flush=True)
    return _rows(stack, ended)


def _ended(stack: Stack, deployment: str) -> list[dict[str, Any]]:
    """Final states of the triggers so far, each with the name of its run, as they ended."""
    body = {
        "flow_runs": {
            "deployment_id": {"any_": [deployment]},
            "state": {"type": {"any_": ["COMPLETED", "FAILED", "CRASHED", "CANCELLED"]}},
        },
        "sort": "END_TIME_DESC",
    }
    url = f"{stack.prefect_api}/flow_runs/filter"
    found = httpx.post(url, json=body, timeout=30, headers=basic()).raise_for_status().json()
    return [run["state"] | {"name": run["name"]} for run in reversed(found)]


def _is_over(ended: list[dict[str, Any]]) -> bool:
    return bool(ended) and (
        ended[-1]["name"].endswith(", over") or ended[-1]["type"] != "COMPLETED"
    )


def _rows(stack: Stack, ended: list[dict[str, Any]]) -> list[Row]:
    report = _last_report()
    names = [state["name"] for state in ended]
    skipped, over = (sum(n.endswith(f", {s}") for n in names) for s in ("skipped", "over"))
    wrong = [s["message"] for s in ended if s["type"] != "COMPLETED"]
    curve = ", ".join(
        f"{found.number}: {found.score:.3f}{' promoted' if found.promoted else ''}"
        for found in report.rounds
    )
    if not report.rounds:
        return [Row("rounds done, unattended", 0, "", ROUNDS, note="; ".join(wrong))]
    promoted = [found for found in report.rounds if found.promoted][-1]
    chosen = _best(stack)
    digest = next(stage.digest for stage in report.stages if stage.name == promoted.stage)
    return [
        Row("rounds done, unattended", len(report.rounds) - 1, "", ROUNDS, note=curve),
        Row(
            "@best is the round that the rule promoted", chosen == digest, "", 1,
            note=f"round {promoted.number}, {promoted.stage}",
        ),
        Row("triggers that trained a round", len(ended) - skipped - over, "", ROUNDS),
        Row("triggers skipped while one worked", skipped, "", None),
        Row("triggers that failed", len(wrong), "", 0, True, "; ".join(wrong)),
        Row("triggers after the end", over, "", 1, note=ended[-1]["message"] if ended else ""),
    ]  # fmt: skip


def _last_report() -> Report:
    record = _newest()
    head = record.head()
    return build_report(record, plan_of(head.flow, record.recipe(), head.arguments))


def _newest() -> RunRecord:
    return next(iter(runs_of("rounds-proof", store_of(Storage()))))


def _best(stack: Stack) -> str:
    """Digest of the version that @best points at."""
    url = f"{stack.mlflow_uri}/api/2.0/mlflow/registered-models/alias"
    query = {"name": f"rounds-proof-{EXPERT}", "alias": "best"}
    version = (
        httpx.get(url, params=query, timeout=30, headers=basic())
        .raise_for_status()
        .json()["model_version"]
    )
    return {tag["key"]: tag["value"] for tag in version["tags"]}["tributary.digest"]


def _get(url: str) -> Any:
    return httpx.get(url, timeout=30, headers=basic()).raise_for_status().json()


if __name__ == "__main__":
    sys.exit(main())
