"""The process in which a trial runs: `python -m flows.checks.trial.trial_process OUTPUT STACK`.

It reads the request from its input, a line, and tells each step before it is taken, as a line of
JSON, by a channel that the parts do not know: what they print goes to the file OUTPUT. The end of
its input means that its owner is gone, however that ended; then it ends, with all that it started.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
from pathlib import Path
from threading import Thread
from typing import Any, BinaryIO, TextIO

from flows.checks.trial.request import TrialRequest
from flows.checks.trial.tried_parts import try_parts
from infra.code.undeclared_reads import undeclared_reads, watch_reads
from infra.secret_references import secret_names
from infra.user_files import install_hooks, read_hooks


class Telling:
    """Tells each step; a step that is not over in time has its stack written to a file."""

    def __init__(self, channel: TextIO, output: Path, stack: Path) -> None:
        self._channel, self._output, self._read = channel, output, 0
        self._stack = stack.open("w")

    def begin(self, where: str, what: str, seconds: float) -> None:
        self.tell({"where": where, "what": what, "seconds": seconds})
        faulthandler.dump_traceback_later(seconds + 1, file=self._stack)

    def printed(self) -> str:
        sys.stdout.flush()
        sys.stderr.flush()
        text = self._output.read_text(errors="replace")
        fresh, self._read = text[self._read :], len(text)
        return fresh

    def tell(self, message: dict[str, Any]) -> None:
        self._channel.write(json.dumps(message) + "\n")
        self._channel.flush()


def _end_with(owner: BinaryIO) -> None:
    """End this process and its group when the owner's end of the pipe is closed."""
    owner.read()
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    output, stack = Path(sys.argv[1]), Path(sys.argv[2])
    owner = os.fdopen(os.dup(0), "rb")
    request = TrialRequest.model_validate_json(owner.readline())
    Thread(target=_end_with, args=[owner], daemon=True).start()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    for name in secret_names(request.model_dump(mode="json")):
        os.environ.setdefault(name, "unknown-here")  # a trial looks at the recipe, on any machine
    channel = os.fdopen(os.dup(1), "w")
    with output.open("ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    watch_reads(install_hooks(read_hooks(request.hooks, request.data)))
    telling = Telling(channel, output, stack)
    found = try_parts(request, telling)
    cautions = [*found.cautions, *undeclared_reads()]
    telling.tell({"findings": found.model_dump() | {"cautions": cautions}})
    sys.stdout.flush()
    os._exit(0)  # threads of the parts must not keep it


if __name__ == "__main__":
    main()
