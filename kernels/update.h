/* update.h - one step of an optimizer over flat arrays: kernels whose bits are a contract, as exact.h's are.
 *
 * Each recipe is a fixed sequence of fp32 operations per element, one rounding each, FMAs written out. What a recipe
 * keeps of an element between steps are its states, 0 to DSC_UPDATE_STATES_MAX numbers; dsc_recipes says how many, and
 * their names in checkpoints. Whoever plans, stores, moves or saves states reads it there and knows no optimizer.
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

typedef enum dsc_recipe {
    DSC_RECIPE_ADAMW,            /* exp_avg, exp_avg_sq */
    DSC_RECIPE_SGD,              /* no states */
    DSC_RECIPE_MOMENTUM,         /* momentum_buffer */
    DSC_RECIPE_ADAGRAD,          /* sum */
    DSC_RECIPE_LION,             /* exp_avg */
    DSC_RECIPE_LAMB,             /* exp_avg, exp_avg_sq */
    DSC_RECIPE_MUON,             /* exp_avg */
    DSC_RECIPE_ADAFACTOR,        /* of a matrix: no states */
    DSC_RECIPE_ADAFACTOR_FLAT,   /* of all else: exp_avg_sq */
    DSC_RECIPE_ADAFACTOR_M,      /* with a first moment: exp_avg */
    DSC_RECIPE_ADAFACTOR_FLAT_M, /* exp_avg, exp_avg_sq */
    DSC_RECIPE_ONEBIT_LAMB,      /* exp_avg, exp_avg_sq, exp_avg_sq_fresh */
    DSC_RECIPE_COUNT
} dsc_recipe;

/* What an element's step depends on beside its own numbers; whoever runs the recipe makes it in passes before. */
enum {
    DSC_NEEDS_NOTHING = 0,
    DSC_NEEDS_TENSOR_NORMS =
        1,             /* how far a tensor is stepped: the ratio of the norms of its weights and of its direction */
    DSC_NEEDS_RMS = 2, /* likewise: their root mean squares */
    DSC_NEEDS_WHOLE_MATRIX = 4, /* where to: its tensor's whole direction, orthogonalised */
    DSC_NEEDS_ROW_COL_STATS = 8 /* the second moment of its matrix, as one factor for its row and one for its column */
};

typedef struct dsc_recipe_info {
    const char *name; /* in a checkpoint's manifest */
    int32_t state_count;
    const char *state_name[DSC_UPDATE_STATES_MAX]; /* of its tensors there: "exp_avg"; also of the rest's */
    uint32_t needs;
    dsc_recipe rest; /* what is no (of MUON: hidden) matrix goes by it, where this one is for matrices; else itself */
    dsc_recipe step; /* whose step an element takes: itself, or one that knows nothing of its last states */
    const char *tensor_state; /* DSC_TENSOR_STATES numbers are kept of a whole tensor too, by this name; NULL: none */
} dsc_recipe_info;
extern const dsc_recipe_info dsc_recipes[DSC_RECIPE_COUNT];
/* Of any element that a run of it updates. */
static inline int32_t dsc_recipe_states_most(dsc_recipe recipe)
{
    const int32_t own = dsc_recipes[recipe].state_count, rest = dsc_recipes[dsc_recipes[recipe].rest].state_count;
    return own > rest ? own : rest;
}
/* The recipe of that name; DSC_RECIPE_COUNT: none. */
dsc_recipe dsc_recipe_find(const char *name);

/* Scalars of one step: computed in double on rank 0, rounded once, broadcast. A recipe reads those that it names. */
typedef struct dsc_update_scalars {
    float grad_scale;     /* 1/(GAS*W*loss_scale) * clip coefficient */
    float beta1, beta2;
    float one_minus_beta1, one_minus_beta2;
    float decay;          /* 1 - lr * weight_decay where it is decoupled, else 1; of LAMB weight_decay */
    float l2;             /* weight_decay where it is part of the gradient, else 0 */
    float step_size;      /* the rate; of Adam lr / bias_correction1 */
    float inv_sqrt_bias2; /* 1 / sqrt(bias_correction2) */
    float eps, eps_root;  /* added to the root; of LAMB also under it */
    /* Of LAMB's callers: bounds of what they multiply a tensor's step_size by. Of ADAFACTOR's: the least root mean
     * square of its weights, and the most of its direction. */
    float trust_least, trust_most;
    /* Of ADAFACTOR: the most that the factors of a row and a column make, and what weights lose where they decay by
     * their tensor's own rate: lr * weight_decay, which its callers multiply as they do step_size. Of them: what a mean
     * of rows is at least, and the norm of all gradients after grad_scale. */
    float factor_most, shrink, mean_least, grad_norm;
    int32_t by_weights; /* of ADAFACTOR's callers: a tensor's rate is times the root mean square of its weights */
    int32_t nesterov;
    int32_t ns_steps;     /* of MUON's callers: Newton-Schulz steps */
} dsc_update_scalars;

