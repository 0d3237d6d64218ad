/* mpt.c - MPT (MosaicML 2023): slopes instead of positions, and neither products nor norms have biases.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "models/dense.h"

static const dsc_dense_traits traits = {
    .norm1 = "norm_1", .qkv = { "attn.Wqkv" }, .proj = "attn.out_proj", .norm2 = "norm_2", .fc = "ffn.up_proj",
    .out = "ffn.down_proj", .kind = DSC_QKV_PARTS, .out_in = true
};

static const char *const lora_layers[] = { "Wqkv", NULL };

typedef struct only { const char *key; bool value; } only;

static dsc_status read_only(dsc_hf_config *reader, const only *switches, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        bool is = false;
        DSC_TRY(dsc_hf_bool(reader, switches[i].key, switches[i].value, &is));
        if (is != switches[i].value)
            return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED, "\"%s\": %s is not built; what exists: %s",
                                 switches[i].key, is ? "true" : "false", is ? "false" : "true");
    }
    return DSC_OK;
}

/* The reader stands on "attn_config". */
static dsc_status read_attention(dsc_hf_config *reader, dsc_dense_config *out)
{
    static const char *const kinds[] = { "multihead_attention" };
    static const char *const dropouts[] = { "attn_pdrop" };
    static const only switches[] = { { "alibi", true }, { "attn_uses_sequence_id", false }, { "prefix_lm", false },
                                     { "qk_ln", false } };
    int32_t index = 0;
    double clip = 0;
    DSC_TRY(dsc_hf_choice(reader, "attn_type", kinds, DSC_COUNT(kinds), &index));
    DSC_TRY(read_only(reader, switches, DSC_COUNT(switches)));
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

static dsc_status read_sizes(dsc_hf_config *reader, dsc_dense_config *out)
{
    dsc_lm_config *lm = &out->lm;
    int64_t ratio = 0;
    DSC_TRY(dsc_hf_int(reader, "vocab_size", DSC_LM_VOCAB_MAX, 50368, &lm->vocab));
    DSC_TRY(dsc_hf_int(reader, "max_seq_len", DSC_LM_POSITIONS_MAX, 2048, &lm->positions));
    DSC_TRY(dsc_hf_int(reader, "n_layers", DSC_LM_LAYERS_MAX, 24, &lm->layers));
    DSC_TRY(dsc_hf_int(reader, "d_model", DSC_LM_CHANNELS_MAX, 2048, &lm->channels));
    DSC_TRY(dsc_hf_int(reader, "n_heads", DSC_LM_CHANNELS_MAX, 16, &out->heads));
    DSC_TRY(dsc_hf_int(reader, "expansion_ratio", DSC_LM_INNER_MAX, 4, &ratio));
    if (ratio != 4) /* Hugging Face's code has no other */
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED, "\"expansion_ratio\" %lld is not built; what exists: 4",
                             (long long)ratio);
    out->inner = 4 * lm->channels;
    return dsc_dense_check_heads(reader, out, "d_model", "n_heads");
}

static dsc_status read_config(dsc_hf_config *reader, dsc_lm_config *lm)
{
    static const char *const dropouts[] = { "resid_pdrop", "emb_pdrop" };
    static const only switches[] = { { "no_bias", true } };
    dsc_dense_config *out = (dsc_dense_config *)(void *)lm;
    const cJSON *const root = reader->object;
    out->traits = &traits;
    out->scale_attention = out->bare_mlp = lm->norm_no_bias = true;
    out->alibi = 8;
    out->activation = DSC_GELU_ERF;
    DSC_TRY(read_sizes(reader, out));
    DSC_TRY(read_only(reader, switches, 1));
    const cJSON *attention = dsc_hf_field(reader, "attn_config");
    if (attention != NULL && !cJSON_IsObject(attention))
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"attn_config\" must be an object");
    if (attention != NULL) {
        reader->object = attention;
        const dsc_status status = read_attention(reader, out);
        reader->object = root;
        DSC_TRY(status);
    }
    DSC_TRY(dsc_hf_number(reader, "layer_norm_epsilon", (dsc_hf_range){ 1e-30, 1 }, 1e-5, &lm->norm_eps));
    DSC_TRY(dsc_hf_number(reader, "initializer_range", (dsc_hf_range){ 0, 1000 }, 0.02, &lm->init_std));
    DSC_TRY(dsc_hf_bool(reader, "tie_word_embeddings", true, &lm->tied));
    return dsc_dense_read_dropout(reader, dropouts, DSC_COUNT(dropouts), 0);
}

const dsc_lm_family dsc_mpt_family = {
    .model_type = "mpt", .layers_key = "n_layers", .base = "transformer.", .layer = "blocks.",
    .token_table = "wte.weight", .head_table = "lm_head.weight", .final_norm = "norm_f", .norm = DSC_NORM_LAYER,
    .config_bytes = sizeof(dsc_dense_config), .read_config = read_config,
    .emit_block = dsc_dense_emit_block, .lora_layers = lora_layers
};
