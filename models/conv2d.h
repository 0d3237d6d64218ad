/* conv2d.h - a two-dimensional convolution of a module: planned ahead and launched, like linear.h.
 *
 * On a CPU a convolution of one group in fp32 or bf16 is one launch (kernels/conv2d.h). Other convolutions are these
 * products. Windows are gathered into scratch, some rows at a time, and multiplied with the weight in the order of
 * their columns. The gradient of the input gathers windows of y's gradient. A window of one pixel at stride 1 reads x
 * itself. Each group is a product of its own. Depthwise convolutions have kernels of their own (kernels/conv2d.h). Sums
 * over K are one product's; the weight's gradient adds the products of chunks in order. Chunks follow from the shape,
 * and from chunk_bytes of the contexts (include/dsc/model.h): 0 is a CPU, whose caches hold a chunk.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_MODELS_CONV2D_H
#define DSC_MODELS_CONV2D_H

#include "models/linear.h"

typedef struct dsc_conv2d_layer {
    dsc_conv2d_shape shape; /* batch: that of the call */
    int32_t weight, bias;   /* numbers of the parameters; bias: -1 for none */
} dsc_conv2d_layer;

int64_t dsc_conv2d_scratch_bytes(const dsc_conv2d_layer *layer, dsc_conv2d_pass pass, dsc_dtype dtype,
                                 int64_t chunk_bytes);
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
