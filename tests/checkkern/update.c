/* update.c - one step of every optimizer. Every variant must equal the reference in every bit (any NaN equals any NaN),
 * and the reference must be what update.h says within a bound counted from its roundings. u = 2^-24.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/rng.h"
#include "kernels/scalar.h"
#include "tests/checkkern/ck_exact.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double u = 0x1p-24;

static dsc_recipe current; /* recipe of the running case */

/* A number and how far fp32 may be from it. */
typedef struct near { double x, off; } near;

static near gradient(const dsc_update_args *a, int64_t i, double p0)
{
    const dsc_update_scalars *s = &a->scalars;
    const double scaled = (double)dsc_rounded((float)ck_get(a->grad, i), a->round_dtype) * (double)s->grad_scale;
    const double g = scaled + (double)s->l2 * p0;
    return (near){ g, u * (fabs(scaled) + (s->l2 != 0 ? fabs(g) : 0)) + 0x1p-149 };
}

/* The square root of a denormal x is off by more than its own relative error: bounded by sqrt(off). */
static near root(near v)
{
    const double r = sqrt(v.x);
    return (near){ r, (v.x > 4 * v.off ? v.off / r : sqrt(v.off)) + u * r };
}

static near quotient(near a, near d)
{
    const double q = a.x / d.x;
    return (near){ q, (a.off + fabs(q) * d.off) / (d.x - d.off) + u * fabs(q) };
}

static near weighted(double weight, near g) /* weight * g, rounded once */
{
    return (near){ weight * g.x, fabs(weight) * g.off + u * fabs(weight * g.x) + 0x1p-149 };
}

static void adam_moments(const dsc_update_scalars *s, near g, const double *from, near *state)
{
    const double m = from[0] + (double)s->one_minus_beta1 * (g.x - from[0]);
    const double v = (double)s->one_minus_beta2 * g.x * g.x + (double)s->beta2 * from[1];
    state[0] = (near){ m, (double)s->one_minus_beta1 * (g.off + u * fabs(g.x - from[0])) + u * fabs(m) + 0x1p-149 };
    state[1] = (near){ v, (double)s->one_minus_beta2 * (2 * fabs(g.x) * g.off + u * g.x * g.x) + 2 * u * v + 0x1p-147 };
}

static near adamw_one(const dsc_update_scalars *s, near g, const double *from, near *state, double p0)
{
    adam_moments(s, g, from, state);
    const near r = root(state[1]);
    const double d = r.x * (double)s->inv_sqrt_bias2 + (double)s->eps;
    const near q = quotient(state[0], (near){ d, r.off * (double)s->inv_sqrt_bias2 + u * d });
    const double p = p0 * (double)s->decay - (double)s->step_size * q.x;
    const double off = u * (fabs(p0 * (double)s->decay) + fabs(p)) + (double)s->step_size * q.off + 0x1p-148;
    return (near){ p, d > 2 * (r.off + u * d) ? off : (double)INFINITY };
}

static near stepped(const dsc_update_scalars *s, near d, double p0)
{
    const double p = p0 - (double)s->step_size * d.x;
    return (near){ p, (double)s->step_size * d.off + u * fabs(p) + 0x1p-149 };
}

static near sgd_one(const dsc_update_scalars *s, near g, const double *from, near *state, double p0)
{
    return stepped(s, g, p0);
}

static near momentum_one(const dsc_update_scalars *s, near g, const double *from, near *state, double p0)
{
    const near now = weighted((double)s->one_minus_beta1, g);
    const double b = (double)s->beta1 * from[0] + now.x;
    state[0] = (near){ b, now.off + u * fabs(b) + 0x1p-149 };
    const double d = (double)s->beta1 * b + g.x;
    const near ahead = { d, (double)s->beta1 * state[0].off + g.off + u * fabs(d) + 0x1p-149 };
    return stepped(s, s->nesterov ? ahead : state[0], p0);
}

