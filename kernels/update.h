/* update.h - one step of an optimizer over flat arrays: kernels whose bits are a contract, as exact.h's are.
 *
 * Each recipe is a fixed sequence of fp32 operations per element, one rounding each, FMAs written out. A recipe keeps 0
 * to DSC_UPDATE_STATES_MAX numbers per element between steps, its states. dsc_recipes gives their number and their
 * names in checkpoints. Code that plans, stores, moves or saves states reads dsc_recipes and knows no optimizer.
 * reference: cpu/update_ref.c   variants: update_v16.h in update_avx2.c and update_avx512.c
 * check and bench: tests/checkkern/update.c
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_UPDATE_H
#define DSC_KERNELS_UPDATE_H

#include <dsc/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DSC_UPDATE_STATES_MAX 3
#define DSC_TENSOR_STATES 2
#define DSC_UPDATE_STATES_U8 2 /* states that may be kept in U8 */
#define DSC_Q8_BLOCK 256       /* elements of a block of U8 states */
#define DSC_Q8_ZERO(state) ((state) == 0 ? 127 : 0) /* the code of 0, whatever the absmax */

typedef enum dsc_recipe {
    DSC_RECIPE_ADAMW,            /* exp_avg, exp_avg_sq */
    DSC_RECIPE_SGD,              /* no states */
    DSC_RECIPE_MOMENTUM,         /* momentum_buffer */
    DSC_RECIPE_ADAGRAD,          /* sum */
    DSC_RECIPE_LION,             /* exp_avg */
    DSC_RECIPE_LAMB,             /* exp_avg, exp_avg_sq */
    DSC_RECIPE_MUON,             /* exp_avg */
    DSC_RECIPE_ADAFACTOR,        /* matrices: no states */
    DSC_RECIPE_ADAFACTOR_FLAT,   /* other tensors: exp_avg_sq */
    DSC_RECIPE_ADAFACTOR_M,      /* with a first moment: exp_avg */
    DSC_RECIPE_ADAFACTOR_FLAT_M, /* exp_avg, exp_avg_sq */
    DSC_RECIPE_RMSPROP,          /* square_avg */
    DSC_RECIPE_RMSPROP_M,        /* with a momentum: square_avg, momentum_buffer */
    DSC_RECIPE_RMSPROP_C,        /* centered: square_avg, grad_avg */
    DSC_RECIPE_RMSPROP_CM,       /* square_avg, grad_avg, momentum_buffer */
    DSC_RECIPE_LARS,             /* momentum_buffer */
    DSC_RECIPE_ONEBIT_LAMB,      /* exp_avg, exp_avg_sq, exp_avg_sq_fresh */
    DSC_RECIPE_COUNT
} dsc_recipe;

/* Inputs of an element's step besides its own numbers; the caller of the recipe computes them in earlier passes. */
enum {
    DSC_NEEDS_NOTHING = 0,
    DSC_NEEDS_TENSOR_NORMS =
        1,             /* how far a tensor is stepped: the ratio of the norms of its weights and of its direction */
    DSC_NEEDS_RMS = 2, /* root mean squares of a tensor's weights and step */
    DSC_NEEDS_WHOLE_MATRIX = 4, /* the orthogonalised direction of its whole tensor */
    DSC_NEEDS_ROW_COL_STATS = 8 /* the second moment of its matrix, as one factor for its row and one for its column */
};

typedef struct dsc_recipe_info {
    const char *name; /* in a checkpoint's manifest */
    int32_t state_count;
    const char *state_name[DSC_UPDATE_STATES_MAX]; /* names in checkpoints: "exp_avg"; also those of `rest` */
    uint32_t needs;
    dsc_recipe rest; /* recipe of other tensors, if this one is for (MUON: hidden) matrices; else itself */
    dsc_recipe step; /* recipe of the step: itself, or one that ignores the last states */
    const char *tensor_state; /* DSC_TENSOR_STATES numbers are kept of a whole tensor too, by this name; NULL: none */
} dsc_recipe_info;
extern const dsc_recipe_info dsc_recipes[DSC_RECIPE_COUNT];
/* Same for all elements that one run updates. */
static inline int32_t dsc_recipe_states_most(dsc_recipe recipe)
{
    const int32_t own = dsc_recipes[recipe].state_count, rest = dsc_recipes[dsc_recipes[recipe].rest].state_count;
    return own > rest ? own : rest;
}
/* The recipe of that name; DSC_RECIPE_COUNT: none. */
dsc_recipe dsc_recipe_find(const char *name);

/* Values of U8 states: MAP[code] * absmax. absmax has one number for each DSC_Q8_BLOCK codes; `out` may end where the
 * codes end. */
