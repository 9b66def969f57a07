"""What makes Prefect notice that a flow died, with its worker or with the whole machine: each
flow sends heartbeats, and an automation of the server takes one that stops for crashed.

The automation does not start it again: Prefect would run a flow twice whose process only hung.
"""

from __future__ import annotations

from typing import Any

HEARTBEAT_SECONDS = 30
"""the shortest that Prefect allows"""
SILENT_SECONDS = 90
RESOURCE = "prefect.resource.id"
LEFT = "tributary.flow-run.left"
"""event of a flow whose process ended while its run is suspended or has a new process"""
_ENDED = ("Completed", "Failed", "Crashed", "Cancelled", "TimedOut")


def automation() -> dict[str, Any]:
    """As Prefect's API takes it."""
    beat = "prefect.flow-run.heartbeat"
    return {
        "name": "tributary: flows that died",
        "description": f"A flow that is silent for {SILENT_SECONDS} s counts as crashed. "
        "`tributary up` creates this automation.",
        "enabled": True,
        "trigger": {
            "type": "event",
            "posture": "Proactive",
            "match": {RESOURCE: "prefect.flow-run.*"},
            "for_each": [RESOURCE],
            "after": [beat],
            "expect": [beat, LEFT, *(f"prefect.flow-run.{name}" for name in _ENDED)],
            "threshold": 1,
            "within": SILENT_SECONDS,
        },
        "actions": [
            {
                "type": "change-flow-run-state",
                "state": "CRASHED",
                "message": f"Its process died or hangs: no heartbeat for {SILENT_SECONDS} s. "
                "Its jobs go on; continue with `tributary resume`, or with Retry here.",
            }
        ],
    }