static near adagrad_one(const dsc_update_scalars *s, near g, const double *from, near *state, double p0)
{
    const double sum = g.x * g.x + from[0];
    state[0] = (near){ sum, 2 * fabs(g.x) * g.off + u * sum + 0x1p-148 };
    const near r = root(state[0]);
    const double d = r.x + (double)s->eps, d_off = r.off + u * d;
    const near p = stepped(s, quotient(g, (near){ d, d_off }), p0);
    return (near){ p.x, d > 2 * d_off ? p.off : (double)INFINITY };
}

static near lion_one(const dsc_update_scalars *s, near g, const double *from, near *state, double p0)
{
    const near now = weighted((double)s->one_minus_beta1, g), kept = weighted((double)s->one_minus_beta2, g);
    const double c = (double)s->beta1 * from[0] + now.x, m = (double)s->beta2 * from[0] + kept.x;
    state[0] = (near){ m, kept.off + u * fabs(m) + 0x1p-149 };
    const double p = p0 * (double)s->decay - (c == 0 ? 0 : copysign((double)s->step_size, c));
    const bool sure = fabs(c) > now.off + u * fabs(c) + 0x1p-149;
    return (near){ p, sure ? u * (fabs(p0) + fabs(p)) + 0x1p-148 : (double)INFINITY };
}

static near lamb_direction(const dsc_update_scalars *s, near g, const double *from, near *state, double p0)
{
    adam_moments(s, g, from, state);
    const double v = state[1].x + (double)s->eps_root;
    const near r = root((near){ v, state[1].off + u * v });
    const double d = r.x + (double)s->eps, d_off = r.off + u * d;
    const near q = quotient(state[0], (near){ d, d_off });
    const double along = (double)s->decay * p0 + q.x;
    return (near){ along, d > 2 * d_off ? q.off + u * fabs(along) + 0x1p-149 : (double)INFINITY };
}

static near lamb_one(const dsc_update_scalars *s, near g, const double *from, near *state, double p0)
{
    return stepped(s, lamb_direction(s, g, from, state, p0), p0);
}

static near muon_direction(const dsc_update_scalars *s, near g, const double *from, near *state, double p0)
{
    const double left = (double)s->one_minus_beta1, m = from[0] + left * (g.x - from[0]);
    state[0] = (near){ m, left * (g.off + u * fabs(g.x - from[0])) + u * fabs(m) + 0x1p-149 };
    if (!s->nesterov)
        return state[0];
    const double along = m - left * (m - g.x), apart = state[0].off + g.off + u * fabs(m - g.x);
    return (near){ along, state[0].off + left * apart + u * fabs(along) + 0x1p-149 };
}

/* Before it goes along what its direction became. */
static near muon_one(const dsc_update_scalars *s, near g, const double *from, near *state, double p0)
{
    (void)muon_direction(s, g, from, state, p0);
    return weighted((double)s->decay, (near){ p0, 0 });
}

/* Values of the case: the factors of rows and columns (update.h) of the element under test. */
static near factor;

static near adafactor_direction(const dsc_update_scalars *s, near g, const double *from, near *state, double p0)
{
    const double along = g.x * factor.x;
    return (near) { along, fabs(g.x) * factor.off + g.off * factor.x + u * fabs(along) + 0x1p-149 };
}

static near flat(const dsc_update_scalars *s, near g, double from, near *v)
{
    const double q = g.x * g.x + (double)s->eps, left = (double)s->one_minus_beta2, x = from + left * (q - from);
    const double off = left * (2 * fabs(g.x) * g.off + u * q + u * fabs(q - from)) + u * fabs(x) + 0x1p-147;
    *v = (near) { x, off };
    const near r = root(x > (double)s->eps_root ? *v : (near) { (double)s->eps_root, off });
    const near q_of = quotient(g, r);
    return (near) { q_of.x, r.x > 2 * r.off ? q_of.off + 0x1p-149 : (double)INFINITY };
}

static near adafactor_flat_direction(const dsc_update_scalars *s, near g, const double *from, near *state, double p0)
{
    return flat(s, g, from[0], &state[0]);
}

static near adafactor_flat_m_direction(const dsc_update_scalars *s, near g, const double *from, near *state, double p0)
{
    return flat(s, g, from[1], &state[1]);
}

