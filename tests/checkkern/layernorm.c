/* layernorm.c - layer normalisation: every variant bitwise as the reference, and the reference against double within a
 * bound that adds up its roundings. u = 2^-24; K additions in L lanes make chains of K / L and a tree.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/norm.h"

#include <math.h>
#include <stdlib.h>

static const double u = 0x1p-24, slack = 1.01; /* second-order terms */
static const double CONSTANT = 0.75; /* value of the rows without variance */

/* The variant of the cases. */
static ck_norm_trait trait;

static double weight_of(const void *weight, int64_t c)
{
    return weight == NULL ? 1 : ck_get(weight, c) + (trait == NORM_PLUS_ONE ? 1 : 0);
}

/* ---- forward ---- */

static void near_row(const dsc_layernorm_fwd_args *a, int64_t r)
{
    const void *in = a->add != NULL ? a->sum : a->in;
    const int64_t channels = a->channels;
    const double count = (double)channels, chain = count / 64 + 8;
    double mean = 0, size = 0, variance = 0, deviation = 0;
    for (int64_t c = 0; c < channels; c++) {
        mean += ck_get(in, ck_norm_at(r, channels, c)) / count;
        size += fabs(ck_get(in, ck_norm_at(r, channels, c))) / count;
    }
    for (int64_t c = 0; c < channels; c++) {
        const double d = ck_get(in, ck_norm_at(r, channels, c)) - mean;
        variance += d * d / count;
        deviation += fabs(d) / count;
    }
    const double mean_off = chain * u * size + 0x1p-149;
    const double variance_off = 2 * mean_off * deviation + mean_off * mean_off + (2 + chain) * u * variance;
    const double rstd = 1 / sqrt(variance + (double)a->eps);
    const double rstd_off = rstd * (0.5 * variance_off / (variance + (double)a->eps) + 3 * u);
    ck_near(a->mean, r, mean, slack * mean_off);
    ck_near(a->rstd, r, rstd, slack * rstd_off);
    for (int64_t c = 0; c < channels; c++) {
        const double d = ck_get(in, ck_norm_at(r, channels, c)) - mean, x_hat = d * rstd,
                     weight = weight_of(a->weight, c);
        const double x_hat_off = rstd * (mean_off + u * fabs(d)) + fabs(d) * rstd_off + u * fabs(x_hat);
        const double y = x_hat * weight + (a->bias != NULL ? ck_get(a->bias, c) : 0);
        const double tol = slack * (fabs(weight) * x_hat_off + u * fabs(y));
        ck_near(a->out, r * channels + c, y, tol + ck_rounding(a->dtype, y));
    }
}

static void verify_fwd(const void *args)
{
    const dsc_layernorm_fwd_args *a = args;
    ck_same_on_cpu(a->out);
    ck_same_on_cpu(a->mean);
    ck_same_on_cpu(a->rstd);
    if (a->add != NULL) {
        ck_norm_near_sum(a->sum, a->in, a->add, a->dtype, a->rows * a->channels);
        ck_same(a->sum);
    }
    for (int64_t r = 0; r < a->rows; r++)
        near_row(a, r);
}

/* The case that has begun. */
static void run_fwd(int64_t rows, int64_t channels, dsc_dtype dtype, int add)
{
    const int64_t count = rows * channels;
    dsc_layernorm_fwd_args args = { .rows = rows, .channels = channels, .eps = 1e-5f, .dtype = dtype };
    args.wide = ck_norm_wide(channels);
    args.out = ck_buf(CK_OUT, dtype, count, "out");
    args.mean = ck_buf(CK_OUT, DSC_F32, rows, "mean");
    args.rstd = ck_buf(CK_OUT, DSC_F32, rows, "rstd");
    void *in = ck_norm_input(add == ADD_OVER_IN ? CK_INOUT : CK_IN, dtype, rows, channels, "in");
    void *other = add == ADD_NONE ? NULL : ck_buf(add == ADD_OVER_ADD ? CK_INOUT : CK_IN, dtype, count, "add");
    args.in = in;
    args.add = other;
    args.sum = add == ADD_APART ? ck_buf(CK_OUT, dtype, count, "sum") : add == ADD_OVER_IN ? in : other;
    args.weight = trait == NORM_BARE ? NULL : ck_buf(CK_IN, dtype, channels, "weight");
    args.bias = trait != NORM_WHOLE ? NULL : ck_buf(CK_IN, dtype, channels, "bias");
    args.plus_one = trait == NORM_PLUS_ONE;
    ck_norm_rows(in, rows, channels, CONSTANT);
    if (other != NULL)
        ck_norm_rows(other, rows, channels, CONSTANT);
    if (args.weight != NULL)
        ck_normal(args.weight, trait == NORM_PLUS_ONE ? 0 : 1, 0.3);
    if (args.bias != NULL)
        ck_normal(args.bias, 0, 0.3);
    ck_kernel(DSC_KERNEL_LAYERNORM_FWD, &args, sizeof args, verify_fwd);
}

