/* update_ref.c - the recipes of update.h, one operation a line. The other variants give these bits, only sooner.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "base/rng.h"
#include "kernels/scalar.h"
#include "kernels/cpu/update_range.h"
#include "kernels/q8_tables.h"

const dsc_q8_table dsc_q8_tables[DSC_UPDATE_STATES_U8] = {
    { DSC_Q8_SIGNED_MAP, DSC_Q8_SIGNED_MIDDLES },
    { DSC_Q8_UNSIGNED_MAP, DSC_Q8_UNSIGNED_MIDDLES },
};

/* From the gradient's sum, weight and states of an element to the new ones; `along` is MUON's, or the product of its
 * row's and its column's factor. */
typedef struct element {
    float p, state[DSC_UPDATE_STATES_MAX], along;
} element;

static float sum_at(const dsc_update_args *a, int64_t i)
{
    return dsc_rounded(dsc_get(a->grad, i, a->grad_dtype), a->round_dtype);
}

static float gradient(const dsc_update_scalars *s, float sum, float p)
{
    const float g = sum * s->grad_scale;
    return s->l2 != 0.0f ? fmaf(s->l2, p, g) : g;
}

static void adam_moments(const dsc_update_scalars *s, float g, element *e)
{
    const float kept = s->beta2 * e->state[1];
    e->state[0] = fmaf(s->one_minus_beta1, g - e->state[0], e->state[0]);
    e->state[1] = fmaf(s->one_minus_beta2 * g, g, kept);
}

static void adamw(const dsc_update_scalars *s, float g, element *e)
{
    const float p = e->p * s->decay;
    adam_moments(s, g, e);
    const float d = fmaf(sqrtf(e->state[1]), s->inv_sqrt_bias2, s->eps);
    e->p = fmaf(-s->step_size, e->state[0] / d, p);
}

static void sgd(const dsc_update_scalars *s, float g, element *e) { e->p = fmaf(-s->step_size, g, e->p); }

static void momentum(const dsc_update_scalars *s, float g, element *e)
{
    const float weighted = s->one_minus_beta1 * g;
    const float b = fmaf(s->beta1, e->state[0], weighted);
    const float d = s->nesterov ? fmaf(s->beta1, b, g) : b;
    e->p = fmaf(-s->step_size, d, e->p);
    e->state[0] = b;
}

static void adagrad(const dsc_update_scalars *s, float g, element *e)
{
    const float sum = fmaf(g, g, e->state[0]);
    const float d = sqrtf(sum) + s->eps;
    e->p = fmaf(-s->step_size, g / d, e->p);
    e->state[0] = sum;
}

static void lion(const dsc_update_scalars *s, float g, element *e)
{
    const float m = e->state[0];
    const float now = s->one_minus_beta1 * g, kept = s->one_minus_beta2 * g;
    const float c = fmaf(s->beta1, m, now);
    const float p = e->p * s->decay;
    e->p = p - (c > 0.0f ? s->step_size : c < 0.0f ? -s->step_size : c == 0.0f ? 0.0f : c);
    e->state[0] = fmaf(s->beta2, m, kept);
}

/* The direction; the moments are the new ones after it. */
static float lamb_direction(const dsc_update_scalars *s, float g, element *e)
{
    adam_moments(s, g, e);
    const float d = sqrtf(e->state[1] + s->eps_root) + s->eps;
    return fmaf(s->decay, e->p, e->state[0] / d);
}

static void lamb(const dsc_update_scalars *s, float g, element *e)
{
    const float u = lamb_direction(s, g, e);
    e->p = fmaf(-s->step_size, u, e->p);
}

/* The direction before it is orthogonalised; the moment is the new one after it. */
static float muon_direction(const dsc_update_scalars *s, float g, element *e)
{
    e->state[0] = fmaf(s->one_minus_beta1, g - e->state[0], e->state[0]);
    return s->nesterov ? fmaf(-s->one_minus_beta1, e->state[0] - g, e->state[0]) : e->state[0];
}

static void muon(const dsc_update_scalars *s, float g, element *e)
{
    (void)muon_direction(s, g, e);
    const float p = e->p * s->decay;
    e->p = fmaf(-s->step_size, e->along, p);
}

static float adafactor_direction(const dsc_update_scalars *s, float g, element *e)
{
    return g * fminf(e->along, s->factor_most);
}