static near step_along(const dsc_update_scalars *s, near d, double p0)
{
    const double kept = p0 * (double)s->decay * (1 - (double)s->shrink);
    const near p = stepped(s, d, kept);
    return (near) { p.x, p.off + 2 * u * fabs(p0) };
}

static near step_by_moment(const dsc_update_scalars *s, near d, const double *from, near *state, double p0)
{
    const near w = weighted((double)s->one_minus_beta1, weighted((double)s->step_size, d));
    const double m = (double)s->beta1 * from[0] + w.x, kept = p0 * (double)s->decay * (1 - (double)s->shrink);
    state[0] = (near) { m, w.off + u * fabs(m) + 0x1p-149 };
    return (near) { kept - m, state[0].off + u * (2 * fabs(p0) + fabs(kept - m)) + 0x1p-149 };
}

static near adafactor_one(const dsc_update_scalars *s, near g, const double *from, near *state, double p0)
{
    return step_along(s, adafactor_direction(s, g, from, state, p0), p0);
}

static near adafactor_flat_one(const dsc_update_scalars *s, near g, const double *from, near *state, double p0)
{
    return step_along(s, adafactor_flat_direction(s, g, from, state, p0), p0);
}

static near adafactor_m_one(const dsc_update_scalars *s, near g, const double *from, near *state, double p0)
{
    return step_by_moment(s, adafactor_direction(s, g, from, state, p0), from, state, p0);
}

static near adafactor_flat_m_one(const dsc_update_scalars *s, near g, const double *from, near *state, double p0)
{
    return step_by_moment(s, adafactor_flat_m_direction(s, g, from, state, p0), from, state, p0);
}

/* `mean`: of the gradients, if centered. */
static near rms_direction(const dsc_update_scalars *s, near g, const double *from, near *v, near *mean)
{
    const double left = (double)s->one_minus_beta2, x = left * g.x * g.x + (double)s->beta2 * from[0];
    *v = (near) { x, left * (2 * fabs(g.x) * g.off + u * g.x * g.x) + 2 * u * x + 0x1p-147 };
    near below = *v;
    if (mean != NULL) {
        const double m = from[1] + left * (g.x - from[1]);
        *mean = (near) { m, left * (g.off + u * fabs(g.x - from[1])) + u * fabs(m) + 0x1p-149 };
        const double w = x - m * m;
        below = (near) { w > 0 ? w : 0, v->off + 2 * fabs(m) * mean->off + u * (m * m + fabs(w)) + 0x1p-148 };
    }
    const near r = root(below);
    const double d = r.x + (double)s->eps, d_off = r.off + u * d;
    const near q = quotient(g, (near) { d, d_off });
    return (near) { q.x, d > 2 * d_off ? q.off + 0x1p-149 : (double)INFINITY };
}

static near momentum_step(const dsc_update_scalars *s, near q, double from, near *b, double p0)
{
    const double x = (double)s->beta1 * from + q.x;
    *b = (near) { x, q.off + u * fabs(x) + 0x1p-149 };
    return stepped(s, *b, p0);
}

static near rmsprop_one(const dsc_update_scalars *s, near g, const double *from, near *state, double p0)
{
    return stepped(s, rms_direction(s, g, from, &state[0], NULL), p0);
}

static near rmsprop_m_one(const dsc_update_scalars *s, near g, const double *from, near *state, double p0)
{
    return momentum_step(s, rms_direction(s, g, from, &state[0], NULL), from[1], &state[1], p0);
}

static near rmsprop_c_one(const dsc_update_scalars *s, near g, const double *from, near *state, double p0)
{
    return stepped(s, rms_direction(s, g, from, &state[0], &state[1]), p0);
}

static near rmsprop_cm_one(const dsc_update_scalars *s, near g, const double *from, near *state, double p0)
{
    return momentum_step(s, rms_direction(s, g, from, &state[0], &state[1]), from[2], &state[2], p0);
}

static near lars_direction(const dsc_update_scalars *s, near g, const double *from, near *state, double p0)
{
    return g;
}

