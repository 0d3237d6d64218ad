/* hf_keys.c - keys of a config.json that a family does not read: refused, without effect, or named in a warning.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "models/hf_config.h"

/* Keys with which other families of transformers, or forks of the built ones, change what a block, a position or a
 * loss computes. Where a family reads no such key, it has one value: absent, null, false, empty, 0, or the neutral
 * number. */
dsc_status dsc_hf_refuse_other_mathematics(dsc_hf_config *reader, const char *model_type)
{
    static const struct { const char *key; double neutral; } keys[] = {
        /* factors and limits of values */
        { "attention_multiplier", 1 }, { "embedding_multiplier", 1 }, { "residual_multiplier", 1 },
        { "logits_scaling", 1 }, { "logit_scale", 1 }, { "scale_emb", 1 }, { "scale_depth", 0 },
        { "dim_model_base", 0 }, { "query_pre_attn_scalar", 0 }, { "attn_logit_softcapping", 0 },
        { "final_logit_softcapping", 0 }, { "clip_qkv", 0 }, { "attn_temperature_tuning", 0 },
        /* attention and positions */
        { "use_alibi", 0 }, { "alibi", 0 }, { "use_mrope", 0 }, { "no_rope_layers", 0 },
        { "no_rope_layer_interval", 0 }, { "attention_chunk_size", 0 }, { "use_qk_norm", 0 }, { "qk_layernorm", 0 },
        { "attention_sinks", 0 },
        { "use_bidirectional_attention", 0 }, { "multi_query", 0 }, { "kv_lora_rank", 0 }, { "q_lora_rank", 0 },
        { "use_logn_attn", 0 }, { "cross_layer_kv_sharing", 0 }, { "num_kv_shared_layers", 0 },
        /* experts and other blocks */
        { "num_experts", 0 }, { "num_local_experts", 0 }, { "n_routed_experts", 0 }, { "moe_intermediate_size", 0 },
        { "num_nextn_predict_layers", 0 }, { "pruned_heads", 0 }, { "add_cross_attention", 0 },
        { "is_encoder_decoder", 0 }, { "tie_encoder_decoder", 0 },
    };
    for (size_t i = 0; i < DSC_COUNT(keys); i++) {
        if (dsc_hf_was_asked(reader, keys[i].key))
            continue;
        const cJSON *item = dsc_hf_field(reader, keys[i].key);
        const bool none = item == NULL || cJSON_IsFalse(item) ||
                          ((cJSON_IsArray(item) || cJSON_IsObject(item)) && item->child == NULL);
        if (none || (cJSON_IsNumber(item) && (item->valuedouble == 0 || item->valuedouble == keys[i].neutral)))
            continue;
        if (cJSON_IsTrue(item))
            return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED, "\"%s\": true is not built for %s; what exists: false",
                                 keys[i].key, model_type);
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED, "\"%s\" of this value is not built for %s; what exists: %g, "
                             "or no such key", keys[i].key, model_type, keys[i].neutral);
    }
    return DSC_OK;
}

/* ---- keys without effect on training ----------------------------------------------------------------------------- */

/* Keys that transformers and programs around it write into any config.json: names, tokens, formats, generation, heads
 * of other tasks, and choices of kernels. */
static const char *const harmless[] = {
    "_attn_implementation", "_attn_implementation_autoset", "activation_dropout", "_commit_hash", "_name_or_path",
    "architectures", "attn_implementation", "auto_map", "bos_token_id", "chunk_size_feed_forward", "cls_token_id",
    "decoder_start_token_id", "dtype", "eos_token_id", "eot_token_id", "finetuning_task", "flash_attn",
    "forced_bos_token_id", "forced_eos_token_id", "gradient_checkpointing", "id2label", "is_decoder", "label2id",
    "mask_token_id", "model_type", "num_labels", "output_attentions", "output_hidden_states", "output_past",
    "pad_token_id", "prefix", "pretraining_tp", "problem_type", "return_dict", "sep_token_id", "task_specific_params",
    "tf_legacy_loss", "tie_word_embeddings", "tokenizer_class", "torch_dtype", "torchscript",
    "transformers.js_config", "transformers_version", "unk_token_id", "unsloth_fixed", "unsloth_version",
    "use_bfloat16", "use_cache", "use_return_dict",
    /* generation, which older versions kept here */
    "bad_words_ids", "begin_suppress_tokens", "diversity_penalty", "do_sample", "early_stopping",
    "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "length_penalty", "max_length",
    "max_new_tokens", "min_length", "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_return_sequences",
    "output_scores", "remove_invalid_values", "repetition_penalty", "return_dict_in_generate", "suppress_tokens",
    "temperature", "top_k", "top_p", "typical_p", "cache_implementation",
    /* sizes under a second name, heads of other tasks, and programs that trained the folder */
    "classifier_dropout", "n_ctx", "summary_activation", "summary_first_dropout", "summary_proj_to_labels",
    "summary_type", "summary_use_proj", "predict_special_tokens", "embedding_size", "directionality",
    "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type",
    "layerdrop", "rope_ratio", "use_flash_attention", "fused_bias_residual", "model_max_length", "vision_config",
    "qa_dropout", "seq_classif_dropout", "tie_weights_", "classifier_pooling", "deterministic_flash_attn",
    "initializer_cutoff_factor", "reference_compile", "repad_logits_with_grad", "sparse_prediction",
    "sparse_pred_ignore_index",
};

static bool is_harmless(const char *key)
{
    for (size_t i = 0; i < DSC_COUNT(harmless); i++)
        if (strcmp(harmless[i], key) == 0)
            return true;
    return key[0] == 0;
}

void dsc_hf_warn_unread(dsc_hf_config *reader, const char *model_type)
{
    enum { NAMED = 6 };
    char list[400] = "";
    int32_t count = 0;
    for (const cJSON *item = reader->object->child; item != NULL; item = item->next) {
        if (item->string == NULL || cJSON_IsNull(item) || is_harmless(item->string) ||
            dsc_hf_was_asked(reader, item->string))
            continue;
        const size_t used = strlen(list);
        if (count++ < NAMED)
            snprintf(list + used, sizeof list - used, "%s\"%.40s\"", used > 0 ? ", " : "", item->string);
    }
    if (count == 0)
        return;
    char more[40] = "";
    if (count > NAMED)
        snprintf(more, sizeof more, " and %d more", (int)(count - NAMED));
    dsc_hf_warn(reader->warnings, reader->warnings_bytes,
                "config.json has keys that %s does not read, which have no effect: %s%s", model_type, list, more);
}
