"""One process for all tests that ask SGLang's own code: importing that takes ten seconds of a core,
and it cannot be imported in a process that has no launcher.

It reads a line of JSON, {"function": "module:name", "asked": ...}, and answers with another.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_MARK = "ANSWER "
"""begins an answer: SGLang prints too"""


class SglangPython:
    """The process, from the first question on."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    def __call__(self, function: Callable[[Any], Any], asked: Any) -> Any:
        """What the function, which takes and gives JSON, answers there."""
        process = self._process = self._process or self._started()
        assert process.stdin
        assert process.stdout
        name = f"{function.__module__}:{function.__name__}"
        print(json.dumps({"function": name, "asked": asked}), file=process.stdin, flush=True)
        for line in process.stdout:
            if line.startswith(_MARK):
                return json.loads(line.removeprefix(_MARK))
        raise AssertionError(f"{name}: {self._log.read_text()[-3000:]}")

    def _started(self) -> subprocess.Popen[str]:
        with self._log.open("w") as log:
            return subprocess.Popen(
                [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=log, text=True,
            )  # fmt: skip

    def close(self) -> None:
        if self._process:
            self._process.kill()  # taking all that SGLang imports apart would take it seconds
            self._process.communicate(timeout=60)


def main() -> None:
    from engines.sglang.servers import server_launcher

    server_launcher.prepare()
    for line in sys.stdin:
        question = json.loads(line)
        module, _, name = question["function"].partition(":")
        answer = getattr(importlib.import_module(module), name)(question["asked"])
        print(f"\n{_MARK}{json.dumps(answer, default=str)}", flush=True)


if __name__ == "__main__":
    main()
