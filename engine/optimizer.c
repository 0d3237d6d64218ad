/* optimizer.c - the scalars of one update, in double, rounded once. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "engine/internal.h"

/* Clips as torch.nn.utils.clip_grad_norm_ and DeepSpeed do: max / (norm + 1e-6), never above 1. */
static double clip_coefficient(double clipping, double norm)
{
    if (clipping <= 0)
        return 1.0;
    const double coefficient = clipping / (norm + 1e-6);
    return coefficient < 1.0 ? coefficient : 1.0;
}

void dsc_update_compute(const dsc_config *config, double sumsq, double scale, int64_t update, double lr_override,
                        dsc_update *out)
{
    const dsc_optimizer_config *o = &config->optimizer;
    const double lr = lr_override >= 0 ? lr_override : dsc_schedule_lr(config, update);
    const double beta1 = dsc_schedule_beta1(config, update), beta2 = dsc_schedule_beta2(config, update);
    const double norm = sqrt(sumsq) / scale;
    const double bias1 = o->bias_correction ? 1.0 - pow(beta1, (double)update) : 1.0;
    const double bias2 = o->bias_correction ? 1.0 - pow(beta2, (double)update) : 1.0;
    const bool decoupled = o->kind != DSC_OPTIMIZER_ADAM;
    *out = (dsc_update){ .lr = lr, .grad_norm = norm, .skip = !isfinite(norm) };
    out->scalars = (dsc_adamw_scalars){
        .grad_scale = (float)(clip_coefficient(config->gradient_clipping, norm) / scale),
        .beta1 = (float)beta1,
        .beta2 = (float)beta2,
        .one_minus_beta1 = (float)(1.0 - beta1),
        .one_minus_beta2 = (float)(1.0 - beta2),
        .decay = decoupled ? (float)(1.0 - lr * o->weight_decay) : 1.0f,
        .l2 = decoupled ? 0.0f : (float)o->weight_decay,
        .step_size = (float)(lr / bias1),
        .inv_sqrt_bias2 = (float)(1.0 / sqrt(bias2)),
        .eps = (float)o->eps,
    };
}
