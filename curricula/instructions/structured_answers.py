"""Answers that are tables, data or articles in Markdown."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence

from curricula.instructions.written_answers import (
    ADJECTIVES,
    Answer,
    Form,
    Rule,
    counted,
    sentences,
)
from engines.types import Json


def _table(topic: str, rng: random.Random) -> Answer:
    columns, rows = rng.randint(2, 3), rng.randint(1, 3)
    head = ["name", "size", "price"][:columns]
    body = [
        [rng.choice(ADJECTIVES), *(str(rng.randint(1, 9)) for _ in head[1:])] for _ in range(rows)
    ]
    if rng.random() < 0.4:
        text = "\n".join(",".join(row) for row in [head, *body])
        rule: Rule = (
            f"Answer in bare CSV: a head, {columns} columns and {counted(rows, 'rows')} more.",
            {"kind": "csv_table", "columns": columns, "rows": rows},
        )
    else:
        lines = [head, ["---"] * columns, *body]
        text = "\n".join(f"| {' | '.join(row)} |" for row in lines)
        rule = (
            f"Use a table in Markdown: {columns} columns, {counted(rows, 'rows')} below its head.",
            {"kind": "table", "columns": columns, "rows": rows},
        )
    return Answer(text, "table", "a table", (rule,))


def _data(topic: str, rng: random.Random) -> Answer:
    keys: list[Json] = list(
        rng.sample(("name", "colour", "weight", "place", "age"), rng.randint(2, 4))
    )
    listed = ", ".join(map(str, keys))
    value = {str(key): rng.choice(ADJECTIVES) for key in keys}
    kind = rng.randrange(4)
    if kind == 0:
        rule: Rule = (
            f"Answer with a JSON object, without a fence, that has just the keys {listed}.",
            {"kind": "json_keys", "keys": keys},
        )
        return Answer(json.dumps(value), "data", "an example", (rule,))
    if kind == 1:
        rule = (
            f"Answer with one JSON array of {len(value)} values, without a fence.",
            {"kind": "json_list", "exactly": len(value)},
        )
        return Answer(json.dumps([*value.values()]), "data", "a few words", (rule,))
    if kind == 2:
        rule = (
            f"Answer in YAML, without a fence: a mapping with just the keys {listed}.",
            {"kind": "yaml_keys", "keys": keys},
        )
        text = "\n".join(f"{key}: {said}" for key, said in value.items())
        return Answer(text, "data", "an example", (rule,))
    rule = ("Answer in JSON alone, in a fence of Markdown or without one.", {"kind": "fenced_json"})
    return Answer(f"```json\n{json.dumps(value)}\n```", "data", "an example", (rule,))


def _article(topic: str, rng: random.Random) -> Answer:
    count = rng.randint(1, 3)
    parts = [
        f"## {a.capitalize()} {topic}\n\n{sentences(topic, rng, 2)[0]}"
        for a in rng.sample(ADJECTIVES, count)
    ]
    rules: list[Rule] = [
        (
            f"Use exactly {counted(count, 'headings')} of the second level of Markdown.",
            {"kind": "headings", "level": 2, "exactly": count},
        ),
    ]
    text = "\n\n".join(parts)
    extra: Mapping[str, tuple[str, Rule]] = {
        "bold": (
            f"\n\n**{topic}** above all.",
            ("Print at least one part in bold.", {"kind": "bold_parts", "at_least": 1}),
        ),
        "link": (
            f"\n\nSee [{topic}](https://example.org/{topic}).",
            ("Add a Markdown link.", {"kind": "links", "at_least": 1}),
        ),
        "code": (
            f"\n\nType `{topic}` first.",
            ("Set something as code between backticks.", {"kind": "inline_code", "at_least": 1}),
        ),
        "block": (
            f'\n\n```python\nprint("{topic}")\n```',
            (
                "Add a block of Python code between fences.",
                {"kind": "code_block", "language": "python"},
            ),
        ),
        "quote": (
            f"\n\n> {sentences(topic, rng, 1)[0]}",
            (
                "Quote somebody in a line that begins with >.",
                {"kind": "quoted_lines", "at_least": 1},
            ),
        ),
        "formula": (
            "\n\nIt holds that $a + b = c$.",
            ("Add a formula between dollar signs.", {"kind": "formulas", "at_least": 1}),
        ),
    }
    for name in rng.sample(sorted(extra), rng.randint(0, 2)):
        more, rule = extra[name]
        text += more
        rules.append(rule)
    if rng.random() < 0.4:
        text = f"<<All about {topic}>>\n\n{text}"
        rules.append(("Give it a title in double angular brackets: <<title>>.", {"kind": "title"}))
    return Answer(text, "article", "an article", tuple(rules))


STRUCTURED_FORMS: Sequence[Form] = (_table, *[_data] * 2, *[_article] * 3)
"""as often as it stands here"""
