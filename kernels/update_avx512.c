/* update_avx512.c - the recipes of update.h on 16 lanes; tails by masks, and where states are bf16 by the reference,
 * whose bits are the same. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/half_avx512.h"
#include "kernels/philox_avx512.h"
#include "kernels/update_range.h"

#define INLINE static inline __attribute__((always_inline))

typedef struct lanes {
    __m512 grad_scale, beta1, one_minus_beta1, beta2, one_minus_beta2, decay, l2, step_size, inv_sqrt_bias2, eps;
    bool nesterov;
} lanes;

/* Weights of 16 elements and their states. */
typedef struct elements { __m512 p, state[DSC_UPDATE_STATES_MAX]; } elements;

INLINE void adamw_16(const lanes *s, __m512 g, elements *e)
{
    __m512 m = e->state[0], v = e->state[1];
    const __m512 p = _mm512_mul_ps(e->p, s->decay);
    m = _mm512_fmadd_ps(s->one_minus_beta1, _mm512_sub_ps(g, m), m);
    v = _mm512_fmadd_ps(_mm512_mul_ps(s->one_minus_beta2, g), g, _mm512_mul_ps(s->beta2, v));
    const __m512 d = _mm512_fmadd_ps(_mm512_sqrt_ps(v), s->inv_sqrt_bias2, s->eps);
    e->p = _mm512_fnmadd_ps(s->step_size, _mm512_div_ps(m, d), p);
    e->state[0] = m;
    e->state[1] = v;
}

INLINE void momentum_16(const lanes *s, __m512 g, elements *e)
{
    const __m512 b = _mm512_fmadd_ps(s->beta1, e->state[0], _mm512_mul_ps(s->one_minus_beta1, g));
    const __m512 d = s->nesterov ? _mm512_fmadd_ps(s->beta1, b, g) : b;
    e->p = _mm512_fnmadd_ps(s->step_size, d, e->p);
    e->state[0] = b;
}

INLINE void adagrad_16(const lanes *s, __m512 g, elements *e)
{
    const __m512 sum = _mm512_fmadd_ps(g, g, e->state[0]);
    const __m512 d = _mm512_add_ps(_mm512_sqrt_ps(sum), s->eps);
    e->p = _mm512_fnmadd_ps(s->step_size, _mm512_div_ps(g, d), e->p);
    e->state[0] = sum;
}

INLINE void lion_16(const lanes *s, __m512 g, elements *e)
{
    const __m512 m = e->state[0];
    const __m512 c = _mm512_fmadd_ps(s->beta1, m, _mm512_mul_ps(s->one_minus_beta1, g));
    const __m512 signed_step = _mm512_or_ps(s->step_size, _mm512_and_ps(c, _mm512_set1_ps(-0.0f)));
    const __m512 step = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(c, _mm512_setzero_ps(), _CMP_NEQ_UQ), signed_step);
    e->p = _mm512_sub_ps(_mm512_mul_ps(e->p, s->decay), step);
    e->state[0] = _mm512_fmadd_ps(s->beta2, m, _mm512_mul_ps(s->one_minus_beta2, g));
}

INLINE void recipe_16(const lanes *s, __m512 grad, elements *e, dsc_update_kind kind)
{
    __m512 g = _mm512_mul_ps(grad, s->grad_scale);
    if (kind.l2)
        g = _mm512_fmadd_ps(s->l2, e->p, g);
    switch (kind.recipe) {
    case DSC_RECIPE_ADAMW: adamw_16(s, g, e); break;
    case DSC_RECIPE_SGD: e->p = _mm512_fnmadd_ps(s->step_size, g, e->p); break;
    case DSC_RECIPE_MOMENTUM: momentum_16(s, g, e); break;
    case DSC_RECIPE_ADAGRAD: adagrad_16(s, g, e); break;
    case DSC_RECIPE_LION: lion_16(s, g, e); break;
    case DSC_RECIPE_COUNT: break;
    }
}

