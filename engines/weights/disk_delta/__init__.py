"""What changed in the weights since the version before, through any folder that all can reach.

    ranks ─ difference of each bucket ─▶ URL/00000007-3fa9c1d2/*.delta, manifest.json last
                                                          │
    server ◀─ changed tensors, by shared memory ─ WeightCopy ◀┘    in the server's own process

`difference.py` has the bytes of a file and how a rank writes its part, `delta_manifest.py` what
names them and the versions that stay, `weight_copy.py` the side of a server and how the two talk,
`disk_delta.py` a whole push.
"""
