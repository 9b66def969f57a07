"""A user's own conversations as sequences to train on.

    rendering  a conversation -> tokens and loss mask, by the model's chat template
    stream     the sequences of files, in an order that follows from the seed; its position is a
               checkpoint's

A row that cannot be trained on is counted, with its file, its line and why.
"""
