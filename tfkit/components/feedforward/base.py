"""Base of the feed-forward parts."""

from tfkit.components.sublayer import Sublayer


class FeedForward(Sublayer):
    """Works on each position by itself: [batch time d_model] -> the same."""

    # what looks at one position only can show nothing of another
    capabilities = frozenset({"causal", "bidirectional", "cache", "padding", "packing", "compile", "export"})
