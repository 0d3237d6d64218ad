/* adam_export.c - our AdamW step behind one exported function, so that bench_adam_peer.py can run it beside others in
 * one process. Part of the bench only. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/kernels.h"

DSC_API int dsc_bench_adamw(float *master, float *moment1, float *moment2, const float *grad, uint16_t *copy,
                            int64_t count, int32_t threads, int32_t step, double lr, double weight_decay);

/* Betas 0.9 and 0.999, eps 1e-8. 0 on success. */
int dsc_bench_adamw(float *master, float *moment1, float *moment2, const float *grad, uint16_t *copy, int64_t count,
                    int32_t threads, int32_t step, double lr, double weight_decay)
{
    const double beta1 = 0.9, beta2 = 0.999;
    const dsc_cpu_threads team = { .threads = threads, .caps = dsc_cpu_caps() };
    const dsc_update_args args = {
        .master = master, .state = { moment1, moment2 }, .grad = grad, .param_half = copy,
        .half_dtype = DSC_BF16, .count = count,
        .scalars = { .grad_scale = 1, .beta1 = (float)beta1, .beta2 = (float)beta2,
                     .one_minus_beta1 = (float)(1 - beta1), .one_minus_beta2 = (float)(1 - beta2),
                     .decay = (float)(1 - lr * weight_decay), .l2 = 0,
                     .step_size = (float)(lr / (1 - pow(beta1, step))),
                     .inv_sqrt_bias2 = (float)(1 / sqrt(1 - pow(beta2, step))), .eps = 1e-8f },
    };
    dsc_kernel_table table;
    dsc_kernel_table_init(&table, team.caps);
    return table.fn[DSC_KERNEL_ADAMW](&args, &team, NULL) != DSC_OK;
}
