/* linear.c - see linear.h. SPDX-License-Identifier: Apache-2.0 */
#include "models/linear.h"

#include "kernels/device.h"
#include "kernels/fp8_cache.h"
#include "models/lora.h"

static bool has_adapter(const dsc_lora *lora, dsc_linear_layer layer)
{
    return lora != NULL && dsc_lora_has(lora, layer.weight);
}

/* The layer's own weight alone: adapters stay in the compute dtype. */
static bool is_fp8(const dsc_call *call, dsc_linear_layer layer)
{
    const bool in_fp8 = call->ctx->fp8 != NULL && dsc_linear_fits_fp8(layer, call->rows);
    /* Weights that are given in fp8 have no products in bf16. */
    DSC_ASSERT(in_fp8 || call->ctx->fp8 == NULL || !dsc_fp8_is_gathered(call->ctx->fp8, layer.weight));
    return in_fp8;
}

static bool has_magnitudes(const dsc_lora *lora, dsc_linear_layer layer)
{
    return has_adapter(lora, layer) && lora->magnitudes;
}

dsc_status dsc_linear_plan(dsc_linear_planned *gemms, dsc_linear_layer layer, dsc_error *err)
{
    if (layer.part_count > 0)
        return dsc_linear_parts_plan(gemms, layer, err);
    if (has_magnitudes(gemms->lora, layer))
        return dsc_dora_plan(gemms, layer, err);
    const bool fp8 = gemms->sink != NULL && gemms->sink->fp8 != NULL && dsc_linear_fits_fp8(layer, gemms->rows);
    DSC_TRY((fp8 ? dsc_linear_fp8_plan : dsc_linear_plain_plan)(gemms, layer, err));
    return has_adapter(gemms->lora, layer) ? dsc_lora_plan(gemms, layer, err) : DSC_OK;
}

dsc_status dsc_linear_run(const dsc_call *call, dsc_linear_layer layer, void *y, const void *x, void *aux)
{
    if (layer.part_count > 0)
        return dsc_linear_parts_run(call, layer, y, x);
    if (has_magnitudes(call->lora, layer))
        return dsc_dora_run(call, layer, y, x, aux);
    DSC_TRY((is_fp8(call, layer) ? dsc_linear_fp8_run : dsc_linear_plain_run)(call, layer, y, x, aux));
    if (!has_adapter(call->lora, layer))
        return DSC_OK;
    DSC_ASSERT(!dsc_epilogue_activates(layer.forward));
    return dsc_lora_run(call, layer, y, x);
}

dsc_status dsc_linear_backward(const dsc_call *call, dsc_linear_layer layer, void *dx, const void *dy, void *aux)
{
    if (layer.part_count > 0)
        return dsc_linear_parts_backward(call, layer, dx, dy, aux);
    if (has_magnitudes(call->lora, layer))
        return dsc_dora_backward(call, layer, dx, dy, aux);
    DSC_TRY((is_fp8(call, layer) ? dsc_linear_fp8_backward : dsc_linear_plain_backward)(call, layer, dx, dy, aux));
    if (!has_adapter(call->lora, layer))
        return DSC_OK;
    DSC_ASSERT(!dsc_epilogue_slopes(layer.backward));
    return dsc_lora_backward(call, layer, dx, dy);
}

dsc_status dsc_linear_gradients(const dsc_call *call, dsc_linear_layer layer, const void *x, const void *dy)
{
    if (layer.part_count > 0)
        return dsc_linear_parts_gradients(call, layer, x, dy);
    const bool has_own = has_magnitudes(call->lora, layer);
    DSC_TRY((has_own                 ? dsc_dora_gradients
             : is_fp8(call, layer) ? dsc_linear_fp8_gradient
                                   : dsc_linear_plain_gradient)(call, layer, x, dy));
    if (has_adapter(call->lora, layer) && !has_own)
        DSC_TRY(dsc_lora_gradients(call, layer, x, dy));
    return dsc_linear_bias_gradient(call, layer, dy);
}
