"""Qwen2 and Qwen2.5, as SGLang has it."""

from sglang.srt.models.qwen2 import EntryClass as EntryClass
