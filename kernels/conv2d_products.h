/* conv2d_products.h - a two-dimensional convolution as matrix products of gathered windows (kernels/conv2d.h).
 *
 * Windows are gathered into scratch, some rows at a time, and multiplied with the weight in the order of their columns.
 * The gradient of the input gathers windows of y's gradient. A window of one pixel at stride 1 reads x itself. Each
 * group is a product of its own. Sums over K are one product's; the weight's gradient adds the products of chunks in
 * order. Chunks follow from the shape and from chunk_bytes (include/dsc/model.h): 0 is a CPU, whose caches hold a
 * chunk. Depthwise convolutions have kernels of their own. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CONV2D_PRODUCTS_H
#define DSC_KERNELS_CONV2D_PRODUCTS_H

#include "base/base.h"
#include "kernels/conv2d.h"
#include "kernels/device.h"
#include "kernels/gemm.h"
#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rows of a pass's products: pixels of y, or of x for its gradient. */
int64_t dsc_conv2d_rows(const dsc_conv2d_shape *s, dsc_conv2d_pass pass);
/* Whether windows are other rows than those of x. */
bool dsc_conv2d_gathers(const dsc_conv2d_shape *s);
/* Whether a GPU asks cuDNN for the pass instead. Pointers are not looked at. */
bool dsc_conv2d_wants_cudnn(const dsc_conv2d_args *a, dsc_cudnn_use use, dsc_gemm_choice choice, int32_t arch);
int64_t dsc_conv2d_products_scratch(const dsc_conv2d_shape *s, dsc_conv2d_pass pass, dsc_dtype dtype,
                                    int64_t chunk_bytes);

/* Calls fn with the shape of each kind of product that a pass launches. `adds`: Y with a bias; DX and DW are called
 * with the shapes of both kinds, with a sum so far and without. */
typedef dsc_status (*dsc_conv2d_product_fn)(void *user, const dsc_gemm_args *shape, dsc_error *err);
DSC_MUST_USE dsc_status dsc_conv2d_products_list(const dsc_conv2d_shape *s, dsc_conv2d_pass pass, dsc_dtype dtype,
                                                 int64_t chunk_bytes, bool adds, dsc_conv2d_product_fn fn, void *user,
                                                 dsc_error *err);

/* Starts a kernel: on a stream, or on a GPU's plugin itself. */
typedef struct dsc_conv2d_launcher {
    dsc_status (*launch)(void *user, dsc_kernel kernel, const void *args, int64_t args_bytes, dsc_error *err);
    void *user;
} dsc_conv2d_launcher;

/* One pass; a->shape has any groups, and a->scratch has dsc_conv2d_products_scratch bytes. */
DSC_MUST_USE dsc_status dsc_conv2d_products_run(const dsc_conv2d_launcher *to, const dsc_conv2d_args *a,
                                                int64_t chunk_bytes, dsc_error *err);

#ifdef __cplusplus
}
#endif
#endif
