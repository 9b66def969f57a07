"""What starts fleets of servers that serve without training."""

from __future__ import annotations

from flows.command.app import Json, console, examples, fleet_app


@fleet_app.command(
    help_epilogue=examples("fleet up topology.yaml", "fleet up topology.yaml --on 10.0.0.2")
)
def up(topology: str, /, *, on: str = "", root: str = "") -> int:
    """Serve the models of a topology file over OpenAI's API until Ctrl-C.

    Args:
        topology: A YAML file with fleets, and with the hosts that they lie on if there are several.
        on: This host's address in the file; default: the first host, which has the routers.
        root: The store to look for models in; default: the latest run's.
    """
    from flows.command.models.fleet import up as run

    return run(topology, on, root, console)


@fleet_app.command(help_epilogue=examples("fleet check topology.yaml"))
def check(topology: str, /, *, json: Json = False) -> int:
    """Show on which devices the servers of a topology file would lie, or why they cannot.

    Args:
        topology: A YAML file, as for `fleet up`.
    """
    from flows.command.models.fleet import check as run

    return run(topology, json, console)
