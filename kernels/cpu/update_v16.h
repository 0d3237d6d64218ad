/* update_v16.h - the recipes of update.h on sixteen lanes; tails by short loads, and bf16 states by the reference,
 * whose bits are the same. Include after v16_*.h and after the primitives that AVX-512 and AVX2 implement
 * separately: v16_ints, v16_sqrt, v16_div, v16_min, v16_step_towards (0 or NaN where c is, else copysign(step, c)).
 * The others are v16_stream and v16_stream_pair (around the caches; two rounded) and v16_store_stochastic (rounded to
 * bf16 with the lower or upper half of the random bits). The last is V16_RANDOMS of v16_random_words.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CPU_UPDATE_V16_H
#define DSC_KERNELS_CPU_UPDATE_V16_H

#include "kernels/cpu/update_range.h"

typedef struct lanes {
    v16 grad_scale, beta1, one_minus_beta1, beta2, one_minus_beta2, decay, l2, step_size, inv_sqrt_bias2, eps, eps_root;
    v16 factor_most, shrink;
    bool nesterov;
    bool streams_states; /* weights and states are written around the caches */
} lanes;

/* Weights of 16 elements, their states, and what MUON goes along or the factors of ADAFACTOR. */
typedef struct elements {
    v16 p, state[DSC_UPDATE_STATES_MAX], along;
} elements;

V16_INLINE void adam_moments(const lanes *s, v16 g, elements *e)
{
    const v16 m = e->state[0];
    e->state[0] = v16_fma(s->one_minus_beta1, v16_sub(g, m), m);
    e->state[1] = v16_fma(v16_mul(s->one_minus_beta2, g), g, v16_mul(s->beta2, e->state[1]));
}

V16_INLINE void adamw_16(const lanes *s, v16 g, elements *e)
{
    const v16 p = v16_mul(e->p, s->decay);
    adam_moments(s, g, e);
    const v16 d = v16_fma(v16_sqrt(e->state[1]), s->inv_sqrt_bias2, s->eps);
    e->p = v16_fnma(s->step_size, v16_div(e->state[0], d), p);
}

V16_INLINE void momentum_16(const lanes *s, v16 g, elements *e)
{
    const v16 b = v16_fma(s->beta1, e->state[0], v16_mul(s->one_minus_beta1, g));
    const v16 d = s->nesterov ? v16_fma(s->beta1, b, g) : b;
    e->p = v16_fnma(s->step_size, d, e->p);
    e->state[0] = b;
}

V16_INLINE void adagrad_16(const lanes *s, v16 g, elements *e)
{
    const v16 sum = v16_fma(g, g, e->state[0]);
    const v16 d = v16_add(v16_sqrt(sum), s->eps);
    e->p = v16_fnma(s->step_size, v16_div(g, d), e->p);
    e->state[0] = sum;
}

V16_INLINE void lion_16(const lanes *s, v16 g, elements *e)
{
    const v16 m = e->state[0];
    const v16 c = v16_fma(s->beta1, m, v16_mul(s->one_minus_beta1, g));
    e->p = v16_sub(v16_mul(e->p, s->decay), v16_step_towards(s->step_size, c));
    e->state[0] = v16_fma(s->beta2, m, v16_mul(s->one_minus_beta2, g));
}

/* The moments are the new ones after it. */
V16_INLINE v16 lamb_direction_16(const lanes *s, v16 g, elements *e)
{
    adam_moments(s, g, e);
    const v16 d = v16_add(v16_sqrt(v16_add(e->state[1], s->eps_root)), s->eps);
    return v16_fma(s->decay, e->p, v16_div(e->state[0], d));
}

V16_INLINE void lamb_16(const lanes *s, v16 g, elements *e)
{
    const v16 u = lamb_direction_16(s, g, e);
    e->p = v16_fnma(s->step_size, u, e->p);
}

/* The moment is the new one after it. */
V16_INLINE v16 muon_direction_16(const lanes *s, v16 g, elements *e)
{
    e->state[0] = v16_fma(s->one_minus_beta1, v16_sub(g, e->state[0]), e->state[0]);
    return s->nesterov ? v16_fnma(s->one_minus_beta1, v16_sub(e->state[0], g), e->state[0]) : e->state[0];
}

V16_INLINE void muon_16(const lanes *s, v16 g, elements *e)
{
    (void)muon_direction_16(s, g, e);
    e->p = v16_fnma(s->step_size, e->along, v16_mul(e->p, s->decay));
}