/* v is the new one after it. */
static float flat(const dsc_update_scalars *s, float g, float *v)
{
    const float q = fmaf(g, g, s->eps);
    *v = fmaf(s->one_minus_beta2, q - *v, *v);
    return g / sqrtf(fmaxf(*v, s->eps_root));
}

static float adafactor_flat_direction(const dsc_update_scalars *s, float g, element *e)
{
    return flat(s, g, &e->state[0]);
}

static float adafactor_flat_m_direction(const dsc_update_scalars *s, float g, element *e)
{
    return flat(s, g, &e->state[1]);
}

static float decayed(const dsc_update_scalars *s, float p)
{
    const float kept = p * s->decay;
    return fmaf(-s->shrink, kept, kept);
}

static void step_along(const dsc_update_scalars *s, float u, element *e)
{
    e->p = fmaf(-s->step_size, u, decayed(s, e->p));
}

static void step_by_moment(const dsc_update_scalars *s, float u, element *e)
{
    const float w = s->step_size * u;
    const float weighted = s->one_minus_beta1 * w;
    e->state[0] = fmaf(s->beta1, e->state[0], weighted);
    e->p = decayed(s, e->p) - e->state[0];
}

static void adafactor(const dsc_update_scalars *s, float g, element *e)
{
    step_along(s, adafactor_direction(s, g, e), e);
}

static void adafactor_flat(const dsc_update_scalars *s, float g, element *e)
{
    step_along(s, adafactor_flat_direction(s, g, e), e);
}

static void adafactor_m(const dsc_update_scalars *s, float g, element *e)
{
    step_by_moment(s, adafactor_direction(s, g, e), e);
}

static void adafactor_flat_m(const dsc_update_scalars *s, float g, element *e)
{
    step_by_moment(s, adafactor_flat_m_direction(s, g, e), e);
}

/* The quotient of the gradient and of its root mean square, about its mean if `mean` is not NULL. */
static float rms_direction(const dsc_update_scalars *s, float g, float *v, float *mean)
{
    const float kept = s->beta2 * *v;
    float below = *v = fmaf(s->one_minus_beta2 * g, g, kept);
    if (mean != NULL) {
        *mean = fmaf(s->one_minus_beta2, g - *mean, *mean);
        const float square = *mean * *mean;
        below = *v - square;
        below = 0.0f > below ? 0.0f : below;
    }
    const float d = sqrtf(below) + s->eps;
    return g / d;
}

static void rms_step(const dsc_update_scalars *s, float u, float *p, float *momentum)
{
    if (momentum != NULL)
        u = *momentum = fmaf(s->beta1, *momentum, u);
    *p = fmaf(-s->step_size, u, *p);
}

static void rmsprop(const dsc_update_scalars *s, float g, element *e)
{
    rms_step(s, rms_direction(s, g, &e->state[0], NULL), &e->p, NULL);
}

static void rmsprop_m(const dsc_update_scalars *s, float g, element *e)
{
    rms_step(s, rms_direction(s, g, &e->state[0], NULL), &e->p, &e->state[1]);
}

static void rmsprop_c(const dsc_update_scalars *s, float g, element *e)
{
    rms_step(s, rms_direction(s, g, &e->state[0], &e->state[1]), &e->p, NULL);
}

static void rmsprop_cm(const dsc_update_scalars *s, float g, element *e)
{
    rms_step(s, rms_direction(s, g, &e->state[0], &e->state[1]), &e->p, &e->state[2]);
}

static float lars_direction(const dsc_update_scalars *s, float g, element *e) { return g; }

static void lars(const dsc_update_scalars *s, float g, element *e)
{
    const float u = fmaf(s->decay, e->p, g);
    const float w = s->shrink * u;
    const float b = fmaf(s->beta1, e->state[0], w);
    const float d = s->nesterov ? fmaf(s->beta1, b, w) : b;
    e->p = fmaf(-s->step_size, d, e->p);
    e->state[0] = b;
}

static float along(const dsc_update_args *a, int64_t i)
{
    const int64_t n = a->at + i;
    return a->row != NULL ? a->row[n / a->cols] * a->col[n % a->cols] : a->along != NULL ? a->along[i] : 0.0f;
}

typedef void (*recipe_fn)(const dsc_update_scalars *s, float g, element *e);