/* Returns the new weights of 16 elements; writes them and the states. */
INLINE __m512 step_f32(const dsc_update_args *a, const lanes *s, int64_t i, __mmask16 mask, dsc_update_kind kind)
{
    elements e = { .p = _mm512_maskz_loadu_ps(mask, a->master + i) };
    for (int k = 0; k < kind.state_count; k++)
        e.state[k] = _mm512_maskz_loadu_ps(mask, (const float *)a->state[k] + i);
    recipe_16(s, _mm512_maskz_loadu_ps(mask, a->grad + i), &e, kind);
    _mm512_mask_storeu_ps(a->master + i, mask, e.p);
    for (int k = 0; k < kind.state_count; k++)
        _mm512_mask_storeu_ps((float *)a->state[k] + i, mask, e.state[k]);
    return e.p;
}

/* The same with states in bf16; a word of random bits for each element. */
INLINE __m512 step_bf16(const dsc_update_args *a, const lanes *s, int64_t i, __m512i random_bits, dsc_update_kind kind)
{
    elements e = { .p = _mm512_loadu_ps(a->master + i) };
    for (int k = 0; k < kind.state_count; k++)
        e.state[k] = dsc_f32_from_bf16_avx512(_mm256_loadu_si256((const __m256i *)((const uint16_t *)a->state[k] + i)));
    recipe_16(s, _mm512_loadu_ps(a->grad + i), &e, kind);
    _mm512_storeu_ps(a->master + i, e.p);
    for (int k = 0; k < kind.state_count; k++) {
        const __m512i bits = k == 0 ? _mm512_and_si512(random_bits, _mm512_set1_epi32(0xffff))
                                    : _mm512_srli_epi32(random_bits, 16);
        _mm256_storeu_si256((__m256i *)(void *)((uint16_t *)a->state[k] + i), dsc_up_or_down_avx512(e.state[k], bits));
    }
    return e.p;
}

INLINE __m256i rounded(const dsc_update_args *a, __m512 p)
{
    return a->half_dtype == DSC_F16 ? dsc_half_from_f32_avx512(p, DSC_F16) : dsc_bf16_from_f32_avx512(p);
}

/* Weights of 32 elements rounded. */
INLINE void copy_32(const dsc_update_args *a, int64_t i, __m512 p0, __m512 p1, dsc_copy_kind copy)
{
    uint16_t *to = a->param_half + i;
    const __m512i low = _mm512_castsi256_si512(rounded(a, p0));
    const __m512i both = _mm512_inserti64x4(low, rounded(a, p1), 1);
    if (copy == DSC_COPY_STREAM)
        _mm512_stream_si512((__m512i *)(void *)to, both);
    else
        _mm512_storeu_si512(to, both);
}

INLINE void all_f32(const dsc_update_args *a, const lanes *s, int64_t first, int64_t last, dsc_update_kind kind)
{
    int64_t i = first;
    for (; i + 32 <= last; i += 32) {
        const __m512 p0 = step_f32(a, s, i, 0xffff, kind), p1 = step_f32(a, s, i + 16, 0xffff, kind);
        if (kind.copy != DSC_COPY_NONE)
            copy_32(a, i, p0, p1, kind.copy);
    }
    for (; i < last; i += 16) {
        const __mmask16 mask = dsc_mask_avx512(last - i);
        const __m512 p = step_f32(a, s, i, mask, kind);
        if (kind.copy != DSC_COPY_NONE)
            _mm256_mask_storeu_epi16(a->param_half + i, mask, rounded(a, p));
    }
}

/* Position a->first + first begins a random block; 64 elements of 16 blocks at a time, the rest as in
 * cast_stochastic. */
