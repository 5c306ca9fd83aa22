"""Base of the mixers."""

from typing import ClassVar

from tfkit.components.sublayer import Sublayer


class Mixer(Sublayer):
    """Mixes tokens by something other than attention; its direction follows the mask (`shape.causal`)."""

    # whether, in a layer that sees both ways, one half has read nothing yet at the first token, the other at the last
    two_ways: ClassVar[bool] = False
