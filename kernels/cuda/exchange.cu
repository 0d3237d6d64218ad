/* exchange.cu - exchanges of ranks inside a computation, which GPUs do not have. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/launchers.h"

static dsc_status refuse(const char *kernel, dsc_error *err)
{
    return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, kernel,
                    "ranks of one computation exchange values in host memory, and this is a GPU; use CPU ranks");
}

dsc_status dsc_cuda_run_EXCHANGE_SUM(const dsc_cuda_launch *, const void *, dsc_error *err)
{
    return refuse("EXCHANGE_SUM", err);
}

dsc_status dsc_cuda_run_EXCHANGE_SCATTER(const dsc_cuda_launch *, const void *, dsc_error *err)
{
    return refuse("EXCHANGE_SCATTER", err);
}

dsc_status dsc_cuda_run_EXCHANGE_GATHER(const dsc_cuda_launch *, const void *, dsc_error *err)
{
    return refuse("EXCHANGE_GATHER", err);
}
