"""Llama, as SGLang has it."""

from sglang.srt.models.llama import EntryClass as EntryClass
