/* ck_bench.c - times the variants that passed, beside the machine's own limits. SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/ck_internal.h"

#include <stdlib.h>
#include <time.h>

enum { RUNS = 9 };

double ck_now_ns(void)
{
    struct timespec t;
    clock_gettime(ck_set_up.cpu_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median over RUNS of the time of one call; a run repeats short calls for about 2 ms. Below 0 when a call fails. */
static double median_ns(dsc_kernel_fn fn, const void *args, const dsc_cpu_threads *pool)
{
    double sample[RUNS];
    double start = ck_now_ns();
    if (fn(args, pool, NULL) != DSC_OK)
        return -1;
    const double warm_ns = ck_now_ns() - start;
    const int32_t inner = warm_ns > 2e6 ? 1 : (int32_t)(2e6 / (warm_ns + 1)) + 1;
    const int32_t runs = warm_ns > 3e8 ? 3 : RUNS;
    for (int32_t r = 0; r < runs; r++) {
        start = ck_now_ns();
        for (int32_t i = 0; i < inner; i++)
            if (fn(args, pool, NULL) != DSC_OK)
                return -1;
        sample[r] = (ck_now_ns() - start) / inner;
    }
    qsort(sample, (size_t)runs, sizeof sample[0], by_value);
    return sample[runs / 2];
}

static void print_line(const ck_variant *variant, int32_t threads, double ns, double ref_ns, int64_t bytes,
                       int64_t flops, uint32_t flags)
{
    printf("# %-36s %-11s %dt %12.0f ns", ck_case_name(), variant->name, threads, ns);
    if (bytes > 0)
        printf("  %7.2f GB/s %3.0f %% of copy", (double)bytes / ns,
               100 * (double)bytes / ns / ck_peak_bytes_per_ns(threads));
    if (flops > 0) {
        const bool bf16 = (variant->caps & DSC_CPU_AVX512_BF16) != 0 && (flags & CK_F32_PEAK) == 0;
        printf("  %7.1f GFLOP/s %3.0f %% of %s peak", (double)flops / ns,
               100 * (double)flops / ns / ck_peak_flops_per_ns(threads, bf16), bf16 ? "bf16" : "fp32");
    }
    if (ref_ns > 0)
        printf("  %6.1f x reference", ref_ns / ns);
    printf("\n");
    fflush(stdout);
}

void ck_bench(dsc_kernel kernel, const void *args, int64_t args_bytes, int64_t bytes, int64_t flops, uint32_t flags)
{
    if (!ck_benching())
        return;
    if (ck_set_up.gpu) {
        ck_device_bench(kernel, args, args_bytes, bytes, flops, (flags & CK_F32_PEAK) != 0);
        return;
    }
    double ref_ns[2] = { 0, 0 };
    dsc_kernel_fn previous = NULL;
    for (int32_t v = 0; v < CK_VARIANTS; v++) {
        if ((v == 0 && (flags & CK_NO_REF) != 0) || !ck_may_bench(kernel, v))
            continue;
        dsc_kernel_table table;
        dsc_kernel_table_init(&table, ck_variants[v].caps);
        const dsc_kernel_fn fn = table.fn[kernel];
        if (fn == NULL || (fn == previous && flops == 0))
            continue; /* the same code again; GEMM chooses inside by caps */
        previous = fn;
        const int32_t thread_counts[2] = { 1, ck_set_up.threads };
        for (int32_t t = 0; t < (ck_set_up.threads > 1 && !ck_set_up.cpu_time ? 2 : 1); t++) {
            const uint32_t caps = ck_variants[v].caps;
            const dsc_cpu_threads pool = { .threads = thread_counts[t], .caps = caps, .gemm = ck_gemm_store(caps) };
            const double ns = median_ns(fn, args, &pool);
            if (ns < 0)
                ck_fail("%s failed while it was timed", ck_variants[v].name);
            else
                print_line(&ck_variants[v], thread_counts[t], ns, v == 0 ? 0 : ref_ns[t], bytes, flops, flags);
            if (v == 0)
                ref_ns[t] = ns;
        }
    }
}