static near lars_one(const dsc_update_scalars *s, near g, const double *from, near *state, double p0)
{
    const double sum = g.x + (double)s->decay * p0;
    const near w = weighted((double)s->shrink, (near) { sum, g.off + u * fabs(sum) });
    const double b = (double)s->beta1 * from[0] + w.x, d = (double)s->beta1 * b + w.x;
    state[0] = (near) { b, w.off + u * fabs(b) + 0x1p-149 };
    const near ahead = { d, (double)s->beta1 * state[0].off + w.off + u * fabs(d) + 0x1p-149 };
    return stepped(s, s->nesterov ? ahead : state[0], p0);
}

static bool has_factors(void) { return (dsc_recipes[current].needs & DSC_NEEDS_ROW_COL_STATS) != 0; }

static void take_factor(const dsc_update_args *a, int64_t i)
{
    const int64_t n = a->at + i;
    const double product = has_factors() ? ck_get(a->row, n / a->cols) * ck_get(a->col, n % a->cols) : 0;
    const double most = (double)a->scalars.factor_most;
    factor = (near) { product < most ? product : most, u * product };
}

static near (*const recipes[DSC_RECIPE_COUNT])(const dsc_update_scalars *, near, const double *, near *, double) = {
    [DSC_RECIPE_ADAMW] = adamw_one,
    [DSC_RECIPE_SGD] = sgd_one,
    [DSC_RECIPE_MOMENTUM] = momentum_one,
    [DSC_RECIPE_ADAGRAD] = adagrad_one,
    [DSC_RECIPE_LION] = lion_one,
    [DSC_RECIPE_LAMB] = lamb_one,
    [DSC_RECIPE_MUON] = muon_one,
    [DSC_RECIPE_ADAFACTOR] = adafactor_one,
    [DSC_RECIPE_ADAFACTOR_FLAT] = adafactor_flat_one,
    [DSC_RECIPE_ADAFACTOR_M] = adafactor_m_one,
    [DSC_RECIPE_ADAFACTOR_FLAT_M] = adafactor_flat_m_one,
    [DSC_RECIPE_RMSPROP] = rmsprop_one,
    [DSC_RECIPE_RMSPROP_M] = rmsprop_m_one,
    [DSC_RECIPE_RMSPROP_C] = rmsprop_c_one,
    [DSC_RECIPE_RMSPROP_CM] = rmsprop_cm_one,
    [DSC_RECIPE_LARS] = lars_one,
};
static near (*const directions[DSC_RECIPE_COUNT])(const dsc_update_scalars *, near, const double *, near *, double) = {
    [DSC_RECIPE_LAMB] = lamb_direction,
    [DSC_RECIPE_MUON] = muon_direction,
    [DSC_RECIPE_ADAFACTOR] = adafactor_direction,
    [DSC_RECIPE_ADAFACTOR_FLAT] = adafactor_flat_direction,
    [DSC_RECIPE_ADAFACTOR_M] = adafactor_direction,
    [DSC_RECIPE_ADAFACTOR_FLAT_M] = adafactor_flat_m_direction,
    [DSC_RECIPE_LARS] = lars_direction,
};

static bool is_rmsprop(void) { return current >= DSC_RECIPE_RMSPROP && current <= DSC_RECIPE_RMSPROP_CM; }

/* A mean of squares, which is not negative. */
static bool is_square(int k)
{
    if (is_rmsprop())
        return k == 0;
    return k == 1 || current == DSC_RECIPE_ADAGRAD || current == DSC_RECIPE_ADAFACTOR_FLAT;
}

static int states(void) { return dsc_recipes[current].state_count; }

static void near_one(const dsc_update_args *a, int64_t i)
{
    const double p0 = ck_start(a->master, i), slack = 1 + 1e-5; /* second-order terms */
    double from[DSC_UPDATE_STATES_MAX] = { 0 };
    near state[DSC_UPDATE_STATES_MAX];
    for (int k = 0; k < states(); k++)
        from[k] = ck_start(a->state[k], i);
    take_factor(a, i);
    near p = recipes[current](&a->scalars, gradient(a, i, p0), from, state, p0);
    if (a->along != NULL) {
        const double to = p.x - (double)a->scalars.step_size * ck_get(a->along, i);
        p = (near){ to, p.off + u * fabs(to) + 0x1p-149 };
    }
    for (int k = 0; k < states(); k++)
        if (isfinite(state[k].off)) /* a momentum of directions may not be */
            ck_near(a->state[k], i, state[k].x, slack * state[k].off);
    if (isfinite(p.off))
        ck_near(a->master, i, p.x, slack * p.off);
}

