"""Activations: every elementwise one that torch has, and those that papers add.

| type | choose it when |
|---|---|
| relu | the original Transformer, T5 |
| gelu | BERT, BART: the exact one, by the normal distribution |
| gelu_tanh | GPT-2, Gemma, T5 1.1: GELU as they approximate it |
| quick_gelu | CLIP: GELU as it approximates it |
| silu | Llama, PaLM: the gate of a SwiGLU; also called swish |
| relu_squared | Primer, Nemotron: sparse, and no gate needed |
| xielu | Apertus: quadratic above 0, and it learns both sides |
| identity | the bilinear GLU |
| relu6, leaky_relu, prelu, rrelu, threshold | a ReLU with a cap, a slope below 0 or a threshold |
| elu, selu, celu | a ReLU that is smooth below 0 |
| mish, hardswish | another self-gated curve, or silu by straight lines |
| sigmoid, hardsigmoid, logsigmoid | a gate between 0 and 1, by straight lines, or its logarithm |
| tanh, hardtanh, softsign | a pooler, or anything that must stay between two bounds |
| softplus | a positive number |
| tanhshrink, softshrink, hardshrink | small values should become 0 |
"""

from tfkit.components.activation.base import Activation
from tfkit.components.activation.prelu import PReLU
from tfkit.components.activation.quick_gelu import QuickGELU
from tfkit.components.activation.relu_squared import ReLUSquared
from tfkit.components.activation.rrelu import RReLU
from tfkit.components.activation.torch_activations import TORCH_ACTIVATIONS, TorchActivation
from tfkit.components.activation.xielu import XIELU

__all__ = ["TORCH_ACTIVATIONS", "XIELU", "Activation", "PReLU", "QuickGELU", "RReLU", "ReLUSquared", "TorchActivation"]
