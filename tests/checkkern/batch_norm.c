/* batch_norm.c - batch norms against sums in double. SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/activation.h"

#include <math.h>

static double mean_of(const void *x, int64_t rows, int64_t channels, int64_t c, double *variance)
{
    double sum = 0, squares = 0;
    for (int64_t r = 0; r < rows; r++)
        sum += ck_get(x, r * channels + c);
    const double mean = sum / (double)rows;
    for (int64_t r = 0; r < rows; r++)
        squares += (ck_get(x, r * channels + c) - mean) * (ck_get(x, r * channels + c) - mean);
    *variance = squares / (double)rows;
    return mean;
}

static void verify_stats(const void *args)
{
    const dsc_batch_stats_args *a = args;
    const bool constant = a->running_mean != NULL;
    for (int64_t c = 0; c < a->channels; c++) {
        double variance = constant ? (double)a->running_variance[c] : 0;
        const double mean = constant ? (double)a->running_mean[c] : mean_of(a->x, a->rows, a->channels, c, &variance);
        const double rstd = 1 / sqrt(variance + (double)a->eps);
        const double unbiased =
            constant || a->rows == 1 ? variance : variance * (double)a->rows / (double)(a->rows - 1);
        ck_near(a->stats, c, mean, constant ? 0 : 4e-5);
        ck_near(a->stats, a->channels + c, rstd, 1e-4 * rstd);
        if (a->mean != NULL)
            ck_near(a->mean, c, mean, constant ? 0 : 4e-5);
        if (a->variance != NULL)
            ck_near(a->variance, c, unbiased, 1e-4 * unbiased);
    }
    ck_same_on_cpu(a->stats);
}

/* z, by the numbers that the kernel is given; *h: the normalized x. */
static double before_activation(const dsc_batch_norm_bwd_args *a, int64_t i, double *h)
{
    const int64_t c = i % a->channels;
    *h = (ck_get(a->x, i) - ck_get(a->stats, c)) * ck_get(a->stats, a->channels + c);
    const double z = *h * ck_get(a->weight, c) + ck_get(a->bias, c);
    return a->add != NULL ? z + ck_get(a->add, i) : z;
}

static void verify_fwd(const void *args)
{
    const dsc_batch_norm_fwd_args *a = args;
    for (int64_t i = 0; i < a->rows * a->channels; i++) {
        const dsc_batch_norm_bwd_args same = {
            .x = a->x, .add = a->add, .stats = a->stats, .weight = a->weight, .bias = a->bias, .channels = a->channels
        };
        double h;
        const double z = before_activation(&same, i, &h), y = a->activates ? ck_activation(a->kind, z) : z;
        const double size = fabs(z) + fabs(h) + 4,
                     rounding = 2 * ck_rounding(a->dtype, size) + ck_rounding(a->dtype, y);
        ck_near(a->out, i, y, 1e-5 * size + 1.2 * rounding);
    }
}

/* A slope may change by all where z is within a rounding of a corner; such rows are left out by the case. */
static double gradient_of(const dsc_batch_norm_bwd_args *a, int64_t i, double *h)
{
    const double z = before_activation(a, i, h), d = ck_get(a->d_out, i);
    return a->activates ? d * ck_activation_slope(a->kind, z) : d;
}