static void verify_bits(const void *args)
{
    const dsc_update_args *a = args;
    ck_same_or_nan(a->master, a->count);
    for (int64_t i = 0; current == DSC_RECIPE_LION && i < a->count; i++)
        if (isnan(ck_start(a->state[0], i)) && !isnan(a->master[i]))
            ck_fail("master[%lld] = %a of a moment that is NaN", (long long)i, (double)a->master[i]);
    for (int k = 0; k < states(); k++)
        ck_same_or_nan(a->state[k], a->count);
    for (int64_t i = 0; a->param_half != NULL && i < a->count; i++) {
        const float p = a->master[i];
        const uint16_t got = a->param_half[i], nearest = ck_nearest_half(p, a->half_dtype);
        if (got != nearest && !(isnan(p) && isnan(ck_half_value(got, a->half_dtype))))
            ck_fail("param_half[%lld] = %04x, nearest to %a is %04x", (long long)i, got, (double)p, nearest);
    }
}

/* Of large arrays, whose bits the reference has too, an odd stride reaches every lane of a register. */
static void verify(const void *args)
{
    const dsc_update_args *a = args;
    const int64_t stride = a->count > ck_lengths[CK_LENGTHS - 1] ? 17 : 1;
    verify_bits(args);
    for (int64_t i = 0; i < a->count; i += stride)
        near_one(a, i);
}

/* States in bf16 against two things already checked: the step with the same states in fp32, whose results are then
 * rounded as ck_round_stochastic says. */
static void verify_rounded(const void *args)
{
    const dsc_update_args *a = args;
    const size_t bytes = (size_t)a->count * 4 + 4;
    float *p = malloc(bytes), *state[DSC_UPDATE_STATES_MAX] = { malloc(bytes), malloc(bytes), malloc(bytes) };
    double error[DSC_UPDATE_STATES_MAX] = { 0 };
    dsc_update_args whole = *a;
    DSC_ASSERT(p != NULL && state[0] != NULL && state[1] != NULL && state[2] != NULL);
    for (int64_t i = 0; i < a->count; i++) {
        p[i] = (float)ck_start(a->master, i);
        for (int k = 0; k < states(); k++)
            state[k][i] = (float)ck_start(a->state[k], i);
    }
    whole.master = p;
    for (int k = 0; k < DSC_UPDATE_STATES_MAX; k++)
        whole.state[k] = state[k];
    whole.param_half = NULL;
    whole.state_dtype = DSC_F32;
    ck_run(dsc_recipe_kernel(current), 0, &whole, sizeof whole);
    for (int64_t i = 0; i < a->count; i++) {
        const uint32_t word = dsc_rng_u32(a->seed, a->stream, (uint64_t)(a->first + i));
        for (int k = 0; k < states(); k++) {
            const uint32_t bits = word >> (k == 0 ? 0 : k == 1 ? 16 : 8) & 0xffff;
            const uint16_t kept = ck_round_stochastic(state[k][i], bits, &error[k]);
            const uint16_t got = ((uint16_t *)a->state[k])[i];
            if (got != kept && !isnan(state[k][i]))
                ck_fail("state %d[%lld] = %04x from %a with %08x, expected %04x", k, (long long)i, got,
                        (double)state[k][i], word, kept);
        }
        if (memcmp(&a->master[i], &p[i], 4) != 0 && !isnan(p[i]))
            ck_fail("master[%lld] = %a, with states in fp32 %a", (long long)i, (double)a->master[i], (double)p[i]);
    }
    for (int k = 0; k < states(); k++)
        ck_check_mean(error[k], a->count);
    verify_bits(args);
    free(p);
    free(state[0]);
    free(state[1]);
    free(state[2]);
}