INLINE void all_bf16(const dsc_update_args *a, const lanes *s, int64_t first, int64_t last, dsc_update_kind kind)
{
    int64_t i = first;
    for (; i + 64 <= last; i += 64) {
        const uint64_t counter = (uint64_t)(a->first + i) / 4;
        if ((uint32_t)counter > UINT32_MAX - 15) {
            dsc_update_ref.step[kind.recipe](a, i, i + 64);
            continue;
        }
        __m512i block[4];
        philox_blocks(a->seed, a->stream, counter, block);
        for (int j = 0; j < 4; j += 2) {
            const __m512 p0 = step_bf16(a, s, i + 16 * j, block[j], kind);
            const __m512 p1 = step_bf16(a, s, i + 16 * j + 16, block[j + 1], kind);
            if (kind.copy != DSC_COPY_NONE)
                copy_32(a, i + 16 * j, p0, p1, kind.copy);
        }
    }
    dsc_update_ref.step[kind.recipe](a, i, last);
}

INLINE void all(const dsc_update_args *args, int64_t first, int64_t last, dsc_update_kind kind)
{
    const dsc_update_args local = *args, *a = &local; /* in registers: no store below can change it */
    const dsc_update_scalars *c = &a->scalars;
    const lanes s = {
        .grad_scale = _mm512_set1_ps(c->grad_scale),
        .beta1 = _mm512_set1_ps(c->beta1),
        .one_minus_beta1 = _mm512_set1_ps(c->one_minus_beta1),
        .beta2 = _mm512_set1_ps(c->beta2),
        .one_minus_beta2 = _mm512_set1_ps(c->one_minus_beta2),
        .decay = _mm512_set1_ps(c->decay),
        .l2 = _mm512_set1_ps(c->l2),
        .step_size = _mm512_set1_ps(c->step_size),
        .inv_sqrt_bias2 = _mm512_set1_ps(c->inv_sqrt_bias2),
        .eps = _mm512_set1_ps(c->eps),
        .nesterov = c->nesterov != 0,
    };
    const bool rounds = kind.state_count > 0 && a->state_dtype == DSC_BF16;
    if (rounds)
        all_bf16(a, &s, first, last, kind);
    else
        all_f32(a, &s, first, last, kind);
    if (kind.copy == DSC_COPY_STREAM)
        _mm_sfence(); /* before the team says that it is done */
}

INLINE void step(const dsc_update_args *a, int64_t first, int64_t last, dsc_recipe recipe)
{
    const bool rounds = DSC_UPDATE_STATES_OF(recipe) > 0 && a->state_dtype == DSC_BF16;
    const int64_t start = rounds ? dsc_update_block_start(a, first, last) : first;
    const dsc_copy_kind copy = dsc_update_copy_kind(a, start, sizeof(__m512));
    dsc_update_ref.step[recipe](a, first, start);
    DSC_FOR_UPDATE_KIND(recipe, a->scalars.l2 != 0.0f, copy, all(a, start, last, kind));
}

static void adamw(const dsc_update_args *a, int64_t first, int64_t last) { step(a, first, last, DSC_RECIPE_ADAMW); }
static void sgd(const dsc_update_args *a, int64_t first, int64_t last) { step(a, first, last, DSC_RECIPE_SGD); }
static void momentum(const dsc_update_args *a, int64_t first, int64_t last)
{
    step(a, first, last, DSC_RECIPE_MOMENTUM);
}
static void adagrad(const dsc_update_args *a, int64_t first, int64_t last) { step(a, first, last, DSC_RECIPE_ADAGRAD); }
static void lion(const dsc_update_args *a, int64_t first, int64_t last) { step(a, first, last, DSC_RECIPE_LION); }

const dsc_update_ops dsc_update_avx512 = { {
    [DSC_RECIPE_ADAMW] = adamw,
    [DSC_RECIPE_SGD] = sgd,
    [DSC_RECIPE_MOMENTUM] = momentum,
    [DSC_RECIPE_ADAGRAD] = adagrad,
    [DSC_RECIPE_LION] = lion,
} };