static void check_fwd(int64_t rows, int64_t channels, dsc_dtype dtype, int add)
{
    if (ck_case("layernorm_fwd%s %s %lldx%lld%s", ck_norm_trait_text(trait), ck_dtype_text(dtype), (long long)rows,
                (long long)channels, ck_norm_add_text[add]))
        run_fwd(rows, channels, dtype, add);
}

/* ---- backward ---- */

static double x_hat_of(const dsc_layernorm_bwd_args *a, int64_t r, int64_t c)
{
    return (ck_get(a->in, ck_norm_at(r, a->channels, c)) - (double)a->mean[r]) * (double)a->rstd[r];
}

static void near_input(const dsc_layernorm_bwd_args *a, int64_t r)
{
    const int64_t channels = a->channels;
    const double count = (double)channels, chain = count / 16 + 6;
    double mean_d = 0, size_d = 0, mean_dx = 0, size_dx = 0;
    for (int64_t c = 0; c < channels; c++) {
        const double d = ck_get(a->d_out, r * channels + c) * weight_of(a->weight, c), x_hat = x_hat_of(a, r, c);
        mean_d += d / count;
        size_d += fabs(d) / count;
        mean_dx += d * x_hat / count;
        size_dx += fabs(d * x_hat) / count;
    }
    const double mean_d_off = (chain + 1) * u * size_d, mean_dx_off = (chain + 3) * u * size_dx;
    for (int64_t c = 0; c < channels; c++) {
        const int64_t i = r * channels + c;
        const double d = ck_get(a->d_out, i) * weight_of(a->weight, c), x_hat = x_hat_of(a, r, c);
        const double through = d - mean_d - x_hat * mean_dx;
        const double off = u * fabs(d) + mean_d_off + u * fabs(d - mean_d) + fabs(x_hat) * mean_dx_off +
                           2 * u * fabs(x_hat * mean_dx) + u * fabs(through);
        const double expected = (double)a->rstd[r] * through + ck_norm_residual(a->d_residual, a->d_in, i);
        const double tol = slack * ((double)a->rstd[r] * off + u * fabs(expected));
        ck_near(a->d_in, ck_norm_at(r, channels, c), expected, tol + ck_rounding(a->dtype, expected));
    }
}

/* Chains of 64 rows, then one of blocks; x_hat has two roundings and the product one. */
static void near_weights(const dsc_layernorm_bwd_args *a, int64_t c)
{
    const double chain = fmin((double)a->rows, 64) + (double)a->rows / 64 + 1;
    double weight = 0, size = 0, bias = 0, bias_size = 0;
    for (int64_t r = 0; r < a->rows; r++) {
        const double g = ck_get(a->d_out, r * a->channels + c), t = g * x_hat_of(a, r, c);
        weight += t;
        size += fabs(t);
        bias += g;
        bias_size += fabs(g);
    }
    if (a->d_weight != NULL)
        ck_near(a->d_weight, c, weight, slack * (chain + 2) * u * size);
    if (a->d_bias != NULL)
        ck_near(a->d_bias, c, bias, slack * chain * u * bias_size);
}

static void verify_bwd(const void *args)
{
    const dsc_layernorm_bwd_args *a = args;
    ck_same_on_cpu(a->d_in);
    for (int64_t r = 0; r < a->rows; r++)
        near_input(a, r);
    if (a->d_weight != NULL)
        ck_same_on_cpu(a->d_weight);
    if (a->d_bias != NULL)
        ck_same_on_cpu(a->d_bias);
    for (int64_t c = 0; c < a->channels; c++)
        near_weights(a, c);
}

/* Which gradients of weights are asked for. */
typedef enum wanted_weights { WANT_NONE, WANT_WEIGHT, WANT_BIAS, WANT_BOTH } wanted_weights;

