/* update_avx2.c - the recipes of update.h on 8 lanes with FMA3; tails by the reference, whose bits are the same.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/half_avx2.h"
#include "kernels/philox_avx2.h"
#include "kernels/update_range.h"

#define INLINE static inline __attribute__((always_inline))

typedef struct lanes {
    __m256 grad_scale, beta1, one_minus_beta1, beta2, one_minus_beta2, decay, l2, step_size, inv_sqrt_bias2, eps;
    bool nesterov;
} lanes;

/* Weights of 8 elements and their states. */
typedef struct elements { __m256 p, state[DSC_UPDATE_STATES_MAX]; } elements;

INLINE void adamw_8(const lanes *s, __m256 g, elements *e)
{
    __m256 m = e->state[0], v = e->state[1];
    const __m256 p = _mm256_mul_ps(e->p, s->decay);
    m = _mm256_fmadd_ps(s->one_minus_beta1, _mm256_sub_ps(g, m), m);
    v = _mm256_fmadd_ps(_mm256_mul_ps(s->one_minus_beta2, g), g, _mm256_mul_ps(s->beta2, v));
    const __m256 d = _mm256_fmadd_ps(_mm256_sqrt_ps(v), s->inv_sqrt_bias2, s->eps);
    e->p = _mm256_fnmadd_ps(s->step_size, _mm256_div_ps(m, d), p);
    e->state[0] = m;
    e->state[1] = v;
}

INLINE void momentum_8(const lanes *s, __m256 g, elements *e)
{
    const __m256 b = _mm256_fmadd_ps(s->beta1, e->state[0], _mm256_mul_ps(s->one_minus_beta1, g));
    const __m256 d = s->nesterov ? _mm256_fmadd_ps(s->beta1, b, g) : b;
    e->p = _mm256_fnmadd_ps(s->step_size, d, e->p);
    e->state[0] = b;
}

INLINE void adagrad_8(const lanes *s, __m256 g, elements *e)
{
    const __m256 sum = _mm256_fmadd_ps(g, g, e->state[0]);
    const __m256 d = _mm256_add_ps(_mm256_sqrt_ps(sum), s->eps);
    e->p = _mm256_fnmadd_ps(s->step_size, _mm256_div_ps(g, d), e->p);
    e->state[0] = sum;
}

INLINE void lion_8(const lanes *s, __m256 g, elements *e)
{
    const __m256 m = e->state[0], zero = _mm256_setzero_ps();
    const __m256 c = _mm256_fmadd_ps(s->beta1, m, _mm256_mul_ps(s->one_minus_beta1, g));
    const __m256 signed_step = _mm256_or_ps(s->step_size, _mm256_and_ps(c, _mm256_set1_ps(-0.0f)));
    const __m256 step = _mm256_and_ps(signed_step, _mm256_cmp_ps(c, zero, _CMP_NEQ_UQ));
    e->p = _mm256_sub_ps(_mm256_mul_ps(e->p, s->decay), step);
    e->state[0] = _mm256_fmadd_ps(s->beta2, m, _mm256_mul_ps(s->one_minus_beta2, g));
}

INLINE void recipe_8(const lanes *s, __m256 grad, elements *e, dsc_update_kind kind)
{
    __m256 g = _mm256_mul_ps(grad, s->grad_scale);
    if (kind.l2)
        g = _mm256_fmadd_ps(s->l2, e->p, g);
    switch (kind.recipe) {
    case DSC_RECIPE_ADAMW: adamw_8(s, g, e); break;
    case DSC_RECIPE_SGD: e->p = _mm256_fnmadd_ps(s->step_size, g, e->p); break;
    case DSC_RECIPE_MOMENTUM: momentum_8(s, g, e); break;
    case DSC_RECIPE_ADAGRAD: adagrad_8(s, g, e); break;
    case DSC_RECIPE_LION: lion_8(s, g, e); break;
    case DSC_RECIPE_COUNT: break;
    }
}

/* Returns the new weights of 8 elements; writes them and the states. */
INLINE __m256 step_f32(const dsc_update_args *a, const lanes *s, int64_t i, dsc_update_kind kind)
{
    elements e = { .p = _mm256_loadu_ps(a->master + i) };
    for (int k = 0; k < kind.state_count; k++)
        e.state[k] = _mm256_loadu_ps((const float *)a->state[k] + i);
    recipe_8(s, _mm256_loadu_ps(a->grad + i), &e, kind);
    _mm256_storeu_ps(a->master + i, e.p);
    for (int k = 0; k < kind.state_count; k++)
        _mm256_storeu_ps((float *)a->state[k] + i, e.state[k]);
    return e.p;
}

static inline __m128i low_halves(__m256i x)
{
    return _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
}

