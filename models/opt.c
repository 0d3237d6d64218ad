/* opt.c - OPT (Zhang et al. 2022): its names, and its config.json as Hugging Face writes it.
 * SPDX-License-Identifier: Apache-2.0 */
#include "models/dense.h"

const dsc_dense_traits dsc_opt_traits = {
    .norm1 = "self_attn_layer_norm", .qkv = { "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj" },
    .proj = "self_attn.out_proj", .norm2 = "final_layer_norm", .fc = "fc1", .out = "fc2", .kind = DSC_QKV_APART,
    .out_in = true
};

static const char *const lora_layers[] = { "q_proj", "v_proj", NULL };

/* Positions are counted from 2: the table's first rows were for padding. */
const dsc_lm_family dsc_opt_family = {
    .model_type = "opt", .layers_key = "num_hidden_layers", .base = "model.", .layer = "decoder.layers.",
    .token_table = "decoder.embed_tokens.weight", .position_table = "decoder.embed_positions.weight",
    .position_first = 2, .project_in = "decoder.project_in", .project_out = "decoder.project_out",
    .head_table = "lm_head.weight", .final_norm = "decoder.final_layer_norm",
    .norm = DSC_NORM_LAYER, .config_bytes = sizeof(dsc_dense_config), .read_config = dsc_opt_read_config,
    .emit_block = dsc_dense_emit_block, .lora_layers = lora_layers
};

/* Where the norms are, and how wide the token table is: OPT-350m has norms of the sums and a narrower table. */
static dsc_status read_norms(dsc_hf_config *reader, dsc_dense_config *out)
{
    static const char *const built[] = { "enable_bias", "layer_norm_elementwise_affine" };
    dsc_lm_config *lm = &out->lm;
    bool before = true, removed = false;
    for (size_t i = 0; i < DSC_COUNT(built); i++) {
        bool is = false;
        DSC_TRY(dsc_hf_bool(reader, built[i], true, &is));
        if (!is)
            return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED, "\"%s\": false is not built; what exists: true",
                                 built[i]);
    }
    DSC_TRY(dsc_hf_bool(reader, "do_layer_norm_before", true, &before));
    DSC_TRY(dsc_hf_bool(reader, "_remove_final_layer_norm", false, &removed));
    out->post_norm = !before;
    lm->bare_head = !before || removed;
    DSC_TRY(dsc_hf_int_or_null(reader, "word_embed_proj_dim", DSC_LM_CHANNELS_MAX, lm->channels, &lm->embed_channels));
    if (lm->embed_channels != lm->channels && !lm->bare_head)
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED, "\"word_embed_proj_dim\" %lld beside a final norm is not "
                             "built; what exists: \"hidden_size\", which is %lld, or \"do_layer_norm_before\": false",
                             (long long)lm->embed_channels, (long long)lm->channels);
    return DSC_OK;
}

dsc_status dsc_opt_read_config(dsc_hf_config *reader, dsc_lm_config *lm)
{
    static const char *const dropouts[] = { "dropout", "attention_dropout", "layerdrop" };
    static const double usual[] = { 0.1, 0, 0 };
    dsc_dense_config *out = (dsc_dense_config *)(void *)lm;
    out->traits = &dsc_opt_traits;
    out->scale_attention = true;
    out->attention_bias = true;
    DSC_TRY(dsc_hf_int(reader, "vocab_size", DSC_LM_VOCAB_MAX, 50272, &lm->vocab));
    DSC_TRY(dsc_hf_int(reader, "max_position_embeddings", DSC_LM_POSITIONS_MAX, 2048, &lm->positions));
    DSC_TRY(dsc_hf_int(reader, "num_hidden_layers", DSC_LM_LAYERS_MAX, 12, &lm->layers));
    DSC_TRY(dsc_hf_int(reader, "hidden_size", DSC_LM_CHANNELS_MAX, 768, &lm->channels));
    DSC_TRY(dsc_hf_int(reader, "ffn_dim", DSC_LM_INNER_MAX, 3072, &out->inner));
    DSC_TRY(dsc_hf_int(reader, "num_attention_heads", DSC_LM_CHANNELS_MAX, 12, &out->heads));
    DSC_TRY(dsc_dense_check_heads(reader, out, "hidden_size", "num_attention_heads"));
    DSC_TRY(read_norms(reader, out));
    DSC_TRY(dsc_lm_read_padding(reader, 1, lm));
    lm->norm_eps = 1e-5; /* no key says else */
    DSC_TRY(dsc_hf_number(reader, "init_std", (dsc_hf_range){ 0, 1000 }, 0.02, &lm->init_std));
    DSC_TRY(dsc_hf_bool(reader, "tie_word_embeddings", true, &lm->tied));
    DSC_TRY(dsc_dense_read_activation(reader, "activation_function", DSC_RELU, &out->activation));
    for (size_t i = 0; i < DSC_COUNT(dropouts); i++)
        DSC_TRY(dsc_dense_read_dropout(reader, &dropouts[i], 1, usual[i]));
    return DSC_OK;
}
