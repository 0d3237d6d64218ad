/* grouped_gemm_sm90.h - grouped products by warpgroups, which only compute capability 9.0 has.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CUDA_GROUPED_GEMM_SM90_H
#define DSC_KERNELS_CUDA_GROUPED_GEMM_SM90_H

#include "kernels/cuda/kernels.h"
#include "kernels/moe.h"

/* The driver's way to describe a tensor. NULL: this driver has none, or the kernels, as compiled, cannot start on the
 * calling thread's current GPU. Then the kernel of warps is used. */
void *dsc_cuda_grouped_sm90_find(void);
/* Whether the kernels have this shape, dtype and alignment. */
bool dsc_cuda_grouped_sm90_fits(const dsc_grouped_gemm_args *a);
/* Enqueues; at->grouped is what was found. */
dsc_status dsc_cuda_grouped_sm90(const dsc_cuda_launch *at, const dsc_grouped_gemm_args *a, dsc_error *err);

#endif
