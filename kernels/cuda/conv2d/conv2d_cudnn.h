/* conv2d_cudnn.h - a pass of a convolution by cuDNN. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CUDA_CONV2D_CONV2D_CUDNN_H
#define DSC_KERNELS_CUDA_CONV2D_CONV2D_CUDNN_H

#include "kernels/conv2d.h"
#include "kernels/cuda/cudnn_library.h"
#include "kernels/cuda/kernels.h"

/* Whether the pointers of such a pass are aligned. */
bool dsc_cuda_conv2d_cudnn_aligned(const dsc_conv2d_args *a);
/* For a pass of dsc_conv2d_wants_cudnn. False: there is no plan, and c->note says why. A work space of more than
 * `bytes_most` is refused. */
bool dsc_cuda_conv2d_cudnn_plan(cudnn_library *c, int32_t arch, const dsc_conv2d_args *shape, int64_t bytes_most,
                                cudnn_plan *out);
/* Enqueues the pass. a->scratch has the weight or its gradient in cuDNN's order, and DX's result before a sum: rounded
 * once more than without. Calls of one GPU come one at a time. */
dsc_status dsc_cuda_conv2d_cudnn_run(const dsc_cuda_launch *at, const cudnn_library *c, void *plan,
                                     const dsc_conv2d_args *a, dsc_error *err);

#endif