V16_INLINE v16 adafactor_direction_16(const lanes *s, v16 g, elements *e)
{
    return v16_mul(g, v16_min(e->along, s->factor_most));
}

/* v is the new one after it. */
V16_INLINE v16 flat_16(const lanes *s, v16 g, v16 *v)
{
    *v = v16_fma(s->one_minus_beta2, v16_sub(v16_fma(g, g, s->eps), *v), *v);
    return v16_div(g, v16_sqrt(v16_max(*v, s->eps_root)));
}

V16_INLINE v16 decayed_16(const lanes *s, v16 p)
{
    const v16 kept = v16_mul(p, s->decay);
    return v16_fnma(s->shrink, kept, kept);
}

V16_INLINE void step_along_16(const lanes *s, v16 u, elements *e)
{
    e->p = v16_fnma(s->step_size, u, decayed_16(s, e->p));
}

V16_INLINE void step_by_moment_16(const lanes *s, v16 u, elements *e)
{
    e->state[0] = v16_fma(s->beta1, e->state[0], v16_mul(s->one_minus_beta1, v16_mul(s->step_size, u)));
    e->p = v16_sub(decayed_16(s, e->p), e->state[0]);
}

/* The quotient of the gradient and of its root mean square, about its mean if `mean` is not NULL. */
V16_INLINE v16 rms_direction_16(const lanes *s, v16 g, v16 *v, v16 *mean)
{
    *v = v16_fma(v16_mul(s->one_minus_beta2, g), g, v16_mul(s->beta2, *v));
    v16 below = *v;
    if (mean != NULL) {
        *mean = v16_fma(s->one_minus_beta2, v16_sub(g, *mean), *mean);
        below = v16_relu(v16_sub(*v, v16_mul(*mean, *mean)));
    }
    return v16_div(g, v16_add(v16_sqrt(below), s->eps));
}

V16_INLINE void rms_step_16(const lanes *s, v16 u, elements *e, v16 *momentum)
{
    if (momentum != NULL)
        u = *momentum = v16_fma(s->beta1, *momentum, u);
    e->p = v16_fnma(s->step_size, u, e->p);
}

V16_INLINE void lars_16(const lanes *s, v16 g, elements *e)
{
    const v16 w = v16_mul(s->shrink, v16_fma(s->decay, e->p, g));
    const v16 b = v16_fma(s->beta1, e->state[0], w);
    const v16 d = s->nesterov ? v16_fma(s->beta1, b, w) : b;
    e->p = v16_fnma(s->step_size, d, e->p);
    e->state[0] = b;
}

V16_INLINE v16 gradient_16(const lanes *s, v16 grad, v16 p, bool l2)
{
    const v16 g = v16_mul(grad, s->grad_scale);
    return l2 ? v16_fma(s->l2, p, g) : g;
}

V16_INLINE void recipe_16(const lanes *s, v16 grad, elements *e, dsc_update_kind kind)
{
    const v16 g = gradient_16(s, grad, e->p, kind.l2);
    switch (kind.recipe) {
    case DSC_RECIPE_ADAMW: adamw_16(s, g, e); break;
    case DSC_RECIPE_SGD: e->p = v16_fnma(s->step_size, g, e->p); break;
    case DSC_RECIPE_MOMENTUM: momentum_16(s, g, e); break;
    case DSC_RECIPE_ADAGRAD: adagrad_16(s, g, e); break;
    case DSC_RECIPE_LION: lion_16(s, g, e); break;
    case DSC_RECIPE_LAMB: lamb_16(s, g, e); break;
    case DSC_RECIPE_MUON: muon_16(s, g, e); break;
    case DSC_RECIPE_ADAFACTOR: step_along_16(s, adafactor_direction_16(s, g, e), e); break;
    case DSC_RECIPE_ADAFACTOR_FLAT: step_along_16(s, flat_16(s, g, &e->state[0]), e); break;
    case DSC_RECIPE_ADAFACTOR_M: step_by_moment_16(s, adafactor_direction_16(s, g, e), e); break;
    case DSC_RECIPE_ADAFACTOR_FLAT_M: step_by_moment_16(s, flat_16(s, g, &e->state[1]), e); break;
    case DSC_RECIPE_RMSPROP: rms_step_16(s, rms_direction_16(s, g, &e->state[0], NULL), e, NULL); break;
    case DSC_RECIPE_RMSPROP_M: rms_step_16(s, rms_direction_16(s, g, &e->state[0], NULL), e, &e->state[1]); break;
    case DSC_RECIPE_RMSPROP_C: rms_step_16(s, rms_direction_16(s, g, &e->state[0], &e->state[1]), e, NULL); break;
    case DSC_RECIPE_RMSPROP_CM:
        rms_step_16(s, rms_direction_16(s, g, &e->state[0], &e->state[1]), e, &e->state[2]);
        break;
    case DSC_RECIPE_LARS: lars_16(s, g, e); break;
    case DSC_RECIPE_ONEBIT_LAMB: case DSC_RECIPE_COUNT: break;
    }
}

