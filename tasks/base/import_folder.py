"""Import of an HF folder as base: looked at, copied, and its weights read once."""

from __future__ import annotations

from math import prod
from pathlib import Path

from infra.errors import InputError
from infra.home import require_room, room_in
from infra.hub import is_hub_name, snapshot
from tasks.model_folder.folder_report import report_model, template_text
from tasks.model_folder.model_files import ModelFiles, is_dist_folder
from tasks.model_folder.read_tensors import StoredTensor, stored_tensors, weight_files

_SUFFIXES = (".json", ".jinja", ".txt", ".model", "README.md", "LICENSE")
"""ends of the names of files to copy besides the weights; other weight formats are not copied"""
_EXPONENT = {
    "BF16": ("<u2", 0x7F80),
    "F16": ("<u2", 0x7C00),
    "F32": ("<u4", 0x7F80_0000),
    "F64": ("<u8", 0x7FF0_0000_0000_0000),
}
"""a value's bits and its exponent, which is all ones in NaN and infinity and nowhere else"""
_CHUNK = 1 << 24
"""values looked at in one go"""


def import_model(url: str, folder: Path, template: str | None = None) -> dict[str, float]:
    """Copy the model folder at `url` (fsspec, or `hf:org/name`), with another chat template if one
    is named. Raises InputError that names every fault."""
    if is_hub_name(url):
        url = str(snapshot(url))
    report = report_model(url, template)
    if report.problems:
        raise InputError("\n".join(f"base.folder: {line}" for line in report.problems))
    files = ModelFiles(url)
    if is_dist_folder(files.sizes):
        _convert(files, folder)
    else:
        wanted = [name for name in files.sizes if name.endswith(_SUFFIXES)]
        wanted += weight_files(files)
        require_room(
            f"base.folder: {url}", sum(files.sizes[name] for name in wanted), room_in(folder)
        )
        for name in wanted:
            files.copy(name, folder)
    if template is not None:
        (folder / "chat_template.jinja").write_text(template_text(template))
    for name, tensor in stored_tensors(ModelFiles(str(folder))).items():
        if tensor.dtype in _EXPONENT and not _is_finite(folder, tensor):
            raise InputError(
                f"base.folder: {url.rstrip('/')}/{tensor.file}: {name} holds NaN or infinity, so"
                " training from it would give only NaN; give a model without them"
            )
    return {"parameters": float(report.parameters)}


def _convert(files: ModelFiles, folder: Path) -> None:
    """From Megatron's dist_checkpointing, which is read where it is, or as a temporary copy."""
    from engines.megatron.hf.write_hf import write_hf_folder

    with files.on_this_machine(list(files.sizes)) as local:
        try:
            write_hf_folder(local, local, folder)
        except InputError as error:
            raise InputError(f"base.folder: {error}") from error


def _is_finite(folder: Path, tensor: StoredTensor) -> bool:
    import numpy as np

    kind, exponent = _EXPONENT[tensor.dtype]
    # Not as a map of the type: a tensor may begin at any byte.
    with (folder / tensor.file).open("rb") as file:
        file.seek(tensor.start)
        left = prod(tensor.size)
        while left > 0:
            values = np.fromfile(file, kind, min(left, _CHUNK))
            if ((values & values.dtype.type(exponent)) == exponent).any():
                return False
            left -= _CHUNK
    return True
