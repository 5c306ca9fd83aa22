"""How many parameters each shipped model has, who publishes which size, and whose files it is one of."""

from __future__ import annotations

from typing import NamedTuple


class Size(NamedTuple):
    """A recipe's size beside the published one, and the family of the published files, if they have one here.

    `published` is the number that `source` says, as it is written there, or nothing. Where the two are far apart, `why`
    says what the other one counts. `besides` is what the class of transformers has more of with our config, and why.
    """

    parameters: int
    family: str
    source: str  # a paper by its authors and year, its title's or model's name, a model card, or the files' own count
    published: str = ""
    why: str = ""
    besides: tuple[int, str] = (0, "")


CARD, FILES, NAME, NONE = "the model card", "the published files", "its name", "no number is published"
SINES = "they store their tables of sines"
BIASES = "biases that only choose are weights there, buffers here"
TIES = "the published files have an output of their own, which the class ties to the tokens"
COUNTS = {
    # encoders, with the head that they were trained with
    "albert-base": Size(11_221_680, "albert", "Lan et al. 2019", "12M", "with the pooler"),
    "bert-base": Size(109_514_298, "bert", "Devlin et al. 2018", "110M"),
    "camembert-base": Size(110_655_493, "camembert", "Martin et al. 2019", "110M"),
    "clip-text-base": Size(63_428_096, "clip_text", "Radford et al. 2021", "63M"),
    "data2vec-text-base": Size(124_697_433, "data2vec_text", "Liu et al. 2019, of RoBERTa", "125M"),
    "distilbert-base": Size(66_985_530, "distilbert", "Sanh et al. 2019", "66M"),
    "electra-small": Size(13_549_057, "electra", "Clark et al. 2020", "14M"),
    "electra-small-generator": Size(13_546_682, "electra", "Clark et al. 2020, of the discriminator", "14M"),
    "ernie-base": Size(99_885_648, "ernie", NONE),
    "esm2-8m": Size(7_512_353, "esm", "Lin et al. 2022", "8M", "rounded", (121, "a head for contacts")),
    "eurobert-210m": Size(310_266_624, "eurobert", "Boizard et al. 2025", "210M", "without the table of the output"),
    "flaubert-base": Size(138_301_817, "flaubert", "Le et al. 2019", "138M"),
    "fnet-base": Size(
        82_894_592, "fnet", "Lee-Thorp et al. 2021", "83M", besides=(590_592, "a pooler that the output does not read")
    ),
    "gte-multilingual-base": Size(305_368_320, "gte", "Zhang et al. 2024", "305M"),
    "jina-embeddings-v3": Size(559_616_146, "jina_embeddings_v3", "Sturua et al. 2024, without adapters", "559M"),
    "longformer-base": Size(148_711_257, "longformer", NONE),
    "megatron-bert-345m": Size(333_671_808, "megatron_bert", "Shoeybi et al. 2019", "336M"),
    "modernbert-base": Size(149_655_232, "modernbert", "Warner et al. 2024", "149M"),
    "mpnet-base": Size(109_518_527, "mpnet", "Song et al. 2020", "110M"),
    "nomic-embed-text": Size(136_731_648, "nomic_bert", "Nussbaum et al. 2024", "137M"),
    "rembert": Size(993_263_548, "rembert", "Chung et al. 2020", "995M"),
    "roberta-base": Size(124_697_433, "roberta", "Liu et al. 2019", "125M"),
    "roberta-prelayernorm-large": Size(355_414_105, "roberta_prelayernorm", "Liu et al. 2019, of RoBERTa", "355M"),
    "roformer-base": Size(124_099_664, "roformer", NONE, besides=(98_304, SINES)),
    "siglip-text-base": Size(110_271_744, "siglip_text", NONE),
    "xlm-mlm-en": Size(667_119_041, "xlm", NONE),
    "xlm-roberta-base": Size(278_295_186, "xlm_roberta", "Conneau et al. 2019", "270M"),
    "xlm-roberta-xl": Size(3_482_741_760, "xlm_roberta_xl", "Goyal et al. 2021", "3.5B"),
    "latent-diffusion-block": Size(2_340_160, "", NONE),
    "lstm-encoder": Size(22_100_485, "", NONE),
    # encoders with decoders
    "bart-base": Size(139_420_416, "bart", "Lewis et al. 2019, in their code", "140M"),
    "blenderbot-3b": Size(2_696_268_800, "blenderbot", "Roller et al. 2020", "2.7B"),
    "blenderbot-small-90m": Size(87_508_992, "blenderbot_small", "Roller et al. 2020", "90M"),
    "fsmt-wmt19": Size(
        312_778_752, "fsmt", NONE, besides=(2_101_248 - 42_024 * 1024, f"one table serves all, but {SINES}")
    ),
    "m2m100-418m": Size(483_905_536, "m2m_100", NAME, "418M", "without half of the table"),
    "marian-en-de": Size(73_886_208, "marian", NONE, besides=(524_288, SINES)),
    "mbart-large": Size(610_851_840, "mbart", "Liu et al. 2020", "680M", "the paper says about; the files have 611M"),
    "mt5-small": Size(300_176_768, "mt5", "Xue et al. 2020", "300M", besides=(-128_057_344, TIES)),
    "mvp": Size(406_293_504, "mvp", "Tang et al. 2022", "406M"),
    "pegasus-large": Size(568_699_904, "pegasus", "Zhang et al. 2019", "568M", besides=(2_097_152, SINES)),
    "plbart-base": Size(139_220_736, "plbart", "Ahmad et al. 2021", "140M"),
    "t5-small": Size(60_506_624, "t5", "Raffel et al. 2019", "60M"),
    "t5-v1.1-base": Size(247_577_856, "t5", NONE, besides=(-24_674_304, TIES)),
    "t5gemma-2b-2b": Size(5_596_853_760, "t5gemma", NAME, "4B", "without the tables"),
    "transformer-base": Size(63_045_632, "", "Vaswani et al. 2017", "65M"),
    "transformer-big": Size(214_171_648, "", "Vaswani et al. 2017", "213M"),
    "umt5-small": Size(306_601_984, "umt5", NONE, besides=(-131_268_608, TIES)),
    # decoders as GPT
    "bert-generation-large": Size(354_452_662, "bert_generation", NONE),
    "biogpt": Size(346_763_264, "biogpt", "Luo et al. 2022", "347M"),
    "bloom": Size(176_247_271_424, "bloom", "BigScience 2022", "176,247M"),
    "codegen-350m": Size(356_712_448, "codegen", "Nijkamp et al. 2022", "350M"),
    "ctrl": Size(1_637_964_550, "ctrl", "Keskar et al. 2019", "1.63B"),
    "falcon-40b": Size(41_303_293_952, "falcon", "Almazrouei et al. 2023", "40B"),
    "falcon-7b": Size(6_921_720_704, "falcon", "Almazrouei et al. 2023", "7B"),
    "falcon-rw-1b": Size(1_311_625_216, "falcon", "Penedo et al. 2023", "1.3B"),
    "gpt-j-6b": Size(6_050_882_784, "gptj", CARD, "6,050,882,784"),
    "gpt-neo-1.3b": Size(1_315_575_808, "gpt_neo", NAME, "1.3B"),
    "gpt-neox-20b": Size(20_554_567_680, "gpt_neox", "Black et al. 2022, table 1", "20,554,567,680"),
    "gpt-neox-japanese-2.7b": Size(2_598_837_760, "gpt_neox_japanese", NAME, "2.7B"),
    "gpt-sw3-126m": Size(135_780_864, "gpt2", NAME, "126M", "the larger vocabulary left out"),
    "gpt2": Size(124_439_808, "gpt2", "Radford et al. 2019", "117M", "a mistake of the paper's; their code says 124M"),
    "mpt-7b": Size(6_649_286_656, "mpt", CARD, "6.7B"),
    "openai-gpt": Size(116_534_784, "openai_gpt", "Radford et al. 2019, of the first GPT", "117M"),
    "opt-125m": Size(125_239_296, "opt", "Zhang et al. 2022", "125M"),
    "opt-350m": Size(331_196_416, "opt", "Zhang et al. 2022", "350M", "rounded"),
    "palm-8b": Size(8_632_012_800, "", "Chowdhery et al. 2022, table 1", "8.63B"),
    "performer": Size(75_832_320, "", NONE),
    "starcoder": Size(15_517_456_384, "gpt_bigcode", "Li et al. 2023", "15.5B"),
    "xglm-564m": Size(564_463_616, "xglm", "Lin et al. 2021", "564M"),
    # decoders as Llama
    "afm-4.5b": Size(4_619_184_640, "arcee", CARD, "4.6B"),
    "apertus-8b": Size(8_053_338_176, "apertus", "Project Apertus 2025", "8B"),
    "bamba-9b": Size(9_780_235_392, "bamba", CARD, "9.78B"),
    "bitnet-b1.58-2b": Size(2_412_820_480, "bitnet", "Ma et al. 2025", "2.4B"),
    "command-r": Size(34_980_831_232, "cohere", CARD, "35B"),
    "command-r7b": Size(8_028_033_024, "cohere2", NAME, "7B", "without the table"),
    "cwm-32b": Size(32_581_097_472, "cwm", "Meta FAIR CodeGen Team 2025", "32B"),
    "diffllama-1b": Size(1_392_580_608, "diffllama", NAME, "1B", "without the tables"),
    "ernie-4.5-0.3b": Size(360_748_032, "ernie4_5", CARD, "0.36B"),
    "ettin-decoder-150m": Size(149_655_232, "modernbert_decoder", "Weller et al. 2025", "150M"),
    "exaone-4.0-32b": Size(32_003_216_384, "exaone4", "LG AI Research 2025", "32B"),
    "gemma-2-2b": Size(2_614_341_888, "gemma2", "Gemma Team 2024", "2.6B"),
    "gemma-2b": Size(2_506_172_416, "gemma", "Gemma Team 2024", "2.5B"),
    "gemma-3-1b": Size(999_885_952, "gemma3", "Gemma Team 2025", "1B"),
    "glm-4-0414": Size(9_400_279_040, "glm4", NAME, "9B"),
    "glm-4-9b": Size(9_399_951_360, "glm", "Zeng et al. 2024", "9B"),
    "granite-3.0-2b": Size(2_533_525_504, "granite", CARD, "2.5B"),
    "helium-1-preview-2b": Size(2_172_643_840, "helium", NAME, "2B", "rounded"),
    "hunyuan-7b": Size(7_504_568_320, "hunyuan_v1_dense", NAME, "7B", "without the table"),
    "hyperclovax-seed-think-14b": Size(14_748_112_896, "hyperclovax", FILES, "14.748B"),
    "internlm3-8b": Size(8_804_241_408, "internlm3", NAME, "8B", "without the tables"),
    "jais-2-8b": Size(8_090_401_280, "jais2", NAME, "8B"),
    "llama-2-7b": Size(6_738_415_616, "llama", "Touvron et al. 2023", "6.7B"),
    "llama-3.1-8b": Size(8_030_261_248, "llama", "Grattafiori et al. 2024", "8B"),
    "mamba2-2.7b": Size(2_702_599_680, "mamba2", "Dao and Gu 2024", "2.7B"),
    "ministral-3-8b": Size(8_489_553_920, "ministral3", CARD, "8.4B"),
    "ministral-8b": Size(8_019_808_256, "ministral", CARD, "8,019,808,256"),
    "minitron-4b": Size(4_190_509_056, "nemotron", "Muralidharan et al. 2024", "4.2B"),
    "mistral-7b": Size(7_241_732_096, "mistral", "Jiang et al. 2023", "7B"),
    "nanochat-d32": Size(1_879_048_192, "nanochat", CARD, "1.9B"),
    "olmo-2-7b": Size(7_298_617_344, "olmo2", "OLMo Team 2024", "7B"),
    "olmo-3-7b": Size(7_298_011_136, "olmo3", "OLMo Team 2025", "7B"),
    "olmo-7b": Size(6_888_095_744, "olmo", "Groeneveld et al. 2024", "7B"),
    "phi-2": Size(2_779_683_840, "phi", CARD, "2.7B"),
    "phi-3-mini": Size(3_821_079_552, "phi3", "Abdin et al. 2024", "3.8B"),
    "qwen2-7b": Size(7_615_616_512, "qwen2", "Yang et al. 2024", "7B", "without the table"),
    "qwen3-8b": Size(8_190_735_360, "qwen3", CARD, "8.2B"),
    "seed-oss-36b": Size(36_151_104_512, "seed_oss", FILES, "36,151,104,512"),
    "smollm3-3b": Size(3_075_098_624, "smollm3", FILES, "3,075,098,624"),
    "stablelm-2-1.6b": Size(1_644_515_328, "stablelm", "Bellagente et al. 2024", "1.64B"),
    "starcoder2-3b": Size(3_030_371_328, "starcoder2", "Lozhkov et al. 2024", "3B"),
    "vaultgemma-1b": Size(1_038_741_120, "vaultgemma", FILES, "1,038,741,120"),
    # decoders with experts, or latent attention
    "aria": Size(24_869_091_840, "aria_text", "Li et al. 2024, of its decoder", "24.9B"),
    "dbrx": Size(131_596_523_520, "dbrx", "Databricks 2024", "132B"),
    "deepseek-v2-lite": Size(15_706_484_224, "deepseek_v2", "DeepSeek-AI 2024", "15.7B"),
    "deepseek-v3": Size(671_026_404_352, "deepseek_v3", "DeepSeek-AI 2024", "671B"),
    "dots-llm1": Size(142_774_373_888, "dots1", FILES, "142,774,381,696"),
    "ernie-4.5-21b-a3b": Size(21_825_436_160, "ernie4_5_moe", NAME, "21B", besides=(27 * 64, BIASES)),
    "flex-olmo": Size(33_270_665_216, "flex_olmo", "Shi et al. 2025", "33B"),
    "glm-4.5-air": Size(106_852_245_504, "glm4_moe", "GLM-4.5 team 2025", "106B"),
    "glm-4.7-flash": Size(29_943_390_976, "glm4_moe_lite", CARD, "30B"),
    "gpt-oss-20b": Size(20_914_757_184, "gpt_oss", "OpenAI 2025", "20.91B"),
    "granite-3.0-1b-a400m": Size(1_334_625_280, "granitemoe", CARD, "1.3B"),
    "hunyuan-a13b": Size(80_393_183_232, "hunyuan_v1_moe", CARD, "80B"),
    "k-exaone-236b-a23b": Size(236_571_150_336, "exaone_moe", NAME, "236B"),
    "llama-4-scout": Size(107_769_861_120, "llama4", "the model card, with what reads images", "109B"),
    "minicpm3-4b": Size(4_073_875_968, "minicpm3", NAME, "4B"),
    "minimax-m2": Size(228_689_748_992, "minimax_m2", CARD, "230B"),
    "mixtral-8x7b": Size(46_702_792_704, "mixtral", "Jiang et al. 2024", "47B"),
    "olmoe-1b-7b": Size(6_919_161_856, "olmoe", "Muennighoff et al. 2024", "6.9B"),
    "qwen1.5-moe-a2.7b": Size(14_315_784_192, "qwen2_moe", CARD, "14.3B"),
    "qwen3-30b-a3b": Size(30_532_122_624, "qwen3_moe", "Yang et al. 2025", "30.5B"),
    "trinity-mini": Size(26_123_970_560, "afmoe", CARD, "26B", besides=(30 * 128, BIASES)),
    "youtu-llm-2b": Size(1_961_560_064, "youtu", FILES, "1,961,560,064"),
    # most layers with a delta rule
    "kimi-linear-48b-a3b": Size(49_122_675_072, "kimi_linear", NAME, "48B"),
    "olmo-hybrid-7b": Size(7_430_870_688, "olmo_hybrid", NAME, "7B", "without the table"),
    "qwen3-next-80b-a3b": Size(79_674_391_296, "qwen3_next", NAME, "80B"),
    "qwen3.5-35b-a3b": Size(34_660_610_688, "qwen3_5_moe_text", NAME, "35B"),
    "qwen3.5-9b": Size(8_953_803_264, "qwen3_5_text", NAME, "9B"),
}
