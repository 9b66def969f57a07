"""Chat: conversations to token ids and back, by a model folder's own tokenizer and template.

    prompt        the problem's messages and the header of the assistant's turn
    turn          what the model writes, up to and including its stop token
    continuation  what follows a turn that is not the last: tool results, the next turn's header

Every piece is taken from the template's own rendering, so inference, rollouts and supervised
training see the same ids. It uses `tokenizers` and `jinja2`, as transformers does, without the
two seconds that importing transformers takes.
"""

from engines.chat.chat import Chat

__all__ = ["Chat"]
