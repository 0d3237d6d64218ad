/* opt.c - OPT (Zhang et al. 2022): its names, and its config.json as Hugging Face writes it.
 * SPDX-License-Identifier: Apache-2.0 */
#include "models/dense.h"

static const dsc_dense_traits traits = {
    .norm1 = "self_attn_layer_norm", .qkv = { "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj" },
    .proj = "self_attn.out_proj", .norm2 = "final_layer_norm", .fc = "fc1", .out = "fc2", .kind = DSC_QKV_APART,
    .out_in = true
};

static const char *const lora_layers[] = { "q_proj", "v_proj", NULL };

/* Where the norms are, and how wide the token table is: OPT-350m has norms of the sums and a narrower table. */
static dsc_status read_norms(dsc_hf_config *reader, dsc_dense_config *out)
{
    dsc_lm_config *lm = &out->lm;
    bool before = true, removed = false;
    DSC_TRY(dsc_hf_only(reader, "enable_bias", true));
    DSC_TRY(dsc_hf_only(reader, "layer_norm_elementwise_affine", true));
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

static dsc_status read_more(dsc_hf_config *reader, dsc_dense_config *out)
{
    static const char *const dropouts[] = { "dropout", "attention_dropout", "layerdrop" };
    static const double usual[] = { 0.1, 0, 0 };
    out->scale_attention = out->attention_bias = true;
    DSC_TRY(read_norms(reader, out));
    DSC_TRY(dsc_lm_read_padding(reader, 1, &out->lm));
    for (size_t i = 0; i < DSC_COUNT(dropouts); i++)
        DSC_TRY(dsc_dense_read_dropout(reader, &dropouts[i], 1, usual[i]));
    return DSC_OK;
}

static const dsc_dense_keys keys = {
    .block = &traits, .vocab = 50272, .positions = { .usual = 2048 }, .layers = { .usual = 12 },
    .channels = { .usual = 768 }, .inner = { .key = { "ffn_dim" }, .usual = 3072 }, .heads = { .usual = 12 },
    .eps_usual = 1e-5,
    .std = "init_std", .tied = true, .activation = "activation_function", .activation_usual = DSC_RELU,
    .read_more = read_more
};

/* Positions are counted from 2: the table's first rows were for padding. */
const dsc_lm_family dsc_opt_family = {
    DSC_DENSE_FAMILY("opt", keys), .layers_key = "num_hidden_layers", .base = "model.", .layer = "decoder.layers.",
    .token_table = "decoder.embed_tokens.weight", .position_table = "decoder.embed_positions.weight",
    .position_first = 2, .project_in = "decoder.project_in", .project_out = "decoder.project_out",
    .head_table = "lm_head.weight", .final_norm = "decoder.final_layer_norm", .lora_layers = lora_layers
};