static dsc_update_scalars scalars_of(int step, float lr, float l2, float weight_decay)
{
    const double beta1 = 0.9, beta2 = 0.95;
    const bool adam = current == DSC_RECIPE_ADAMW, lamb = current == DSC_RECIPE_LAMB,
               decays_with = lamb || current == DSC_RECIPE_LARS;
    const bool flat_only = current == DSC_RECIPE_ADAFACTOR_FLAT || current == DSC_RECIPE_ADAFACTOR_FLAT_M;
    return (dsc_update_scalars) {
        .grad_scale = 0.37f, .beta1 = (float)beta1, .beta2 = (float)beta2, .one_minus_beta1 = (float)(1 - beta1),
        .one_minus_beta2 = (float)(1 - beta2), .l2 = l2,
        .decay = decays_with ? weight_decay : (float)(1 - (double)lr * (double)weight_decay),
        .eps_root = flat_only               ? 1e-6f
                    : lamb && step % 2 == 0 ? 1e-5f
                                            : 0,
        .factor_most = 30,
        .shrink = current == DSC_RECIPE_LARS ? 0.3f : 1e-4f,
        .step_size = (float)((double)lr / (adam ? 1 - pow(beta1, step) : 1)),
        .inv_sqrt_bias2 = (float)(1 / sqrt(1 - pow(beta2, step))), .eps = 1e-8f, .nesterov = step % 2,
    };
}

/* Factors of a matrix that continues before and behind the elements of the case. */
static void give_factors(dsc_update_args *args, int64_t cols)
{
    if (!has_factors())
        return;
    args->cols = cols;
    args->at = cols / 3 + 2 * cols;
    float *row = ck_buf(CK_IN, DSC_F32, (args->at + args->count) / cols + 2, "row");
    float *col = ck_buf(CK_IN, DSC_F32, cols, "col");
    ck_uniform(row, 0.3, 1.5);
    ck_uniform(col, 0, 40);
    args->row = row;
    args->col = col;
}

/* Narrower than a vector, a little wider than one, and wide. */
static int64_t cols_of(int64_t n, int step)
{
    return step % 3 == 0 ? 5 : step % 3 == 1 ? 19 : dsc_max_i64(1, n / 3 + 7);
}

/* Numbers that the sums are rounded to before anything else. */
static dsc_dtype rounding_of(int64_t n, int step)
{
    static const dsc_dtype dtypes[] = { DSC_F32, DSC_BF16, DSC_F16 };
    return dtypes[(n + step) % 3];
}

/* copy: F32 for none. */
static void check_case(int64_t n, dsc_dtype copy, float l2, int step, bool is_wild, int64_t rounded)
{
    const bool rounds = rounded >= 0; /* the position of element 0 */
    const dsc_dtype state_dtype = rounds ? DSC_BF16 : DSC_F32;
    char position[40] = "";
    if (rounds)
        snprintf(position, sizeof position, " bf16 states at %lld", (long long)rounded);
    if (!ck_case("%s n=%lld step=%d %s copy %s sums%s%s%s", dsc_recipes[current].name, (long long)n, step,
                 ck_dtype_text(copy), ck_dtype_text(rounding_of(n, step)), l2 != 0 ? " l2" : "", is_wild ? " wild" : "",
                 position))
        return;
    dsc_update_args args = { .count = n,
                             .half_dtype = copy,
                             .state_dtype = state_dtype,
                             .round_dtype = rounding_of(n, step),
                             .seed = UINT64_C(0x9e3779b97f4a7c15),
                             .stream = dsc_rng_stream(DSC_RNG_TEST, (uint32_t)step),
                             .first = rounds ? rounded : 0,
                             .scalars = scalars_of(step, 0.01f, l2, l2 == 0 ? 0.1f : 0) };
    float *p = args.master = ck_buf(CK_INOUT, DSC_F32, n, "master"), *g = ck_buf(CK_IN, DSC_F32, n, "grad");
    args.grad = g;
    for (int k = 0; k < states(); k++)
        args.state[k] = ck_buf(CK_INOUT, state_dtype, n, k == 0 ? "state 0" : k == 1 ? "state 1" : "state 2");
    give_factors(&args, cols_of(n, step));
    float *along = NULL;
    if (current == DSC_RECIPE_MUON) {
        args.along = along = ck_buf(CK_IN, DSC_F32, n, "along");
        ck_normal(along, 0, 0.3);
    }
    args.param_half = copy != DSC_F32 ? ck_buf(CK_OUT, copy, n, "param_half") : NULL;
    ck_normal(p, 0, 0.5);
    ck_normal(g, 0, 0.1);
    for (int k = 0; k < states(); k++)
        if (is_square(k))
            ck_uniform(args.state[k], 0, step == 1 ? 0 : 0.02);
        else
            ck_normal(args.state[k], 0, 0.1);
    if (is_wild) {
        ck_edges(p), ck_edges(g), ck_wild(p, n), ck_wild(g, n);
        if (along != NULL)
            ck_edges(along), ck_wild(along, n);
        for (int k = 0; k < states(); k++)
            ck_edges(args.state[k]), ck_wild(args.state[k], n);
    }
    ck_kernel(dsc_recipe_kernel(current), &args, sizeof args,
              rounds ? verify_rounded : is_wild ? verify_bits : verify);
}

