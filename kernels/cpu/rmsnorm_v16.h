/* rmsnorm_v16.h - RMS normalisation on 16 lanes, bit by bit what rmsnorm_ref.c does; compiled by rmsnorm_avx2.c and
 * rmsnorm_avx512.c after their v16 words. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/norm_v16.h"

void V16_NAME(rmsnorm_fwd)(const void *args, int64_t first, int64_t last)
{
    const dsc_rmsnorm_fwd_args *a = args;
    const dsc_layernorm_fwd_args same = { .out = a->out,
                                          .sum = a->sum,
                                          .add = a->add,
                                          .rstd = a->rstd,
                                          .in = a->in,
                                          .weight = a->weight,
                                          .rows = a->rows,
                                          .channels = a->channels,
                                          .eps = a->eps,
                                          .dtype = a->dtype,
                                          .plus_one = a->plus_one,
                                          .wide = a->wide };
    norm_fwd_any(&same, first, last, true);
}

static dsc_layernorm_bwd_args bwd_args(const dsc_rmsnorm_bwd_args *a)
{
    return (dsc_layernorm_bwd_args) { .d_in = a->d_in,
                                      .d_weight = a->d_weight,
                                      .d_out = a->d_out,
                                      .d_residual = a->d_residual,
                                      .in = a->in,
                                      .weight = a->weight,
                                      .rstd = a->rstd,
                                      .scratch = a->scratch,
                                      .rows = a->rows,
                                      .channels = a->channels,
                                      .dtype = a->dtype,
                                      .plus_one = a->plus_one,
                                      .wide = a->wide };
}

void V16_NAME(rmsnorm_bwd)(const void *args, int64_t first, int64_t last)
{
    const dsc_layernorm_bwd_args same = bwd_args(args);
    norm_bwd_any(&same, first, last, true);
}

void V16_NAME(rmsnorm_bwd_sum)(const void *args, int64_t first, int64_t last)
{
    const dsc_layernorm_bwd_args same = bwd_args(args);
    norm_bwd_sum(&same, first, last, (norm_kind){ DSC_F32, true, true });
}
