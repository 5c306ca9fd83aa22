"""Mixers: token mixing that is not attention.

| type | choose it when |
|---|---|
| lstm | the baseline that Transformers replaced; both ways in an encoder, forwards in a decoder |
| gru | the same with fewer weights |
| rnn | the plainest recurrence, to compare with |
| fourier | FNet: an encoder that mixes without weights, in half the time |
| short_convolution | LFM2: cheap layers between those with attention |
| mamba | Mamba, Jamba: long texts, with a state of one size |
"""

from tfkit.components.mixer.base import Mixer
from tfkit.components.mixer.fourier import Fourier
from tfkit.components.mixer.gru import GRU
from tfkit.components.mixer.lstm import LSTM
from tfkit.components.mixer.mamba import Mamba
from tfkit.components.mixer.recurrent import Recurrent
from tfkit.components.mixer.rnn import RNN
from tfkit.components.mixer.short_convolution import ShortConvolution

__all__ = ["GRU", "LSTM", "RNN", "Fourier", "Mamba", "Mixer", "Recurrent", "ShortConvolution"]
