/* rmsnorm.c - RMS normalisation: every variant bitwise as the reference, and the reference against double within a
 * bound that adds up its roundings. u = 2^-24; K additions in L lanes make chains of K / L and a tree.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/norm.h"

#include <math.h>

static const double u = 0x1p-24, slack = 1.01; /* second-order terms */
static const double CONSTANT = 0; /* value of the empty rows */

/* The variant of the cases. */
static ck_norm_trait trait;

static double weight_of(const void *weight, int64_t c)
{
    return weight == NULL ? 1 : ck_get(weight, c) + (trait == NORM_PLUS_ONE ? 1 : 0);
}

/* ---- forward ---- */

static void near_row(const dsc_rmsnorm_fwd_args *a, int64_t r)
{
    const void *in = a->add != NULL ? a->sum : a->in;
    const int64_t channels = a->channels;
    const double count = (double)channels, chain = count / 64 + 8;
    double squares = 0;
    for (int64_t c = 0; c < channels; c++)
        squares += pow(ck_get(in, ck_norm_at(r, channels, c)), 2) / count;
    const double rstd = 1 / sqrt(squares + (double)a->eps);
    const double rstd_off = rstd * (0.5 * (1 + chain) * u * squares / (squares + (double)a->eps) + 3 * u);
    ck_near(a->rstd, r, rstd, slack * rstd_off);
    for (int64_t c = 0; c < channels; c++) {
        const double x = ck_get(in, ck_norm_at(r, channels, c)), weight = weight_of(a->weight, c),
                     y = x * rstd * weight;
        const double off = fabs(x * weight) * rstd_off + 2 * u * fabs(y) + 0x1p-148;
        ck_near(a->out, r * channels + c, y, slack * off + ck_rounding(a->dtype, y));
    }
}

static void verify_fwd(const void *args)
{
    const dsc_rmsnorm_fwd_args *a = args;
    ck_same_on_cpu(a->out);
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
    dsc_rmsnorm_fwd_args args = { .rows = rows, .channels = channels, .eps = 1e-5f, .dtype = dtype };
    args.wide = ck_norm_wide(channels);
    args.out = ck_buf(CK_OUT, dtype, count, "out");
    args.rstd = ck_buf(CK_OUT, DSC_F32, rows, "rstd");
    void *in = ck_norm_input(add == ADD_OVER_IN ? CK_INOUT : CK_IN, dtype, rows, channels, "in");
    void *other = add == ADD_NONE ? NULL : ck_buf(add == ADD_OVER_ADD ? CK_INOUT : CK_IN, dtype, count, "add");
    args.in = in;
    args.add = other;
    args.sum = add == ADD_APART ? ck_buf(CK_OUT, dtype, count, "sum") : add == ADD_OVER_IN ? in : other;
    args.weight = trait == NORM_BARE ? NULL : ck_buf(CK_IN, dtype, channels, "weight");
    args.plus_one = trait == NORM_PLUS_ONE;
    ck_norm_rows(in, rows, channels, CONSTANT);
    if (other != NULL)
        ck_norm_rows(other, rows, channels, CONSTANT);
    if (args.weight != NULL)
        ck_normal(args.weight, trait == NORM_PLUS_ONE ? 0 : 1, 0.3);
    ck_kernel(DSC_KERNEL_RMSNORM_FWD, &args, sizeof args, verify_fwd);
}

static void check_fwd(int64_t rows, int64_t channels, dsc_dtype dtype, int add)
{
    if (ck_case("rmsnorm_fwd%s %s %lldx%lld%s", ck_norm_trait_text(trait), ck_dtype_text(dtype), (long long)rows,
                (long long)channels, ck_norm_add_text[add]))
        run_fwd(rows, channels, dtype, add);
}

/* ---- backward ---- */

static double x_hat_of(const dsc_rmsnorm_bwd_args *a, int64_t r, int64_t c)
{
    return ck_get(a->in, ck_norm_at(r, a->channels, c)) * (double)a->rstd[r];
}

static void near_input(const dsc_rmsnorm_bwd_args *a, int64_t r)
{
    const int64_t channels = a->channels;
    const double count = (double)channels, chain = count / 16 + 6;
    double mean = 0, size = 0;
    for (int64_t c = 0; c < channels; c++) {
        const double t = ck_get(a->d_out, r * channels + c) * weight_of(a->weight, c) * x_hat_of(a, r, c);
        mean += t / count;
        size += fabs(t) / count;
    }
    const double mean_off = (chain + 3) * u * size;
    for (int64_t c = 0; c < channels; c++) {
        const int64_t i = r * channels + c;
        const double d = ck_get(a->d_out, i) * weight_of(a->weight, c), x_hat = x_hat_of(a, r, c);
        const double through = d - x_hat * mean;
        const double off = u * fabs(d) + fabs(x_hat) * mean_off + u * fabs(x_hat * mean) + u * fabs(through);
        const double expected = (double)a->rstd[r] * through + ck_norm_residual(a->d_residual, a->d_in, i);
        const double tol = slack * ((double)a->rstd[r] * off + u * fabs(expected)) + 0x1p-148;
        ck_near(a->d_in, ck_norm_at(r, channels, c), expected, tol + ck_rounding(a->dtype, expected));
    }
}

