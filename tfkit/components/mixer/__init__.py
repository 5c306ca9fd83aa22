"""Mixers: token mixing that is not attention.

| type | choose it when |
|---|---|
| lstm | the baseline that Transformers replaced; bidirectional in an encoder, forwards in a decoder |
| gru | like lstm, with fewer weights |
| rnn | the simplest recurrence, as a baseline |
| fourier | FNet: an encoder that mixes tokens without weights, in half the time of attention |
| short_convolution | LFM2: cheap layers between attention layers |
| mamba | Mamba, Jamba: long texts, with a decode state of constant size |
| mamba2 | Mamba-2, Bamba: a larger state than mamba's, in matrix products, so that it trains faster |
| gated_delta_net | Qwen3-Next, OLMo Hybrid: a memory that forgets and overwrites, in place of most attention layers |
| kimi_delta | Kimi Linear: gated_delta_net with a decay for each channel instead of each head |
"""

from tfkit.components.mixer.base import GRU as GRU
from tfkit.components.mixer.base import LSTM as LSTM
from tfkit.components.mixer.base import RNN as RNN
from tfkit.components.mixer.base import Fourier as Fourier
from tfkit.components.mixer.base import Mamba as Mamba
from tfkit.components.mixer.base import Mamba2 as Mamba2
from tfkit.components.mixer.base import Mixer as Mixer
from tfkit.components.mixer.base import Recurrent as Recurrent
from tfkit.components.mixer.base import RecurrentState as RecurrentState
from tfkit.components.mixer.base import ShortConvolution as ShortConvolution
from tfkit.components.mixer.delta import DeltaRule as DeltaRule
from tfkit.components.mixer.delta import GatedDeltaNet as GatedDeltaNet
from tfkit.components.mixer.delta import KimiDelta as KimiDelta
