"""A user's own conversations, in JSONL or Parquet files, as sequences to train on.

    files      patterns and URLs -> local files, uncompressed
    chunks     files -> chunks of a bounded size, read one at a time
    rows       a row -> a conversation, in OpenAI's or ShareGPT's layout
    rendering  a conversation -> tokens and loss mask, by the model's chat template
    stream     all of them, in an order that follows from the seed; its position is a checkpoint's

A row that cannot be trained on is counted, with its file, its line and why.
"""
