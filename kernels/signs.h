/* signs.h - numbers sent as nothing but their signs and one scale: exact kernels, the same bits on every variant.
 *
 * Bit i % 8 of byte i / 8 is the sign bit of element i: 1 where it is negative. Of the last byte the bits that belong
 * to no element are 0. What such a bit stands for is +scale or -scale; what that takes from an element is kept beside
 * it and added to the next value sent. 1-bit Adam (Tang et al. 2021) and 1-bit LAMB (Li et al. 2021) send momentum so,
 * 0/1 Adam (Lu et al. 2022) what ranks have stepped alone.
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

/* Every array of floats starts at a multiple of 16 bytes; arrays do not overlap, but where it says so. Each line is one
 * rounding per operation. */

/* error <- error and the momentum as it is after this gradient:
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

/* acc <- what several ranks sent, in their order:
 *   s = -+scale[0];  s = s -+ scale[k] for k = 1..piece_count-1;  acc = s + acc */
typedef struct dsc_signs_reduce_args {
    float *acc;          /* [count] read and written */
    const uint8_t *from; /* piece_count >= 1 pieces of dsc_signs_bytes(count) */
    int64_t from_stride; /* bytes between the starts of two */
    const float *scale;  /* [piece_count], where the kernel runs */
    int64_t piece_count, count;
} dsc_signs_reduce_args;

/* to <- -+scale; 0 where `mask` is 0: a sign cannot say that nothing moves. */
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

/* A step of this rank's own (0/1 Adam, zero/optimizer/onebit.c), away from the weights that all ranks share:
 *   g = grad * grad_scale;  moment = variance == 0 ? 0 : fma(one_minus_beta1, g - moment, moment)
 *   local_update = fma(-rate, moment, decay * local_update)
 *   to = fma(decays, shared, local_update / (sqrt(variance) + eps)) */
typedef struct dsc_signs_local_step_args {
    float *local_update, *moment; /* [count] read and written */
    float *to;              /* [count] written; may be `grad` */
    const float *variance, *grad, *shared; /* [count] */
    int64_t count;
    float grad_scale, one_minus_beta1, rate;
    float decay, decays; /* of this step, and of all since the weights were shared */
    float eps;
} dsc_signs_local_step_args;

/* The weights and the momentum that all come to:
 *   to = fma(decays, shared, local_update / (sqrt(variance) + eps));  moment = local_update * per_rate */
typedef struct dsc_signs_synchronize_args {
    float *to;     /* [count] written; may be `shared` */
    float *moment; /* [count] written; NULL: it stays */
    const float *variance, *local_update, *shared; /* [count] */
    int64_t count;
    float decays, eps, per_rate;
} dsc_signs_synchronize_args;

/* The gradient that leads to a momentum, and what it makes of a variance that goes on beside a frozen one (1-bit LAMB,
 * zero/optimizer/onebit_lamb.c); how many times the frozen one's root is the other's, at most:
 *   s = x * scale;  g = fma(unmix, s - moment, moment)
 *   moment = fma(one_minus_beta1, g - moment, moment)
 *   fresh = fma(one_minus_beta2 * g, g, beta2 * fresh)
 *   r = (sqrt(variance) + eps) / (sqrt(fresh) + eps);  most = max(most, r), where r is a number
 * With unmix 1 x is that gradient, with 1 / one_minus_beta1 the momentum. */
typedef struct dsc_signs_regain_args {
    float *moment, *fresh;    /* [count] read and written */
    const float *x, *variance; /* [count] */
    uint32_t *most; /* the bits of a float >= 0, where the kernel runs: read and written, by several at a time */
    int64_t count;
    float scale, unmix, one_minus_beta1, beta2, one_minus_beta2, eps;
} dsc_signs_regain_args;

#ifdef __cplusplus
}
#endif
#endif
