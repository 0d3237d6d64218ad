/* conv2d.h - a two-dimensional convolution of a module: planned ahead and launched, like linear.h.
 *
 * A convolution of one group is one launch where the device has it so (kernels/conv2d.h). CPUs have it in fp32 and
 * bf16, and GPUs where cuDNN has the pass and is chosen. Other convolutions are products of gathered windows
 * (kernels/conv2d_products.h). Depthwise convolutions have kernels of their own (kernels/conv2d.h).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_MODELS_CONV2D_H
#define DSC_MODELS_CONV2D_H

#include "models/linear.h"

typedef struct dsc_conv2d_layer {
    dsc_conv2d_shape shape; /* batch: that of the call */
    int32_t weight, bias;   /* numbers of the parameters; bias: -1 for none */
} dsc_conv2d_layer;

/* sums: dx is added to a sum. on_gpu: whether the device is a GPU; a CPU may have any chunk_bytes too. */
int64_t dsc_conv2d_scratch_bytes(const dsc_conv2d_layer *layer, dsc_conv2d_pass pass, bool sums, dsc_dtype dtype,
                                 int64_t chunk_bytes, bool on_gpu);
double dsc_conv2d_flops(const dsc_conv2d_shape *shape); /* of one pass */
/* Reports the products that will run. no_dx: x has no gradient. */
DSC_MUST_USE dsc_status dsc_conv2d_plan(dsc_linear_planned *gemms, const dsc_conv2d_layer *layer, bool no_dx,
                                        dsc_error *err);
/* Operands of a call. sum: dx is added to it, which may be dx; or NULL. */
DSC_MUST_USE dsc_status dsc_conv2d_run(const dsc_call *call, const dsc_conv2d_layer *layer, void *y, const void *x,
                                       void *scratch);
DSC_MUST_USE dsc_status dsc_conv2d_backward(const dsc_call *call, const dsc_conv2d_layer *layer, void *dx,
                                            const void *dy, void *sum, void *scratch);
/* The gradients of weight and bias that the context asks for. */
DSC_MUST_USE dsc_status dsc_conv2d_gradients(const dsc_call *call, const dsc_conv2d_layer *layer, const void *x,
                                             const void *dy, void *scratch);

#endif
