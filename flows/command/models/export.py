"""Gives models to others: `tributary export`, `push`, `convert`, and `publish` for running servers
of others; `align` shows where trainer and engine differ on one model.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engines.chat import Chat
from engines.chat.chat_folder import write_stops
from engines.families.common.dense import is_fp8
from engines.families.common.model_config import read_config
from engines.families.common.registry import TEXT_OF, model_shape
from engines.sglang.spec import server_address
from flows.command.app import CommandConsole, print_json, text_table
from flows.command.models.card import (
    CARD,
    LINEAGE,
    UNKNOWN_LICENCE,
    card,
    licence_of,
    lineage_content,
    lineage_of,
    origin_of,
)
from flows.command.models.named_artifacts import NamedModel, find_model, find_named_model
from flows.running.records import has_run
from infra.errors import CorruptArtifact, InputError
from infra.home import home, new_folder, require_free
from infra.hub import hub_name, is_hub_name, upload_model
from infra.store.store import Store
from tasks.model_folder.model_files import ModelFiles, is_dist_folder
from tasks.model_folder.read_tensors import (
    extra_tensors,
    listed,
    stored_tensors,
    tensor_problems,
)

if TYPE_CHECKING:
    from engines.align.compared_programs import Alignment, Difference
    from engines.sglang.external.give_weights import Way

_TAKEN = (".json", ".jinja", ".txt", ".model", ".safetensors")
"""what a model is made of; records of how it was trained stay in the store"""
_FILE_MODE = 0o644


@dataclass(frozen=True, slots=True)
class Exported:
    folder: Path
    bytes: int
    licence: str
    stops: tuple[str, ...]
    """tokens that end an answer, as generation_config.json and config.json list them"""


def export(artifact: str, folder: str, licence: str, root: str, console: CommandConsole) -> int:
    target = Path(folder).expanduser()
    owner, slash, _ = folder.partition("/")
    if slash and owner and has_run(owner) and not target.exists():
        raise InputError(
            f"{folder}: is called as a stage of run `{owner}`; first the model, then the folder:"
            f" tributary export {folder} FOLDER. If it is to be a folder: ./{folder}"
        )
    require_free(target)  # before a model is fetched
    made = export_model(find_named_model(artifact, root), target, licence)
    console.print(
        f"{made.folder}: {made.bytes / 1e6:.1f} MB; transformers loads it; an answer ends with"
        f" {' or '.join(made.stops)}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    if made.licence == UNKNOWN_LICENCE:
        console.print("The card states no licence; --license ID names one.", markup=False)
    return 0


def export_model(model: NamedModel, folder: Path, licence: str = "") -> Exported:
    """Write the model to `folder`, which must not hold anything yet: all of it, or nothing.

    Raises InputError for a folder that is taken or cannot be written, CorruptArtifact for a model
    that transformers does not load whole.
    """
    named = licence or licence_of(model.folder)
    with new_folder(folder) as draft:
        _copy(model.folder, draft)
        chat = Chat.load(draft)
        write_stops(draft, chat.stop_token_ids)
        _describe(model, draft, folder.resolve().name, named)
        require_loadable(draft)
        size = _open_to_readers(draft)
    stops = tuple(chat.decode([token]) for token in chat.stop_token_ids)
    return Exported(folder, size, named, stops)


def require_loadable(folder: Path) -> None:
    """Raises CorruptArtifact unless transformers loads the tokenizer and every weight."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        AutoTokenizer.from_pretrained(folder)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype="auto", output_loading_info=True
        )
    except Exception as error:
        raise CorruptArtifact(
            f"transformers does not load the model: {type(error).__name__}: {error}. Nothing was"
            " written; delete the artifact and run its stage again"
        ) from error
    wrong = {kind: sorted(map(str, names)) for kind, names in loaded[1].items() if names}
    if wrong:
        raise CorruptArtifact(f"transformers loads the model, but {wrong}. Nothing was written")


def _copy(source: Path, draft: Path) -> None:
    for path in sorted(source.iterdir()):
        if path.is_file() and (path.suffix in _TAKEN or path.name.startswith("LICENSE")):
            shutil.copyfile(path, draft / path.name)


def _describe(model: NamedModel, draft: Path, name: str, licence: str) -> None:
    lineage, origin = [], origin_of(model)
    if model.record is not None and model.artifacts is not None:
        lineage = lineage_of(model.artifacts, model.record.kind, model.record.digest)
    content = lineage_content(lineage, origin)
    (draft / LINEAGE).write_text(json.dumps(content, indent=1) + "\n")
    (draft / CARD).write_text(card(name, read_config(draft), licence, lineage, origin))


def _open_to_readers(draft: Path) -> int:
    """Others may read it, whatever the umask; returns its size in bytes."""
    size = 0
    for path in draft.iterdir():
        path.chmod(_FILE_MODE)
        size += path.stat().st_size
    return size


def push(
    artifact: str, to: str, licence: str, public: bool, root: str, console: CommandConsole
) -> int:
    if not is_hub_name(to) and "://" not in to:
        raise InputError(f"{to}: push to s3://BUCKET/PREFIX or to hf:ORG/NAME; export to a folder")
    place = _push(find_named_model(artifact, root), to, licence, public)
    console.say(place)
    return 0