/* Chains of 64 rows, then one of blocks; x_hat has one rounding and the product one. */
static void near_weight(const dsc_rmsnorm_bwd_args *a, int64_t c)
{
    const double chain = fmin((double)a->rows, 64) + (double)a->rows / 64 + 1;
    double weight = 0, size = 0;
    for (int64_t r = 0; r < a->rows; r++) {
        const double t = ck_get(a->d_out, r * a->channels + c) * x_hat_of(a, r, c);
        weight += t;
        size += fabs(t);
    }
    ck_near(a->d_weight, c, weight, slack * (chain + 1) * u * size);
}

static void verify_bwd(const void *args)
{
    const dsc_rmsnorm_bwd_args *a = args;
    ck_same_on_cpu(a->d_in);
    for (int64_t r = 0; r < a->rows; r++)
        near_input(a, r);
    if (a->d_weight == NULL)
        return;
    ck_same_on_cpu(a->d_weight);
    for (int64_t c = 0; c < a->channels; c++)
        near_weight(a, c);
}

/* The inputs that all backward checks share. rstd is what a forward would have left. residual: none, apart, in
 * place. */
static dsc_rmsnorm_bwd_args bwd_case(int64_t rows, int64_t channels, dsc_dtype dtype, bool weight, int residual)
{
    const int64_t count = rows * channels;
    dsc_rmsnorm_bwd_args args = { .rows = rows, .channels = channels, .dtype = dtype };
    args.wide = ck_norm_wide(channels);
    args.d_in = ck_norm_input(residual == 2 ? CK_INOUT : CK_OUT, dtype, rows, channels, "d_in");
    args.d_residual = residual == 0 ? NULL : residual == 2 ? args.d_in : ck_buf(CK_IN, dtype, count, "d_residual");
    args.d_out = ck_buf(CK_IN, dtype, count, "d_out");
    args.in = ck_norm_input(CK_IN, dtype, rows, channels, "in");
    args.weight = trait == NORM_BARE ? NULL : ck_buf(CK_IN, dtype, channels, "weight");
    args.plus_one = trait == NORM_PLUS_ONE;
    args.d_weight = weight && trait != NORM_BARE ? ck_buf(CK_OUT, DSC_F32, channels, "d_weight") : NULL;
    args.scratch = ck_buf(CK_SCRATCH, DSC_F32, dsc_rmsnorm_bwd_scratch_bytes(rows, channels) / 4, "scratch");
    float *rstd = ck_buf(CK_IN, DSC_F32, rows, "rstd");
    args.rstd = rstd;
    ck_norm_rows(args.in, rows, channels, CONSTANT);
    ck_normal(args.d_out, 0, 1);
    if (args.weight != NULL)
        ck_normal(args.weight, trait == NORM_PLUS_ONE ? 0 : 1, 0.3);
    if (args.d_residual != NULL)
        ck_normal(args.d_residual, 0, 1);
    for (int64_t r = 0; r < rows; r++) {
        double squares = 0;
        for (int64_t c = 0; c < channels; c++)
            squares += pow(ck_get(args.in, ck_norm_at(r, channels, c)), 2) / (double)channels;
        rstd[r] = (float)(1 / sqrt(squares + 1e-5));
    }
    return args;
}

static void check_bwd(int64_t rows, int64_t channels, dsc_dtype dtype, bool weight, int residual)
{
    static const char *const residual_text[] = { "", " residual", " residual in place" };
    if (!ck_case("rmsnorm_bwd%s %s %lldx%lld%s%s", ck_norm_trait_text(trait), ck_dtype_text(dtype), (long long)rows,
                 (long long)channels, weight ? "" : " frozen", residual_text[residual]))
        return;
    const dsc_rmsnorm_bwd_args args = bwd_case(rows, channels, dtype, weight, residual);
    ck_kernel(DSC_KERNEL_RMSNORM_BWD, &args, sizeof args, verify_bwd);
}

/* Rows of whole 16-byte vectors: GPUs read them once, four or one at a time. */
static void check_wide(int64_t rows, int64_t channels, dsc_dtype dtype)
{
    for (int add = ADD_NONE; add < (ck_norm_parts > 0 ? ADD_APART : ADD_COUNT); add += 1 + (int)(channels / 8 % 3)) {
        if (!ck_case("rmsnorm_fwd%s %s %lldx%lld%s aligned", ck_norm_trait_text(trait), ck_dtype_text(dtype),
                     (long long)rows, (long long)channels, ck_norm_add_text[add]))
            continue;
        ck_align();
        run_fwd(rows, channels, dtype, add);
    }
    if (!ck_case("rmsnorm_bwd%s %s %lldx%lld aligned", ck_norm_trait_text(trait), ck_dtype_text(dtype), (long long)rows,
                 (long long)channels))
        return;
    ck_align();
    const dsc_rmsnorm_bwd_args args = bwd_case(rows, channels, dtype, true, (int)(rows % 3));
    ck_kernel(DSC_KERNEL_RMSNORM_BWD, &args, sizeof args, verify_bwd);
}

