/* mpt.c - MPT (MosaicML 2023): slopes instead of positions, and neither products nor norms have biases.
 * SPDX-License-Identifier: Apache-2.0 */
#include "models/dense.h"

static const dsc_dense_traits traits = {
    .norm1 = "norm_1", .qkv = { "attn.Wqkv" }, .proj = "attn.out_proj", .norm2 = "norm_2", .fc = "ffn.up_proj",
    .out = "ffn.down_proj", .kind = DSC_QKV_PARTS, .out_in = true
};

static const char *const lora_layers[] = { "Wqkv", NULL };

/* The reader stands on "attn_config". */
static dsc_status read_attention(dsc_hf_config *reader, dsc_dense_config *out)
{
    static const char *const dropouts[] = { "attn_pdrop" };
    double clip = 0;
    DSC_TRY(dsc_hf_only_word(reader, "attn_type", "multihead_attention"));
    DSC_TRY(dsc_hf_only(reader, "alibi", true));
    DSC_TRY(dsc_hf_only(reader, "attn_uses_sequence_id", false));
    DSC_TRY(dsc_hf_only(reader, "prefix_lm", false));
    DSC_TRY(dsc_hf_only(reader, "qk_ln", false));
    DSC_TRY(dsc_hf_number_or_null(reader, "clip_qkv", (dsc_hf_range){ 0, 1e30 }, 0, &clip));
    if (clip > 0)
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED, "\"clip_qkv\" %g is not built; what exists: null", clip);
    DSC_TRY(dsc_hf_number_or_null(reader, "softmax_scale", (dsc_hf_range){ 1e-6, 1e6 }, 0, &out->scale));
    DSC_TRY(dsc_hf_number(reader, "alibi_bias_max", (dsc_hf_range){ 1e-3, 1000 }, 8, &out->alibi));
    if (out->alibi != 8) /* Hugging Face's code has 8 whatever the key says, and MPT's own reads it */
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED, "\"alibi_bias_max\" %g is not built; what exists: 8",
                             out->alibi);
    return dsc_dense_read_dropout(reader, dropouts, 1, 0);
}

static dsc_status read_more(dsc_hf_config *reader, dsc_dense_config *out)
{
    const cJSON *const root = reader->object;
    int64_t ratio = 0;
    out->scale_attention = out->bare_mlp = out->lm.norm_no_bias = true;
    out->alibi = 8;
    DSC_TRY(dsc_hf_int(reader, "expansion_ratio", DSC_LM_INNER_MAX, 4, &ratio));
    if (ratio != 4) /* Hugging Face's code has no other */
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED, "\"expansion_ratio\" %lld is not built; what exists: 4",
                             (long long)ratio);
    DSC_TRY(dsc_hf_only(reader, "no_bias", true));
    const cJSON *attention = dsc_hf_field(reader, "attn_config");
    if (attention == NULL)
        return DSC_OK;
    if (!cJSON_IsObject(attention))
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"attn_config\" must be an object");
    reader->object = attention;
    const dsc_status status = read_attention(reader, out);
    reader->object = root;
    return status;
}

static const dsc_dense_keys keys = {
    .block = &traits, .vocab = 50368, .positions = { .key = { "max_seq_len" }, .usual = 2048 },
    .layers = { .key = { "n_layers", "num_hidden_layers" }, .usual = 24 },
    .channels = { .key = { "d_model", "hidden_size" }, .usual = 2048 },
    .fixed_inner = true, .heads = { .key = { "n_heads", "num_attention_heads" }, .usual = 16 },
    .eps = "layer_norm_epsilon", .eps_usual = 1e-5, .tied = true, .activation_usual = DSC_GELU_ERF,
    .dropouts = { "resid_pdrop", "emb_pdrop" }, .read_more = read_more
};

const dsc_lm_family dsc_mpt_family = {
    DSC_DENSE_FAMILY("mpt", keys), .layers_key = "n_layers", .base = "transformer.", .layer = "blocks.",
    .token_table = "wte.weight", .head_table = "lm_head.weight", .final_norm = "norm_f", .lora_layers = lora_layers
};
