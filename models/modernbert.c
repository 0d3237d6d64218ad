/* modernbert.c - ModernBERT (Warner et al. 2024): norms before the parts, gated MLPs, and rotary positions. Most layers
 * see a window to both sides; these layers have rotary positions of their own. The first layer has no norm before its
 * attention, as the embedding ends with one. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "models/blocks.h"
#include "models/decoder.h"
#include "models/dense.h"

enum { FULL, SLIDING, KINDS };

typedef struct modernbert_config {
    dsc_lm_config lm;
    int64_t heads, inner;
    bool attention_bias, mlp_bias;
    dsc_activation activation;
    dsc_rope rope[KINDS];
} modernbert_config;

/* PEFT has no entry for the family. */
static const char *const lora_layers[] = { "Wqkv", NULL };

static const char *const may_ignore[] = { "attn.rotary_emb.inv_freq", NULL };

static const char *const beside_labels[][2] = { { "decoder.", "masked language model's head" }, { NULL, NULL } };

static const dsc_lm_classifier classifier = { .class_prefix = "ModernBert",
                                              .transform = "head.dense",
                                              .norm = "head.norm",
                                              .table = "classifier.weight",
                                              .bias = "classifier.bias",
                                              .pools_by_key = true,
                                              .beside = beside_labels };

static const dsc_lm_classifier token_classifier = { .class_prefix = "ModernBert",
                                                    .transform = "head.dense",
                                                    .norm = "head.norm",
                                                    .table = "classifier.weight",
                                                    .bias = "classifier.bias",
                                                    .beside = beside_labels };

static void emit_block(dsc_program *program, const dsc_lm_config *base, int64_t layer)
{
    const modernbert_config *config = (const modernbert_config *)(const void *)base;
    const int64_t size = base->channels / config->heads;
    const dsc_block block = { .program = program,
                              .norm = { .kind = DSC_NORM_LAYER, .eps = base->norm_eps, .no_bias = base->norm_no_bias },
                              .out_in = true,
                              .std = base->init_std,
                              .out_std = base->init_std / sqrt(2.0 * (double)base->layers) };
    const dsc_block_attention attention = { .kind = DSC_QKV_PARTS,
                                            .qkv = { "attn.Wqkv" },
                                            .out = "attn.Wo",
                                            .qkv_bias = config->attention_bias,
                                            .out_bias = config->attention_bias,
                                            .rope = { .rope = &config->rope[base->full[layer] ? FULL : SLIDING] },
                                            .op = { .heads = config->heads,
                                                    .kv_heads = config->heads,
                                                    .head_size = size,
                                                    .all = true,
                                                    .scale = 1 / sqrt((double)size),
                                                    .window = base->full[layer] ? 0 : base->window } };
    const dsc_block_mlp mlp = { .up = "mlp.Wi",
                                .down = "mlp.Wo",
                                .gate_in_up = true,
                                .up_bias = config->mlp_bias,
                                .down_bias = config->mlp_bias,
                                .inner = config->inner,
                                .activation = config->activation };
    const dsc_step_norms first = { .before = layer == 0 ? NULL : "attn_norm" };
    dsc_step step = dsc_block_begin(&block, program->input, &first);
    const int16_t x = dsc_block_end(&block, &step, dsc_block_attend(&block, step.in, &attention), step.x);
    step = dsc_block_begin(&block, x, &(dsc_step_norms) { .before = "mlp_norm" });
    dsc_program_end(program, dsc_block_end(&block, &step, dsc_block_feed(&block, step.in, &mlp), x));
}

/* ---- config.json ------------------------------------------------------------------------------------------------- */

static dsc_status read_sizes(dsc_hf_config *reader, modernbert_config *out)
{
    dsc_lm_config *lm = &out->lm;
    DSC_TRY(dsc_hf_int(reader, "vocab_size", DSC_LM_VOCAB_MAX, 50368, &lm->vocab));
    DSC_TRY(dsc_hf_int(reader, "max_position_embeddings", DSC_LM_POSITIONS_MAX, 8192, &lm->positions));
    DSC_TRY(dsc_hf_int(reader, "num_hidden_layers", DSC_LM_LAYERS_MAX, 22, &lm->layers));
    DSC_TRY(dsc_hf_int(reader, "hidden_size", DSC_LM_CHANNELS_MAX, 768, &lm->channels));
    DSC_TRY(dsc_hf_int(reader, "intermediate_size", DSC_LM_INNER_MAX, 1152, &out->inner));
    DSC_TRY(dsc_hf_int(reader, "num_attention_heads", DSC_LM_CHANNELS_MAX, 12, &out->heads));
    if (lm->channels % out->heads != 0)
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT,
                             "\"hidden_size\" %lld is not a multiple of \"num_attention_heads\" %lld",
                             (long long)lm->channels, (long long)out->heads);
    int64_t size = 0;
    const int64_t usual = lm->channels / out->heads;
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

