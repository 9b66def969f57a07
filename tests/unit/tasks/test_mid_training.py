"""Mid-training: what is packed and cut, the mix of sources, which tokens are trained, refusals."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from engines.batching import TokenSequence, best_fit
from engines.chat import Chat
from engines.families.common.model_config import read_rope
from infra.data_files.rows import BadRow
from infra.errors import InputError
from tasks.message_files.render_rows import Renderer
from tasks.mid_training import packed_stream
from tasks.mid_training.packed_stream import PackedStream, cut
from tasks.mid_training.spec import MidTrainingSettings, RopeChange, TextFiles
from tests.parts.chat_parts import LLAMA, LLAMA_TOKENS, QWEN3, QWEN_TOKENS, chat_folder

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    folder = chat_folder(tmp_path_factory.mktemp("qwen"), QWEN3, QWEN_TOKENS, "<|im_end|>")
    return Renderer(Chat.load(folder), 64)


def write(file: Path, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return [str(file)]


def documents(file: Path, lengths: Sequence[int]) -> list[str]:
    """Each of so many tokens with its end token, and no two alike."""
    texts = (f"{at} ".ljust(length - 1, "x")[: length - 1] for at, length in enumerate(lengths))
    return write(file, [{"text": text} for text in texts])


def test_best_fit_puts_each_length_where_least_room_is_left() -> None:
    # First fit would put the 1 beside the 7: 5 + 4 + 1 fill a bin.
    assert best_fit([1, 7, 4, 5], 10) == [[1], [3, 2, 0]]
    assert best_fit([10, 6, 6, 3, 4], 10) == [[0], [1, 4], [2, 3]]
    assert best_fit([], 10) == []
    with pytest.raises(ValueError, match="11 does not fit in 10"):
        best_fit([3, 11], 10)


def test_a_document_is_cut_only_above_the_length_and_each_token_is_predicted_once() -> None:
    def pieces(count: int) -> list[list[int]]:
        whole = TokenSequence(list(range(count)), [1] * count, weight=0.5)
        found = list(cut(whole, 4))
        assert all(piece.weight == 0.5 for piece in found)
        return [piece.tokens for piece in found]

    assert pieces(1) == [[0]]
    assert pieces(4) == [[0, 1, 2, 3]]
    assert pieces(5) == [[0, 1, 2, 3], [3, 4]]
    assert pieces(8) == [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7]]


@pytest.mark.parametrize(("mean", "spread"), [(5.5, 1.5), (6.5, 1.0), (7.5, 0.8)])
def test_log_normal_documents_fill_98_percent_and_none_is_cut_below_the_length(
    qwen: Renderer, tmp_path: Path, mean: float, spread: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, length = random.Random(0), 4096
    lengths = [max(2, round(draw.lognormvariate(mean, spread))) for _ in range(1200)]
    monkeypatch.setattr(
        "tasks.mid_training.packed_stream.TextRenderer.render_all",
        lambda _, rows: [TokenSequence([0] * int(r.text), [1] * int(r.text)) for r in rows],
    )
    files = write(tmp_path / "a.jsonl", [{"text": str(length)} for length in lengths])
    packed = PackedStream([TextFiles(files=files)], qwen, 0, tmp_path, length)
    taken = [packed.take_packed() for _ in range(128)]
    assert packed.efficiency >= 0.98
    sizes = [[len(piece.tokens) for piece in each] for each in taken]
    assert max(map(sum, sizes)) <= length
    whole = Counter(size for each in sizes for size in each)
    ends = {size % (length - 1) for size in lengths if size > length}
    assert all(size in lengths or size == length or size % (length - 1) in ends for size in whole)
    assert packed.pieces >= 2 * packed.cut


def test_sources_get_their_share_of_the_tokens_to_within_one_document(
    qwen: Renderer, tmp_path: Path
) -> None:
    files = [documents(tmp_path / f"{n}.jsonl", [n] * 9) for n in (20, 50, 11)]
    sources = [
        TextFiles(files=its, weight=w) for its, w in zip(files, (1.0, 2.0, 5.0), strict=True)
    ]
    packed = PackedStream(sources, qwen, 0, tmp_path, 64)
    counts = [0, 0, 0]
    for _ in range(2000):  # dozens of epochs
        source, document = packed.take_by_tokens()
        counts[source] += len(document.tokens)
        total = sum(counts)
        for count, weight, longest in zip(counts, (1, 2, 5), (20, 50, 11), strict=True):
            assert count - total * weight / 8 <= longest


def test_a_stream_that_continues_gives_what_an_undisturbed_one_gives(
    qwen: Renderer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_stream, "_MOST", 16)
    draw = random.Random(1)
    lengths = [draw.randint(3, 90) for _ in range(70)]
    sources = [TextFiles(files=documents(tmp_path / "a.jsonl", lengths))]

    def stream() -> PackedStream:
        return PackedStream(sources, qwen, 7, tmp_path, 64)

    whole = stream()
    taken = [whole.take_packed() for _ in range(60)]
    for stop in (1, 15, 16, 37):
        first = stream()
        for _ in range(stop):
            first.take_packed()
        rest = stream()
        rest.continue_from(json.loads(json.dumps(first.position)))
        assert [rest.take_packed() for _ in range(60 - stop)] == taken[stop:]
        assert (rest.position, rest.efficiency) == (whole.position, whole.efficiency)
        assert (rest.cut, rest.pieces) == (whole.cut, whole.pieces)


def test_pieces_without_a_token_to_learn_are_left_out_and_counted(
    qwen: Renderer, tmp_path: Path
) -> None:
    """A question of 400 characters and an answer of 5: of the seven pieces the last alone has a
    token that the loss is taken on, so that six sequences of seven would teach nothing. A source of
    documents has its share of what is packed."""
    asked = [{"role": "user", "content": "x" * 400}, {"role": "assistant", "content": "y" * 5}]
    talks = write(tmp_path / "talks.jsonl", [{"messages": asked}] * 9)
    talk = TextFiles(files=talks, text=None, roles=["assistant"])
    (whole,) = talk.renderer(qwen).render_all([talk.conversations({"messages": asked})[0]])
    assert isinstance(whole, TokenSequence)
    learned = [any(piece.loss_mask[1:]) for piece in cut(whole, 64)]
    assert learned == [False] * 6 + [True]
    sources = [talk, TextFiles(files=documents(tmp_path / "texts.jsonl", [20] * 9))]
    packed = PackedStream(sources, qwen, 0, tmp_path, 64)
    taken = [packed.take_packed() for _ in range(200)]
    assert all(any(piece.loss_mask[1:]) for each in taken for piece in each)
    assert packed.unlearned == 6 * packed.cut > 0
    last = len(whole.tokens) - 6 * 63
    assert packed.packed_share(0) == pytest.approx(last / (last + 6 * 64))
    assert packed.packed_share(1) == 1.0
    first, second = packed.tokens
    assert abs(first - second) < 2 * 64 * 16, "to within two windows"
    rest = PackedStream(sources, qwen, 0, tmp_path, 64)
    rest.continue_from(json.loads(json.dumps(packed.position)))
    assert rest.take_packed() == packed.take_packed()
    assert rest.unlearned == packed.unlearned


TALK = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "add 1 2"},
    {"role": "assistant", "content": "3"},
    {"role": "user", "content": "and 3"},
    {"role": "assistant", "content": "6"},
]


def trained(renderer: Renderer, source: TextFiles, row: Mapping[str, Any]) -> list[str]:
    """The runs of tokens that the loss is taken on."""
    rendered = source.renderer(renderer)
    made = rendered.render(source.conversations(row)[0])
    runs, was = list[list[int]](), 0
    for token, now in zip(made.tokens, made.loss_mask, strict=True):
        if now:
            runs[len(runs) :] = [] if was else [[]]
            runs[-1].append(token)
        was = now
    return [renderer.chat.decode(run) for run in runs]


@pytest.mark.parametrize(
    ("roles", "said"),
    [
        (["assistant"], ["3<|im_end|>", "6<|im_end|>"]),
        (
            ["assistant", "user"],
            ["add 1 2<|im_end|>", "3<|im_end|>", "and 3<|im_end|>", "6<|im_end|>"],
        ),
    ],
)
def test_the_loss_is_taken_on_the_messages_of_the_roles(
    qwen: Renderer, roles: list[Any], said: list[str]
) -> None:
    found = trained(qwen, TextFiles(files=["-"], text=None, roles=roles), {"messages": TALK})
    assert [run.replace("<think>\n\n</think>\n\n", "") for run in found] == said


FUNCTION = {
    "name": "search",
    "description": "A user's search.",
    "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
}


def test_a_message_is_trained_where_it_stands_and_not_where_the_format_says_its_words(
    qwen: Renderer,
) -> None:
    call = {"function": {"name": "search", "arguments": {"q": "ant"}}}
    talk = [
        {"role": "user", "content": " user\n"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "search"},
        {"role": "assistant", "content": "s"},
    ]
    row = {"messages": talk, "tools": [{"type": "function", "function": FUNCTION}]}
    source = TextFiles(files=["-"], text=None, roles=["assistant", "user", "tool"])
    asked, _, found, said = trained(qwen, source, row)
    assert (asked.strip(), found, said) == ("user\n<|im_end|>", "search", "s<|im_end|>")
    with pytest.raises(BadRow, match="which tokens are of user"):
        trained(qwen, source, {"messages": [{**talk[0], "content": "a\ufdd0"}, talk[3]]})


def test_without_roles_it_is_taken_on_every_token_but_of_turns_that_are_marked(
    qwen: Renderer,
) -> None:
    chats = TextFiles(files=["-"], text=None)
    (whole,) = trained(qwen, chats, {"messages": TALK})
    assert whole.startswith("<|im_start|>system\nbe brief")
    assert whole.endswith("6<|im_end|>")
    marked = [m | ({"weight": 0} if m["content"] == "3" else {}) for m in TALK]
    before, after = trained(qwen, chats, {"messages": marked})
    assert before + "3<|im_end|>" + after == whole
    marked = [m | ({"train": False} if m["role"] == "user" else {}) for m in TALK]
    parts = trained(qwen, chats, {"messages": marked})
    assert "add 1 2<|im_end|>".join(parts[:2]) + "and 3<|im_end|>" + parts[2] == whole


@pytest.mark.parametrize("mark", [{"weight": 0}, {"train": False}, {"loss": 0}, {"loss_mask": 0}])
def test_a_message_of_any_role_that_its_author_marked_is_only_read(
    qwen: Renderer, mark: dict[str, Any]
) -> None:
    marked = [m | (mark if m["content"] == "add 1 2" else {}) for m in TALK]
    source = TextFiles(files=["-"], text=None, roles=["assistant", "user"])
    said = [
        run.replace("<think>\n\n</think>\n\n", "")
        for run in trained(qwen, source, {"messages": marked})
    ]
    assert said == ["3<|im_end|>", "and 3<|im_end|>", "6<|im_end|>"]


def test_a_document_begins_and_ends_as_conversations_do(qwen: Renderer, tmp_path: Path) -> None:
    source = TextFiles(files=["-"], text="body")
    assert trained(qwen, source, {"body": "one\ntwo", "url": "x"}) == ["one\ntwo<|im_end|>"]
    llama = Renderer(Chat.load(chat_folder(tmp_path, LLAMA, LLAMA_TOKENS, "<|eot|>")), 64)
    made = source.renderer(llama).render(source.conversations({"body": "one"})[0])
    assert llama.chat.decode(made.tokens) == "<|begin|>one<|eot|>"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"body": "a"}, "has no column text; it has body"),
        ({"text": " "}, "text: is empty"),
        ({"text": 3}, "text: holds a number, and should be a document"),
    ],
)
def test_a_row_without_a_text_is_bad(row: Mapping[str, Any], said: str) -> None:
    with pytest.raises(BadRow, match=said):
        TextFiles(files=["-"]).conversations(row)


SETTINGS: dict[str, Any] = {"steps": 2, "optimizer": {"lr": 1e-3}}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"weight": 0}, "greater than 0"),
        ({"weight": -1}, "greater than 0"),
        ({"text": ""}, "names no column"),
        ({"roles": ["assistant"]}, "roles: is of conversations, and these rows are documents"),
        ({"format": "openai"}, "format: is of conversations"),
        ({"columns": {"messages": "chat"}}, "columns: is of conversations"),
        ({"text": None, "roles": ["user"]}, "lacks `assistant`"),
        ({"text": None, "roles": ["robot"]}, "should be 'system', 'user', 'assistant' or 'tool'"),
    ],
)
def test_settings_that_nothing_could_follow_are_refused(
    source: Mapping[str, Any], said: str
) -> None:
    with pytest.raises(ValidationError, match=said):
        MidTrainingSettings.model_validate(SETTINGS | {"data": {"files": ["a.jsonl"], **source}})


OLD = {"rope_theta": 1e4, "max_position_embeddings": 512}
NEW = {"rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}, **OLD}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512}


@pytest.mark.parametrize(
    ("config", "rope", "made"),
    [
        (OLD, {"theta": 1e6}, {"rope_theta": 1e6}),
        (OLD, {"yarn": True}, {"rope_theta": 1e4, "rope_scaling": YARN}),
        (
            NEW,
            {"theta": 1e6, "yarn": True},
            {"rope_theta": 1e6, "rope_parameters": {"rope_theta": 1e6, **YARN}},
        ),
        (  # a second time: as much as from the first positions on
            OLD | {"rope_scaling": YARN | {"factor": 2.0}, "max_position_embeddings": 1024},
            {"yarn": True},
            {"rope_theta": 1e4, "rope_scaling": YARN},
        ),
        (  # the older name of its type says the same
            OLD | {"rope_scaling": {"type": "default"}},
            {"yarn": True},
            {"rope_theta": 1e4, "rope_scaling": YARN | {"type": "yarn"}},
        ),
    ],
)
def test_more_positions_are_written_in_the_configs_own_spelling(
    config: Mapping[str, Any], rope: Mapping[str, Any], made: Mapping[str, Any]
) -> None:
    written = SETTINGS | {"data": {"files": ["a"]}, "rope": {"positions": 4096, **rope}}
    found = MidTrainingSettings.model_validate(written).config_of(config)
    assert found == {"max_position_embeddings": 4096, **made}
    assert read_rope(found).theta == found["rope_theta"]


@pytest.mark.parametrize(
    ("config", "rope", "said"),
    [
        ({}, None, "sequence_length: 4096 is more than the 512 positions"),
        ({}, {"positions": 512, "yarn": True}, "rope.positions: 512 is not more than the 512"),
        ({}, {"positions": 4096, "theta": 1e4}, "rope.theta: 10000 is not more than the 10000"),
        *[
            (
                two,
                {"positions": 4096, "theta": 1e6},
                "rope.positions: layers of two kinds of rotary",
            )
            for two in (
                {"rope_local_base_freq": 1e4},
                {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}},
            )
        ],
        ({}, {"positions": 2048, "yarn": True}, "4096 is more than the 2048 positions"),
        (
            {"rope_scaling": {"rope_type": "llama3"}},
            {"positions": 4096, "yarn": True},
            "rope.yarn: the model has rope type 'llama3'",
        ),
    ],
)
def test_sequences_that_the_model_cannot_read_are_refused(
    config: Mapping[str, Any], rope: Any, said: str
) -> None:
    made = MidTrainingSettings.model_validate(
        SETTINGS | {"data": {"files": ["a.jsonl"]}, "rope": rope}
    )
    with pytest.raises(InputError, match=re.escape(said)):
        made.config_of(OLD | config)


def test_a_rope_change_says_how() -> None:
    with pytest.raises(ValidationError, match="write `theta`, or `yarn: true`, or both"):
        RopeChange(positions=4096)
