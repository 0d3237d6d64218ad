/* conv2d_plan.h - whether a pass of a convolution is one launch of cuDNN or products of gathered windows.
 *
 * cuDNN is taken for a pass where it is installed and wanted, and where its results were compared with those of the
 * products and none is wrong. A pass that was not prepared or not tried is products.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CUDA_CONV2D_CONV2D_PLAN_H
#define DSC_KERNELS_CUDA_CONV2D_CONV2D_PLAN_H

#include "kernels/conv2d.h"
#include "kernels/cuda/kernels.h"
#include "kernels/device.h"

/* Plans of the calling thread's current GPU. Safe on NULL. */
dsc_status dsc_cuda_conv2d_open(const dsc_device_options *options, int32_t arch, dsc_cuda_conv2d **out, dsc_error *err);
void dsc_cuda_conv2d_close(dsc_cuda_conv2d **conv2d);
/* As device.h says of conv2d_prepare. */
void dsc_cuda_conv2d_prepare(dsc_cuda_conv2d *conv2d, const dsc_conv2d_args *shape);
/* Work space that the plans need together, and the memory for it. bytes 0: there is none, and the plans go. */
int64_t dsc_cuda_conv2d_workspace_bytes(const dsc_cuda_conv2d *conv2d);
void dsc_cuda_conv2d_set_workspace(dsc_cuda_conv2d *conv2d, void *memory, int64_t bytes);
/* Whether cuDNN has this pass; then CONV2D may be launched. */
bool dsc_cuda_conv2d_is_whole(dsc_cuda_conv2d *conv2d, const dsc_conv2d_args *a);
dsc_status dsc_cuda_conv2d_launch(const dsc_cuda_launch *at, const dsc_conv2d_args *a, dsc_error *err);
/* As device.h says of gemm_measure. `memory` is overwritten; a shape that does not fit there is not tried. */
dsc_status dsc_cuda_conv2d_choose(const dsc_cuda_launch *at, void *memory, int64_t memory_bytes, dsc_gemm_choice choice,
                                  int64_t chunk_bytes, dsc_cudnn_tried *out, dsc_error *err);
/* As device.h says of gemm_plans_get and gemm_plans_set. set: `text` is of this card, or NULL. */
void dsc_cuda_conv2d_plans_get(dsc_cuda_conv2d *conv2d, char *text, int64_t capacity, int64_t *bytes);
void dsc_cuda_conv2d_plans_set(dsc_cuda_conv2d *conv2d, const char *text, int64_t *others);

#endif
