"""What the other side of a stage holds on a role's devices, where trainer and servers take turns.

As `engines/devices/sharing.py` has it: one side sleeps while the other works, both have their
weights while these are published, a server that was lost gets its weights while the others
generate, and a checkpoint is written beside the servers' weights.
"""

from __future__ import annotations

from engines.memory.server import ServerMemory
from engines.memory.trainer import TrainerMemory
from engines.weights.buckets import BUCKET_BYTES

ASLEEP_BYTES = 10**9
"""what stays on a GPU of a process that sleeps: CUDA's context and NCCL's buffers. An allowance: no
GPU was at hand to measure"""


def beside_trainer(trainer: TrainerMemory, server: ServerMemory) -> int:
    """At the trainer's largest moment, which is a step beside sleeping servers, or a checkpoint
    beside their weights: then gradients, activations and frozen models are not there."""
    made_room = trainer.gradients + trainer.activations + trainer.copies
    return ASLEEP_BYTES + max(server.weights - made_room, 0)


def beside_server(trainer: TrainerMemory) -> int:
    """While another server is repaired: the trainer's weights and the two buckets in which it sends
    them."""
    return ASLEEP_BYTES + trainer.weights + 2 * BUCKET_BYTES