static dsc_status read_rope(dsc_hf_config *reader, modernbert_config *out)
{
    static const dsc_rope_layer kinds[KINDS] = {
        { .name = "full_attention", .theta = "global_rope_theta", .theta_default = 160000, .scaled = true },
        { .name = "sliding_attention", .theta = "local_rope_theta", .theta_default = 10000, .scaled = true }
    };
    const dsc_rope_keys keys = { .partial_default = 1,
                                 .positions = out->lm.positions,
                                 .head_size = out->lm.channels / out->heads };
    DSC_TRY(dsc_rope_read_layers(reader, &keys, kinds, KINDS, out->rope));
    for (int32_t i = 0; i < KINDS; i++)
        if (out->rope[i].kind == DSC_ROPE_LONG)
            return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED,
                                 "rotary positions of type \"longrope\" are not built for modernbert; what exists: "
                                 "default, linear, dynamic, llama3, yarn, proportional");
    return DSC_OK;
}

static dsc_status read_biases(dsc_hf_config *reader, modernbert_config *out)
{
    bool norm = false, dense = false, decoder = true;
    DSC_TRY(dsc_hf_bool(reader, "attention_bias", false, &out->attention_bias));
    DSC_TRY(dsc_hf_bool(reader, "mlp_bias", false, &out->mlp_bias));
    DSC_TRY(dsc_hf_bool(reader, "norm_bias", false, &norm));
    DSC_TRY(dsc_hf_bool(reader, "classifier_bias", false, &dense));
    DSC_TRY(dsc_hf_bool(reader, "decoder_bias", true, &decoder));
    out->lm.norm_no_bias = !norm;
    out->lm.transform_no_bias = !dense;
    if (!decoder)
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED, "\"decoder_bias\": false is not built; what exists: true");
    return DSC_OK;
}

static dsc_status read_config(dsc_hf_config *reader, dsc_lm_config *lm)
{
    static const char *const dropouts[] = { "attention_dropout", "embedding_dropout", "mlp_dropout" };
    modernbert_config *out = (modernbert_config *)(void *)lm;
    lm->masked = true;
    DSC_TRY(read_sizes(reader, out));
    DSC_TRY(read_layers(reader, lm));
    DSC_TRY(read_rope(reader, out));
    DSC_TRY(read_biases(reader, out));
    DSC_TRY(dsc_hf_bool(reader, "tie_word_embeddings", true, &lm->tied));
    DSC_TRY(dsc_lm_read_padding(reader, 50283, lm));
    DSC_TRY(dsc_hf_number(reader, "norm_eps", (dsc_hf_range) { 1e-30, 1 }, 1e-5, &lm->norm_eps));
    DSC_TRY(dsc_hf_number(reader, "initializer_range", (dsc_hf_range) { 0, 1000 }, 0.02, &lm->init_std));
    DSC_TRY(dsc_decoder_read_activation(reader, "hidden_activation", DSC_GELU_ERF, &out->activation));
    DSC_TRY(dsc_dense_read_activation(reader, "classifier_activation", DSC_GELU_ERF, &lm->activation));
    /* Published files have both, which transformers does not read. */
    (void)dsc_hf_field(reader, "layer_norm_eps");
    (void)dsc_hf_field(reader, "position_embedding_type");
    return dsc_dense_read_dropout(reader, dropouts, DSC_COUNT(dropouts), 0);
}

const dsc_lm_family dsc_modernbert_family = { .model_type = "modernbert",
                                              .layers_key = "num_hidden_layers",
                                              .base = "model.",
                                              .layer = "layers.",
                                              .token_table = "embeddings.tok_embeddings.weight",
                                              .embed_norm = "embeddings.norm",
                                              .transform_norm = "model.final_norm",
                                              .transform = "head.dense",
                                              .final_norm = "head.norm",
                                              .head_table = "decoder.weight",
                                              .head_bias = "decoder.bias",
                                              .norm = DSC_NORM_LAYER,
                                              .config_bytes = sizeof(modernbert_config),
                                              .read_config = read_config,
                                              .emit_block = emit_block,
                                              .lora_layers = lora_layers,
                                              .may_ignore = may_ignore,
                                              .classifier = &classifier,
                                              .token_classifier = &token_classifier };
