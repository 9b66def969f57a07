"""The index of a `dist_checkpointing` folder: a pickle, of which only plain descriptions are read.

A pickle may name any function of any module, and reading it calls that function. The index of a
folder from somebody else therefore may name what torch describes stored tensors with, and nothing
else; and the files that it names lie in the folder.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from infra.errors import InputError

INDEX = ".metadata"
_LARGEST = 1 << 30
"""bytes: the index of a model with a million stored pieces has less"""
_DESCRIPTIONS = {
    "torch.distributed.checkpoint.metadata": {
        *("BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex"),
        *("StorageMeta", "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING"),
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.distributed.checkpoint.planner": {
        *("BytesIOWriteData", "SavePlan", "TensorWriteData", "WriteItem", "WriteItemType"),
    },
    "torch.serialization": {"_get_layout"},
    "torch": {
        *("Size", "bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"),
        *("uint8", "int8", "int16", "int32", "int64", "bool"),
    },
    "pathlib": {"Path", "PosixPath", "PurePosixPath"},
    "collections": {"OrderedDict"},
}


class _DescriptionsOnly(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if global_name not in _DESCRIPTIONS.get(module_name, ()):
            raise InputError(f"it names {module_name}.{global_name}, which describes no tensor")
        return super().find_class(module_name, global_name)


class CheckedReader(FileSystemReader):
    """torch's reader, with an index that can only describe."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._folder = folder

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Raises InputError for an index that holds anything but descriptions."""
        path = self._folder / INDEX
        if path.stat().st_size > _LARGEST:
            raise InputError(f"{path} has more than {_LARGEST} bytes, which no index has")
        with path.open("rb") as file:
            try:
                found: Any = _DescriptionsOnly(file).load()
            except InputError as error:
                raise InputError(
                    f"{path} is not read: it is a pickle, which may run any program, and {error}."
                    " Take the model from a source that you trust, as an HF folder of safetensors"
                ) from None
        if not isinstance(found, Metadata):
            raise InputError(f"{path} describes no stored tensors")
        for stored in (found.storage_data or {}).values():
            named = str(stored.relative_path)
            if not (self._folder / named).resolve().is_relative_to(self._folder.resolve()):
                raise InputError(f"{path} names a file outside of its folder: {named}")
        found.storage_meta = found.storage_meta or StorageMeta()
        found.storage_meta.load_id = self.load_id
        return found
