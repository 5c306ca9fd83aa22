"""Base class of the mask rules: which positions may attend to which."""

from __future__ import annotations

from tfkit.core.component import Config
from tfkit.core.shape import Shape
from tfkit.core.slots import MaskFacts


class Mask(MaskFacts):
    """A rule. Limits are ANDed; openings are ORed to them; padding and packed segments hold over all.

    A limit that says how far it reaches is asked about [batch|1 tile query 1] and [batch|1 tile 1 key] too.
    """

    def __init__(self, config: Config, shape: Shape) -> None:
        self.config = config
        self.shape = shape