static void verify_bwd(const void *args)
{
    const dsc_batch_norm_bwd_args *a = args;
    const int64_t n = a->channels;
    const double unit = a->dtype == DSC_F32 ? 1e-5 : a->dtype == DSC_F16 ? 4e-3 : 3e-2;
    for (int64_t c = 0; c < n; c++) {
        double sum = 0, along = 0, h;
        for (int64_t r = 0; r < a->rows; r++) {
            const double d = gradient_of(a, r * n + c, &h);
            sum += d;
            along += d * h;
        }
        const double rows = (double)a->rows, tolerance = unit * (4 * sqrt(rows) + 4);
        if (a->d_bias != NULL)
            ck_near(a->d_bias, c, sum, tolerance);
        if (a->d_weight != NULL)
            ck_near(a->d_weight, c, along, 2 * tolerance);
        for (int64_t r = 0; r < a->rows; r++) {
            const double d = gradient_of(a, r * n + c, &h);
            const double factor = ck_get(a->weight, c) * ck_get(a->stats, n + c);
            const double dx = factor * (a->constant ? d : d - sum / rows - h * along / rows);
            ck_near(a->d_x, r * n + c, dx, unit * 8 * (fabs(factor) + 0.1) * (fabs(d) + fabs(h) + 1));
            if (a->d_add != NULL)
                ck_near(a->d_add, r * n + c, d, unit * (fabs(d) + 1));
        }
    }
}

static void check_stats(int64_t rows, int64_t channels, dsc_dtype dtype, bool constant, bool wanted)
{
    if (!ck_case("batch_stats %s %lldx%lld%s%s", ck_dtype_text(dtype), (long long)rows, (long long)channels,
                 constant ? " running" : "", wanted ? " with statistics" : ""))
        return;
    const void *x = ck_buf(CK_IN, dtype, rows * channels, "x");
    const float *mean = ck_buf(CK_IN, DSC_F32, channels, "running_mean");
    const float *variance = ck_buf(CK_IN, DSC_F32, channels, "running_variance");
    ck_normal(x, 2, 1);
    ck_normal(mean, 0, 1);
    ck_uniform(variance, 0.1, 2);
    const dsc_batch_stats_args args = { .stats = ck_buf(CK_OUT, DSC_F32, 2 * channels, "stats"),
                                        .mean = wanted ? ck_buf(CK_OUT, DSC_F32, channels, "mean") : NULL,
                                        .variance = wanted ? ck_buf(CK_OUT, DSC_F32, channels, "variance") : NULL,
                                        .x = x,
                                        .running_mean = constant ? mean : NULL,
                                        .running_variance = constant ? variance : NULL,
                                        .scratch = ck_buf(CK_SCRATCH, DSC_F32, dsc_batch_norm_scratch(rows, channels),
                                                          "scratch"),
                                        .rows = rows,
                                        .channels = channels,
                                        .eps = 1e-3f,
                                        .dtype = dtype };
    ck_kernel(DSC_KERNEL_BATCH_STATS, &args, sizeof args, verify_stats);
}

typedef struct norm_case {
    int64_t rows, channels;
    dsc_dtype dtype;
    bool adds, constant;
    int kind; /* -1: no activation */
} norm_case;

/* x, and the other tensors of both directions. Where an activation has corners, z stays away from them: h is -1 or 1,
 * the weight 1/2, the bias 1/8 and the residual a multiple of 2. */
static dsc_batch_norm_bwd_args begin(const norm_case *of)
{
    const int64_t n = of->channels, count = of->rows * n;
    dsc_batch_norm_bwd_args a = { .x = ck_buf(CK_IN, of->dtype, count, "x"),
                                  .add = of->adds ? ck_buf(CK_IN, of->dtype, count, "add") : NULL,
                                  .stats = ck_buf(CK_IN, DSC_F32, 2 * n, "stats"),
                                  .weight = ck_buf(CK_IN, of->dtype, n, "weight"),
                                  .bias = ck_buf(CK_IN, of->dtype, n, "bias"),
                                  .rows = of->rows,
                                  .channels = n,
                                  .activates = of->kind >= 0,
                                  .constant = of->constant,
                                  .kind = of->kind >= 0 ? (dsc_activation)of->kind : DSC_GELU_TANH,
                                  .dtype = of->dtype };
    ck_normal(a.x, 0, 1);
    ck_normal(a.stats, 0, 0.5);
    ck_normal(a.weight, 1, 0.2);
    ck_normal(a.bias, 0, 0.2);
    if (a.add != NULL)
        ck_normal(a.add, 0, 2);
    for (int64_t c = 0; c < n; c++)
        ck_set(a.stats, n + c, 0.5 + 0.125 * (double)(c % 8));
    for (int64_t c = 0; c < n && a.activates; c++) {
        ck_set(a.stats, c, 0);
        ck_set(a.stats, n + c, 1);
        ck_set(a.weight, c, 0.5);
        ck_set(a.bias, c, 0.125);
    }
    for (int64_t i = 0; i < count && a.activates; i++) {
        ck_set(a.x, i, ck_get(a.x, i) > 0 ? 1 : -1);
        if (a.add != NULL)
            ck_set(a.add, i, 2 * floor(ck_get(a.add, i)));
    }
    return a;
}