/* Products of the rows' and the columns' factors. */
V16_INLINE v16 factors_16(const dsc_update_args *a, int64_t i, int64_t left)
{
    const int64_t count = left < 16 ? left : 16;
    int64_t r = (a->at + i) / a->cols, c = (a->at + i) % a->cols;
    if (c + count <= a->cols)
        return v16_mul(v16_set(a->row[r]), v16_load(a->col, c, left, DSC_F32));
    float product[16];
    for (int64_t j = 0; j < count; j++) {
        product[j] = a->row[r] * a->col[c];
        c = c + 1 < a->cols ? c + 1 : 0;
        r += c == 0;
    }
    return v16_load(product, 0, count, DSC_F32);
}

V16_INLINE v16 along_16(const dsc_update_args *a, int64_t i, int64_t left, dsc_recipe recipe)
{
    if (recipe == DSC_RECIPE_MUON && a->direction == NULL)
        return v16_load(a->along, i, left, DSC_F32);
    return DSC_UPDATE_HAS_FACTORS(recipe) ? factors_16(a, i, left) : v16_set(0);
}

V16_INLINE v16 sum_16(const dsc_update_args *a, int64_t i, int64_t left)
{
    if (a->grad_dtype != DSC_F32)
        return v16_load(a->grad_bf16, i, left, DSC_BF16);
    return v16_rounded(v16_load(a->grad, i, left, DSC_F32), a->round_dtype);
}

V16_INLINE void put_f32(const lanes *s, float *to, int64_t i, int64_t left, v16 x)
{
    if (left >= 16 && s->streams_states)
        v16_stream(to + i, x);
    else
        v16_store(to, i, left, DSC_F32, x);
}

/* Returns the new weights of the first `left` of 16 elements; writes them and the states. */
V16_INLINE v16 step_f32(const dsc_update_args *a, const lanes *s, int64_t i, int64_t left, dsc_update_kind kind)
{
    elements e = { .p = v16_load(dsc_update_master_from(a), i, left, DSC_F32) };
    for (int k = 0; k < kind.state_count; k++)
        e.state[k] = v16_load(dsc_update_state_from(a, k), i, left, DSC_F32);
    e.along = along_16(a, i, left, kind.recipe);
    recipe_16(s, sum_16(a, i, left), &e, kind);
    put_f32(s, a->master, i, left, e.p);
    for (int k = 0; k < kind.state_count; k++)
        put_f32(s, a->state[k], i, left, e.state[k]);
    return e.p;
}

/* Variant with states in bf16; a word of random bits for each element. */
V16_INLINE v16 step_bf16(const dsc_update_args *a, const lanes *s, int64_t i, v16_ints random_bits,
                         dsc_update_kind kind)
{
    elements e = { .p = v16_load(dsc_update_master_from(a), i, 16, DSC_F32) };
    for (int k = 0; k < kind.state_count; k++)
        e.state[k] = v16_load(dsc_update_state_from(a, k), i, 16, DSC_BF16);
    e.along = along_16(a, i, 16, kind.recipe);
    recipe_16(s, sum_16(a, i, 16), &e, kind);
    v16_store(a->master, i, 16, DSC_F32, e.p);
    for (int k = 0; k < kind.state_count; k++)
        v16_store_stochastic((uint16_t *)a->state[k] + i, e.state[k], random_bits, k == 1);
    return e.p;
}

V16_INLINE void copy_short(const dsc_update_args *a, int64_t i, int64_t left, v16 p)
{
    if (a->half_dtype == DSC_F16)
        v16_store(a->param_half, i, left, DSC_F16, p);
    else
        v16_store(a->param_half, i, left, DSC_BF16, p);
}

