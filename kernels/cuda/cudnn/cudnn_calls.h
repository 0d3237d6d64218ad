/* cudnn_calls.h - cuDNN's functions, which are found at run time. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CUDA_CUDNN_CUDNN_CALLS_H
#define DSC_KERNELS_CUDA_CUDNN_CUDNN_CALLS_H

#include "base/base.h"

/* Opens libcudnn.so.9 once for the process. DSC_ERR_UNSUPPORTED: it is not installed, or not the one that is needed. */
dsc_status dsc_cudnn_find(dsc_error *err);

#endif
