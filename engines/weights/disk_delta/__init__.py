"""What changed in the weights since the version before, through any folder that all can reach.

    ranks ─ difference of each bucket ─▶ URL/00000007-3fa9c1d2/*.delta, manifest.json last
                                                          │
    server ◀─ changed tensors, by shared memory ─ WeightCopy ◀┘    in the server's own process

`difference.py` has the bytes of a file, `manifest.py` what names them, `share_writer.py` a rank's
part, `folder.py` the versions that stay, `weight_copy.py` the side of a server, `served_copy.py`
and `requests.py` how the two talk, `transport.py` a whole push.
"""
