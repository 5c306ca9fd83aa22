"""Base of the mixers."""

from tfkit.components.sublayer import Sublayer


class Mixer(Sublayer):
    """Mixes tokens by something other than attention; its direction follows the mask (`shape.causal`)."""