static dsc_batch_norm_fwd_args fwd_args(const norm_case *of)
{
    const dsc_batch_norm_bwd_args a = begin(of);
    return (dsc_batch_norm_fwd_args) { .out = ck_buf(CK_OUT, of->dtype, of->rows * of->channels, "out"),
                                       .x = a.x,
                                       .add = a.add,
                                       .stats = a.stats,
                                       .weight = a.weight,
                                       .bias = a.bias,
                                       .rows = a.rows,
                                       .channels = a.channels,
                                       .activates = a.activates,
                                       .kind = a.kind,
                                       .dtype = a.dtype };
}

static dsc_batch_norm_bwd_args bwd_args(const norm_case *of)
{
    dsc_batch_norm_bwd_args args = begin(of);
    args.d_out = ck_buf(CK_IN, of->dtype, of->rows * of->channels, "d_out");
    ck_normal(args.d_out, 0, 1);
    args.d_x = ck_buf(CK_OUT, of->dtype, of->rows * of->channels, "d_x");
    args.d_add = of->adds ? ck_buf(CK_OUT, of->dtype, of->rows * of->channels, "d_add") : NULL;
    args.d_weight = ck_buf(CK_OUT, DSC_F32, of->channels, "d_weight");
    args.d_bias = ck_buf(CK_OUT, DSC_F32, of->channels, "d_bias");
    args.scratch = ck_buf(CK_SCRATCH, DSC_F32, dsc_batch_norm_scratch(of->rows, of->channels), "scratch");
    return args;
}

static void check_norm(const norm_case *of)
{
    const char *activation = of->kind >= 0 ? ck_activation_names[of->kind] : "plain";
    if (ck_case("batch_norm_fwd %s %s %lldx%lld%s", activation, ck_dtype_text(of->dtype), (long long)of->rows,
                (long long)of->channels, of->adds ? " + add" : "")) {
        const dsc_batch_norm_fwd_args args = fwd_args(of);
        ck_kernel(DSC_KERNEL_BATCH_NORM_FWD, &args, sizeof args, verify_fwd);
    }
    if (!ck_case("batch_norm_bwd %s %s %lldx%lld%s%s", activation, ck_dtype_text(of->dtype), (long long)of->rows,
                 (long long)of->channels, of->adds ? " + add" : "", of->constant ? " constant" : ""))
        return;
    const dsc_batch_norm_bwd_args args = bwd_args(of);
    ck_kernel(DSC_KERNEL_BATCH_NORM_BWD, &args, sizeof args, verify_bwd);
}

/* ---- groups of micro-batches ---- */

