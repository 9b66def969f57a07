"""`tributary publish`: a model's weights for running servers of others."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from engines.sglang.spec import server_address
from flows.command.find_artifact import find_model
from flows.command.output import CommandConsole, print_json
from infra.errors import InputError

if TYPE_CHECKING:
    from engines.sglang.external.give_weights import Way


def publish_model(
    model: str, to: list[str], by: Way, root: str, json: bool, console: CommandConsole
) -> int:
    from engines.sglang.external.publish import publish

    addresses = [_address(text) for text in to]
    if not addresses:
        raise InputError("--to: give the address of a server or of a router, http://HOST:PORT")
    done = publish(find_model(model, root), addresses, by)
    report = done.report
    if json:
        print_json({**asdict(report), "checksums": {u: done.checksums.get(u) for u in done.urls}})
        return 0
    console.print(
        f"version {report.version}: {report.bytes / 1e6:.1f} MB by {report.transport} to"
        f" {report.servers} servers in {report.seconds:.2f} s, of which they were paused"
        f" {report.pause_seconds:.2f} s",
        markup=False,
        highlight=False,
    )
    for url in done.urls:
        held = done.checksums.get(url)
        text = f"checksum {held[:16]}" if held else "offers no checksum"
        console.print(f"  {url}  {text}", markup=False, highlight=False)
    return 0


def _address(text: str) -> str:
    try:
        return server_address(text)
    except ValueError as error:
        raise InputError(f"--to: {error}") from None