/* Weights of 32 elements rounded. */
V16_INLINE void copy_32(const dsc_update_args *a, int64_t i, v16 p0, v16 p1, dsc_copy_kind copy)
{
    if (copy == DSC_COPY_STREAM && a->half_dtype == DSC_F16) {
        v16_stream_pair(a->param_half + i, p0, p1, DSC_F16);
    } else if (copy == DSC_COPY_STREAM) {
        v16_stream_pair(a->param_half + i, p0, p1, DSC_BF16);
    } else if (copy == DSC_COPY_STORE) {
        copy_short(a, i, 16, p0);
        copy_short(a, i + 16, 16, p1);
    }
}

V16_INLINE void all_f32(const dsc_update_args *a, const lanes *s, int64_t first, int64_t last, dsc_update_kind kind)
{
    int64_t i = first;
    for (; i + 32 <= last; i += 32) {
        const v16 p0 = step_f32(a, s, i, 16, kind), p1 = step_f32(a, s, i + 16, 16, kind);
        copy_32(a, i, p0, p1, kind.copy);
    }
    for (; i < last; i += 16) {
        const v16 p = step_f32(a, s, i, last - i, kind);
        if (kind.copy != DSC_COPY_NONE)
            copy_short(a, i, last - i, p);
    }
}

/* Three states in bf16 are the reference's. Position a->first + first begins a random block; as many elements at a
 * time as words are made at once. */
V16_INLINE void all_bf16(const dsc_update_args *a, const lanes *s, int64_t first, int64_t last, dsc_update_kind kind)
{
    const int64_t elements_at_once = V16_RANDOMS * 16;
    int64_t i = first;
    for (; kind.state_count <= 2 && i + elements_at_once <= last; i += elements_at_once) {
        const uint64_t counter = (uint64_t)(a->first + i) / 4;
        v16_ints random_bits[V16_RANDOMS];
        if ((uint32_t)counter > UINT32_MAX - (uint32_t)(elements_at_once / 4 - 1)) {
            dsc_update_ref.step[kind.recipe](a, i, i + elements_at_once);
            continue;
        }
        v16_random_words(a->seed, a->stream, counter, random_bits);
        for (int j = 0; j < V16_RANDOMS; j += 2) {
            const v16 p0 = step_bf16(a, s, i + 16 * j, random_bits[j], kind);
            const v16 p1 = step_bf16(a, s, i + 16 * j + 16, random_bits[j + 1], kind);
            copy_32(a, i + 16 * j, p0, p1, kind.copy);
        }
    }
    dsc_update_ref.step[kind.recipe](a, i, last);
}

V16_INLINE lanes lanes_of(const dsc_update_scalars *c)
{
    return (lanes) {
        .grad_scale = v16_set(c->grad_scale),
        .beta1 = v16_set(c->beta1),
        .one_minus_beta1 = v16_set(c->one_minus_beta1),
        .beta2 = v16_set(c->beta2),
        .one_minus_beta2 = v16_set(c->one_minus_beta2),
        .decay = v16_set(c->decay),
        .l2 = v16_set(c->l2),
        .step_size = v16_set(c->step_size),
        .inv_sqrt_bias2 = v16_set(c->inv_sqrt_bias2),
        .eps = v16_set(c->eps),
        .eps_root = v16_set(c->eps_root),
        .factor_most = v16_set(c->factor_most),
        .shrink = v16_set(c->shrink),
        .nesterov = c->nesterov != 0,
    };
}

/* ---- U8 states ---- */

/* Codes of 16 numbers in [-1, 1]. A decade's numbers are equally far apart, so a product gives the code or the one
 * below it (measured: no wrong one among all floats), and one comparison decides. */
V16_INLINE void codes_16(uint8_t *to, v16 y, int k)
{
    static const float decade[DSC_Q8_DECADES] = { 1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f };
    const v16 size = v16_abs(y);
    const float parts = k == 0 ? 1.0f : 2.0f, below = k == 0 ? 0.0f : 1.0f; /* of the smallest decade */
    v16 per_one = v16_set(parts * 1e6f / 0.9f), offset = v16_set(parts - below - parts / 9.0f - 0.25f);
    float n = parts, scale = 1e6f;
    for (int d = 0; d < DSC_Q8_DECADES; d++) {
        n *= 2.0f;
        scale *= 0.1f;
        per_one = v16_from(size, decade[d], v16_set(n * scale / 0.9f), per_one);
        offset = v16_from(size, decade[d], v16_set(n - below - n / 9.0f - 0.25f), offset);
    }
    v16_store_codes(to, y, v16_fma(size, per_one, offset), dsc_q8_tables[k].middles, k == 0);
}

