/* update_q8.c - AdamW with U8 states. Every variant must equal the reference in every bit. The reference must be what
 * update.h says: the step with the same states in fp32, and of each new state the nearest number of its map.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/q8_tables.h"
#include "tests/checkkern/ck_exact.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STATES = DSC_UPDATE_STATES_U8 };
static const float map[STATES][256] = { DSC_Q8_SIGNED_MAP, DSC_Q8_UNSIGNED_MAP };

/* The states of the running case as it began. */
static uint8_t *code[STATES];
static float *absmax[STATES];

static int64_t blocks_of(int64_t count) { return dsc_div_ceil(count, DSC_Q8_BLOCK); }

/* The nearest number by a look at all 256 of them, the smaller one of two; distances are compared with the middle as
 * fp32 rounds it. */
static int nearest(const float *numbers, float y)
{
    int best = 0;
    for (int c = 1; c < 256; c++)
        if (y > (numbers[c - 1] + numbers[c]) * 0.5f)
            best = c;
    return best;
}

static void check_block(const dsc_update_args *a, int k, int64_t block, const float *x)
{
    const int64_t first = block * DSC_Q8_BLOCK, count = dsc_min_i64(DSC_Q8_BLOCK, a->count - first);
    float most = 0;
    bool finite = true;
    for (int64_t i = 0; i < count; i++) {
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
        finite = finite && isfinite(x[i]);
    }
    const float got = a->absmax[k][block], inverse = 1.0f / fmaxf(most, 1e-38f);
    if (finite ? memcmp(&got, &most, sizeof got) != 0 : !isnan(got))
        ck_fail("absmax %d[%lld] = %a, the largest is %a", k, (long long)block, (double)got, (double)most);
    for (int64_t i = 0; i < count; i++) {
        const int expected = nearest(map[k], finite ? x[i] * inverse : 0.0f), is = ((uint8_t *)a->state[k])[first + i];
        if (is != expected)
            ck_fail("state %d[%lld] = %d of %a in %a, expected %d", k, (long long)(first + i), is, (double)x[i],
                    (double)most, expected);
    }
}

static void check_half(const dsc_update_args *a)
{
    for (int64_t i = 0; a->param_half != NULL && i < a->count; i++) {
        const float p = a->master[i];
        const uint16_t got = a->param_half[i], expected = ck_nearest_half(p, a->half_dtype);
        if (got != expected && !(isnan(p) && isnan(ck_half_value(got, a->half_dtype))))
            ck_fail("param_half[%lld] = %04x, nearest to %a is %04x", (long long)i, got, (double)p, expected);
    }
}

static void verify(const void *args)
{
    const dsc_update_args *a = args;
    const size_t bytes = (size_t)a->count * 4 + 4;
    float *p = malloc(bytes), *x[STATES] = { malloc(bytes), malloc(bytes) };
    dsc_update_args whole = *a;
    DSC_ASSERT(p != NULL && x[0] != NULL && x[1] != NULL);
    ck_same_or_nan(a->master, a->count);
    for (int k = 0; k < STATES; k++) {
        ck_same(a->state[k]);
        ck_same(a->absmax[k]);
    }
    for (int64_t i = 0; i < a->count; i++) {
        p[i] = (float)ck_start(a->master, i);
        for (int k = 0; k < STATES; k++)
            x[k][i] = map[k][code[k][i]] * absmax[k][i / DSC_Q8_BLOCK];
    }
    whole.master = p;
    whole.param_half = NULL;
    whole.state_dtype = DSC_F32;
    for (int k = 0; k < STATES; k++)
        whole.state[k] = x[k];
    ck_run(DSC_KERNEL_ADAMW, 0, &whole, sizeof whole);
    for (int64_t i = 0; i < a->count; i++)
        if (memcmp(&a->master[i], &p[i], 4) != 0 && !isnan(p[i]))
            ck_fail("master[%lld] = %a, with states in fp32 %a", (long long)i, (double)a->master[i], (double)p[i]);
    for (int k = 0; k < STATES; k++)
        for (int64_t b = 0; b < blocks_of(a->count); b++)
            check_block(a, k, b, x[k] + b * DSC_Q8_BLOCK);
    check_half(a);
    free(p);
    free(x[0]);
    free(x[1]);
}

static dsc_update_scalars scalars_of(int step, float l2)
{
    return (dsc_update_scalars) {
        .grad_scale = 0.37f,
        .one_minus_beta1 = 0.1f,
        .beta2 = 0.95f,
        .one_minus_beta2 = 0.05f,
        .decay = l2 == 0 ? 0.999f : 1,
        .l2 = l2,
        .step_size = (float)(0.01 / (1 - pow(0.9, step))),
        .inv_sqrt_bias2 = (float)(1 / sqrt(1 - pow(0.95, step))),
        .eps = 1e-8f,
    };
}

/* Kinds of a case's numbers: all states 0, as at the first step; usual ones; some wild ones. */
typedef enum numbers { FRESH, USUAL, WILD } numbers;

