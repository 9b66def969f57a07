"""Shows a user's own rows as a model is trained on them, or asked: `tributary preview`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal, TypeAlias

from rich.text import Text

from curricula.prompt_files.prompt import (
    Prompt,
    checksum,
    contradict,
    read_prompt,
    reference_checksum,
)
from curricula.prompt_files.spec import PromptSource
from curricula.rows.conversation import Columns, Conversation, Layout
from curricula.rows.layouts import read_row
from curricula.rows.pair_columns import PairColumns
from curricula.rows.pairs import Judged, read_judged
from engines.batching import TokenSequence
from engines.types import Json, Problem
from flows.command.app import CLOSE, OPEN, CommandConsole, print_json
from flows.command.models.named_artifacts import find_model
from flows.explain import validated
from flows.one_stage.one_domain import columns_of
from infra.data_files.chunks import first_rows
from infra.data_files.files import choices_of, find_files, require_names
from infra.data_files.rows import BadRow, Reason, by_fault
from infra.errors import InputError
from infra.shown_text import shown
from rewards.exact import BY_LETTER, COMPARING, written_as_floats
from rewards.references import answer_texts
from tasks.message_files.render_rows import Renderer
from tasks.message_files.stream import RowCounts
from tasks.mid_training.spec import TextFiles
from tasks.model_folder.folder_report import template_text
from tasks.preference.row_faults import fault_beside

TRAINED, READ = "bold green", "dim"


RowKind: TypeAlias = Literal["messages", "prompts", "pairs", "documents"]
Shown: TypeAlias = tuple[str, TokenSequence]
"""where it is and what it is, and its tokens"""
Read: TypeAlias = Callable[[Mapping[str, Any]], tuple[Prompt | Judged | Conversation, list[Shown]]]


@dataclass(slots=True)
class _Seen:
    """Holds what was found in the rows that were read."""

    counts: RowCounts = field(default_factory=RowCounts)
    bad: list[str] = field(default_factory=list[str])
    """all bad rows: file, line and what is wrong"""
    shown: list[Shown] = field(default_factory=list[Shown])
    empty: list[str] = field(default_factory=list[str])
    """files without a row"""
    choices: list[str] = field(default_factory=list[str])
    """where a folder holds more than what is read"""
    are_all: bool = True
    layouts: Counter[str] = field(default_factory=Counter[str])
    """good rows by what they look like"""
    unread: set[str] = field(default_factory=set[str])
    """columns, and fields inside them, that nothing reads"""
    references: list[Json] = field(default_factory=list[Json])
    """of prompts"""
    known: dict[int, int] = field(default_factory=dict[int, int])
    """checksums of references by those of prompts; of other rows those of their tokens"""
    equal: int = 0
    """rows that say what an earlier one says"""
    contradicting: int = 0
    """of these, prompts with another reference"""
    unreadable: Counter[str] = field(default_factory=Counter[str])
    """references that the rewards which compare an answer cannot read, by what is wrong"""
    calling: int = 0
    """rows that call tools and offer none"""

    def note(self, made: Prompt | Judged | Conversation, shown: Sequence[Shown]) -> None:
        """Take a good row in."""
        self.counts.read += 1
        self.layouts[made.layout] += 1
        self.unread |= made.unread
        self.calling += _calls_unlisted(made)
        reference = 0
        if isinstance(made, Prompt):
            self.references.append(made.reference)
            self.unreadable += Counter([made.unanswered] if made.unanswered else [])
            content, reference = checksum(made.text), reference_checksum(made)
        else:
            content = checksum(repr([sequence.tokens for _, sequence in shown]))
        if content in self.known:
            self.equal += 1
            self.contradicting += contradict(reference, self.known[content])
        self.known.setdefault(content, reference)
        for _, sequence in shown:
            self.counts.tokens += len(sequence.tokens)
            self.counts.trained += sum(sequence.loss_mask)

    @property
    def notes(self) -> Iterator[str]:
        """Yield what the rows were read as, and what was not read of them."""
        for layout, count in self.layouts.most_common():
            yield f"read as {layout}" + (f": {count} rows" if len(self.layouts) > 1 else "")
        if self.unread:
            yield f"not read: {', '.join(sorted(self.unread))}"
        if self.equal:
            yield f"{self.equal} rows say what an earlier row says"
        yield from self.cautions

    @property
    def cautions(self) -> Iterator[str]:
        """Yield what may make right answers wrong, or teach what was not meant."""
        if self.empty:
            yield f"without a row: {', '.join(self.empty)}"
        for said, count in self.unreadable.items():
            yield f"{count} rows: {said}, if you use {', '.join(COMPARING)}"
        if self.contradicting:
            yield (
                f"{self.contradicting} rows contradict an earlier one: they have its prompt and"
                " another reference; the first counts"
            )
        if self.calling:
            yield (
                f"{self.calling} rows call tools and offer none: the model is taught to call what"
                " it was not told of; list them in a column `tools`"
            )
        if said := written_as_floats([*answer_texts(self.references)]):
            yield f"the rewards {' and '.join(BY_LETTER)} compare {said}"


@dataclass(frozen=True, slots=True)
class ReadAs:
    """It says how a row is read."""

    kind: RowKind
    layout: Layout
    columns: Sequence[str]
    """as a person writes them: messages=chat"""
    of_prompts: Mapping[str, str]
    """by field of `PromptSource`, what else makes a prompt; by option where it is refused"""
    roles: Sequence[str] = ()
    """of documents that are conversations: whose messages the loss is taken on; or `all`"""

    def reader(self, renderer: Renderer) -> Read:
        """Return what turns a row into what is shown of it. Raises InputError for what its kind has
        no use for."""
        named = columns_of(self.columns)
        if self.roles and self.kind != "documents":
            raise InputError("--roles: is for mid-training; write --kind documents too")
        if self.kind == "prompts":
            written = {"files": ["-"], "format": self.layout, "columns": named}
            source = validated(PromptSource, written | dict(self.of_prompts))
            return lambda row: _prompt(read_prompt(row, source), renderer)
        for name, value in self.of_prompts.items():
            if value:
                option = f"--{name.removeprefix('reference_')}"
                raise InputError(f"{option} {value!r}: is for prompts; write --kind prompts too")
        if self.kind == "documents":
            roles = None if list(self.roles) == ["all"] else list(self.roles)
            its = {"text": None, "roles": roles, "columns": named} if self.roles else named
            source = validated(TextFiles, {"files": ["-"], "format": self.layout, **its})
            rendered = source.renderer(renderer)
            return lambda row: _conversation(source.conversations(row)[0], rendered)
        if self.kind == "pairs":
            pair_columns = validated(PairColumns, named)
            return lambda row: _judged(read_judged(row, pair_columns, self.layout), renderer)
        columns = validated(Columns, named)
        return lambda row: _conversation(read_row(row, columns, self.layout), renderer)


def preview_files(
    files: Sequence[str],
    model: str,
    template: str,
    read_as: ReadAs,
    rows: int,
    read: int,
    root: str,
    json: bool,
    console: CommandConsole,
) -> int:
    for option, number, least in (("--rows", rows, 0), ("--read", read, 1)):
        if number < least:
            raise InputError(f"{option} {number}: give a whole number of at least {least}")
    require_names(files)
    try:
        text = template_text(template or None)
    except InputError as error:
        raise InputError(str(error).replace("base.template:", "--template:")) from None
    renderer = Renderer.of_model(find_model(model, root), text)
    seen = _read(files, read_as.reader(renderer), rows, read)
    code = 0 if seen.counts.read > seen.counts.num_bad else 1
    if json:
        print_json(_counted(seen, renderer))
        return code
    for where, sequence in seen.shown:
        console.rule(f"{where} \u00b7 {len(sequence.tokens)} tokens", align="left")
        console.print(_marked(renderer, sequence, console.is_terminal), soft_wrap=True)
    for line in _summary(seen, read_as.kind):
        console.say(line)
    return code


def _conversation(read: Conversation, renderer: Renderer) -> tuple[Conversation, list[Shown]]:
    return read, [("", renderer.render(read))]


def _judged(row: Judged, renderer: Renderer) -> tuple[Judged, list[Shown]]:
    made = [renderer.render(answer) for answer in row.answers]
    if fault := fault_beside(row.names, made):
        raise BadRow(Reason.TEMPLATE, fault)
    named = zip(row.names, made, strict=True)
    return row, [(f" \u00b7 {name}", sequence) for name, sequence in named]


def _prompt(prompt: Prompt, renderer: Renderer) -> tuple[Prompt, list[Shown]]:
    tokens = renderer.prompt_ids(Problem("preview", "files", prompt.messages, tools=prompt.tools))
    beside = f" \u00b7 reference {prompt.reference!r:.200}" if prompt.reference else ""
    if prompt.solution not in str(prompt.reference):  # else it is the reference's answer
        beside += f" \u00b7 solution {prompt.solution!r:.200}"
    return prompt, [(beside, TokenSequence(tokens, [0] * len(tokens)))]


def _calls_unlisted(made: Prompt | Judged | Conversation) -> bool:
    """Return whether a row calls tools and offers none."""
    said = made.answers[0] if isinstance(made, Judged) else made
    return not said.tools and any(message.tool_calls for message in said.messages)


def _read(patterns: Sequence[str], reader: Read, rows: int, read: int) -> _Seen:
    files = find_files(patterns)
    seen = _Seen(choices=choices_of(files))
    for file in files:
        left = read - seen.counts.read
        if left == 0:
            seen.are_all = False
            break
        found, are_all = first_rows(file, left)
        seen.are_all &= are_all
        seen.empty += [] if len(found) else [file.name]
        for index in range(len(found)):
            where = f"{file.name}:{found.line(index)}"
            try:
                made, shown = reader(found.row(index))
            except BadRow as error:
                seen.counts.left_out(where, error)
                seen.bad.append(f"{where}: {error}")
                continue
            seen.note(made, shown)
            if rows > 0:
                rows -= 1
                seen.shown += [(f"{where}{what}", sequence) for what, sequence in shown]
    if len(seen.empty) == len(files):
        raise InputError(f"files: no row in {', '.join(seen.empty)}")
    return seen


def _marked(renderer: Renderer, sequence: TokenSequence, in_colour: bool) -> Text:
    """The text of the tokens; what is trained on in colour, or between marks."""
    text = Text()
    pairs = zip(sequence.tokens, sequence.loss_mask, strict=True)
    for is_trained, run in groupby(pairs, key=lambda pair: bool(pair[1])):
        said = shown(renderer.chat.decode([token for token, _ in run]))
        if in_colour:
            text.append(said, style=TRAINED if is_trained else READ)
        else:
            text.append(f"{OPEN}{said}{CLOSE}" if is_trained else said)
    return text


def _counted(seen: _Seen, renderer: Renderer) -> dict[str, Any]:
    """Return what `--json` prints: as `_summary`, and each shown row with its tokens."""
    counts = seen.counts
    return {
        "rows_read": counts.read,
        "all_rows": seen.are_all,
        "choices": seen.choices,
        "rows_bad": counts.num_bad,
        "bad": {str(reason): count for reason, count in counts.bad.items()},
        "bad_rows": seen.bad,
        "tokens": counts.tokens,
        "trained_tokens": counts.trained,
        "layouts": dict(seen.layouts),
        "not_read": sorted(seen.unread),
        "equal_rows": seen.equal,
        "cautions": [*seen.cautions],
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


def _summary(seen: _Seen, kind: RowKind) -> Iterator[str]:
    counts = seen.counts
    good = counts.read - counts.num_bad
    yield from seen.choices
    which = "all rows" if seen.are_all else "the first rows (--read reads more)"
    rows = "row" if counts.read == 1 else "rows"
    bad = "1 is bad" if counts.num_bad == 1 else f"{counts.num_bad} are bad"
    yield f"{counts.read} {rows} read, {which}; {good} can be trained on, {bad}"
    if good and kind == "prompts":
        yield f"{counts.tokens} tokens of prompts, {counts.tokens / good:.0f} a row"
    elif good:
        share = counts.trained / counts.tokens
        yield (
            f"{counts.tokens} tokens, {counts.tokens / good:.0f} a row; {counts.trained}"
            f" ({share:.1%}) are trained on"
        )
    yield from seen.notes
    for reason, count in counts.bad.most_common():
        yield f"bad: {count} {reason}"
    yield from (f"  {line}" for line in by_fault(counts.named))
    if more := len(seen.bad) - len(counts.named):
        yield f"  and {more} more: --json lists all"
