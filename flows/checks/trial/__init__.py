"""Tries the user's parts as the stages will use them, one file a kind of part."""