static void fill_states(const dsc_update_args *a, numbers kind)
{
    for (int k = 0; k < STATES; k++) {
        uint8_t *to = a->state[k];
        for (int64_t i = 0; i < a->count; i++)
            to[i] = kind == FRESH ? 0 : (uint8_t)ck_random();
        for (int64_t b = 0; b < blocks_of(a->count); b++)
            a->absmax[k][b] = kind == FRESH ? 0.0f : (float)(1 + ck_random() % 1000) * (k == 0 ? 1e-3f : 1e-5f);
        if (kind == WILD && a->count > 0)
            ck_edges(a->absmax[k]), ck_wild(a->absmax[k], blocks_of(a->count));
        for (int64_t b = 0; b < blocks_of(a->count); b++) /* an absmax has no sign */
            a->absmax[k][b] = isnan(a->absmax[k][b]) ? a->absmax[k][b] : fabsf(a->absmax[k][b]);
    }
}

static void keep_states(const dsc_update_args *a)
{
    for (int k = 0; k < STATES; k++) {
        code[k] = malloc((size_t)a->count + 1);
        absmax[k] = malloc((size_t)blocks_of(a->count) * sizeof *absmax[k] + 4);
        DSC_ASSERT(code[k] != NULL && absmax[k] != NULL);
        memcpy(code[k], a->state[k], (size_t)a->count);
        memcpy(absmax[k], a->absmax[k], (size_t)blocks_of(a->count) * sizeof *absmax[k]);
    }
}

static void forget_states(void)
{
    for (int k = 0; k < STATES; k++) {
        free(code[k]);
        free(absmax[k]);
    }
}

static dsc_update_args buffers_of(int64_t n, dsc_dtype copy)
{
    dsc_update_args a = { .count = n, .half_dtype = copy, .state_dtype = DSC_U8 };
    a.master = ck_buf(CK_INOUT, DSC_F32, n, "master");
    for (int k = 0; k < STATES; k++) {
        a.state[k] = ck_buf(CK_INOUT, DSC_U8, n, k == 0 ? "state 0" : "state 1");
        a.absmax[k] = ck_buf(CK_INOUT, DSC_F32, blocks_of(n), k == 0 ? "absmax 0" : "absmax 1");
    }
    a.param_half = copy != DSC_F32 ? ck_buf(CK_OUT, copy, n, "param_half") : NULL;
    return a;
}

static void check_case(int64_t n, dsc_dtype copy, float l2, int step, numbers kind)
{
    static const char *const names[] = { "fresh", "usual", "wild" };
    if (!ck_case("adam8 n=%lld step=%d %s copy%s %s", (long long)n, step, ck_dtype_text(copy), l2 != 0 ? " l2" : "",
                 names[kind]))
        return;
    if (n % 3 != 0)
        ck_align();
    dsc_update_args a = buffers_of(n, copy);
    float *g = ck_buf(CK_IN, DSC_F32, n, "grad");
    a.grad = g;
    a.round_dtype = kind == USUAL ? DSC_BF16 : kind == WILD ? DSC_F16 : DSC_F32;
    a.scalars = scalars_of(step, l2);
    ck_normal(a.master, 0, 0.5);
    ck_normal(g, 0, 0.1);
    for (int64_t i = 0; i < n; i++) /* also gradients that lie many decades below the largest */
        g[i] *= ck_random() % 4 != 0 ? 1.0f : powf(10.0f, -(float)(ck_random() % 8));
    if (kind == WILD && n > 0)
        ck_edges(a.master), ck_edges(g), ck_wild(g, n);
    fill_states(&a, kind);
    keep_states(&a);
    ck_kernel(DSC_KERNEL_ADAMW, &a, sizeof a, verify);
    forget_states();
}

static void bench(bool copy)
{
    const int64_t n = ck_bench_size(1 << 24, 1 << 26);
    if (!ck_case("bench adam8%s", copy ? " bf16 copy" : ""))
        return;
    dsc_update_args a = buffers_of(n, copy ? DSC_BF16 : DSC_F32);
    float *g = ck_buf(CK_IN, DSC_F32, n, "grad");
    a.grad = g;
    a.scalars = scalars_of(5, 0);
    for (int64_t i = 0; i < n; i++) {
        g[i] = (float)(i % 2001 - 1000) * 1e-5f;
        a.master[i] = (float)(1 + i % 1000) * 1e-4f;
    }
    fill_states(&a, FRESH);
    /* 12 bytes of weights and gradients, 2 codes read and written, and 2 absmax of 4 bytes for each block */
    const int64_t moved = n * (12 + 2 * copy + 4) + blocks_of(n) * 16;
    ck_bench(DSC_KERNEL_ADAMW, &a, sizeof a, moved, 0, false);
}

void ck_update_q8(void)
{
    for (size_t l = 0; l < CK_LENGTHS; l++) {
        const dsc_dtype half = l % 2 == 0 ? DSC_F16 : DSC_BF16;
        check_case(ck_lengths[l], DSC_BF16, 0, 1, FRESH);
        check_case(ck_lengths[l], DSC_F32, l % 2 == 0 ? 0.05f : 0, 3, USUAL);
        check_case(ck_lengths[l], half, 0, 5, USUAL);
        check_case(ck_lengths[l], half, l % 2 == 0 ? 0 : 0.05f, 2, WILD);
    }
    for (int64_t blocks = 1; blocks <= 70; blocks += 23) /* whole blocks, also more than a thread's share */
        for (int kind = FRESH; kind <= WILD; kind++)
            check_case(blocks * DSC_Q8_BLOCK, kind == USUAL ? DSC_BF16 : DSC_F32, 0, 4, (numbers)kind);
    check_case(ck_shortened() ? 1 << 18 : 1 << 20, DSC_BF16, 0, 7, USUAL); /* the copy is written around the caches */
    if (!ck_benching())
        return;
    bench(false);
    bench(true);
}
