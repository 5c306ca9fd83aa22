"""What the shipped decoders with experts or latent attention weigh, and who says so."""

from __future__ import annotations

# name of a recipe -> parameters, and the source; biases that only choose are buffers here, parameters in some of theirs
COUNTS: dict[str, tuple[int, str]] = {
    "mixtral-8x7b": (46_702_792_704, "MixtralForCausalLM of transformers 5.23"),
    "qwen1.5-moe-a2.7b": (14_315_784_192, "Qwen2MoeForCausalLM of transformers 5.23"),
    "qwen3-30b-a3b": (30_532_122_624, "Qwen3MoeForCausalLM of transformers 5.23"),
    "olmoe-1b-7b": (6_919_161_856, "OlmoeForCausalLM of transformers 5.23"),
    "flex-olmo": (33_270_665_216, "FlexOlmoForCausalLM of transformers 5.23"),
    "minimax-m2": (228_689_748_992, "MiniMaxM2ForCausalLM of transformers 5.23"),
    "deepseek-v2-lite": (15_706_484_224, "DeepseekV2ForCausalLM of transformers 5.23"),
    "deepseek-v3": (
        671_026_404_352,
        "DeepseekV3ForCausalLM of transformers 5.23; the files have 58 x 256 more: biases",
    ),
    "glm-4.5-air": (106_852_245_504, "Glm4MoeForCausalLM of transformers 5.23"),
    "glm-4.7-flash": (29_943_390_976, "Glm4MoeLiteForCausalLM of transformers 5.23"),
    "dots-llm1": (142_774_373_888, "Dots1ForCausalLM of transformers 5.23"),
    "gpt-oss-20b": (20_914_757_184, "GptOssForCausalLM of transformers 5.23"),
    "granite-3.0-1b-a400m": (1_334_628_352, "GraniteMoeForCausalLM of transformers 5.23"),
    "hunyuan-a13b": (80_393_183_232, "HunYuanMoEV1ForCausalLM of transformers 5.23"),
    "ernie-4.5-21b-a3b": (
        21_825_436_160,
        "Ernie4_5_MoeForCausalLM of transformers 5.23, which has 27 x 64 more: biases",
    ),
    "aria": (24_869_091_840, "AriaTextForCausalLM of transformers 5.23"),
    "minicpm3-4b": (4_073_875_968, "MiniCPM3ForCausalLM of transformers 5.23"),
    "youtu-llm-2b": (1_961_560_064, "YoutuForCausalLM of transformers 5.23"),
    "trinity": (19_232_598_016, "AfmoeForCausalLM of transformers 5.23, which has 31 x 64 more: biases"),
    "k-exaone": (28_550_639_616, "ExaoneMoeForCausalLM of transformers 5.23"),
    "dbrx": (131_596_523_520, "DbrxForCausalLM of transformers 5.23"),
    "llama-4-scout": (107_769_861_120, "Llama4ForCausalLM of transformers 5.23"),
}