void dsc_q8_values(int32_t state, const uint8_t *code, const float *absmax, int64_t count, float *out);

/* Scalars of one step: computed in double on rank 0, rounded once, broadcast. A recipe reads those that it names. */
typedef struct dsc_update_scalars {
    float grad_scale;     /* 1/(GAS*W*loss_scale) * clip coefficient */
    float beta1, beta2;
    float one_minus_beta1, one_minus_beta2;
    float decay;          /* 1 - lr * weight_decay where it is decoupled, else 1; of LAMB and LARS weight_decay */
    float l2;             /* weight_decay where it is part of the gradient, else 0 */
    float step_size;      /* the rate; of Adam lr / bias_correction1 */
    float inv_sqrt_bias2; /* 1 / sqrt(bias_correction2) */
    float eps, eps_root;  /* added to the root; of LAMB also under it */
    /* LAMB's callers: bounds of the factor of a tensor's step_size. LARS's callers: trust_most is the factor of the
     * ratio. ADAFACTOR's callers: the least root mean square
     * of a tensor's weights, and the largest of its direction. */
    float trust_least, trust_most;
    /* ADAFACTOR: the largest product of a row's and a column's factor. Then the decay of weights that decay by their
     * tensor's own rate: lr * weight_decay, which callers multiply as they do step_size. LARS: 1, which callers
     * multiply by the trust ratio of the tensor. ADAFACTOR's callers: the least mean of a row, and the norm of all
     * gradients after grad_scale. */
    float factor_most, shrink, mean_least, grad_norm;
    int32_t by_weights; /* ADAFACTOR's callers: a tensor's rate is multiplied by its weights' root mean square */
    int32_t nesterov;
    int32_t ns_steps;     /* MUON's callers: Newton-Schulz steps */
} dsc_update_scalars;

/* One step, per element (all fp32, each line one rounding per operation). First, whatever the recipe:
 *   if (round_dtype != F32) grad = grad as a number of that dtype
 *   g = grad * grad_scale;  if (l2 != 0) g = fma(l2, p, g).
 * ADAMW, Adam too (Loshchilov & Hutter 2019; Kingma & Ba 2015), states m, v:
 *   p = p * decay
 *   m = fma(one_minus_beta1, g - m, m)
 *   v = fma(one_minus_beta2 * g, g, beta2 * v).
 *   d = fma(sqrt(v), inv_sqrt_bias2, eps)
 *   p = fma(-step_size, m / d, p).
 * SGD:
 *   p = fma(-step_size, g, p).
 * MOMENTUM (as torch.optim.SGD: beta1 is the momentum, one_minus_beta1 is 1 - dampening, 1 in the first step), state b:
 *   b = fma(beta1, b, one_minus_beta1 * g);  d = nesterov ? fma(beta1, b, g) : b
 *   p = fma(-step_size, d, p).
 * ADAGRAD (Duchi et al. 2011), state s:
 *   s = fma(g, g, s)
 *   p = fma(-step_size, g / (sqrt(s) + eps), p).
 * LION (Chen et al. 2023), state m:
 *   c = fma(beta1, m, one_minus_beta1 * g)
 *   m = fma(beta2, m, one_minus_beta2 * g)
 *   p = p * decay;  p = p - (c == 0 ? 0 : copysign(step_size, c)), NaN where c is.
 * LAMB (You et al. 2020; as in DeepSpeed, step_size alone has bias corrections), states m, v as ADAMW. Then
 *   u = fma(decay, p, m / (sqrt(v + eps_root) + eps))
 *   p = fma(-step_size, u, p).
 * Here step_size is multiplied by the tensor's norm of p over that of u. With `direction` only u is written.
 * MUON (Jordan 2024, as torch.optim.Muon: beta1 is the momentum), state m:
 *   m = fma(one_minus_beta1, g - m, m);  u = nesterov ? fma(-one_minus_beta1, m - g, m) : m
 *   p = p * decay;  p = fma(-step_size, along, p)
 * with `along` computed from the whole tensor's u. With `direction` only u is written.
 * ADAFACTOR (Shazeer & Stern 2018), of element n = at + i of a matrix:
 *   f = min(row[n / cols] * col[n % cols], factor_most);  u = g * f
 *   p = p * decay;  p = fma(-shrink, p, p);  p = fma(-step_size, u, p).
 * ADAFACTOR_FLAT, state v:
 *   q = fma(g, g, eps);  v = fma(one_minus_beta2, q - v, v);  u = g / sqrt(max(v, eps_root))
 *   p = p * decay;  p = fma(-shrink, p, p);  p = fma(-step_size, u, p).
 * ADAFACTOR_M, state m, and ADAFACTOR_FLAT_M, states m, v: u as of those, then
 *   w = step_size * u;  m = fma(beta1, m, one_minus_beta1 * w)
 *   p = p * decay;  p = fma(-shrink, p, p);  p = p - m.
 * All four: step_size is multiplied by a factor of the tensor's norms; with `direction` only u is written.
 * RMSPROP (Hinton 2012, as torch.optim.RMSprop: beta2 is alpha and beta1 the momentum), state v:
 *   v = fma(one_minus_beta2 * g, g, beta2 * v);  d = sqrt(v) + eps;  p = fma(-step_size, g / d, p).
 * RMSPROP_M, states v, b: v and d as of RMSPROP, then
 *   b = fma(beta1, b, g / d);  p = fma(-step_size, b, p).
 * RMSPROP_C, states v, a, and RMSPROP_CM, states v, a, b: v as of RMSPROP, then
 *   a = fma(one_minus_beta2, g - a, a);  w = v - a * a;  d = sqrt(0 > w ? 0 : w) + eps
 * and on as RMSPROP and RMSPROP_M.
 * LARS (You et al. 2017; the rate is outside of the momentum, as in torch.optim.SGD), state b:
 *   w = shrink * fma(decay, p, g);  b = fma(beta1, b, w);  d = nesterov ? fma(beta1, b, w) : b
 *   p = fma(-step_size, d, p).
 * Here shrink is multiplied by trust_most * |p| / (|g| + weight_decay * |p| + eps) of the tensor. With `direction`
 * only g is written.
 * Then param_half[i] = round(p) to half_dtype when param_half is not NULL.
 * States kept in BF16: p takes the fp32 values above; the stored states are rounded stochastically, as CAST_STOCHASTIC
 * does it. The random bits are those of word n % 4 of block n / 4 of (seed, stream), n = first + i. State 0 has the
 * lower 16 bits, state 1 the upper 16 and state 2 the middle 16.
 * States kept in U8 (ADAMW; as bitsandbytes' AdamW8bit, Dettmers et al. 2022) are one code an element and one absmax a
 * block. Blocks of DSC_Q8_BLOCK elements are counted from element 0; the last one may be short. MAP and MIDDLES are
 * those of q8_tables.h, signed for state 0 and unsigned for state 1. A state x is MAP[code] * absmax before the recipe;
 * p takes the fp32 values above. Then, of all x in a block,
 *   absmax = max |x|, NaN if any x is infinite or NaN;  y = absmax is NaN ? 0 : x * (1 / max(absmax, 1e-38))
 *   code = the number of MIDDLES[1..255] below y.
 * So bytes of 0 are states of 0. */
