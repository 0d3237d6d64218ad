/* kernels.cu - the table of launchers. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/launchers.h"

const dsc_cuda_kernel_fn dsc_cuda_kernels[DSC_KERNEL_COUNT] = {
#define X(id, args) dsc_cuda_run_##id,
#include "kernels/kernels.def"
#undef X
};