V16_INLINE void quantize_256(const float *x, v16_ints top, uint8_t *code, float *absmax, int k)
{
    const float inverse = dsc_q8_inverse(v16_ints_top(top), absmax);
    const v16 by = v16_set(inverse);
    for (int64_t j = 0; j < DSC_Q8_BLOCK; j += 16)
        codes_16(code + j, inverse == 0.0f ? v16_set(0) : v16_mul(v16_load(x, j, 16, DSC_F32), by), k);
}

V16_INLINE v16 step_q8(const dsc_update_args *a, const lanes *s, int64_t i, dsc_update_kind kind,
                       const v16 absmax[DSC_UPDATE_STATES_U8], v16_ints top[DSC_UPDATE_STATES_U8],
                       float x[DSC_UPDATE_STATES_U8][DSC_Q8_BLOCK])
{
    elements e = { .p = v16_load(a->master, i, 16, DSC_F32) };
    for (int k = 0; k < DSC_UPDATE_STATES_U8; k++)
        e.state[k] = v16_mul(v16_load_codes((const uint8_t *)a->state[k] + i, dsc_q8_tables[k].map), absmax[k]);
    recipe_16(s, sum_16(a, i, 16), &e, kind);
    v16_store(a->master, i, 16, DSC_F32, e.p);
    for (int k = 0; k < DSC_UPDATE_STATES_U8; k++) {
        v16_store(x[k], i % DSC_Q8_BLOCK, 16, DSC_F32, e.state[k]);
        top[k] = v16_ints_largest(top[k], v16_abs(e.state[k]));
    }
    return e.p;
}

/* `first` begins a block; a short last one is the reference's. */
V16_INLINE void all_q8(const dsc_update_args *a, const lanes *s, int64_t first, int64_t last, dsc_update_kind kind)
{
    float x[DSC_UPDATE_STATES_U8][DSC_Q8_BLOCK];
    int64_t i = first;
    for (; i + DSC_Q8_BLOCK <= last; i += DSC_Q8_BLOCK) {
        const int64_t block = i / DSC_Q8_BLOCK;
        const v16 absmax[] = { v16_set(a->absmax[0][block]), v16_set(a->absmax[1][block]) };
        v16_ints top[] = { v16_ints_zero(), v16_ints_zero() };
        for (int64_t j = i; j < i + DSC_Q8_BLOCK; j += 32) {
            const v16 p0 = step_q8(a, s, j, kind, absmax, top, x), p1 = step_q8(a, s, j + 16, kind, absmax, top, x);
            copy_32(a, j, p0, p1, kind.copy);
        }
        for (int k = 0; k < DSC_UPDATE_STATES_U8; k++)
            quantize_256(x[k], top[k], (uint8_t *)a->state[k] + i, &a->absmax[k][block], k);
    }
    dsc_update_ref.step[kind.recipe](a, i, last);
}

V16_INLINE void all(const dsc_update_args *args, int64_t first, int64_t last, dsc_update_kind kind)
{
    const dsc_update_args local = *args, *a = &local; /* in registers: no store below can change it */
    lanes s = lanes_of(&a->scalars);
    s.streams_states = dsc_update_streams_states(a, first, V16_STREAM_BYTES);
    if (kind.recipe == DSC_RECIPE_ADAMW && a->state_dtype == DSC_U8)
        all_q8(a, &s, first, last, kind);
    else if (kind.state_count > 0 && a->state_dtype == DSC_BF16)
        all_bf16(a, &s, first, last, kind);
    else
        all_f32(a, &s, first, last, kind);
    if (kind.copy == DSC_COPY_STREAM || s.streams_states)
        _mm_sfence(); /* before the pool reports that it is done */
}

V16_INLINE void step(const dsc_update_args *a, int64_t first, int64_t last, dsc_recipe recipe)
{
    const bool rounds = DSC_UPDATE_STATES_OF(recipe) > 0 && a->state_dtype == DSC_BF16;
    const int64_t start = rounds ? dsc_update_block_start(a, first, last) : first;
    const dsc_copy_kind copy = dsc_update_copy_kind(a, start, V16_STREAM_BYTES);
    dsc_update_ref.step[recipe](a, first, start);
    DSC_FOR_UPDATE_KIND(recipe, a->scalars.l2 != 0.0f, copy, all(a, start, last, kind));
}