static inline void all(const dsc_update_args *a, int64_t first, int64_t last, recipe_fn recipe, int states)
{
    const dsc_update_scalars s = a->scalars;
    const float *master_from = dsc_update_master_from(a);
    uint32_t word[4] = { 0 };
    for (int64_t i = first; i < last; i++) {
        element e = { .p = master_from[i], .along = along(a, i) };
        for (int k = 0; k < states; k++)
            e.state[k] = dsc_get(dsc_update_state_from(a, k), i, a->state_dtype);
        recipe(&s, gradient(&s, sum_at(a, i), e.p), &e);
        a->master[i] = e.p;
        if (a->state_dtype == DSC_BF16 && states > 0) {
            const uint64_t n = (uint64_t)(a->first + i);
            if (i == first || n % 4 == 0)
                dsc_rng_block(a->seed, a->stream, n / 4, word);
            for (int k = 0; k < states; k++)
                ((uint16_t *)a->state[k])[i] = dsc_up_or_down(e.state[k], dsc_update_bits(word[n % 4], k));
        } else {
            for (int k = 0; k < states; k++)
                ((float *)a->state[k])[i] = e.state[k];
        }
        if (a->param_half != NULL)
            a->param_half[i] = dsc_half_from_f32(e.p, a->half_dtype);
    }
}

void dsc_q8_values(int32_t state, const uint8_t *code, const float *absmax, int64_t count, float *out)
{
    DSC_ASSERT(state >= 0 && state < DSC_UPDATE_STATES_U8);
    for (int64_t i = 0; i < count; i++) {
        const float value = dsc_q8_tables[state].map[code[i]] * absmax[i / DSC_Q8_BLOCK];
        memcpy(&out[i], &value, sizeof value);
    }
}

/* The number of middles below y, of 1..255: by halves. */
static uint8_t code_of(const dsc_q8_table *table, float y)
{
    int code = 0;
    for (int half = 128; half > 0; half /= 2)
        if (table->middles[code + half] < y)
            code += half;
    return (uint8_t)code;
}

static void quantize_block(const dsc_q8_table *table, const float *x, int64_t count, uint8_t *code, float *absmax)
{
    uint32_t top = 0;
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bits &= 0x7fffffffu;
        top = bits > top ? bits : top;
    }
    const float inverse = dsc_q8_inverse(top, absmax);
    for (int64_t i = 0; i < count; i++)
        code[i] = code_of(table, inverse == 0.0f ? 0.0f : x[i] * inverse);
}

static void adamw_q8_block(const dsc_update_args *a, int64_t first, int64_t count)
{
    float x[DSC_UPDATE_STATES_U8][DSC_Q8_BLOCK];
    const int64_t block = first / DSC_Q8_BLOCK;
    for (int64_t j = 0; j < count; j++) {
        const int64_t i = first + j;
        element e = { .p = a->master[i] };
        for (int k = 0; k < DSC_UPDATE_STATES_U8; k++)
            e.state[k] = dsc_q8_tables[k].map[((const uint8_t *)a->state[k])[i]] * a->absmax[k][block];
        adamw(&a->scalars, gradient(&a->scalars, sum_at(a, i), e.p), &e);
        a->master[i] = e.p;
        for (int k = 0; k < DSC_UPDATE_STATES_U8; k++)
            x[k][j] = e.state[k];
        if (a->param_half != NULL)
            a->param_half[i] = dsc_half_from_f32(e.p, a->half_dtype);
    }
    for (int k = 0; k < DSC_UPDATE_STATES_U8; k++)
        quantize_block(&dsc_q8_tables[k], x[k], count, (uint8_t *)a->state[k] + first, &a->absmax[k][block]);
}

/* Range of a thread: `first` begins a block. */
static void all_adamw_q8(const dsc_update_args *a, int64_t first, int64_t last)
{
    DSC_ASSERT(first % DSC_Q8_BLOCK == 0);
    for (int64_t i = first; i < last; i += DSC_Q8_BLOCK)
        adamw_q8_block(a, i, dsc_min_i64(DSC_Q8_BLOCK, last - i));
}

#define STEP(name, recipe)                                                                  \
    static void all_##name(const dsc_update_args *a, int64_t first, int64_t last)           \
    {                                                                                       \
        all(a, first, last, name, DSC_UPDATE_STATES_OF(recipe));                            \
    }
