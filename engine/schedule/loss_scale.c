/* loss_scale.c - DeepSpeed's rules for the scale of fp16 losses. SPDX-License-Identifier: Apache-2.0 */
#include "engine/schedule/loss_scale.h"

#include <math.h>

/* Upper bound of doubling, so that the scale is an fp32 number. DeepSpeed's scale has no bound, without benefit: fp16
 * ends at 65504. */
#define SCALE_MOST 0x1p126

static bool is_dynamic(const dsc_config *config)
{
    return config->precision == DSC_PRECISION_FP16 && config->fp16.loss_scale == 0;
}

void dsc_loss_scaler_start(const dsc_config *config, dsc_loss_scaler *out)
{
    const dsc_fp16_config *fp16 = &config->fp16;
    *out = (dsc_loss_scaler){ .scale = 1, .overflow_step = -1, .overflows_left = fp16->hysteresis };
    if (is_dynamic(config))
        out->scale = ldexp(1, (int)fp16->initial_scale_power);
    else if (config->precision == DSC_PRECISION_FP16)
        out->scale = fp16->loss_scale;
}

static bool overflowed(const dsc_fp16_config *fp16, dsc_loss_scaler *scaler)
{
    if (fp16->hysteresis == 1 || scaler->overflows_left == 1) {
        if (scaler->scale == fp16->min_loss_scale)
            return false;
        scaler->scale = fmax(scaler->scale / 2, fp16->min_loss_scale);
    } else {
        scaler->overflows_left--;
    }
    scaler->overflow_step = scaler->step;
    return true;
}

static void passed(const dsc_fp16_config *fp16, dsc_loss_scaler *scaler)
{
    const int64_t clean = scaler->step - scaler->overflow_step - 1; /* before this one */
    const bool grows = clean > 0 && clean % fp16->loss_scale_window == 0;
    if (fp16->consecutive_hysteresis || grows)
        scaler->overflows_left = fp16->hysteresis;
    if (grows && scaler->scale < SCALE_MOST)
        scaler->scale *= 2;
}

bool dsc_loss_scaler_next(const dsc_config *config, bool overflow, dsc_loss_scaler *scaler)
{
    if (is_dynamic(config)) {
        if (overflow && !overflowed(&config->fp16, scaler))
            return false;
        if (!overflow)
            passed(&config->fp16, scaler);
    }
    scaler->step++;
    return true;
}