/* Sums in double, whatever their order. */
static void verify_join(const void *args)
{
    const dsc_batch_norm_join_args *a = args;
    const int64_t count = a->ranks * a->each, n = a->channels;
    const double rows = (double)a->rows, all = rows * (double)count;
    for (int64_t c = 0; c < n; c++) {
        double sum[2] = { 0, 0 }, squares = 0;
        for (int64_t k = 0; k < count; k++)
            for (int which = 0; which < 2; which++)
                sum[which] += (double)a->parts[(2 * k + which) * n + c];
        const double mean = sum[0] / (double)count;
        for (int64_t k = 0; k < count; k++) {
            const double apart = (double)a->parts[2 * k * n + c] - mean;
            squares += (double)a->parts[(2 * k + 1) * n + c] * (rows > 1 ? rows - 1 : 1) + rows * apart * apart;
        }
        const double rstd = 1 / sqrt(squares / all + (double)a->eps);
        ck_near(a->out, c, a->gradients ? sum[0] / all : mean, 1e-6);
        ck_near(a->out, n + c, a->gradients ? sum[1] / all : rstd, 1e-6 * (a->gradients ? 1 : rstd));
        if (a->mean != NULL)
            ck_near(a->mean, c, mean, 1e-6);
        if (a->variance != NULL)
            ck_near(a->variance, c, squares / (all > 1 ? all - 1 : 1), 1e-6 * (1 + squares / all));
    }
    ck_same_on_cpu(a->out);
}

static void check_join(int64_t ranks, int64_t each, int64_t rows, int64_t channels, bool gradients)
{
    if (!ck_case("batch_norm_join %s %lldx%lld of %lldx%lld", gradients ? "gradients" : "statistics", (long long)ranks,
                 (long long)each, (long long)rows, (long long)channels))
        return;
    const float *parts = ck_buf(CK_IN, DSC_F32, ranks * each * 2 * channels, "parts");
    ck_uniform(parts, 0.1, 2);
    const bool wanted = !gradients && each > 1;
    const dsc_batch_norm_join_args args = { .out = ck_buf(CK_OUT, DSC_F32, 2 * channels, "out"),
                                            .mean = wanted ? ck_buf(CK_OUT, DSC_F32, channels, "mean") : NULL,
                                            .variance = wanted ? ck_buf(CK_OUT, DSC_F32, channels, "variance") : NULL,
                                            .parts = parts,
                                            .ranks = ranks,
                                            .each = each,
                                            .rows = rows,
                                            .channels = channels,
                                            .eps = 1e-3f,
                                            .gradients = gradients };
    ck_kernel(DSC_KERNEL_BATCH_NORM_JOIN, &args, sizeof args, verify_join);
}

/* A matrix in two halves is the whole one: sums of each, their means, and the second half's d_x. */
static float joined_means[2 * 328];

static void verify_joined(const void *args)
{
    const dsc_batch_norm_bwd_args *a = args;
    const double unit = a->dtype == DSC_F32 ? 1e-5 : a->dtype == DSC_F16 ? 4e-3 : 3e-2;
    for (int64_t i = 0; i < a->rows * a->channels; i++) {
        double h;
        const int64_t c = i % a->channels;
        const double d = gradient_of(a, i, &h), factor = ck_get(a->weight, c) * ck_get(a->stats, a->channels + c);
        const double sum = (double)joined_means[c], along = (double)joined_means[a->channels + c];
        ck_near(a->d_x, i, factor * (d - sum - h * along), unit * 8 * (fabs(factor) + 0.1) * (fabs(d) + fabs(h) + 1));
        if (a->d_add != NULL)
            ck_near(a->d_add, i, d, unit * (fabs(d) + 1));
    }
}

static void check_joined(const norm_case *of)
{
    if (!ck_case("batch_norm_bwd joined %s %lldx%lld", ck_dtype_text(of->dtype), (long long)of->rows,
                 (long long)of->channels))
        return;
    dsc_batch_norm_bwd_args args = bwd_args(of);
    args.scratch = ck_buf(CK_INOUT, DSC_F32, dsc_batch_norm_scratch(of->rows, of->channels), "means");
    args.d_weight = args.d_bias = NULL;
    args.joined = true;
    ck_uniform(args.scratch, -0.2, 0.2);
    for (int64_t i = 0; i < 2 * of->channels; i++)
        joined_means[i] = (float)ck_get(args.scratch, 2 * dsc_batch_norm_parts(of->rows) * of->channels + i);
    ck_kernel(DSC_KERNEL_BATCH_NORM_BWD, &args, sizeof args, verify_joined);
}