/* The same with states in bf16; a word of random bits for each element. */
INLINE __m256 step_bf16(const dsc_update_args *a, const lanes *s, int64_t i, __m256i random_bits, dsc_update_kind kind)
{
    elements e = { .p = _mm256_loadu_ps(a->master + i) };
    for (int k = 0; k < kind.state_count; k++)
        e.state[k] = dsc_f32_from_bf16_avx2(_mm_loadu_si128((const __m128i *)((const uint16_t *)a->state[k] + i)));
    recipe_8(s, _mm256_loadu_ps(a->grad + i), &e, kind);
    _mm256_storeu_ps(a->master + i, e.p);
    for (int k = 0; k < kind.state_count; k++) {
        const __m256i bits = k == 0 ? _mm256_and_si256(random_bits, _mm256_set1_epi32(0xffff))
                                    : _mm256_srli_epi32(random_bits, 16);
        _mm_storeu_si128((__m128i *)(void *)((uint16_t *)a->state[k] + i),
                         low_halves(dsc_up_or_down_avx2(e.state[k], bits)));
    }
    return e.p;
}

/* Weights of 16 elements rounded. */
INLINE void copy_16(const dsc_update_args *a, int64_t i, __m256 p0, __m256 p1, dsc_copy_kind copy)
{
    uint16_t *to = a->param_half + i;
    const bool f16 = a->half_dtype == DSC_F16;
    const __m128i low = f16 ? dsc_half_from_f32_avx2(p0, DSC_F16) : dsc_bf16_from_f32_avx2(p0);
    const __m128i high = f16 ? dsc_half_from_f32_avx2(p1, DSC_F16) : dsc_bf16_from_f32_avx2(p1);
    const __m256i both = _mm256_set_m128i(high, low);
    if (copy == DSC_COPY_STREAM)
        _mm256_stream_si256((__m256i *)(void *)to, both);
    else
        _mm256_storeu_si256((__m256i *)(void *)to, both);
}

INLINE int64_t all_f32(const dsc_update_args *a, const lanes *s, int64_t first, int64_t last, dsc_update_kind kind)
{
    int64_t i = first;
    for (; i + 16 <= last; i += 16) {
        const __m256 p0 = step_f32(a, s, i, kind), p1 = step_f32(a, s, i + 8, kind);
        if (kind.copy != DSC_COPY_NONE)
            copy_16(a, i, p0, p1, kind.copy);
    }
    return i;
}

/* Position a->first + first begins a random block. As update_avx512.c, 32 elements of 8 blocks at a time. */
INLINE int64_t all_bf16(const dsc_update_args *a, const lanes *s, int64_t first, int64_t last, dsc_update_kind kind)
{
    int64_t i = first;
    for (; i + 32 <= last; i += 32) {
        const uint64_t counter = (uint64_t)(a->first + i) / 4;
        if ((uint32_t)counter > UINT32_MAX - 7) {
            dsc_update_ref.step[kind.recipe](a, i, i + 32);
            continue;
        }
        __m256i block[4];
        philox_blocks(a->seed, a->stream, counter, block);
        for (int j = 0; j < 4; j += 2) {
            const __m256 p0 = step_bf16(a, s, i + 8 * j, block[j], kind);
            const __m256 p1 = step_bf16(a, s, i + 8 * j + 8, block[j + 1], kind);
            if (kind.copy != DSC_COPY_NONE)
                copy_16(a, i + 8 * j, p0, p1, kind.copy);
        }
    }
    return i;
}

INLINE void all(const dsc_update_args *args, int64_t first, int64_t last, dsc_update_kind kind)
{
    const dsc_update_args local = *args, *a = &local; /* in registers: no store below can change it */
    const dsc_update_scalars *c = &a->scalars;
    const lanes s = {
        .grad_scale = _mm256_set1_ps(c->grad_scale),
        .beta1 = _mm256_set1_ps(c->beta1),
        .one_minus_beta1 = _mm256_set1_ps(c->one_minus_beta1),
        .beta2 = _mm256_set1_ps(c->beta2),
        .one_minus_beta2 = _mm256_set1_ps(c->one_minus_beta2),
        .decay = _mm256_set1_ps(c->decay),
        .l2 = _mm256_set1_ps(c->l2),
        .step_size = _mm256_set1_ps(c->step_size),
        .inv_sqrt_bias2 = _mm256_set1_ps(c->inv_sqrt_bias2),
        .eps = _mm256_set1_ps(c->eps),
        .nesterov = c->nesterov != 0,
    };
    const bool rounds = kind.state_count > 0 && a->state_dtype == DSC_BF16;
    const int64_t i = rounds ? all_bf16(a, &s, first, last, kind) : all_f32(a, &s, first, last, kind);
    if (kind.copy == DSC_COPY_STREAM)
        _mm_sfence(); /* before the team says that it is done */
    dsc_update_ref.step[kind.recipe](a, i, last);
}

INLINE void step(const dsc_update_args *a, int64_t first, int64_t last, dsc_recipe recipe)
{
    const bool rounds = DSC_UPDATE_STATES_OF(recipe) > 0 && a->state_dtype == DSC_BF16;
    const int64_t start = rounds ? dsc_update_block_start(a, first, last) : first;
    const dsc_copy_kind copy = dsc_update_copy_kind(a, start, sizeof(__m256));
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

const dsc_update_ops dsc_update_avx2 = { {
    [DSC_RECIPE_ADAMW] = adamw,
    [DSC_RECIPE_SGD] = sgd,
    [DSC_RECIPE_MOMENTUM] = momentum,
    [DSC_RECIPE_ADAGRAD] = adagrad,
    [DSC_RECIPE_LION] = lion,
} };
