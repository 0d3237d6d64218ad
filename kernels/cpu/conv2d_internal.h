/* conv2d_internal.h - interface of the variants of depthwise convolutions. Private to kernels/.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CPU_CONV2D_INTERNAL_H
#define DSC_KERNELS_CPU_CONV2D_INTERNAL_H

#include "kernels/conv2d.h"

#define CONV2D_DECL(isa)                                                                                               \
    void dsc_depthwise_fwd_##isa(const void *args, int64_t first, int64_t last); /* block: a line of outputs */        \
    void dsc_depthwise_dx_##isa(const void *args, int64_t first, int64_t last);  /* block: a line of inputs */         \
    void dsc_depthwise_dw_##isa(const void *args, int64_t first, int64_t last);  /* block: a strip */
CONV2D_DECL(ref)
CONV2D_DECL(avx2)
CONV2D_DECL(avx512)
#undef CONV2D_DECL

#endif
