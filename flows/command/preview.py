"""`tributary preview`: a user's own rows as a model will be trained on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from pydantic import ValidationError
from rich.console import Console
from rich.text import Text

from engines.batching import TokenSequence
from flows.command.find_artifact import find_model
from flows.command.output import CLOSE, OPEN, print_json
from flows.explain import explain
from infra.errors import InputError
from tasks.message_files.bad_row import BadRow
from tasks.message_files.chunks import first_rows
from tasks.message_files.files import find_files
from tasks.message_files.layouts import read_row
from tasks.message_files.rendering import Renderer
from tasks.message_files.spec import MessageFiles
from tasks.message_files.stream import RowCounts

TRAINED, READ = "bold green", "dim"


@dataclass(slots=True)
class _Seen:
    """What was found in the rows that were read."""

    counts: RowCounts = field(default_factory=RowCounts)
    shown: list[tuple[str, TokenSequence]] = field(default_factory=list[tuple[str, TokenSequence]])
    are_all: bool = True


def preview_files(
    files: Sequence[str],
    model: str,
    rows: int,
    read: int,
    layout: str,
    columns: Sequence[str],
    root: str,
    json: bool,
    console: Console,
) -> int:
    if rows < 0 or read < 1:
        raise InputError(
            f"--rows {rows} --read {read}: show from 0 rows of at least 1 that is read"
        )
    source = _source(files, layout, columns)
    renderer = Renderer.of_model(find_model(model, root))
    seen = _read(source, renderer, rows, read)
    code = 0 if seen.counts.read > seen.counts.num_bad else 1
    if json:
        print_json(_counted(seen, renderer))
        return code
    for where, sequence in seen.shown:
        console.rule(f"{where} \u00b7 {len(sequence.tokens)} tokens", align="left")
        console.print(_marked(renderer, sequence, console.is_terminal), soft_wrap=True)
    for line in _summary(seen):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return code


def _source(files: Sequence[str], layout: str, columns: Sequence[str]) -> MessageFiles:
    parts = [each.partition("=") for each in columns]
    named = {column: name for column, _, name in parts}
    written: dict[str, Any] = {"files": list(files), "format": layout, "columns": named}
    try:
        return MessageFiles.model_validate(written)
    except ValidationError as error:
        raise InputError("; ".join(explain(error, MessageFiles))) from None


def _read(source: MessageFiles, renderer: Renderer, rows: int, read: int) -> _Seen:
    seen = _Seen()
    for file in find_files(source.files):
        left = read - seen.counts.read
        if left == 0:
            seen.are_all = False
            break
        found, are_all = first_rows(file, left)
        seen.are_all &= are_all
        for index in range(len(found)):
            where = f"{file.name}:{found.line(index)}"
            try:
                sequence = renderer.render(read_row(found.row(index), source))
            except BadRow as error:
                seen.counts.left_out(where, error)
                continue
            seen.counts.good(sequence)
            if len(seen.shown) < rows:
                seen.shown.append((where, sequence))
    return seen


def _marked(renderer: Renderer, sequence: TokenSequence, in_colour: bool) -> Text:
    """The text of the tokens; what is trained on in colour, or between marks."""
    text = Text()
    pairs = zip(sequence.tokens, sequence.loss_mask, strict=True)
    for is_trained, run in groupby(pairs, key=lambda pair: bool(pair[1])):
        said = renderer.chat.decode([token for token, _ in run])
        if in_colour:
            text.append(said, style=TRAINED if is_trained else READ)
        else:
            text.append(f"{OPEN}{said}{CLOSE}" if is_trained else said)
    return text


def _counted(seen: _Seen, renderer: Renderer) -> dict[str, Any]:
    """What `--json` prints: as `_summary`, and each shown row with its tokens."""
    counts = seen.counts
    return {
        "rows_read": counts.read,
        "all_rows": seen.are_all,
        "rows_bad": counts.num_bad,
        "bad": {str(reason): count for reason, count in counts.bad.items()},
        "bad_rows": list(counts.named),
        "tokens": counts.tokens,
        "trained_tokens": counts.trained,
        "shown": [
            {
                "row": where,
                "text": renderer.chat.decode(sequence.tokens),
                "tokens": [int(token) for token in sequence.tokens],
                "loss_mask": [int(trained) for trained in sequence.loss_mask],
            }
            for where, sequence in seen.shown
        ],
    }


def _summary(seen: _Seen) -> Iterator[str]:
    counts = seen.counts
    good = counts.read - counts.num_bad
    which = "all rows" if seen.are_all else "the first rows (--read reads more)"
    yield f"{counts.read} rows read, {which}; {good} can be trained on, {counts.num_bad} are bad"
    if good:
        share = counts.trained / counts.tokens
        yield (
            f"{counts.tokens} tokens, {counts.tokens / good:.0f} a row; {counts.trained}"
            f" ({share:.1%}) are trained on"
        )
    for reason, count in counts.bad.most_common():
        yield f"bad: {count} {reason}"
    yield from (f"  {line}" for line in counts.named)