/* The input of the norms of a tensor's step: only `direction` is written. */
static void verify_direction(const void *args)
{
    const dsc_update_args *a = args;
    ck_same_or_nan(a->direction, a->count);
    for (int64_t i = 0; i < a->count; i++) {
        const double p0 = ck_get(a->master, i), slack = 1 + 1e-5;
        double from[DSC_UPDATE_STATES_MAX] = { 0 };
        near state[DSC_UPDATE_STATES_MAX];
        for (int k = 0; k < states(); k++)
            from[k] = ck_get(a->state[k], i);
        take_factor(a, i);
        const near along = directions[current](&a->scalars, gradient(a, i, p0), from, state, p0);
        if (isfinite(along.off))
            ck_near(a->direction, i, along.x, slack * along.off);
    }
}

static void check_direction(int64_t n, dsc_dtype state_dtype, float l2, int step)
{
    if (!ck_case("%s direction n=%lld step=%d %s states%s", dsc_recipes[current].name, (long long)n, step,
                 ck_dtype_text(state_dtype), l2 != 0 ? " l2" : ""))
        return;
    dsc_update_args args = { .count = n,
                             .half_dtype = DSC_BF16,
                             .state_dtype = state_dtype,
                             .round_dtype = rounding_of(n, step + 1),
                             .scalars = scalars_of(step, 0.01f, l2, 0.1f) };
    float *p = args.master = ck_buf(CK_IN, DSC_F32, n, "master"), *g = ck_buf(CK_IN, DSC_F32, n, "grad");
    args.grad = g;
    args.direction = ck_buf(CK_OUT, DSC_F32, n, "direction");
    for (int k = 0; k < states(); k++)
        args.state[k] = ck_buf(CK_IN, state_dtype, n, k == 0 ? "state 0" : "state 1");
    ck_normal(p, 0, 0.5);
    ck_normal(g, 0, 0.1);
    give_factors(&args, cols_of(n, step));
    for (int k = 0; k < states(); k++)
        if (k == 1 || current == DSC_RECIPE_ADAFACTOR_FLAT)
            ck_uniform(args.state[k], 0, 0.02);
        else
            ck_normal(args.state[k], 0, 0.1);
    ck_kernel(dsc_recipe_kernel(current), &args, sizeof args, verify_direction);
}