/* loss = sum of d_out * norm(in) in double, with in[at] moved by `by` or weight[at] by `by`. */
static double loss_of(const dsc_rmsnorm_bwd_args *a, int64_t at, double by, bool weight)
{
    double loss = 0, x[64];
    for (int64_t r = 0; r < a->rows; r++) {
        double squares = 0;
        for (int64_t c = 0; c < a->channels; c++) {
            x[c] = ck_get(a->in, ck_norm_at(r, a->channels, c)) + (!weight && r * a->channels + c == at ? by : 0);
            squares += x[c] * x[c] / (double)a->channels;
        }
        for (int64_t c = 0; c < a->channels; c++) {
            const double w = weight_of(a->weight, c) + (weight && c == at ? by : 0);
            loss += ck_get(a->d_out, r * a->channels + c) * w * x[c] / sqrt(squares + 1e-5);
        }
    }
    return loss;
}

/* Differences are good to 1e-8 here; rstd comes in rounded to fp32, which the sizes of the terms multiply. */
static void verify_differences(const void *args)
{
    const dsc_rmsnorm_bwd_args *a = args;
    const double h = 1e-4;
    for (int64_t i = 0; i < a->rows * a->channels; i++)
        ck_near(a->d_in, i,
                (loss_of(a, i, h, false) - loss_of(a, i, -h, false)) / (2 * h) +
                    ck_norm_residual(a->d_residual, a->d_in, i), 1e-5);
    for (int64_t c = 0; c < a->channels; c++)
        ck_near(a->d_weight, c, (loss_of(a, c, h, true) - loss_of(a, c, -h, true)) / (2 * h), 1e-5);
}

static void bench(dsc_dtype dtype)
{
    const int64_t rows = ck_bench_size(512, 16384), channels = 4096;
    const int64_t bytes = rows * channels * (int64_t)dsc_dtype_bytes(dtype);
    const char *name = ck_dtype_text(dtype);
    for (int add = 0; add < 2; add++)
        if (ck_case("bench rmsnorm_fwd %s%s %lldx4096", name, add != 0 ? " add" : "", (long long)rows)) {
            void *in = ck_buf(add != 0 ? CK_INOUT : CK_IN, dtype, rows * channels, "in");
            const void *weight = ck_buf(CK_IN, dtype, channels, "weight");
            const void *other = add != 0 ? ck_buf(CK_IN, dtype, rows * channels, "add") : NULL;
            ck_uniform(in, -2, 2);
            ck_uniform(weight, 0, 2);
            if (add != 0)
                ck_uniform(other, -0.01, 0.01);
            const dsc_rmsnorm_fwd_args args = {
                .out = ck_buf(CK_OUT, dtype, rows * channels, "out"), .sum = add != 0 ? in : NULL, .add = other,
                .rstd = ck_buf(CK_OUT, DSC_F32, rows, "rstd"), .in = in, .weight = weight, .rows = rows,
                .channels = channels, .eps = 1e-5f, .dtype = dtype,
            };
            ck_bench(DSC_KERNEL_RMSNORM_FWD, &args, sizeof args, (add != 0 ? 4 : 2) * bytes, 0, false);
        }
    if (ck_case("bench rmsnorm_bwd %s %lldx4096", name, (long long)rows)) {
        const dsc_rmsnorm_bwd_args args = bwd_case(rows, channels, dtype, true, 1);
        ck_bench(DSC_KERNEL_RMSNORM_BWD, &args, sizeof args, 4 * bytes, 0, false);
    }
}

void ck_rmsnorm(void)
{
    static const int64_t channels[] = { 1, 2, 7, 15, 16, 17, 31, 60, 64, 65, 128, 129, 256, 896, 1600, 2304, 4104 };
    static const ck_norm_cases check = { check_fwd, check_bwd, check_wide };
    for (trait = NORM_WHOLE; trait < NORM_TRAITS; trait++)
        ck_norm_shapes(&check, channels, DSC_COUNT(channels), trait);
    trait = NORM_WHOLE;
    for (int residual = 0; residual < 3; residual++)
        if (ck_case("rmsnorm_bwd against differences, residual %d", residual)) {
            const dsc_rmsnorm_bwd_args args = bwd_case(3, 5, DSC_F32, true, residual);
            ck_kernel(DSC_KERNEL_RMSNORM_BWD, &args, sizeof args, verify_differences);
        }
    if (ck_benching()) {
        bench(DSC_F32);
        bench(DSC_BF16);
    }
}
