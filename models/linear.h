/* linear.h - a linear layer of a module: its three matrix products, planned ahead and launched.
 *
 * A module's plan tells the shapes to the device and its forward and backward fill in the pointers, so that what was
 * prepared and what is launched cannot differ. R is rows (tokens of the micro-batch).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_MODELS_LINEAR_H
#define DSC_MODELS_LINEAR_H

#include <dsc/model.h>

#include "kernels/kernels.h"

typedef struct dsc_linear {
    int64_t in, out;
    bool out_in; /* the weight is stored [out,in] (PyTorch's Linear), else [in,out] (GPT-2's Conv1D) */
} dsc_linear;

/* y[R,out] = x[R,in] * w. */
static inline dsc_gemm_args dsc_linear_forward(dsc_linear linear, int64_t rows, dsc_dtype dtype, dsc_epilogue epilogue)
{
    return (dsc_gemm_args){ .m = rows, .n = linear.out, .k = linear.in,
                            .lda = linear.in, .ldb = linear.out_in ? linear.in : linear.out, .ldc = linear.out,
                            .b_transposed = linear.out_in, .epilogue = epilogue, .ab_dtype = dtype, .c_dtype = dtype };
}

/* dx[R,in] = dy[R,out] * w^T. */
static inline dsc_gemm_args dsc_linear_backward_input(dsc_linear linear, int64_t rows, dsc_dtype dtype,
                                                      dsc_epilogue epilogue)
{
    return (dsc_gemm_args){ .m = rows, .n = linear.in, .k = linear.out,
                            .lda = linear.out, .ldb = linear.out_in ? linear.in : linear.out, .ldc = linear.in,
                            .b_transposed = !linear.out_in, .epilogue = epilogue, .ab_dtype = dtype, .c_dtype = dtype };
}

/* dw = x^T * dy in the weight's layout, fp32; a is x for [in,out] and dy for [out,in], b the other one. */
static inline dsc_gemm_args dsc_linear_backward_weight(dsc_linear linear, int64_t rows, dsc_dtype dtype)
{
    const int64_t m = linear.out_in ? linear.out : linear.in;
    const int64_t n = linear.out_in ? linear.in : linear.out;
    return (dsc_gemm_args){ .m = m,
                            .n = n,
                            .k = rows,
                            .lda = m,
                            .ldb = n,
                            .ldc = n,
                            .a_transposed = true,
                            .epilogue = DSC_EPILOGUE_NONE,
                            .ab_dtype = dtype,
                            .c_dtype = DSC_F32 };
}

typedef struct dsc_lora dsc_lora; /* lora.h */

/* Context of every launch of one call of a module. */
typedef struct dsc_call {
    dsc_module_ctx *ctx;
    int64_t rows; /* R */
    dsc_error *err;
    const dsc_lora *lora; /* the module's adapters; NULL: none */
    void *lora_work;      /* [dsc_lora_work_bytes] */
} dsc_call;

/* One of a module's linear layers: where its parameters are among the module's, and what its products end with.
 *
 * Or several layers that read one input, whose outputs are columns of y side by side. Their weights are parameters one
 * after another, stored [out,in], without adapters. Either each has a bias, the parameter behind its weight, or none
 * has. Where weights and biases lie side by side in memory, one product computes y, and one their gradients. dx is one
 * product in fp8 and where the context joins input gradients. Elsewhere it is a sum of one product each, so that the
 * order of its sums is that of layers apart. */
enum { DSC_LINEAR_PARTS = 3 };
typedef struct dsc_linear_layer {
    dsc_linear shape;
    int32_t weight, bias; /* bias: -1 for none */
    dsc_epilogue forward, backward;
    dsc_activation activation, slope; /* of the epilogues that have one: of y forward, of x backward */
    int32_t part_count;             /* layers that this one consists of; 0: it is one */
    int64_t part[DSC_LINEAR_PARTS]; /* their columns of y, whose sum is shape.out */
    int64_t stride;                 /* elements between rows of y and of its gradient; 0: shape.out */
    bool no_dx; /* the gradient of its input is not made */
    bool f32_out; /* y is in fp32, but not its gradient. Such a layer is not in fp8 */
} dsc_linear_layer;

