"""Supported families, one module per family or group of similar families."""

from tfkit.interop.huggingface.families.albert import Albert
from tfkit.interop.huggingface.families.bart import MVP, Bart, Blenderbot, BlenderbotSmall, MBart, Pegasus, PLBart
from tfkit.interop.huggingface.families.bert import Bert, Ernie
from tfkit.interop.huggingface.families.bloom import MPT, Bloom, Falcon
from tfkit.interop.huggingface.families.clip import ClipText, SiglipText
from tfkit.interop.huggingface.families.cohere import Cohere, Cohere2
from tfkit.interop.huggingface.families.dbrx import Dbrx
from tfkit.interop.huggingface.families.deepseek import DeepseekV2, DeepseekV3, Glm4Moe, Glm4MoeLite, Youtu
from tfkit.interop.huggingface.families.diffllama import DiffLlama
from tfkit.interop.huggingface.families.distilbert import DistilBert
from tfkit.interop.huggingface.families.electra import Electra, RemBert, RoFormer
from tfkit.interop.huggingface.families.esm import Esm
from tfkit.interop.huggingface.families.eurobert import EuroBert
from tfkit.interop.huggingface.families.exaone import Exaone4
from tfkit.interop.huggingface.families.fnet import FNet
from tfkit.interop.huggingface.families.gated import (
    CWM,
    BitNet,
    Ernie45,
    Helium,
    HunYuanDense,
    InternLM3,
    NanoChat,
    SeedOSS,
)
from tfkit.interop.huggingface.families.gemma import Gemma, Gemma2, Gemma3, VaultGemma
from tfkit.interop.huggingface.families.glm import Glm, Glm4
from tfkit.interop.huggingface.families.gpt2 import GPT2
from tfkit.interop.huggingface.families.gpt_neo import CTRL, GPTBigCode, GPTNeo, OpenAIGPT
from tfkit.interop.huggingface.families.gpt_neox import GPTNeoX, GPTNeoXJapanese
from tfkit.interop.huggingface.families.gpt_oss import GptOss
from tfkit.interop.huggingface.families.gptj import GPTJ, CodeGen
from tfkit.interop.huggingface.families.granite import Granite, HyperClovaX
from tfkit.interop.huggingface.families.granite_moe import GraniteMoe, GraniteMoeShared
from tfkit.interop.huggingface.families.jina import Gte, JinaEmbeddingsV3, NomicBert
from tfkit.interop.huggingface.families.led import LED
from tfkit.interop.huggingface.families.llama import Llama
from tfkit.interop.huggingface.families.llama4 import Llama4
from tfkit.interop.huggingface.families.longformer import Longformer
from tfkit.interop.huggingface.families.marian import FSMT, M2M100, Marian
from tfkit.interop.huggingface.families.megatron import BertGeneration, MegatronBert
from tfkit.interop.huggingface.families.minicpm import MiniCPM3
from tfkit.interop.huggingface.families.mistral import Ministral, Ministral3, Mistral
from tfkit.interop.huggingface.families.mixtral import FlexOlmo, MiniMaxM2, Mixtral, Olmoe, Qwen2Moe, Qwen3Moe
from tfkit.interop.huggingface.families.modernbert import ModernBert
from tfkit.interop.huggingface.families.modernbert_decoder import ModernBertDecoder
from tfkit.interop.huggingface.families.mpnet import MPNet
from tfkit.interop.huggingface.families.olmo import Olmo, Olmo2, Olmo3
from tfkit.interop.huggingface.families.opt import OPT, XGLM, BioGPT
from tfkit.interop.huggingface.families.phi import Phi, Phi3
from tfkit.interop.huggingface.families.plain import Apertus, Arcee, Jais2, Nemotron, StarCoder2
from tfkit.interop.huggingface.families.qwen import Qwen2, Qwen3
from tfkit.interop.huggingface.families.roberta import (
    Camembert,
    Data2VecText,
    Roberta,
    RobertaPreLayerNorm,
    XLMRoberta,
    XLMRobertaXL,
)
from tfkit.interop.huggingface.families.shared_moe import AriaText, Ernie45Moe, HunyuanMoe
from tfkit.interop.huggingface.families.sigmoid import Afmoe, Dots1, ExaoneMoe
from tfkit.interop.huggingface.families.smollm import SmolLM3
from tfkit.interop.huggingface.families.stablelm import StableLM
from tfkit.interop.huggingface.families.t5 import MT5, T5, UMT5
from tfkit.interop.huggingface.families.t5gemma import T5Gemma
from tfkit.interop.huggingface.families.xlm import XLM, Flaubert

__all__ = [
    "CTRL",
    "CWM",
    "FSMT",
    "GPT2",
    "GPTJ",
    "LED",
    "M2M100",
    "MPT",
    "MT5",
    "MVP",
    "OPT",
    "T5",
    "UMT5",
    "XGLM",
    "XLM",
    "Afmoe",
    "Albert",
    "Apertus",
    "Arcee",
    "AriaText",
    "Bart",
    "Bert",
    "BertGeneration",
    "BioGPT",
    "BitNet",
    "Blenderbot",
    "BlenderbotSmall",
    "Bloom",
    "Camembert",
    "ClipText",
    "CodeGen",
    "Cohere",
    "Cohere2",
    "Data2VecText",
    "Dbrx",
    "DeepseekV2",
    "DeepseekV3",
    "DiffLlama",
    "DistilBert",
    "Dots1",
    "Electra",
    "Ernie",
    "Ernie45",
    "Ernie45Moe",
    "Esm",
    "EuroBert",
    "Exaone4",
    "ExaoneMoe",
    "FNet",
    "Falcon",
    "Flaubert",
    "FlexOlmo",
    "GPTBigCode",
    "GPTNeo",
    "GPTNeoX",
    "GPTNeoXJapanese",
    "Gemma",
    "Gemma2",
    "Gemma3",
    "Glm",
    "Glm4",
    "Glm4Moe",
    "Glm4MoeLite",
    "GptOss",
    "Granite",
    "GraniteMoe",
    "GraniteMoeShared",
    "Gte",
    "Helium",
    "HunYuanDense",
    "HunyuanMoe",
    "HyperClovaX",
    "InternLM3",
    "Jais2",
    "JinaEmbeddingsV3",
    "Llama",
    "Llama4",
    "Longformer",
    "MBart",
    "MPNet",
    "Marian",
    "MegatronBert",
    "MiniCPM3",
    "MiniMaxM2",
    "Ministral",
    "Ministral3",
    "Mistral",
    "Mixtral",
    "ModernBert",
    "ModernBertDecoder",
    "NanoChat",
    "Nemotron",
    "NomicBert",
    "Olmo",
    "Olmo2",
    "Olmo3",
    "Olmoe",
    "OpenAIGPT",
    "PLBart",
    "Pegasus",
    "Phi",
    "Phi3",
    "Qwen2",
    "Qwen2Moe",
    "Qwen3",
    "Qwen3Moe",
    "RemBert",
    "RoFormer",
    "Roberta",
    "RobertaPreLayerNorm",
    "SeedOSS",
    "SiglipText",
    "SmolLM3",
    "StableLM",
    "StarCoder2",
    "T5Gemma",
    "VaultGemma",
    "XLMRoberta",
    "XLMRobertaXL",
    "Youtu",
]
