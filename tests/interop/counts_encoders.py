"""Parameters of the shipped recipes of encoders, as transformers counts them at that size."""

from __future__ import annotations

# recipe -> its parameters, and where the size comes from
COUNTS = {
    "bert-base": (109_514_298, "the paper says 110M, the pooler counted"),
    "roberta-base": (124_697_433, "the paper says 125M"),
    "xlm-roberta-base": (278_295_186, "the paper says 270M"),
    "camembert-base": (110_655_493, "the paper says 110M"),
    "data2vec-text-base": (124_697_433, "of the size of RoBERTa's base model"),
    "distilbert-base": (66_985_530, "the paper says 66M"),
    "albert-base": (11_221_680, "the paper says 12M"),
    "electra-small": (13_549_057, "the paper says 14M"),
    "electra-small-generator": (13_546_682, "the paper says 14M"),
    "modernbert-base": (149_655_232, "the paper says 149M"),
    "ernie-base": (109_514_298, "of the size of BERT's base model"),
    "megatron-bert-345m": (333_671_808, "the paper says 336M, the pooler counted"),
    "roberta-prelayernorm-large": (355_414_105, "of the size of RoBERTa's large model"),
    "xlm-roberta-xl": (3_482_741_760, "the paper says 3.5B"),
    "mpnet-base": (109_518_527, "the paper says 110M"),
    "rembert": (993_263_548, "the paper says 995M"),
    "roformer-base": (124_099_664, "theirs counts a fixed table of sines too, 98,304"),
    "nomic-embed-text": (136_731_648, "the paper says 137M"),
    "gte-multilingual-base": (305_368_320, "the paper says 305M"),
    "jina-embeddings-v3": (559_616_146, "the paper says 559M without adapters"),
    "eurobert-210m": (310_266_624, "the paper says 210M without the output"),
    "esm2-8m": (7_512_353, "theirs counts a head for contacts too, 121"),
    "clip-text-base": (63_428_096, "the paper says 63M"),
    "siglip-text-base": (110_271_744, "the size of the published files"),
    "bert-generation-large": (354_452_662, "of the size of BERT's large model"),
    "xlm-mlm-en": (667_119_041, "of the size of the published files"),
    "flaubert-base": (138_301_817, "the paper says 138M"),
    "fnet-base": (82_894_592, "the paper says 83M"),
}
