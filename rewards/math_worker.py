"""The process behind `MathJudge`: one question `[gold, answer]` a line in, `true` or `false` out.

Run as a file, so that it imports nothing of ours. Its owner keeps the time and kills it.
"""

from __future__ import annotations

import json
import resource
import sys

MEMORY_LIMIT = 2 << 30
"""bytes of address space"""


def main() -> None:
    from math_verify import parse, verify

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    print("ready", flush=True)
    for line in sys.stdin:
        gold, answer = (
            # None turns the alarm off; the hint forgets it
            parse(f"\\boxed{{{text}}}", parsing_timeout=None)  # pyright: ignore[reportArgumentType]
            for text in json.loads(line)
        )
        print(json.dumps(bool(verify(gold, answer, timeout_seconds=None))), flush=True)


if __name__ == "__main__":
    main()
