/* ernie_moe.c - the ERNIE 4.5 of experts (Baidu 2025): scores are of all experts, and a bias takes part in the choice.
 * SPDX-License-Identifier: Apache-2.0 */
#include "models/moe.h"

/* Layers outside of a range, or between every so many, have one MLP. */
static dsc_status read_dense(dsc_hf_config *reader, dsc_moe_config *out)
{
    const int64_t layers = out->decoder.lm.layers;
    int64_t start = 0, end = 0, every = 1;
    DSC_TRY(dsc_hf_int_from(reader, "moe_layer_start_index", -1, INT32_MAX, 1, &start));
    DSC_TRY(dsc_hf_int_from(reader, "moe_layer_end_index", -1, INT32_MAX, -1, &end)); /* -1: the last layer */
    DSC_TRY(dsc_hf_int(reader, "moe_layer_interval", DSC_LM_LAYERS_MAX, 1, &every));
    if (end == -1)
        end = layers - 1;
    for (int64_t i = 0; i < layers; i++)
        out->dense[i] = i < start || i > end || (i + 1) % every != 0;
    return DSC_OK;
}

static dsc_status read_router(dsc_hf_config *reader, dsc_moe_config *out)
{
    int64_t experts = 0, slots = 0, shared = 0, later = 1;
    double least = 0;
    DSC_TRY(dsc_hf_int(reader, "moe_num_experts", DSC_MOE_EXPERTS_MAX, 64, &experts));
    DSC_TRY(dsc_hf_int(reader, "moe_k", DSC_MOE_TOP_K_MAX, 6, &slots));
    /* The names that transformers' models of experts have in common are taken before a family's own. */
    DSC_TRY(dsc_hf_int(reader, "num_experts", DSC_MOE_EXPERTS_MAX, experts, &experts));
    DSC_TRY(dsc_hf_int(reader, "num_experts_per_tok", DSC_MOE_TOP_K_MAX, slots, &slots));
    DSC_TRY(dsc_hf_int(reader, "moe_intermediate_size", DSC_LM_INNER_MAX, 1536, &out->inner));
    DSC_TRY(dsc_hf_int_from(reader, "moe_num_shared_experts", -1, INT32_MAX, 2, &shared));
    DSC_TRY(dsc_hf_number(reader, "moe_norm_min", (dsc_hf_range) { 0, 1 }, 1e-12, &least));
    DSC_TRY(dsc_hf_int_from(reader, "num_nextn_predict_layers", -1, INT32_MAX, later, &later));
    out->decoder.lm.later_layers = later > 0 ? later : 0;
    DSC_TRY(dsc_moe_set_rule(reader, out, "moe_k", experts, slots));
    if (shared < 0 || shared > DSC_LM_INNER_MAX / out->inner)
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"moe_num_shared_experts\" %lld is not between 0 and %lld",
                             (long long)shared, (long long)(DSC_LM_INNER_MAX / out->inner));
    if (least > 1e-6) /* the largest scores have a greater sum */
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED, "\"moe_norm_min\" %g is not built; what exists: up to 1e-06",
                             least);
    out->shared_inner = shared * out->inner;
    return DSC_OK;
}

static dsc_status read_more(dsc_hf_config *reader, dsc_decoder_config *config)
{
    dsc_moe_config *out = (dsc_moe_config *)(void *)config;
    bool bias = false, losses = false;
    DSC_TRY(dsc_hf_bool(reader, "use_bias", false, &bias));
    if (bias) /* the head has one too */
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED,
                             "\"use_bias\": true is not built for ernie4_5_moe; what exists: false");
    DSC_TRY(dsc_hf_bool(reader, "output_router_logits", false, &losses));
    (void)dsc_hf_field(reader, "router_aux_loss_coef"); /* of that loss */
    if (losses) /* it counts the experts of the largest scores without the bias, which are not the chosen ones */
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED,
                             "\"output_router_logits\": true is not built for ernie4_5_moe; what exists: false");
    DSC_TRY(read_router(reader, out));
    DSC_TRY(read_dense(reader, out));
    return dsc_lm_read_padding(reader, 0, &config->lm);
}

static const dsc_moe_traits traits = {
    .decoder = { .activation = DSC_SILU, .family = &dsc_ernie4_5_moe_family, .vocab = 103424, .layers = 28,
                 .channels = 2560, .heads = 20, .kv_heads = 4, .inner = 12288, .positions = 131072,
                 .has_head_size = true, .norm_eps = 1e-5, .theta = 500000, .tied = true, .rope_neighbours = true,
                 .read_more = read_more },
    .router = "mlp.gate", DSC_MOE_EXPERT_NAMES, .whole = DSC_MOE_WHOLE_NAMES("mlp.shared_experts"),
    .bias = "mlp.moe_statics", .bias_row = true, .f32_logits = true
};

const dsc_lm_family dsc_ernie4_5_moe_family = { DSC_MOE_FAMILY("ernie4_5_moe", traits),
                                                .lora_layers = dsc_decoder_lora_layers };