V16_INLINE v16 direction_16(const lanes *s, v16 g, elements *e, dsc_recipe recipe)
{
    switch (recipe) {
    case DSC_RECIPE_MUON:
        return muon_direction_16(s, g, e);
    case DSC_RECIPE_ADAFACTOR:
    case DSC_RECIPE_ADAFACTOR_M:
        return adafactor_direction_16(s, g, e);
    case DSC_RECIPE_ADAFACTOR_FLAT:
        return flat_16(s, g, &e->state[0]);
    case DSC_RECIPE_ADAFACTOR_FLAT_M:
        return flat_16(s, g, &e->state[1]);
    case DSC_RECIPE_LARS:
        return g;
    default:
        return lamb_direction_16(s, g, e);
    }
}

V16_INLINE void directions(const dsc_update_args *args, int64_t first, int64_t last, dsc_recipe recipe,
                           dsc_dtype state_dtype)
{
    const dsc_update_args local = *args, *a = &local;
    const lanes s = lanes_of(&a->scalars);
    for (int64_t i = first; i < last; i += 16) {
        const int64_t left = last - i;
        elements e = { .p = v16_load(a->master, i, left, DSC_F32) };
        for (int k = 0; k < DSC_UPDATE_STATES_OF(recipe); k++)
            e.state[k] = v16_load(a->state[k], i, left, state_dtype);
        const v16 g = gradient_16(&s, sum_16(a, i, left), e.p, a->scalars.l2 != 0.0f);
        e.along = along_16(a, i, left, recipe);
        v16_store(a->direction, i, left, DSC_F32, direction_16(&s, g, &e, recipe));
    }
}

#define STEP(name, recipe) \
    static void name(const dsc_update_args *a, int64_t first, int64_t last) { step(a, first, last, recipe); }
STEP(adamw, DSC_RECIPE_ADAMW)
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

#define STEP_OR_DIRECTION(name, recipe)                                                     \
    static void name##_or_direction(const dsc_update_args *a, int64_t first, int64_t last)  \
    {                                                                                       \
        if (a->direction == NULL)                                                           \
            name(a, first, last);                                                           \
        else if (a->state_dtype == DSC_BF16)                                                \
            directions(a, first, last, recipe, DSC_BF16);                                   \
        else                                                                                \
            directions(a, first, last, recipe, DSC_F32);                                    \
    }
STEP_OR_DIRECTION(lamb, DSC_RECIPE_LAMB)
STEP_OR_DIRECTION(muon, DSC_RECIPE_MUON)
STEP_OR_DIRECTION(adafactor, DSC_RECIPE_ADAFACTOR)
STEP_OR_DIRECTION(adafactor_flat, DSC_RECIPE_ADAFACTOR_FLAT)
STEP_OR_DIRECTION(adafactor_m, DSC_RECIPE_ADAFACTOR_M)
STEP_OR_DIRECTION(adafactor_flat_m, DSC_RECIPE_ADAFACTOR_FLAT_M)
STEP_OR_DIRECTION(lars, DSC_RECIPE_LARS)

const dsc_update_ops V16_NAME(update) = { {
    [DSC_RECIPE_ADAMW] = adamw,
    [DSC_RECIPE_SGD] = sgd,
    [DSC_RECIPE_MOMENTUM] = momentum,
    [DSC_RECIPE_ADAGRAD] = adagrad,
    [DSC_RECIPE_LION] = lion,
    [DSC_RECIPE_LAMB] = lamb_or_direction,
    [DSC_RECIPE_MUON] = muon_or_direction,
    [DSC_RECIPE_ADAFACTOR] = adafactor_or_direction,
    [DSC_RECIPE_ADAFACTOR_FLAT] = adafactor_flat_or_direction,
    [DSC_RECIPE_ADAFACTOR_M] = adafactor_m_or_direction,
    [DSC_RECIPE_ADAFACTOR_FLAT_M] = adafactor_flat_m_or_direction,
    [DSC_RECIPE_RMSPROP] = rmsprop,
    [DSC_RECIPE_RMSPROP_M] = rmsprop_m,
    [DSC_RECIPE_RMSPROP_C] = rmsprop_c,
    [DSC_RECIPE_RMSPROP_CM] = rmsprop_cm,
    [DSC_RECIPE_LARS] = lars_or_direction,
} };

#endif