/* The inputs that both backward checks share. mean and rstd are what a forward would have left. */
static dsc_layernorm_bwd_args bwd_case(int64_t rows, int64_t channels, dsc_dtype dtype, wanted_weights wanted,
                                       int residual)
{
    const int64_t count = rows * channels;
    void *d_in = ck_norm_input(residual == 2 ? CK_INOUT : CK_OUT, dtype, rows, channels, "d_in");
    const void *d_residual = residual == 0 ? NULL : residual == 2 ? d_in : ck_buf(CK_IN, dtype, count, "d_residual");
    const void *d_out = ck_buf(CK_IN, dtype, count, "d_out"), *in = ck_norm_input(CK_IN, dtype, rows, channels, "in");
    const void *weight = trait == NORM_BARE ? NULL : ck_buf(CK_IN, dtype, channels, "weight");
    float *mean = ck_buf(CK_IN, DSC_F32, rows, "mean"), *rstd = ck_buf(CK_IN, DSC_F32, rows, "rstd");
    ck_norm_rows(in, rows, channels, CONSTANT);
    ck_normal(d_out, 0, 1);
    if (weight != NULL)
        ck_normal(weight, trait == NORM_PLUS_ONE ? 0 : 1, 0.3);
    if (d_residual != NULL)
        ck_normal(d_residual, 0, 1);
    for (int64_t r = 0; r < rows; r++) {
        double sum = 0, squares = 0;
        for (int64_t c = 0; c < channels; c++)
            sum += ck_get(in, ck_norm_at(r, channels, c)) / (double)channels;
        for (int64_t c = 0; c < channels; c++)
            squares += pow(ck_get(in, ck_norm_at(r, channels, c)) - sum, 2) / (double)channels;
        mean[r] = (float)sum;
        rstd[r] = (float)(1 / sqrt(squares + 1e-5));
    }
    return (dsc_layernorm_bwd_args) {
        .d_in = d_in,
        .wide = ck_norm_wide(channels),
        .d_weight =
            (wanted & WANT_WEIGHT) != 0 && weight != NULL ? ck_buf(CK_OUT, DSC_F32, channels, "d_weight") : NULL,
        .d_bias = (wanted & WANT_BIAS) != 0 && trait == NORM_WHOLE ? ck_buf(CK_OUT, DSC_F32, channels, "d_bias") : NULL,
        .d_out = d_out,
        .d_residual = d_residual,
        .in = in,
        .weight = weight,
        .mean = mean,
        .rstd = rstd,
        .scratch = ck_buf(CK_SCRATCH, DSC_F32, dsc_layernorm_bwd_scratch_bytes(rows, channels) / 4, "scratch"),
        .rows = rows,
        .channels = channels,
        .dtype = dtype,
        .plus_one = trait == NORM_PLUS_ONE,
    };
}

static void check_wanted(int64_t rows, int64_t channels, dsc_dtype dtype, wanted_weights wanted, int residual)
{
    static const char *const wanted_text[] = { " frozen", " weight alone", " bias alone", "" };
    static const char *const residual_text[] = { "", " residual", " residual in place" };
    if (!ck_case("layernorm_bwd%s %s %lldx%lld%s%s", ck_norm_trait_text(trait), ck_dtype_text(dtype), (long long)rows,
                 (long long)channels, wanted_text[wanted], residual_text[residual]))
        return;
    const dsc_layernorm_bwd_args args = bwd_case(rows, channels, dtype, wanted, residual);
    ck_kernel(DSC_KERNEL_LAYERNORM_BWD, &args, sizeof args, verify_bwd);
}

static void check_bwd(int64_t rows, int64_t channels, dsc_dtype dtype, bool weights, int residual)
{
    check_wanted(rows, channels, dtype, weights ? WANT_BOTH : WANT_NONE, residual);
}

/* Rows of whole 16-byte vectors: GPUs read them once, four or one at a time. */
static void check_wide(int64_t rows, int64_t channels, dsc_dtype dtype)
{
    for (int add = ADD_NONE; add < (ck_norm_parts > 0 ? ADD_APART : ADD_COUNT); add += 1 + (int)(channels / 8 % 3)) {
        if (!ck_case("layernorm_fwd%s %s %lldx%lld%s aligned", ck_norm_trait_text(trait), ck_dtype_text(dtype),
                     (long long)rows, (long long)channels, ck_norm_add_text[add]))
            continue;
        ck_align();
        run_fwd(rows, channels, dtype, add);
    }
    if (!ck_case("layernorm_bwd%s %s %lldx%lld aligned", ck_norm_trait_text(trait), ck_dtype_text(dtype),
                 (long long)rows, (long long)channels))
        return;
    ck_align();
    const dsc_layernorm_bwd_args args = bwd_case(rows, channels, dtype, WANT_BOTH, (int)(rows % 3));
    ck_kernel(DSC_KERNEL_LAYERNORM_BWD, &args, sizeof args, verify_bwd);
}

