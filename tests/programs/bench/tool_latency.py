"""How long the tool of the rows with slow tools takes: as long on both sides for equal tokens."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence

import numpy as np

MEDIAN_S, P99_S = 0.5, 10.0
_SIGMA = math.log(P99_S / MEDIAN_S) / statistics.NormalDist().inv_cdf(0.99)


def latency_s(tokens: Sequence[int] | np.ndarray) -> float:
    """Log-normal, drawn by the conversation so far."""
    seed = np.asarray(tokens, np.int32).tobytes()
    return random.Random(seed).lognormvariate(math.log(MEDIAN_S), _SIGMA)
