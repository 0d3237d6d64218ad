/* launchers.h - the launcher of every kernel, by its id in kernels.def. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CUDA_LAUNCHERS_H
#define DSC_KERNELS_CUDA_LAUNCHERS_H

#include "kernels/cuda/kernels.h"

#define X(id, args) dsc_status dsc_cuda_run_##id(const dsc_cuda_launch *at, const void *args, dsc_error *err);
#include "kernels/kernels.def"
#undef X

#endif