/* loss = sum of d_out * norm(in) in double, with in[at] moved by `by`. */
static double loss_of(const dsc_layernorm_bwd_args *a, int64_t at, double by)
{
    double loss = 0, x[64];
    for (int64_t r = 0; r < a->rows; r++) {
        double mean = 0, variance = 0;
        for (int64_t c = 0; c < a->channels; c++) {
            x[c] = ck_get(a->in, ck_norm_at(r, a->channels, c)) + (r * a->channels + c == at ? by : 0);
            mean += x[c] / (double)a->channels;
        }
        for (int64_t c = 0; c < a->channels; c++)
            variance += (x[c] - mean) * (x[c] - mean) / (double)a->channels;
        for (int64_t c = 0; c < a->channels; c++) {
            const double d = ck_get(a->d_out, r * a->channels + c) * weight_of(a->weight, c);
            loss += d * (x[c] - mean) / sqrt(variance + 1e-5);
        }
    }
    return loss;
}

/* Differences are good to 1e-8 here; mean and rstd come in rounded to fp32, which the sizes of the terms multiply. */
static void verify_differences(const void *args)
{
    const dsc_layernorm_bwd_args *a = args;
    const double h = 1e-4;
    for (int64_t i = 0; i < a->rows * a->channels; i++)
        ck_near(a->d_in, i,
                (loss_of(a, i, h) - loss_of(a, i, -h)) / (2 * h) + ck_norm_residual(a->d_residual, a->d_in, i), 1e-5);
}

static void bench(dsc_dtype dtype, int64_t rows_on_gpu, int64_t channels)
{
    const int64_t rows = ck_bench_size(1024, rows_on_gpu);
    const int64_t bytes = rows * channels * (int64_t)dsc_dtype_bytes(dtype);
    const char *name = ck_dtype_text(dtype);
    if (ck_case("bench layernorm_fwd %s %lldx%lld", name, (long long)rows, (long long)channels)) {
        const void *in = ck_buf(CK_IN, dtype, rows * channels, "in");
        const void *weight = ck_buf(CK_IN, dtype, channels, "weight");
        ck_normal(in, 0, 1);
        ck_normal(weight, 1, 1);
        const dsc_layernorm_fwd_args args = {
            .out = ck_buf(CK_OUT, dtype, rows * channels, "out"), .mean = ck_buf(CK_OUT, DSC_F32, rows, "mean"),
            .rstd = ck_buf(CK_OUT, DSC_F32, rows, "rstd"), .in = in, .weight = weight, .bias = weight, .rows = rows,
            .channels = channels, .eps = 1e-5f, .dtype = dtype,
        };
        ck_bench(DSC_KERNEL_LAYERNORM_FWD, &args, sizeof args, 2 * bytes, 0, false);
    }
    if (ck_case("bench layernorm_bwd %s %lldx%lld", name, (long long)rows, (long long)channels)) {
        const dsc_layernorm_bwd_args args = bwd_case(rows, channels, dtype, WANT_BOTH, 1);
        ck_bench(DSC_KERNEL_LAYERNORM_BWD, &args, sizeof args, 4 * bytes, 0, false);
    }
}

void ck_layernorm(void)
{
    static const int64_t channels[] = { 1, 2, 7, 15, 16, 17, 31, 60, 63, 64, 65, 127, 129, 768, 1600 };
    static const ck_norm_cases check = { check_fwd, check_bwd, check_wide };
    for (trait = NORM_WHOLE; trait < NORM_TRAITS; trait++)
        ck_norm_shapes(&check, channels, DSC_COUNT(channels), trait);
    trait = NORM_WHOLE;
    for (wanted_weights wanted = WANT_WEIGHT; wanted <= WANT_BIAS; wanted++) /* the other one is frozen */
        for (dsc_dtype dtype = DSC_F32; dtype <= DSC_BF16; dtype++)
            check_wanted(70, 33, dtype, wanted, (int)dtype);
    for (int residual = 0; residual < 3; residual++)
        if (ck_case("layernorm_bwd against differences, residual %d", residual)) {
            const dsc_layernorm_bwd_args args = bwd_case(3, 5, DSC_F32, WANT_BOTH, residual);
            ck_kernel(DSC_KERNEL_LAYERNORM_BWD, &args, sizeof args, verify_differences);
        }
    if (ck_benching()) {
        bench(DSC_F32, 65536, 768);
        bench(DSC_BF16, 65536, 768);
        bench(DSC_BF16, 32768, 768);
        bench(DSC_BF16, 8192, 1600);
    }
}
