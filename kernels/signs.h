/* signs.h - vectors sent as sign bits and one scale: exact kernels, the same bits on every variant.
 *
 * Bit i % 8 of byte i / 8 is the sign bit of element i: 1 if it is negative. Unused bits of the last byte are 0. A bit
 * stands for +scale or -scale. The compression error, x minus that value, is kept and added to the next value sent.
 * 1-bit Adam (Tang et al. 2021) and 1-bit LAMB (Li et al. 2021) send momentum so, 0/1 Adam (Lu et al. 2022) the
 * accumulated local updates.
 * reference: cpu/signs_ref.c   variants: signs_v16.h in signs_avx2.c and signs_avx512.c
 * check and bench: tests/checkkern/signs.c
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_SIGNS_H
#define DSC_KERNELS_SIGNS_H

#include <dsc/types.h>

#ifdef __cplusplus
extern "C" {
#endif

static inline int64_t dsc_signs_bytes(int64_t count) { return (count + 7) / 8; }

/* Every array of floats starts at a multiple of 16 bytes. Arrays do not overlap, except where a member's comment
 * allows it. Each line of a formula is one rounding per operation. */

/* error <- error plus the momentum after this gradient:
 *   g = grad * grad_scale;  m = fma(one_minus_beta1, g - moment, moment);  error = error + m */
typedef struct dsc_signs_add_args {
    float *error;        /* [count] read and written */
    const float *moment; /* [count] */
    const float *grad;   /* [count] */
    int64_t count;
    float grad_scale, one_minus_beta1;
} dsc_signs_add_args;

/* to <- the signs of x;  x = x - (x negative ? -scale : scale) */
typedef struct dsc_signs_pack_args {
    uint8_t *to; /* [dsc_signs_bytes(count)] */
    float *x;    /* [count] read and written */
    int64_t count;
    float scale;
} dsc_signs_pack_args;

/* acc <- acc plus the values of all pieces, in order of the pieces:
 *   s = -+scale[0];  s = s -+ scale[k] for k = 1..piece_count-1;  acc = s + acc */
typedef struct dsc_signs_reduce_args {
    float *acc;          /* [count] read and written */
    const uint8_t *from; /* piece_count >= 1 pieces of dsc_signs_bytes(count) */
    int64_t from_stride; /* bytes between the starts of two */
    const float *scale;  /* [piece_count], where the kernel runs */
    int64_t piece_count, count;
} dsc_signs_reduce_args;

/* to <- -+scale; 0 where `mask` is 0: a sign bit cannot express zero. */
typedef struct dsc_signs_unpack_args {
    float *to; /* [count] */
    const uint8_t *from;
    const float *mask; /* [count] */
    int64_t count;
    float scale;
} dsc_signs_unpack_args;

/* x <- 0 where `mask` is 0 */
typedef struct dsc_signs_mask_args {
    float *x;          /* [count] read and written */
    const float *mask; /* [count] */
    int64_t count;
} dsc_signs_mask_args;

/* A local step (0/1 Adam, zero/optimizer/onebit.c): weights move away from `shared`, those of the last synchronization:
 *   g = grad * grad_scale;  moment = variance == 0 ? 0 : fma(one_minus_beta1, g - moment, moment)
 *   local_update = fma(-rate, moment, decay * local_update)
 *   to = fma(decays, shared, local_update / (sqrt(variance) + eps)) */
typedef struct dsc_signs_local_step_args {
    float *local_update, *moment; /* [count] read and written */
    float *to;              /* [count] written; may be `grad` */
    const float *variance, *grad, *shared; /* [count] */
    int64_t count;
    float grad_scale, one_minus_beta1, rate;
    float decay, decays; /* factor of this step, and of all steps since the weights were shared */
    float eps;
} dsc_signs_local_step_args;

/* The weights and the momentum after a synchronization:
 *   to = fma(decays, shared, local_update / (sqrt(variance) + eps));  moment = local_update * per_rate */
typedef struct dsc_signs_synchronize_args {
    float *to;     /* [count] written; may be `shared` */
    float *moment; /* [count] written; NULL: momentum is unchanged */
    const float *variance, *local_update, *shared; /* [count] */
    int64_t count;
    float decays, eps, per_rate;
} dsc_signs_synchronize_args;

/* The gradient that leads to a momentum, and the second variance that it updates in addition to the frozen one (1-bit
 * LAMB, zero/optimizer/onebit_lamb.c). `most` is the largest ratio of the frozen variance's root to the other's:
 *   s = x * scale;  g = fma(unmix, s - moment, moment)
 *   moment = fma(one_minus_beta1, g - moment, moment)
 *   fresh = fma(one_minus_beta2 * g, g, beta2 * fresh)
 *   r = (sqrt(variance) + eps) / (sqrt(fresh) + eps);  most = max(most, r), unless r is NaN
 * With unmix 1, x is that gradient; with 1 / one_minus_beta1 it is the momentum. */
typedef struct dsc_signs_regain_args {
    float *moment, *fresh;    /* [count] read and written */
    const float *x, *variance; /* [count] */
    uint32_t *most; /* the bits of a float >= 0, where the kernel runs: read and written, by several threads */
    int64_t count;
    float scale, unmix, one_minus_beta1, beta2, one_minus_beta2, eps;
} dsc_signs_regain_args;

#ifdef __cplusplus
}
#endif
#endif