/* One step, per element (all fp32, each line one rounding per operation). First, whatever the recipe:
 *   g = grad * grad_scale;  if (l2 != 0) g = fma(l2, p, g)
 * ADAMW, Adam too (Loshchilov & Hutter 2019; Kingma & Ba 2015), states m, v:
 *   p = p * decay
 *   m = fma(one_minus_beta1, g - m, m)
 *   v = fma(one_minus_beta2 * g, g, beta2 * v)
 *   d = fma(sqrt(v), inv_sqrt_bias2, eps)
 *   p = fma(-step_size, m / d, p)
 * SGD:
 *   p = fma(-step_size, g, p)
 * MOMENTUM (as torch.optim.SGD: beta1 is the momentum, one_minus_beta1 is 1 - dampening, 1 in the first step), state b:
 *   b = fma(beta1, b, one_minus_beta1 * g);  d = nesterov ? fma(beta1, b, g) : b
 *   p = fma(-step_size, d, p)
 * ADAGRAD (Duchi et al. 2011), state s:
 *   s = fma(g, g, s)
 *   p = fma(-step_size, g / (sqrt(s) + eps), p)
 * LION (Chen et al. 2023), state m:
 *   c = fma(beta1, m, one_minus_beta1 * g)
 *   m = fma(beta2, m, one_minus_beta2 * g)
 *   p = p * decay;  p = p - (c == 0 ? 0 : copysign(step_size, c)), NaN where c is
 * LAMB (You et al. 2020, as DeepSpeed has it: bias corrections are in step_size alone), states m, v as ADAMW, then
 *   u = fma(decay, p, m / (sqrt(v + eps_root) + eps))
 *   p = fma(-step_size, u, p)
 * whose step_size is times the tensor's norm of p over that of u. With `direction` u is all that is written.
 * MUON (Jordan 2024, as torch.optim.Muon: beta1 is the momentum), state m:
 *   m = fma(one_minus_beta1, g - m, m);  u = nesterov ? fma(-one_minus_beta1, m - g, m) : m
 *   p = p * decay;  p = fma(-step_size, along, p)
 * where `along` is made of the whole tensor's u. With `direction` u is all that is written.
 * ADAFACTOR (Shazeer & Stern 2018), of element n = at + i of a matrix:
 *   f = min(row[n / cols] * col[n % cols], factor_most);  u = g * f
 *   p = p * decay;  p = fma(-shrink, p, p);  p = fma(-step_size, u, p)
 * ADAFACTOR_FLAT, state v:
 *   q = fma(g, g, eps);  v = fma(one_minus_beta2, q - v, v);  u = g / sqrt(max(v, eps_root))
 *   p = p * decay;  p = fma(-shrink, p, p);  p = fma(-step_size, u, p)
 * ADAFACTOR_M, state m, and ADAFACTOR_FLAT_M, states m, v: u as of those, then
 *   w = step_size * u;  m = fma(beta1, m, one_minus_beta1 * w)
 *   p = p * decay;  p = fma(-shrink, p, p);  p = p - m
 * Of all four: step_size is times what the tensor's norms make of it; with `direction` u is all that is written.
 * and param_half[i] = round(p) to half_dtype when param_half is not NULL.
 * States kept in BF16: p takes those above as they are; what is kept of them is rounded by chance, as CAST_STOCHASTIC
 * does it, with the lower (state 0) and upper (state 1) 16 bits of word n % 4 of block n / 4 of (seed, stream),
 * n = first + i. */
typedef struct dsc_update_args {
    float *master;                      /* [count] read and written */
    void *state[DSC_UPDATE_STATES_MAX]; /* [count] likewise, of state_dtype; those that the recipe has */
    const float *grad;                  /* [count] the sum of leaves */
    uint16_t *param_half;               /* [count] written, or NULL */
    float *direction;                   /* [count] of recipes with needs: written, and nothing else; or NULL */
    const float *along;                 /* [count] of MUON, where `direction` is NULL */
    const float *row, *col;             /* of ADAFACTOR and ADAFACTOR_M: of the whole matrix, >= 0 */
    int64_t at, cols;                   /* likewise: element 0 of it is this one, row by row */
    dsc_dtype half_dtype;               /* BF16 or F16 */
    int64_t count;
    dsc_dtype state_dtype;              /* F32 or BF16 */
    uint64_t seed, stream;              /* of BF16, as is */
    int64_t first;                      /* >= 0: position of element 0 */
    dsc_update_scalars scalars;
} dsc_update_args;

#ifdef __cplusplus
}
#endif
#endif
