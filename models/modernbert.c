/* modernbert.c - ModernBERT (Warner et al. 2024): norms before the parts, gated MLPs, and rotary positions. Most layers
 * see a window to both sides; these layers have rotary positions of their own. The first layer has no norm before its
 * attention, as the embedding ends with one. SPDX-License-Identifier: Apache-2.0 */
#include "models/decoder.h"
#include "models/dense.h"

static const dsc_dense_traits traits = {
    .norm1 = "attn_norm", .qkv = { "attn.Wqkv" }, .proj = "attn.Wo", .norm2 = "mlp_norm", .fc = "mlp.Wi",
    .out = "mlp.Wo", .kind = DSC_QKV_PARTS, .out_in = true, .rotary = true, .two_ropes = true, .bare_first = true,
    .gate_in_up = true, .scaled_init = true
};

/* PEFT has no entry for the family. */
static const char *const lora_layers[] = { "Wqkv", NULL };

static const char *const may_ignore[] = { "attn.rotary_emb.inv_freq", NULL };

static const char *const beside_labels[][2] = { { "decoder.", "masked language model's head" }, { NULL, NULL } };

#define CLASSIFIER                                                                                                     \
    .transform = "head.dense", .norm = "head.norm", .table = "classifier.weight", .bias = "classifier.bias",           \
    .beside = beside_labels
static const dsc_lm_classifier classifier = { CLASSIFIER, .pools_by_key = true };
static const dsc_lm_classifier token_classifier = { CLASSIFIER };

static const char *const beside_vectors[][2] = { { "decoder.", "masked language model's head" },
                                                 { "head.", "masked language model's head" },
                                                 { NULL, NULL } };

static const dsc_lm_classifier embedder = { .norm = "model.final_norm", .beside = beside_vectors };

/* ---- config.json ------------------------------------------------------------------------------------------------- */

static dsc_status check_head_size(dsc_hf_config *reader, const dsc_dense_config *out)
{
    const int64_t usual = out->lm.channels / out->heads;
    int64_t size = 0;
    DSC_TRY(dsc_hf_int_or_null(reader, "head_dim", DSC_LM_CHANNELS_MAX, usual, &size));
    if (size == usual)
        return DSC_OK;
    return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED,
                         "\"head_dim\" %lld is not built for modernbert; what exists: %lld, which is \"hidden_size\" "
                         "divided by \"num_attention_heads\"",
                         (long long)size, (long long)usual);
}

/* Every n-th layer from the first one on sees all tokens, unless "layer_types" says else. The window is a number of
 * tokens, or in "sliding_window" the half of one. */
static dsc_status read_layers(dsc_hf_config *reader, dsc_lm_config *lm)
{
    int64_t every = 0, half = 0;
    bool sliding = false;
    DSC_TRY(dsc_hf_int(reader, "global_attn_every_n_layers", INT32_MAX, 3, &every));
    DSC_TRY(dsc_hf_int(reader, "local_attention", INT32_MAX, 128, &lm->window));
    DSC_TRY(dsc_hf_int_or_null(reader, "sliding_window", INT32_MAX, 0, &half));
    if (half > 0)
        lm->window = 2 * half;
    for (int64_t layer = 0; layer < lm->layers; layer++)
        lm->full[layer] = layer % every == 0;
    return dsc_decoder_read_layer_types(reader, lm->layers, "sliding_attention", lm->full, &sliding);
}

static dsc_status read_ropes(dsc_hf_config *reader, dsc_dense_config *out)
{
    static const dsc_rope_layer kinds[] = {
        { .name = "full_attention", .theta = "global_rope_theta", .theta_default = 160000, .scaled = true },
        { .name = "sliding_attention", .theta = "local_rope_theta", .theta_default = 10000, .scaled = true }
    };
    const dsc_rope_keys keys = { .partial_default = 1,
                                 .positions = out->lm.positions,
                                 .head_size = out->lm.channels / out->heads };
    dsc_rope ropes[DSC_COUNT(kinds)];
    DSC_TRY(dsc_rope_read_layers(reader, &keys, kinds, DSC_COUNT(kinds), ropes));
    out->rope = ropes[0], out->sliding_rope = ropes[1];
    if (ropes[0].kind == DSC_ROPE_LONG || ropes[1].kind == DSC_ROPE_LONG)
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED,
                             "rotary positions of type \"longrope\" are not built for modernbert; what exists: "
                             "default, linear, dynamic, llama3, yarn, proportional");
    return DSC_OK;
}

static dsc_status read_biases(dsc_hf_config *reader, dsc_dense_config *out)
{
    bool norm = false, mlp = false, dense = false;
    DSC_TRY(dsc_hf_bool(reader, "attention_bias", false, &out->attention_bias));
    DSC_TRY(dsc_hf_bool(reader, "mlp_bias", false, &mlp));
    DSC_TRY(dsc_hf_bool(reader, "norm_bias", false, &norm));
    DSC_TRY(dsc_hf_bool(reader, "classifier_bias", false, &dense));
    out->bare_mlp = !mlp;
    out->lm.norm_no_bias = !norm;
    out->lm.transform_no_bias = !dense;
    return dsc_hf_only(reader, "decoder_bias", true);
}

static dsc_status read_more(dsc_hf_config *reader, dsc_dense_config *out)
{
    /* Published files have both, which transformers does not read. */
    static const char *const without_effect[] = { "layer_norm_eps", "position_embedding_type", NULL };
    dsc_lm_config *lm = &out->lm;
    out->scale_attention = lm->masked = true;
    DSC_TRY(check_head_size(reader, out));
    DSC_TRY(read_layers(reader, lm));
    DSC_TRY(read_ropes(reader, out));
    DSC_TRY(read_biases(reader, out));
    DSC_TRY(dsc_lm_read_padding(reader, 50283, lm));
    DSC_TRY(dsc_decoder_read_activation(reader, "hidden_activation", DSC_GELU_ERF, &out->activation));
    DSC_TRY(dsc_dense_read_activation(reader, "classifier_activation", DSC_GELU_ERF, &lm->activation));
    dsc_hf_skip(reader, without_effect);
    return DSC_OK;
}

static const dsc_dense_keys keys = {
    .block = &traits, .vocab = 50368, .positions = { .usual = 8192 }, .layers = { .usual = 22 },
    .channels = { .usual = 768 }, .inner = { .usual = 1152 }, .heads = { .usual = 12 }, .eps = "norm_eps",
    .eps_usual = 1e-5, .tied = true, .dropouts = { "attention_dropout", "embedding_dropout", "mlp_dropout" },
    .read_more = read_more
};

const dsc_lm_family dsc_modernbert_family = {
    DSC_DENSE_FAMILY("modernbert", keys), .layers_key = "num_hidden_layers", .base = "model.", .layer = "layers.",
    .token_table = "embeddings.tok_embeddings.weight", .embed_norm = "embeddings.norm",
    .transform_norm = "model.final_norm", .transform = "head.dense", .final_norm = "head.norm",
    .head_table = "decoder.weight", .head_bias = "decoder.bias", .lora_layers = lora_layers, .may_ignore = may_ignore,
    .class_prefix = "ModernBert", .classifier = &classifier, .token_classifier = &token_classifier,
    .embedder = &embedder
};
