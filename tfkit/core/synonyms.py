"""Terms of other libraries and their equivalents in the recipe language; used in hints only.

A target is a key (`model.d_model`), an option of a part (`model.layer.attention.num_heads`), or a key with its value
(`model.layer.feedforward: glu`). tfkit's own terms are included for hints about misplaced keys.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping

# if a word has several targets, the first wins unless another is closer to the unknown key
TARGETS: Mapping[str, str] = {
    # sizes
    "model.d_model": "hidden_size n_embd n_embed embed_dim emb_dim embedding_dim model_dim dim width d_model",
    "model.num_layers": "num_hidden_layers n_layer n_layers nlayers depth num_layer num_blocks n_blocks num_layers",
    "model.encoder.num_layers": "num_encoder_layers encoder_layers enc_depth",
    "model.decoder.num_layers": "num_decoder_layers decoder_layers dec_depth",
    "model.vocab_size": "vocab num_tokens n_vocab vocabulary_size num_embeddings vocab_size",
    "model.max_length": "max_position_embeddings n_positions n_ctx block_size max_seq_len max_seq_length seq_len "
    "seq_length sequence_length context_length context_size max_len max_length",
    "model.layer.attention.num_heads": "num_attention_heads n_head n_heads nhead nheads heads num_head num_heads",
    "model.layer.attention.num_kv_heads": "num_key_value_heads n_kv_heads n_kv_head kv_heads num_query_groups "
    "multi_query_group_num num_kv_heads",
    "model.layer.attention.head_dim": "dim_head attention_head_size d_head d_kv kv_channels head_size head_dim",
    "model.layer.feedforward.d_ff": "intermediate_size dim_feedforward ffn_dim ffn_hidden_size n_inner d_inner "
    "hidden_dim d_hidden mlp_dim ff_dim ffn_size d_ff",
    "model.encoder.layer.feedforward.d_ff": "encoder_ffn_dim",
    "model.decoder.layer.feedforward.d_ff": "decoder_ffn_dim",
    "model.encoder.layer.attention.num_heads": "encoder_attention_heads",
    "model.decoder.layer.attention.num_heads": "decoder_attention_heads",
    "model.embedding.d_embedding": "embedding_size d_emb d_embedding",
    "model.embedding.segments": "type_vocab_size num_segments",
    "model.layer.attention.kv_rank": "kv_lora_rank",
    "model.layer.attention.query_rank": "q_lora_rank",
    "model.layer.feedforward.num_experts": "num_local_experts n_routed_experts num_experts",
    "model.layer.feedforward.num_active": "num_experts_per_tok experts_per_token num_experts_per_token moe_top_k "
    "moe_topk",
    "model.layer.feedforward.num_shared": "n_shared_experts num_shared_experts",
    "model.memory.d_model": "hidden_size n_embd dim width",
    # dropout
    "model.layer.dropout": "hidden_dropout_prob hidden_dropout resid_pdrop residual_dropout resid_dropout dropout_rate "
    "dropout",
    "model.layer.attention.dropout": "attention_dropout attention_probs_dropout_prob attn_pdrop attn_dropout "
    "attention_dropout_prob",
    "model.layer.feedforward.dropout": "activation_dropout ff_dropout ffn_dropout mlp_dropout",
    "model.embedding.dropout": "embd_pdrop emb_dropout embedding_dropout embed_dropout",
    "model.head.dropout": "classifier_dropout",
    # options of parts
    "model.layer.feedforward.activation": "hidden_act activation_function hidden_activation act_fn act activation",
    "model.layer.norm.eps": "layer_norm_eps layer_norm_epsilon rms_norm_eps norm_eps norm_epsilon layernorm_epsilon "
    "epsilon",
    "model.layer.attention.bias": "attention_bias qkv_bias attn_bias add_qkv_bias",
    "model.layer.feedforward.bias": "mlp_bias",
    "model.layer.attention.softcap": "attn_logit_softcapping attn_logit_softcap",
    "model.head.softcap": "final_logit_softcapping",
    "model.position.theta": "rope_theta rope_base rotary_emb_base rotary_base theta",
    "model.position.scaling": "rope_scaling",
    "model.position.fraction": "partial_rotary_factor rotary_pct rotary_percent",
    "model.position.num_buckets": "relative_attention_num_buckets",
    "model.position.max_distance": "relative_attention_max_distance",
    "model.head.tied": "tie_word_embeddings tie_embeddings tie_embedding tie_weights weight_tying tied_embeddings "
    "share_input_output_embed tied",
    "model.head.num_classes": "num_labels n_classes num_class num_classes",
    "model.embedding.scale": "scale_embedding embedding_multiplier",
    "model.init.std": "initializer_range init_std",
    "model.special_ids.pad": "pad_token_id pad_id padding_idx",
    "model.special_ids.start": "bos_token_id bos_id decoder_start_token_id",
    "model.special_ids.end": "eos_token_id eos_id",
    # keys
    "model.layer.attention": "self_attn self_attention attn attention",
    "model.layer.cross_attention": "cross_attn encoder_attn encoder_attention cross_attend cross_attention",
    "model.layer.feedforward": "ffn mlp ff feed_forward feedforward_network ffw feedforward",
    "model.layer.norm": "norm_layer norm_type normalization norm",
    "model.layer.residual": "norm_position norm_style residual",
    "model.position": "position_embedding_type position_embedding position_embeddings pos_emb pos_encoding "
    "positional_encoding position_encoding positional_embedding",
    "model.embedding": "embeddings embed token_embedding tok_emb wte",
    "model.final_norm": "ln_f norm_f final_layer_norm final_layernorm",
    "model.head": "lm_head output_layer",
    "model.init": "initializer initialization weight_init",
    "model.layer.mask": "attention_mask attn_mask attention_type",
    "model.pattern": "layer_types layer_pattern block_pattern",
    "model.layer": "block blocks transformer_block",
    # parts
    "model.type: decoder": "gpt decoder_only causal autoregressive is_decoder",
    "model.type: encoder": "bert encoder_only bidirectional",
    "model.type: encoder_decoder": "seq2seq is_encoder_decoder transformer encdec",
    "model.layer.attention: multi_head": "mha multihead softmax full sdpa",
    "model.layer.attention: {type: multi_head, num_heads: 8, num_kv_heads: 1}": "mqa multi_query multi_query_attention",
    "model.layer.attention: {type: multi_head, num_heads: 8, num_kv_heads: 2}": "gqa grouped_query group_query "
    "grouped_query_attention",
    "model.layer.attention: latent": "mla multi_head_latent multi_head_latent_attention",
    "model.layer.feedforward: mlp": "dense vanilla",
    "model.layer.feedforward: glu": "swiglu gated ff_glu gated_mlp gated_ffn ff_swish llama_mlp",
    "model.layer.feedforward: {type: glu, d_ff: 2048, activation: gelu}": "geglu",
    "model.layer.feedforward: {type: glu, d_ff: 2048, activation: relu}": "reglu",
    "model.layer.feedforward: experts": "moe mixture_of_experts sparse_moe switch mixture",
    "model.layer.feedforward.activation: gelu_tanh": "gelu_new gelu_pytorch_tanh gelu_fast gelu_approx "
    "gelu_approximate",
    "model.layer.feedforward.activation: silu": "swish",
    "model.layer.feedforward.activation: relu_squared": "relu2 squared_relu sqrelu relu_sq",
    "model.layer.feedforward.activation: hardswish": "hard_swish",
    "model.layer.norm: layer_norm": "layernorm ln",
    "model.layer.norm: rms_norm": "rmsnorm rms use_rmsnorm root_mean_square",
    "model.layer.residual: pre_norm": "prenorm pre_ln preln norm_first pre_layer_norm pre_layernorm "
    "do_layer_norm_before pre normalize_before pre_norm",
    "model.layer.residual: post_norm": "postnorm post_ln postln post_layer_norm post_layernorm post post_norm",
    "model.layer.residual: parallel": "parallel_residual use_parallel_residual parallel_attn",
    "model.layer.residual: sandwich": "sandwich_norm",
    "model.layer.residual: deep_norm": "deepnorm",
    "model.position: rotary": "rope rotary_pos_emb rotary_emb use_rope rotary_embedding rotary_embeddings",
    "model.position: sinusoidal": "sine sin sincos sinusoid fixed",
    "model.position: learned": "absolute wpe learnable abs trained use_abs_pos_emb",
    "model.position: alibi": "alibi_pos_bias use_alibi alibi_bias",
    "model.position: t5_bias": "relative rel_pos_bias relative_bias t5 relative_position_bias",
    "model.layer.mask: {type: window, size: 4096}": "sliding_window window_size attention_window local_window "
    "sliding_window_size local sliding",
    "model.init: xavier": "glorot xavier_uniform",
    "model.init: normal": "gaussian",
    # data
    "data.batch.size": "batch_size per_device_train_batch_size train_batch_size micro_batch_size bs",
    "data.batch.tokens": "max_tokens batch_tokens tokens_per_batch",
    "data.batch.length": "max_length max_len max_seq_length max_seq_len seq_len seq_length sequence_length",
    "data.batch.pack": "packing pack",
    "data.batch.by_length": "group_by_length bucketing bucket",
    "data.train": "train_file train_data train_dataset training dataset",
    "data.valid": "val dev validation validation_file eval_dataset val_data eval_data valid",
    "data.test": "test_file test_data test_dataset test",
    "data.train: json_lines": "jsonl json ndjson jsonlines",
    "data.train: csv": "tsv table",
    "data.train: text": "txt plain_text lines",
    "data.tokenizer": "tokenizer_name tokenizer_file tokenizer",
    "data.tokenizer: bpe": "byte_pair byte_pair_encoding gpt2 tiktoken",
    "data.tokenizer: unigram": "sentencepiece spm unigram_lm",
    "data.tokenizer: character": "char chars characters",
    "data.tokenizer: word": "whitespace word_level words",
    "data.tokenizer: wordpiece": "word_piece",
    # objective
    "objective": "loss criterion task loss_fn",
    "objective: causal_lm": "clm lm language_modeling next_token language_model",
    "objective: masked_lm": "mlm masked_language_modeling",
    "objective: seq2seq": "translation seq2seq_lm text2text",
    "objective.label_smoothing": "label_smoothing_factor label_smoothing",
    "objective.probability": "mlm_probability mask_probability mask_prob",
    # training
    "train.epochs": "num_epochs num_train_epochs max_epochs n_epochs epochs",
    "train.steps": "max_steps max_iters num_steps train_steps "
    "total_steps iterations num_iterations max_updates max_update steps",
    "train.schedule.lr": "learning_rate max_lr base_lr peak_lr init_lr lr",
    "train.schedule.peak": "learning_rate max_lr base_lr peak_lr init_lr lr",
    "train.schedule.final": "min_lr lr_min eta_min final_lr",
    "train.schedule.warmup": "warmup_steps num_warmup_steps warmup_iters warmup_updates lr_warmup_steps warmup",
    "train.schedule": "lr_scheduler lr_scheduler_type lr_schedule scheduler schedule",
    "train.schedule: cosine": "cosine_annealing cosine_with_warmup cosineannealinglr",
    "train.schedule: inverse_square_root": "noam inverse_sqrt invsqrt inv_sqrt rsqrt",
    "train.schedule: linear": "linear_warmup linear_with_warmup linear_decay",
    "train.optimizer": "optim optimiser optimizer",
    "train.optimizer: adamw": "adam_w adamw_torch adamw_torch_fused adamw_hf",
    "train.optimizer: {type: torch, name: SGD}": "sgd momentum",
    "train.optimizer.weight_decay": "decay wd l2 weight_decay",
    "train.optimizer.betas": "adam_betas beta1 beta2 adam_beta1 adam_beta2 betas",
    "train.optimizer.eps": "adam_epsilon adam_eps epsilon",
    "train.clip_norm": "max_grad_norm grad_clip gradient_clip gradient_clip_val clip_grad clip_grad_norm max_norm "
    "gradient_clipping clip_norm",
    "train.accumulate": "gradient_accumulation gradient_accumulation_steps accumulate_grad_batches grad_accum "
    "grad_accum_steps accumulation_steps update_freq accumulate",
    "train.evaluate_every": "eval_steps eval_interval eval_every val_check_interval validate_every eval_freq "
    "evaluate_every",
    "train.checkpoint_every": "save_steps save_interval save_every ckpt_every checkpoint_interval checkpoint_every",
    "train.patience": "early_stopping early_stopping_patience early_stop patience",
    "train.precision: bfloat16": "bf16 fp16 amp mixed_precision float16 half autocast 16 bfloat16",
    "train.precision: float32": "fp32 full_precision float single 32 float32",
    "train.precision": "dtype torch_dtype precision",
    "train.seed": "random_seed manual_seed rng_seed data_seed seed",
    "train.layer_decay": "layerwise_lr_decay llrd lr_decay_rate layer_decay",
    "train.init_from": "pretrained init_checkpoint from_pretrained resume_from pretrained_model load_from",
    "train.teacher": "distillation distil distill teacher_model knowledge_distillation kd teacher",
    "train.keep": "save_total_limit load_best_model_at_end save_best",
    "train.metrics": "compute_metrics eval_metrics metric metrics",
    "train.device": "use_cuda accelerator device",
    # generation
    "generate.max_new_tokens": "max_tokens max_gen_len max_generate_length gen_length max_new_tokens",
    "generate.strategy.num_beams": "beam_size beam_width beams num_beams",
    "generate.strategy.n_best": "num_return_sequences nbest best_of n_best",
    "generate.strategy.length_penalty": "lenpen length_alpha length_penalty",
    "generate.strategy": "decoding decoding_strategy search decode strategy",
    "generate.strategy: sample": "do_sample sampling multinomial nucleus random",
    "generate.strategy: {type: beam, num_beams: 4}": "beam_search",
    "generate.logits: {type: temperature, temperature: 0.8}": "temp temperature",
    "generate.logits: {type: top_k, k: 50}": "topk top_k",
    "generate.logits: {type: top_p, p: 0.9}": "topp nucleus_p top_p",
    "generate.logits: {type: no_repeat_ngram, size: 3}": "no_repeat_ngram_size",
    "generate.logits: {type: repetition_penalty, penalty: 1.2}": "rep_penalty repetition_penalty",
}

_SLOTS = {"type": "model", "train": "corpus", "valid": "corpus", "test": "corpus"}  # keys not named after their slot
# path components that make no difference to hints, with replacements
_SAME = (
    (re.compile(r"^model\.(encoder|decoder)(?=\.|$)"), "model"),
    (re.compile(r"^model\.layers\.[^.]+"), "model.layer"),
    (re.compile(r"^model\.heads\.[^.]+"), "model.head"),
    (re.compile(r"^model\.layer\.cross_attention"), "model.layer.attention"),
    (re.compile(r"^model\.layer\.position"), "model.position"),
    (re.compile(r"\.feedforward\.(shared_)?expert(?=\.|$)"), ".feedforward"),
    (re.compile(r"(_\d+|\[\d+\])(?=\.|$)"), ""),
)


def _folded(word: str) -> str:
    return word.strip().lstrip("-").casefold().replace("-", "_")


SYNONYMS: dict[str, list[str]] = {}
for _target, _words in TARGETS.items():
    for _word in _words.split():
        SYNONYMS.setdefault(_word, []).append(_target)


def split_target(target: str) -> tuple[str, str]:
    """Split a target into its key and its value, which is "" if the target has none."""
    path, _, value = target.partition(": ")
    return path, value


def slot_of(path: str) -> str:
    """Return the slot of the part that the key at `path` holds."""
    last = path.rpartition(".")[2]
    return _SLOTS.get(last, last)


def key_for(word: str, parent: str = "", known: Collection[str] = ()) -> str | None:
    """Return the target meant by an unknown key of the mapping at `parent`, whose valid keys are `known`.

    The target is relative to `parent` if it lies inside. Return None for unknown words, and "" if the word belongs in
    the mapping but the part there has no such option.
    """
    for pattern, same in _SAME:
        parent = pattern.sub(same, parent)
    elsewhere = []
    for target in SYNONYMS.get(_folded(word), ()):
        above, _, last = split_target(target)[0].rpartition(".")
        if above != parent:
            elsewhere.append(target)
        elif last in known and last != word:
            return target.removeprefix(f"{above}.")
    section = parent.partition(".")[0]
    near = [target for target in elsewhere if target.split(".")[0] == section]
    inside = parent.startswith("model.") and parent != "model.layer"
    for target in near or elsewhere:
        # tfkit's own term is misplaced under `parent`, rather than an option that the part lacks
        is_misplaced = not inside and section in ("", "train", target.partition(".")[0])
        if is_misplaced or not is_own(word, target):
            return target
    return "" if len(elsewhere) < len(SYNONYMS.get(_folded(word), ())) else None


def is_own(word: str, target: str) -> bool:
    """True if the word is tfkit's own term, which is listed for hints about misplaced keys."""
    path, value = split_target(target)
    return _folded(word) in (path.rpartition(".")[2], value, value.removeprefix("{type: ").split(",")[0])


def part_for(slot: str, word: str) -> str | None:
    """Return the part of `slot` that a word of another library means, as a recipe value; None if unknown."""
    pairs = map(split_target, SYNONYMS.get(_folded(word), ()))
    return next((value for path, value in pairs if value and slot_of(path) == slot), None)


def value_for(path: str, word: str) -> str | None:
    """Return the value that a word of another library means for the key at `path`; None if unknown."""
    pairs = map(split_target, SYNONYMS.get(_folded(word), ()))
    return next((value for key, value in pairs if value and key == path), None)


def nearest(word: str, words: list[str]) -> str | None:
    """Return the most similar of `words`, or None."""
    by_folded = {candidate.casefold(): candidate for candidate in words}
    matches = difflib.get_close_matches(word.casefold(), list(by_folded), n=1, cutoff=0.6)
    return by_folded[matches[0]] if matches else None