typedef struct dsc_update_args {
    float *master;                      /* [count] read and written */
    void *state[DSC_UPDATE_STATES_MAX]; /* [count] read and written, of state_dtype; those of the recipe */
    union {                             /* [count] the sum of gradient parts, of grad_dtype */
        const float *grad;
        const uint16_t *grad_bf16;
    };
    const float *master_from;           /* NULL, or [count] read instead of `master`, which is written alone */
    uint16_t *param_half;               /* [count] written, or NULL */
    float *direction;                   /* [count] recipes with needs: the only output; or NULL */
    const float *along;                 /* [count] MUON, if `direction` is NULL */
    const float *row, *col;             /* ADAFACTOR and ADAFACTOR_M: those of the whole matrix, >= 0 */
    int64_t at, cols;                   /* ADAFACTOR and ADAFACTOR_M: element 0 is this one of it, row by row */
    int64_t count;
    dsc_dtype half_dtype;               /* BF16 or F16 */
    dsc_dtype state_dtype;              /* F32, BF16, or of ADAMW U8 */
    dsc_dtype grad_dtype;               /* F32; on CPUs BF16 too, whose elements are widened */
    dsc_dtype round_dtype;              /* F32, BF16 or F16: what sums in fp32 are rounded to first */
    union {
        float *absmax[DSC_UPDATE_STATES_U8]; /* U8 states: [ceil(count / DSC_Q8_BLOCK)] read and written */
        /* With master_from: [count] read instead of `state`, of recipes without needs and with at most two states,
         * which are F32 or BF16. Only CPUs do it. No array read may overlap one that is written. */
        const void *state_from[DSC_UPDATE_STATES_U8];
    };
    uint64_t seed, stream;              /* BF16 states: counter-based random bits */
    int64_t first;                      /* >= 0: position of element 0 */
    dsc_update_scalars scalars;
} dsc_update_args;

#ifdef __cplusplus
}
#endif
#endif