/* The three passes of a layer in front of a ReLU. */
static void bench(int64_t rows_on_gpu, int64_t channels, dsc_dtype dtype)
{
    const norm_case of = {
        .rows = ck_bench_size(1024, rows_on_gpu), .channels = channels, .dtype = dtype, .kind = DSC_RELU
    };
    const int64_t bytes = of.rows * channels * (int64_t)dsc_dtype_bytes(dtype);
    const char *name = ck_dtype_text(dtype);
    if (ck_case("bench batch_stats %s %lldx%lld", name, (long long)of.rows, (long long)channels)) {
        const dsc_batch_stats_args args = { .stats = ck_buf(CK_OUT, DSC_F32, 2 * channels, "stats"),
                                            .x = ck_buf(CK_IN, dtype, of.rows * channels, "x"),
                                            .scratch = ck_buf(CK_SCRATCH, DSC_F32,
                                                              dsc_batch_norm_scratch(of.rows, channels), "scratch"),
                                            .rows = of.rows,
                                            .channels = channels,
                                            .eps = 1e-3f,
                                            .dtype = dtype };
        ck_bench(DSC_KERNEL_BATCH_STATS, &args, sizeof args, bytes, 0, 0);
    }
    if (ck_case("bench batch_norm_fwd %s %lldx%lld", name, (long long)of.rows, (long long)channels)) {
        const dsc_batch_norm_fwd_args args = fwd_args(&of);
        ck_bench(DSC_KERNEL_BATCH_NORM_FWD, &args, sizeof args, 2 * bytes, 0, 0);
    }
    if (ck_case("bench batch_norm_bwd %s %lldx%lld", name, (long long)of.rows, (long long)channels)) {
        const dsc_batch_norm_bwd_args args = bwd_args(&of);
        ck_bench(DSC_KERNEL_BATCH_NORM_BWD, &args, sizeof args, 5 * bytes, 0, 0);
    }
}

void ck_batch_norm(void)
{
    static const int64_t shapes[][2] = { { 1, 1 }, { 2, 5 }, { 63, 33 }, { 130, 64 }, { 333, 7 }, { 700, 16 } };
    static const int kinds[] = { -1, DSC_RELU, DSC_RELU6, DSC_SILU, DSC_HARD_SWISH };
    for (dsc_dtype dtype = DSC_F32; dtype <= DSC_F16; dtype++)
        for (size_t s = 0; s < DSC_COUNT(shapes); s++) {
            check_stats(shapes[s][0], shapes[s][1], dtype, false, s % 2 == 0);
            check_stats(shapes[s][0], shapes[s][1], dtype, true, s % 2 == 1);
            for (size_t k = 0; k < DSC_COUNT(kinds); k++) {
                const bool odd = (s + k + (size_t)dtype) % 2 == 1;
                check_norm(&(norm_case) { shapes[s][0], shapes[s][1], dtype, odd, (s + k) % 3 == 0, kinds[k] });
            }
        }
    /* Several tiles of columns, with the last one in part. */
    check_stats(70, 328, DSC_BF16, false, true);
    check_norm(&(norm_case) { 70, 328, DSC_BF16, true, false, DSC_RELU });
    check_joined(&(norm_case) { 70, 328, DSC_BF16, true, false, DSC_RELU });
    check_joined(&(norm_case) { 63, 33, DSC_F32, false, false, DSC_SILU });
    for (int gradients = 0; gradients < 2; gradients++) {
        check_join(1, 1, 1, 3, gradients != 0);
        check_join(3, 2, 63, 33, gradients != 0);
        check_join(4, 1, 130, 300, gradients != 0);
    }
    /* More rows than parts of 64: parts grow. */
    if (!ck_shortened())
        check_stats(DSC_BATCH_NORM_PARTS * DSC_BATCH_NORM_PART_ROWS + 77, 3, DSC_F32, false, true);
    if (ck_benching()) {
        bench(401408, 64, DSC_BF16);
        bench(25088, 1024, DSC_BF16);
    }
}
