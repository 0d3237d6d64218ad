/* hunyuan.c - the dense Hunyuan (Tencent 2025): Llama's block, where q and k are normalised once they have turned.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "models/decoder.h"

/* A dynamic scaling that has "alpha" stretches theta once, whatever the length of a text. */
static dsc_status read_alpha(dsc_hf_config *reader, dsc_decoder_config *config)
{
    const cJSON *const root = reader->object;
    dsc_rope *rope = &config->rope;
    const cJSON *object = dsc_hf_field(reader, "rope_scaling");
    double alpha = 0;
    if (object == NULL || object->child == NULL)
        object = dsc_hf_field(reader, "rope_parameters");
    if (rope->kind != DSC_ROPE_DYNAMIC || object == NULL)
        return DSC_OK;
    reader->object = object;
    const dsc_status status = dsc_hf_number_or_null(reader, "alpha", (dsc_hf_range) { 0, 1e9 }, 0, &alpha);
    reader->object = root;
    DSC_TRY(status);
    if (alpha == 0)
        return DSC_OK;
    const double size = (double)config->head_size;
    if (size <= 2 || (alpha > 0 && alpha < 1e-6))
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED, "rotary positions with \"alpha\" %g and heads of %lld "
                             "elements are not built; what exists: 1e-06 and more, heads of 4 and more", alpha,
                             (long long)config->head_size);
    *rope = (dsc_rope) { .kind = DSC_ROPE_DEFAULT, .theta = rope->theta * pow(alpha, size / (size - 2)) };
    dsc_rope_set(rope, config->head_size);
    return DSC_OK;
}

static dsc_status read_more(dsc_hf_config *reader, dsc_decoder_config *config)
{
    static const struct { const char *key; bool value; } only[] = { { "use_qk_norm", true },
                                                                     { "mlp_bias", false },
                                                                     { "use_cla", false },
                                                                     { "position_embedding_xdrope", false },
                                                                     { "use_rotary_pos_emb", true } };
    for (size_t i = 0; i < DSC_COUNT(only); i++) {
        bool is = false;
        DSC_TRY(dsc_hf_bool(reader, only[i].key, only[i].value, &is));
        if (is != only[i].value)
            return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED, "\"%s\": %s is not built; what exists: %s", only[i].key,
                                 is ? "true" : "false", is ? "false" : "true");
    }
    DSC_TRY(read_alpha(reader, config));
    return dsc_lm_read_padding(reader, 0, &config->lm);
}

static const dsc_decoder_traits traits = { .activation = DSC_SILU,
                                           .architecture = "HunYuanDenseV1ForCausalLM",
                                           .family = &dsc_hunyuan_family,
                                           .vocab = 290943,
                                           .inner = 11008,
                                           .positions = 2048,
                                           .has_head_size = true,
                                           .attention_bias = true,
                                           .norm_eps = 1e-5,
                                           .read_more = read_more };

static void emit_block(dsc_program *program, const dsc_lm_config *base, int64_t layer)
{
    const dsc_decoder_config *config = dsc_decoder_config_of(base);
    const dsc_block block = dsc_decoder_block(program, config);
    dsc_block_attention attention = dsc_decoder_attention(config, layer);
    const dsc_block_mlp mlp = dsc_decoder_mlp(config);
    attention.q_norm = "self_attn.query_layernorm";
    attention.k_norm = "self_attn.key_layernorm";
    attention.norm_turned = true;
    dsc_decoder_emit(&block, &attention, &mlp);
}

static dsc_status read_config(dsc_hf_config *reader, dsc_lm_config *out)
{
    return dsc_decoder_read_config(reader, out, &traits);
}

const dsc_lm_family dsc_hunyuan_family = { DSC_DECODER_FAMILY, .model_type = "hunyuan_v1_dense", .norm = DSC_NORM_RMS,
                                           .read_config = read_config, .builtin = dsc_decoder_no_builtin,
                                           .emit_block = emit_block, .lora_layers = dsc_decoder_lora_layers };
