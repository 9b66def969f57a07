"""Megatron's `dist_checkpointing` folders, read without a layout.

Weights are stored by their global shape, so that they are read whole, one at a time, whatever ranks
wrote them. Layers are stored one by one, or all of one kind as one tensor with a first axis for
layers. Optimizer and random states are left alone.

The index is a pickle. A pickle may name any function of any module, and reading it calls that
function. The index of a folder from somebody else therefore may name what torch describes stored
tensors with, and nothing else; and the files that it names lie in the folder.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from engines.families.common.family import ModelShape
from engines.families.common.tensors import OUTPUT
from infra.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


_FUSED = {
    "input_layernorm.weight": "self_attention.linear_qkv.layer_norm_weight",
    "pre_mlp_layernorm.weight": "mlp.linear_fc1.layer_norm_weight",
    "self_attention.q_layernorm.weight": "self_attention.linear_q_up_proj.layer_norm_weight",
    "self_attention.kv_layernorm.weight": "self_attention.linear_kv_up_proj.layer_norm_weight",
}
"""what Transformer Engine's layers call ours"""
_PARTS = {
    "self_attention.in_proj.weight": ("query", "key", "value", "z", "beta", "alpha"),
    "self_attention.conv1d.weight": ("query", "key", "value"),
}
"""what of a delta net's parameter is stored by itself, in the order of its rows"""
_EXPERT = re.compile(r"mlp\.experts\.local_experts\.(\d+)\.(.+)")
"""a routed expert's parameter; all experts of a layer are stored as one tensor"""
_SHOWN = 3
INDEX = ".metadata"
_LARGEST = 1 << 30
"""bytes: the index of a model with a million stored pieces has less"""


class DistWeights:
    """The model's weights in a folder, by Megatron's parameter names of an unsplit model."""

    def __init__(self, folder: Path) -> None:
        """Raises InputError for a folder that is damaged or holds no model."""

        self.folder = folder
        self._reader = CheckedReader(folder)
        try:
            metadata: Any = self._reader.read_metadata()
        except InputError:
            raise
        except Exception as error:  # a damaged pickle fails in many ways
            raise InputError(
                f"{folder} is no whole dist_checkpointing folder ({error}); copy it again"
            ) from error
        stored: Mapping[str, Any] = metadata.state_dict_metadata
        # Only tensors have a size; what else is stored are extra states.
        tensors = {name: entry for name, entry in stored.items() if hasattr(entry, "size")}
        self.sizes: dict[str, tuple[int, ...]] = {n: tuple(e.size) for n, e in tensors.items()}
        self._types = {name: entry.properties.dtype for name, entry in tensors.items()}
        self._stack: tuple[str, Tensor] | None = None
        """of all layers' or experts' parameters of a kind, the one that was read last"""

    def read(self, name: str, layer: int | None, num_layers: int) -> Tensor:
        """Return a parameter; `name` is that of one layer, without its prefix, where `layer` is
        given. Ask for all layers of one name, as `parameters` does: what is stored in one is then
        read once.
        """
        if (parts := _PARTS.get(name)) is not None:
            import torch

            return torch.cat([self.read(f"{name}.{part}", layer, num_layers) for part in parts])
        of_expert = _EXPERT.fullmatch(name)
        kind = f"mlp.experts.experts.{of_expert[2]}" if of_expert else name
        key, is_stacked = self._key(kind, layer, num_layers)
        if not is_stacked and of_expert is None:
            return self._load(key)
        if self._stack is None or self._stack[0] != key:
            self._stack = None  # before another one is in memory
            self._stack = key, self._load(key)
        whole = self._stack[1][layer] if is_stacked else self._stack[1]
        return whole[int(of_expert[1])] if of_expert else whole

    def _load(self, key: str) -> Tensor:
        import torch
        from torch.distributed.checkpoint.state_dict_loader import load

        whole = torch.empty(self.sizes[key], dtype=self._types[key])
        load({key: whole}, storage_reader=self._reader, no_dist=True)
        return whole

    def _key(self, name: str, layer: int | None, num_layers: int) -> tuple[str, bool]:
        """Return what it is stored as, and whether with all other layers."""
        for known in (name, _FUSED.get(name, name)):
            if layer is None and known in self.sizes:
                return known, False
            stacked = f"decoder.layers.{known}"
            if layer is not None and self.sizes.get(stacked, (0,))[0] == num_layers:
                return stacked, True
            single = f"decoder.layers.{layer}.{known}"
            if layer is not None and single in self.sizes:
                return single, False
        what = name if layer is None else f"{name} of layer {layer}"
        some = ", ".join(sorted(self.sizes)[:_SHOWN]) or "nothing"
        raise InputError(
            f"{self.folder} lacks {what}, which config.json describes (it has {some}, ...); give"
            " the config.json that belongs to the checkpoint"
        )


def parameters(shape: ModelShape) -> Iterator[tuple[str, int | None]]:
    """Name and layer of every parameter of an unsplit model; all layers of one name, and all
    experts of one layer, in a row."""
    for name, tensor in shape.family.tensors.top.items():
        if tensor.name != OUTPUT or not shape.is_tied:
            yield name, None
    table, mixture = shape.family.tensors, shape.mixture
    for name in dict.fromkeys((*table.layer, *table.expert_layer, *table.delta_layer)):
        for layer in range(shape.num_layers):
            if name in shape.parameters_of(layer):
                yield name, layer
    for layer in filter(shape.is_routed, range(shape.num_layers)):
        for name in table.expert:
            for number in range(mixture.num_experts if mixture else 0):
                yield f"mlp.experts.local_experts.{number}.{name}", layer


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