static void all_adamw_wide(const dsc_update_args *a, int64_t first, int64_t last)
{
    all(a, first, last, adamw, DSC_UPDATE_STATES_OF(DSC_RECIPE_ADAMW));
}
STEP(sgd, DSC_RECIPE_SGD)
STEP(momentum, DSC_RECIPE_MOMENTUM)
STEP(adagrad, DSC_RECIPE_ADAGRAD)
STEP(lion, DSC_RECIPE_LION)
STEP(lamb, DSC_RECIPE_LAMB)
STEP(muon, DSC_RECIPE_MUON)
STEP(adafactor, DSC_RECIPE_ADAFACTOR)
STEP(adafactor_flat, DSC_RECIPE_ADAFACTOR_FLAT)
STEP(adafactor_m, DSC_RECIPE_ADAFACTOR_M)
STEP(adafactor_flat_m, DSC_RECIPE_ADAFACTOR_FLAT_M)
STEP(rmsprop, DSC_RECIPE_RMSPROP)
STEP(rmsprop_m, DSC_RECIPE_RMSPROP_M)
STEP(rmsprop_c, DSC_RECIPE_RMSPROP_C)
STEP(rmsprop_cm, DSC_RECIPE_RMSPROP_CM)
STEP(lars, DSC_RECIPE_LARS)

static void all_adamw(const dsc_update_args *a, int64_t first, int64_t last)
{
    if (a->state_dtype == DSC_U8)
        all_adamw_q8(a, first, last);
    else
        all_adamw_wide(a, first, last);
}

typedef float (*direction_fn)(const dsc_update_scalars *s, float g, element *e);

static inline void directions(const dsc_update_args *a, int64_t first, int64_t last, direction_fn direction, int states)
{
    for (int64_t i = first; i < last; i++) {
        element e = { .p = a->master[i], .along = along(a, i) };
        for (int k = 0; k < states; k++)
            e.state[k] = dsc_get(a->state[k], i, a->state_dtype);
        a->direction[i] = direction(&a->scalars, gradient(&a->scalars, sum_at(a, i), e.p), &e);
    }
}

#define STEP_OR_DIRECTION(name, made, recipe)                                                                          \
    static void name##_or_direction(const dsc_update_args *a, int64_t first, int64_t last)                             \
    {                                                                                                                  \
        if (a->direction != NULL)                                                                                      \
            directions(a, first, last, made##_direction, DSC_UPDATE_STATES_OF(recipe));                                \
        else                                                                                                           \
            all_##name(a, first, last);                                                                                \
    }
STEP_OR_DIRECTION(lamb, lamb, DSC_RECIPE_LAMB)
STEP_OR_DIRECTION(muon, muon, DSC_RECIPE_MUON)
STEP_OR_DIRECTION(adafactor, adafactor, DSC_RECIPE_ADAFACTOR)
STEP_OR_DIRECTION(adafactor_flat, adafactor_flat, DSC_RECIPE_ADAFACTOR_FLAT)
STEP_OR_DIRECTION(adafactor_m, adafactor, DSC_RECIPE_ADAFACTOR_M)
STEP_OR_DIRECTION(adafactor_flat_m, adafactor_flat_m, DSC_RECIPE_ADAFACTOR_FLAT_M)
STEP_OR_DIRECTION(lars, lars, DSC_RECIPE_LARS)

const dsc_update_ops dsc_update_ref = { {
    [DSC_RECIPE_ADAMW] = all_adamw,
    [DSC_RECIPE_SGD] = all_sgd,
    [DSC_RECIPE_MOMENTUM] = all_momentum,
    [DSC_RECIPE_ADAGRAD] = all_adagrad,
    [DSC_RECIPE_LION] = all_lion,
    [DSC_RECIPE_LAMB] = lamb_or_direction,
    [DSC_RECIPE_MUON] = muon_or_direction,
    [DSC_RECIPE_ADAFACTOR] = adafactor_or_direction,
    [DSC_RECIPE_ADAFACTOR_FLAT] = adafactor_flat_or_direction,
    [DSC_RECIPE_ADAFACTOR_M] = adafactor_m_or_direction,
    [DSC_RECIPE_ADAFACTOR_FLAT_M] = adafactor_flat_m_or_direction,
    [DSC_RECIPE_RMSPROP] = all_rmsprop,
    [DSC_RECIPE_RMSPROP_M] = all_rmsprop_m,
    [DSC_RECIPE_RMSPROP_C] = all_rmsprop_c,
    [DSC_RECIPE_RMSPROP_CM] = all_rmsprop_cm,
    [DSC_RECIPE_LARS] = lars_or_direction,
} };
