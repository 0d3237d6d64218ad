/* moe_config.c - config.json of mixtures of experts as Hugging Face writes it. SPDX-License-Identifier: Apache-2.0 */
#include "models/moe.h"

dsc_status dsc_moe_set_rule(dsc_hf_config *reader, dsc_moe_config *out, const char *key, int64_t experts, int64_t slots)
{
    out->rule = (dsc_moe_rule) { .experts = (int32_t)experts,
                                 .top_k = (int32_t)slots,
                                 .score = DSC_MOE_SOFTMAX,
                                 .renormalize = true,
                                 .factor = 1 };
    if (slots > experts)
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"%s\" %lld is more than the %lld experts", key, (long long)slots,
                             (long long)experts);
    return DSC_OK;
}

/* "num_experts" and "num_local_experts" are one key. */
static dsc_status read_experts(dsc_hf_config *reader, dsc_moe_config *out)
{
    const dsc_moe_traits *traits = out->traits;
    int64_t experts = 0, again = 0, top_k = 0;
    DSC_TRY(dsc_hf_int(reader, "num_local_experts", DSC_MOE_EXPERTS_MAX, traits->experts, &experts));
    DSC_TRY(dsc_hf_int(reader, "num_experts", DSC_MOE_EXPERTS_MAX, experts, &again));
    if (again != experts && dsc_hf_field(reader, "num_local_experts") != NULL)
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"num_local_experts\" %lld is not \"num_experts\" %lld",
                             (long long)experts, (long long)again);
    experts = again;
    DSC_TRY(dsc_hf_int(reader, "num_experts_per_tok", DSC_MOE_TOP_K_MAX, traits->top_k, &top_k));
    DSC_TRY(dsc_moe_set_rule(reader, out, "num_experts_per_tok", experts, top_k));
    DSC_TRY(dsc_hf_int(reader, traits->inner_key, DSC_LM_INNER_MAX, traits->moe_inner, &out->inner));
    if (!traits->renormalized)
        DSC_TRY(dsc_hf_bool(reader, "norm_topk_prob", traits->renormalized_default, &out->rule.renormalize));
    if (traits->shared)
        return dsc_hf_int(reader, "shared_expert_intermediate_size", DSC_LM_INNER_MAX,
                          traits->shared_inner > 0 ? traits->shared_inner : 5632, &out->shared_inner);
    return DSC_OK;
}

/* Layers that have one MLP: those that the file names, and without a place in the step. */
static dsc_status read_dense(dsc_hf_config *reader, dsc_moe_config *out)
{
    const int64_t layers = out->decoder.lm.layers;
    int64_t step = 1, layer = 0;
    const cJSON *item = NULL;
    if (!out->traits->some_dense)
        return DSC_OK;
    DSC_TRY(dsc_hf_int(reader, "decoder_sparse_step", DSC_LM_LAYERS_MAX, 1, &step));
    for (int64_t i = 0; i < layers; i++)
        out->dense[i] = (i + 1) % step != 0;
    const cJSON *list = dsc_hf_field(reader, "mlp_only_layers");
    if (list != NULL && !cJSON_IsArray(list))
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"mlp_only_layers\" must be a list of numbers of layers");
    cJSON_ArrayForEach(item, list)
    {
        if (!dsc_json_integer(item, 0, INT32_MAX, &layer))
            return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"mlp_only_layers\" must be a list of numbers of layers");
        if (layer < layers)
            out->dense[layer] = true;
    }
    return DSC_OK;
}

/* transformers adds the loss where its models give the routers' logits back. */
static dsc_status read_losses(dsc_hf_config *reader, dsc_moe_config *out)
{
    const double fallback = out->traits->balance > 0 ? out->traits->balance : 0.001;
    bool on = false;
    double coefficient = 0;
    DSC_TRY(dsc_hf_bool(reader, "output_router_logits", false, &on));
    DSC_TRY(dsc_hf_number(reader, "router_aux_loss_coef", (dsc_hf_range) { 0, DSC_ROUTER_FACTOR_MAX }, fallback,
                          &coefficient));
    out->decoder.lm.router_balance = on ? coefficient : 0;
    return DSC_OK;
}

/* Keys that would change the mathematics in a way that is not built. */
static dsc_status refuse_others(dsc_hf_config *reader)
{
    bool on = false;
    double noise = 0;
    DSC_TRY(dsc_hf_bool(reader, "use_sliding_window", false, &on));
    if (on)
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED,
                             "\"use_sliding_window\" is not built for mixtures of experts; "
                             "what exists: false");
    if (dsc_hf_field(reader, "clip_qkv") != NULL)
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED, "\"clip_qkv\" is not built; what exists: null");
    DSC_TRY(dsc_hf_number(reader, "router_jitter_noise", (dsc_hf_range) { 0, 1 }, 0, &noise));
    if (noise > 0)
        dsc_hf_warn(reader->warnings, reader->warnings_bytes,
                    "the router's noise is off (config.json: router_jitter_noise %g)", noise);
    return DSC_OK;
}

dsc_status dsc_moe_read(dsc_hf_config *reader, dsc_lm_config *lm)
{
    const dsc_moe_traits *traits = reader->traits;
    dsc_moe_config *out = (dsc_moe_config *)(void *)lm;
    out->traits = traits;
    DSC_TRY(dsc_decoder_read(reader, lm));
    if (traits->inner_key == NULL)
        return DSC_OK;
    if (traits->decoder.qkv_bias) /* a key here */
        DSC_TRY(dsc_hf_bool(reader, "qkv_bias", true, &out->decoder.qkv_bias));
    DSC_TRY(dsc_lm_read_padding(reader, traits->padding, lm));
    DSC_TRY(read_experts(reader, out));
    DSC_TRY(read_dense(reader, out));
    DSC_TRY(read_losses(reader, out));
    return refuse_others(reader);
}