def _push(model: NamedModel, to: str, licence: str, public: bool) -> str:
    """Raises InputError for a place that is taken, before anything is written."""
    if not is_hub_name(to) and (names := Store(to).listdir("")):
        raise InputError(f"{to} already holds {', '.join(names[:3])}: push to an empty prefix")
    name = (hub_name(to).repo if is_hub_name(to) else to.rstrip("/")).rpartition("/")[2]
    with tempfile.TemporaryDirectory(prefix="tributary-push-") as scratch:
        folder = export_model(model, Path(scratch) / name, licence).folder
        if is_hub_name(to):
            called = model.record.name if model.record else model.name
            return f"pushed to {upload_model(folder, to, f'Upload {called}', is_public=public)}"
        files = Store(to).upload_folder(folder, "")
    return f"pushed {len(files)} files to {to}"


def convert(source: str, folder: str, like: str, root: str, console: CommandConsole) -> int:
    """-> exit code. Raises InputError, before anything is written, for what cannot be converted."""
    target = Path(folder).expanduser()
    require_free(target)
    given = Path(source).expanduser()
    is_dist = given.is_dir() and is_dist_folder([file.name for file in given.iterdir()])
    told = _config_folder(given, like, root) if is_dist else find_model(source, root)
    if like and not is_dist:
        raise InputError("--like is for a dist_checkpointing folder; an HF folder has all it needs")
    if not is_dist and is_fp8(read_config(told)):
        from engines.megatron.hf.write_hf import write_plain_folder

        with new_folder(target) as draft:
            count = write_plain_folder(told, draft)
        what = f"{target}: an HF folder in bfloat16; {count} of its matrices were FP8"
        console.say(what)
        return 0
    if not is_dist and read_config(told).get("model_type") in TEXT_OF:
        from engines.megatron.hf.write_hf import write_text_folder

        with new_folder(target) as draft:
            count = write_text_folder(told, draft)
        console.say(
            f"{target}: the text model, without the {count} tensors that see images; layers for"
            " multi-token prediction, if it has some, stay as they are and are not trained"
        )
        return 0
    left_out = _left_out(told, is_source=not is_dist)
    with new_folder(target) as draft, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Megatron-core tells of all that this machine lacks
        difference = _converted(given if is_dist else None, told, draft)
    what = "an HF folder" if is_dist else "a dist_checkpointing folder"
    console.print(
        f"{target}: {what}; logits of Megatron-core and transformers differ by at most"
        f" {difference:.3g} in float32{left_out}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    return 0


def _left_out(hf: Path, *, is_source: bool) -> str:
    """Return what to say of tensors that a dist_checkpointing folder has no place for. Raises
    InputError if the source holds others, or lacks some, than its config.json describes."""
    files, shape = ModelFiles(str(hf)), model_shape(read_config(hf))
    if not is_source and not any(name.endswith(".safetensors") for name in files.sizes):
        return ""
    stored = stored_tensors(files)
    for problem in tensor_problems(files, stored, shape) if is_source else ():
        raise InputError(f"{hf}/{problem}")
    extra = extra_tensors(stored, shape)
    told = f"; left out: {listed(extra)} of layers for multi-token prediction"
    return told if extra else ""


def _converted(dist: Path | None, hf: Path, draft: Path) -> float:
    from engines.megatron.hf.convert import largest_difference, write_dist_folder
    from engines.megatron.hf.write_hf import write_hf_folder

    if dist is None:
        write_dist_folder(hf, draft)
        return largest_difference(draft, hf)
    write_hf_folder(dist, hf, draft)
    return largest_difference(dist, draft)


def _config_folder(dist: Path, like: str, root: str) -> Path:
    if like:
        return find_model(like, root)
    if not (dist / "config.json").is_file():
        raise InputError(
            f"{dist} has no config.json: name a model with its configuration and tokenizer, e.g."
            " --like hf:Qwen/Qwen3-0.6B, or put those files into the folder"
        )
    return dist


def publish_model(
    model: str, to: list[str], by: Way, root: str, json: bool, console: CommandConsole
) -> int:
    from engines.sglang.external.give_weights import publish

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


def align(
    model: str, precision: str, tokens: int, root: str, json: bool, console: CommandConsole
) -> int:
    """-> exit code: 1 if two programs differ beyond the bound of the type."""
    folder = find_model(model, root)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Megatron-core tells of all that this machine lacks
        from engines.align.compared_programs import BOUNDS, compare, run_all
        from engines.devices.child_processes import ChildProcesses
        from engines.sglang.servers.slots import LAUNCHER

        logs = home() / "logs" / "align"
        with ChildProcesses(logs, LAUNCHER) as children:
            found = compare(
                run_all(folder, tokens, precision, children=children), BOUNDS[precision]
            )
    if json:
        print_json({"model": str(folder), "dtype": precision, "tokens": tokens, **found.as_json()})
    else:
        show(found, f"{folder}: largest relative difference, {precision}, {tokens} tokens", console)
    return 0 if found.first is None else 1


def show(found: Alignment, title: str, console: CommandConsole) -> None:
    from engines.align.compared_programs import by_layer

    pairs = list(found.differences[0].between)
    header = ["", *(" - ".join(pair) for pair in pairs), "first beyond"]
    rows = [[name, *_cells(each, pairs, found.bound)] for name, each in by_layer(found)]
    console.print(text_table(header, rows, title))
    console.say(found.sentence())
    for line in found.experts:
        console.say(f"  experts of {line}")


def _cells(
    points: Sequence[Difference], pairs: Sequence[tuple[str, str]], bound: float
) -> list[str]:
    """Numbers of a layer and the first of its points that is beyond the bound."""
    largest = [max(each.between.get(pair, 0.0) for each in points) for pair in pairs]
    first = next((each.point for each in points if each.is_beyond(bound)), "")
    return [*(f"{value:.1e}" for value in largest), first]
