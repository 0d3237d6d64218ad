/* heads.h - heads of a row put together from columns of their own, columns that all heads share, and zeros. Latent
 * attention makes its keys so, and values of another width than the keys' are widened and narrowed by it.
 * reference, the only variant: cpu/heads.c   check: tests/checkkern/heads.c
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_HEADS_H
#define DSC_KERNELS_HEADS_H
#include <dsc/types.h>
#ifdef __cplusplus
extern "C" {
#endif

/* A head has D = `width` columns. Its first A = own_width are its own. All heads share the next S = shared_width, with
 * A + S <= D. Without shared columns A may be above D, and the columns from D on are left out.
 *
 * FWD: whole[r,h,c] = own[r,h,c] for c < A, shared[r,c - A] for A <= c < A + S, else 0. Bits are copied.
 * BWD: own[r,h,c] = whole[r,h,c] for c < D, else 0; shared[r,c] = the sum over heads in order of whole[r,h,A + c], in
 * fp32, rounded once. Row r of `own` begins at r * own_stride elements, and its heads are own_apart apart. Every
 * variant and device gives the same bits. */
typedef struct dsc_heads_args {
    void *whole;  /* [rows, heads, D]: FWD written, BWD read */
    void *own;    /* [rows, heads, A], strided: FWD read, BWD written */
    void *shared; /* [rows, S], strided, likewise; NULL with S = 0 */
    int64_t rows, own_stride, own_apart, shared_stride;
    int32_t heads, width, own_width, shared_width;
    dsc_dtype dtype; /* F32, BF16 or F16 */
} dsc_heads_args;

/* Whether the widths and strides are those of rows. */
static inline bool dsc_heads_are_valid(const dsc_heads_args *a)
{
    const bool own = a->heads >= 1 && a->width >= 1 && a->own_width >= 1 && a->own_apart >= a->own_width &&
                     a->own_stride >= (a->heads - 1) * a->own_apart + a->own_width;
    const bool shared = a->shared_width >= 1 && a->own_width + a->shared_width <= a->width &&
                        a->shared_stride >= a->shared_width;
    return own && (a->shared != NULL ? shared : a->shared_width == 0);
}

#ifdef __cplusplus
}
#endif
#endif
