"""Prefect's server removes runs that ended long ago, by the settings that `up` gives it, and none
that runs, waits or is tried again. Transactions that write at one time wait for one another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from infra.stack.record import new_stack
from infra.stack.services import services

pytestmark = pytest.mark.integration

_PROGRAM = """
import asyncio, datetime, json
import sqlalchemy as sa
from prefect.server import models
from prefect.server.database import provide_database_interface
from prefect.server.schemas.core import Flow, FlowRun
from prefect.server.schemas.states import Cancelled, Completed, Failed, Paused, Running, Scheduled
from prefect.server.services.db_vacuum import vacuum_old_flow_runs
from flows.page.prefect_app import lock_sqlite_first

STATES = {
    "running": [Running()], "tried again": [Running(), Failed(), Running()], "paused": [Paused()],
    "waiting": [Scheduled()], "completed": [Running(), Completed()], "failed": [Failed()],
    "cancelled": [Cancelled()], "ended lately": [Running(), Completed()],
}
LONG_AGO = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=100)

async def read_and_write(db, name) -> None:
    async with db.session_context(begin_transaction=True) as session:
        await models.flows.count_flows(session=session)
        await asyncio.sleep(0.05)
        await models.flows.create_flow(session=session, flow=Flow(name=name))

async def main() -> None:
    lock_sqlite_first()
    db = provide_database_interface()
    async with (await db.engine()).begin() as connection:  # quicker than Prefect's migrations
        for table in db.Base.metadata.sorted_tables:
            await connection.execute(sa.schema.CreateTable(table))
    ids, run = {}, db.FlowRun
    async with db.session_context(begin_transaction=True) as session:
        flow = await models.flows.create_flow(session=session, flow=Flow(name="post-train"))
        for name, states in STATES.items():
            made = FlowRun(flow_id=flow.id, name=name)
            ids[name] = (await models.flow_runs.create_flow_run(session=session, flow_run=made)).id
            for state in states:
                await models.flow_runs.set_flow_run_state(
                    session=session, flow_run_id=ids[name], state=state, force=True)
        ended = sa.case((run.end_time.is_not(None), LONG_AGO))
        await session.execute(sa.update(run).where(run.name != "ended lately").values(
            created=LONG_AGO, expected_start_time=LONG_AGO, start_time=LONG_AGO, end_time=ended))
    await vacuum_old_flow_runs(db=db)
    async with db.session_context(begin_transaction=True) as session:
        left = (await session.execute(sa.select(run.name))).scalars().all()
        done = await models.flow_runs.set_flow_run_state(
            session=session, flow_run_id=ids["running"], state=Completed())
    await asyncio.gather(*(read_and_write(db, str(n)) for n in range(4)))
    print(json.dumps([sorted(left), done.status.value]))

asyncio.run(main())
"""


def test_only_runs_that_ended_long_ago_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path))
    given = next(each for each in services(new_stack(None)) if each.name == "prefect-server").env
    settings = {name: text for name, text in given.items() if "_DB_VACUUM_" in name}
    assert len(settings) == 2
    own = {
        "PREFECT_HOME": str(tmp_path),
        "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{tmp_path}/prefect.db",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_LOGGING_LEVEL": "ERROR",
    }
    kept = {name: text for name, text in os.environ.items() if not name.startswith("PREFECT_")}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], env=kept | settings | own, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    left, state = json.loads(done.stdout.splitlines()[-1])
    assert left == ["ended lately", "paused", "running", "tried again", "waiting"]
    assert state == "ACCEPT"