/* Products that a module's plan reports. */
typedef struct dsc_linear_planned {
    const dsc_module *module; /* its parameters say which weights are trained */
    const dsc_lora *lora;     /* as of a call */
    int64_t rows;
    dsc_dtype dtype;
    const dsc_plan_sink *sink;
    double forward_flops, backward_flops; /* added to */
} dsc_linear_planned;
/* Reports the products of a layer that will run. */
DSC_MUST_USE dsc_status dsc_linear_plan(dsc_linear_planned *gemms, dsc_linear_layer layer, dsc_error *err);
/* y = x * w with the layer's forward epilogue. */
DSC_MUST_USE dsc_status dsc_linear_run(const dsc_call *call, dsc_linear_layer layer, void *y, const void *x, void *aux);
/* dx = dy * w^T with the layer's backward epilogue. */
DSC_MUST_USE dsc_status dsc_linear_backward(const dsc_call *call, dsc_linear_layer layer, void *dx, const void *dy,
                                            void *aux);
/* The gradients of weight and bias that the context asks for: dw = x^T * dy, db = sum of dy's rows. */
DSC_MUST_USE dsc_status dsc_linear_gradients(const dsc_call *call, dsc_linear_layer layer, const void *x,
                                             const void *dy);

/* linear_fp8.c: the same of a layer's own weight, with operands in fp8; ctx->fp8 is given. */
bool dsc_linear_fits_fp8(dsc_linear_layer layer, int64_t rows);
DSC_MUST_USE dsc_status dsc_linear_fp8_plan(dsc_linear_planned *gemms, dsc_linear_layer layer, dsc_error *err);
DSC_MUST_USE dsc_status dsc_linear_fp8_run(const dsc_call *call, dsc_linear_layer layer, void *y, const void *x,
                                           void *aux);
DSC_MUST_USE dsc_status dsc_linear_fp8_backward(const dsc_call *call, dsc_linear_layer layer, void *dx, const void *dy,
                                                void *aux);
DSC_MUST_USE dsc_status dsc_linear_fp8_gradient(const dsc_call *call, dsc_linear_layer layer, const void *x,
                                                const void *dy);

/* linear_parts.c: the same of a layer that consists of several. The plan of a module counts on weights and biases side
 * by side where all or none are trained and no size leaves a gap. Tensors begin at multiples of `align` elements. */
bool dsc_linear_parts_lie_together(const dsc_module *module, dsc_linear_layer layer, int64_t align);
DSC_MUST_USE dsc_status dsc_linear_parts_plan(dsc_linear_planned *gemms, dsc_linear_layer layer, dsc_error *err);
DSC_MUST_USE dsc_status dsc_linear_parts_run(const dsc_call *call, dsc_linear_layer layer, void *y, const void *x);
DSC_MUST_USE dsc_status dsc_linear_parts_backward(const dsc_call *call, dsc_linear_layer layer, void *dx,
                                                  const void *dy, void *aux);
DSC_MUST_USE dsc_status dsc_linear_parts_gradients(const dsc_call *call, dsc_linear_layer layer, const void *x,
                                                   const void *dy);

/* Tells the sink the products of a layer: forward, dx and, where the weight is trained, its gradient. */
DSC_MUST_USE dsc_status dsc_linear_report(dsc_linear_planned *gemms, dsc_linear_layer layer,
                                          const dsc_gemm_args passes[3], dsc_error *err);
/* linear_plain.c: the same without the layer's adapter; where the weight is frozen, there is no gradient of the bias.
 */
DSC_MUST_USE dsc_status dsc_linear_plain_plan(dsc_linear_planned *gemms, dsc_linear_layer layer, dsc_error *err);
DSC_MUST_USE dsc_status dsc_linear_plain_run(const dsc_call *call, dsc_linear_layer layer, void *y, const void *x,
                                             void *aux);
DSC_MUST_USE dsc_status dsc_linear_plain_backward(const dsc_call *call, dsc_linear_layer layer, void *dx,
                                                  const void *dy, void *aux);
DSC_MUST_USE dsc_status dsc_linear_plain_gradient(const dsc_call *call, dsc_linear_layer layer, const void *x,
                                                  const void *dy);
/* The gradient of a bias whose weight is frozen: elsewhere it comes with the weight's. */
DSC_MUST_USE dsc_status dsc_linear_bias_gradient(const dsc_call *call, dsc_linear_layer layer, const void *dy);

#endif
