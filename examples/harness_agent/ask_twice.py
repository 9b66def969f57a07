"""An agent of thirty lines that knows nothing of Tributary: it asks a model behind a base URL.

It solves the problem, has a second look at its answer, and writes what it keeps into a file.
"""

from __future__ import annotations

import json
import os
import urllib.request
from pathlib import Path
from typing import Any


def ask(messages: list[dict[str, Any]]) -> dict[str, Any]:
    body = {"model": os.environ["OPENAI_MODEL"], "messages": messages, "temperature": 0.2}
    key = os.environ["OPENAI_API_KEY"]
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {key}"},
    )
    with urllib.request.urlopen(request, timeout=300) as reply:
        return json.load(reply)["choices"][0]["message"]


def main() -> None:
    messages = json.loads(Path("problem.json").read_text())["messages"]
    first = ask(messages)
    second = ask([*messages, first, {"role": "user", "content": "Look again."}])
    Path("answer.txt").write_text(second["content"] or first["content"] or "")


if __name__ == "__main__":
    main()
