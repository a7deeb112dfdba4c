"""Learning rates over a training, as a part of the highest one.

Each is a function `(step, warmup_steps, done)`: steps from 0, and how much of the training is done,
from 0 to 1, by steps or by minutes, whichever is ahead.
"""

import math


def cosine(step: int, warmup_steps: int, done: float) -> float:
    """Rises linearly, and falls along a half cosine to 0 at the end (Loshchilov and Hutter)."""
    return _rise(step, warmup_steps) * 0.5 * (1.0 + math.cos(math.pi * done))


def linear(step: int, warmup_steps: int, done: float) -> float:
    """Rises linearly, and falls linearly to 0 at the end."""
    return _rise(step, warmup_steps) * (1.0 - done)


def inverse_sqrt(step: int, warmup_steps: int, done: float) -> float:
    """Rises linearly, then falls as 1 / sqrt(step) (Vaswani et al. 2017, section 5.3)."""
    warmup_steps = max(warmup_steps, 1)
    return min((step + 1) / warmup_steps, math.sqrt(warmup_steps / (step + 1)))


def constant(step: int, warmup_steps: int, done: float) -> float:
    """Rises linearly, and stays."""
    return _rise(step, warmup_steps)


def _rise(step, warmup_steps):
    return min(1.0, (step + 1) / max(warmup_steps, 1))


SCHEDULES = {f.__name__: f for f in (cosine, linear, inverse_sqrt, constant)}