static void check_recipe(void)
{
    /* Also where the counter's lower 32 bits overflow inside a vector: position 4 * 2^32. */
    static const int64_t firsts[] = { 0, 4, 3, 1021, (INT64_C(1) << 34) - 100, (INT64_C(1) << 34) - 4098 };
    for (size_t l = 0; l < CK_LENGTHS; l++) {
        const dsc_dtype half = l % 2 == 0 ? DSC_F16 : DSC_BF16, other = l % 2 == 0 ? DSC_BF16 : DSC_F16;
        check_case(ck_lengths[l], DSC_BF16, 0, 1, false, -1);
        check_case(ck_lengths[l], DSC_F32, 0, 7, false, -1);
        check_case(ck_lengths[l], DSC_F16, 0, 4, false, -1);
        check_case(ck_lengths[l], l % 2 == 0 ? DSC_BF16 : DSC_F32, 0.05f, 3, false, -1);
        check_case(ck_lengths[l], half, l % 2 == 0 ? 0.05f : 0, 2, true, -1);
        check_case(ck_lengths[l], other, l % 3 == 0 ? 0.05f : 0, 5, false, firsts[l % DSC_COUNT(firsts)]);
        check_case(ck_lengths[l], DSC_F32, l % 2 == 0 ? 0.05f : 0, 1, true, firsts[(l + 3) % DSC_COUNT(firsts)]);
        if (dsc_recipes[current].needs != DSC_NEEDS_NOTHING)
            check_direction(ck_lengths[l], l % 2 == 0 ? DSC_F32 : DSC_BF16, l % 3 == 0 ? 0.05f : 0, (int)l % 5 + 1);
    }
}

/* Large enough to be written around the caches of a CPU; some misaligned. */
static void check_large(void)
{
    const int64_t large = ck_shortened() ? 1 << 17 : 1 << 20;
    for (int64_t more = 0; more < (current == DSC_RECIPE_ADAMW ? 4 : 1); more++) {
        const int64_t n = large + 17 * more, first = more % 2 == 0 ? 1024 : 1023;
        check_case(n, more < 3 ? DSC_BF16 : DSC_F16, more % 2 == 0 ? 0 : 0.05f, (int)more + 2, more == 3, -1);
        if (more < 2)
            check_case(n, DSC_F16, more % 2 == 0 ? 0 : 0.05f, (int)more + 2, false, first);
    }
}

/* ---- benches: arrays that no cache holds, bytes as the contract moves them ---- */

static float *bench_floats(ck_role role, int64_t n, const char *name)
{
    float *x = ck_buf(role, DSC_F32, n, name);
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(1 + i % 1000) * 1e-4f;
    return x;
}

static void bench(bool copy, dsc_dtype state_dtype)
{
    const int64_t n = ck_bench_size(1 << 24, 1 << 26), each = (int64_t)dsc_dtype_bytes(state_dtype);
    if (!ck_case("bench %s%s%s", dsc_recipes[current].name, copy ? " bf16 copy" : "",
                 state_dtype == DSC_BF16 ? " bf16 states" : ""))
        return;
    dsc_update_args args = { .master = bench_floats(CK_INOUT, n, "master"), .grad = bench_floats(CK_IN, n, "grad"),
                             .param_half = copy ? ck_buf(CK_OUT, DSC_BF16, n, "param_half") : NULL, .count = n,
                             .half_dtype = DSC_BF16, .state_dtype = state_dtype,
                             .scalars = scalars_of(5, 1e-4f, 0, 0.1f) };
    for (int k = 0; k < states(); k++) {
        args.state[k] = ck_buf(CK_INOUT, state_dtype, n, k == 0 ? "state 0" : k == 1 ? "state 1" : "state 2");
        memset(args.state[k], 0, (size_t)(n * each));
    }
    if (current == DSC_RECIPE_MUON)
        args.along = bench_floats(CK_IN, n, "along");
    give_factors(&args, 4096);
    const int64_t moved = 12 + 2 * copy + 2 * states() * each + (args.along != NULL ? 4 : 0);
    ck_bench(dsc_recipe_kernel(current), &args, sizeof args, n * moved, 0, false);
}

void ck_update(void)
{
    for (int r = 0; r < DSC_RECIPE_COUNT; r++) {
        current = (dsc_recipe)r;
        if (dsc_recipes[r].step != current)
            continue;
        check_recipe();
        check_large();
        if (!ck_benching())
            continue;
        bench(false, DSC_F32);
        bench(true, DSC_F32);
        if (states() > 0)
            bench(true, DSC_BF16);
    }
}
