"""Mixers: token mixing that is not attention. None is shipped yet; one of your own is registered in this slot."""

from tfkit.components.mixer.base import Mixer

__all__ = ["Mixer"]
