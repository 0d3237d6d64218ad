/* ck_peak.c - peaks of this machine: copy bandwidth and multiply-adds. Measured once per thread count.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/ck_internal.h"

#include <stdlib.h>
#include <string.h>

enum { THREADS_MAX = 64, COPY_BYTES = 64 << 20, PASSES = 5 };

static void copy_all(char *to, const char *from, int32_t threads)
{
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int32_t t = 0; t < threads; t++) {
        const int64_t first = (int64_t)COPY_BYTES * t / threads, last = (int64_t)COPY_BYTES * (t + 1) / threads;
        memcpy(to + first, from + first, (size_t)(last - first));
    }
}

double ck_peak_bytes_per_ns(int32_t threads)
{
    static double known[THREADS_MAX + 1];
    if (threads > THREADS_MAX)
        threads = THREADS_MAX;
    if (known[threads] > 0)
        return known[threads];
    char *a = malloc(COPY_BYTES), *b = malloc(COPY_BYTES);
    double best = 1e30;
    if (a != NULL && b != NULL) {
        memset(a, 1, COPY_BYTES);
        copy_all(b, a, threads);
        for (int32_t i = 0; i < PASSES; i++) {
            const double start = ck_now_ns();
            copy_all(b, a, threads);
            const double ns = ck_now_ns() - start;
            best = ns < best ? ns : best;
        }
    }
    free(a);
    free(b);
    known[threads] = 2.0 * COPY_BYTES / best;
    return known[threads];
}

static double fma_loop(bool bf16, int64_t rounds)
{
    const uint32_t caps = dsc_cpu_caps();
    if (bf16 && (caps & DSC_CPU_AVX512_BF16) != 0)
        return ck_fma_loop_avx512bf16(rounds);
    if ((caps & DSC_CPU_AVX512) != 0)
        return ck_fma_loop_avx512(rounds);
    if ((caps & DSC_CPU_AVX2) != 0)
        return ck_fma_loop_avx2(rounds);
    return 0;
}

double ck_peak_flops_per_ns(int32_t threads, bool bf16)
{
    static double known[2][THREADS_MAX + 1];
    if (threads > THREADS_MAX)
        threads = THREADS_MAX;
    if (known[bf16][threads] > 0)
        return known[bf16][threads];
    double best = 0;
    for (int32_t i = 0; i < PASSES; i++) {
        double flops = 0;
        const double start = ck_now_ns();
#pragma omp parallel for schedule(static) num_threads(threads) reduction(+ : flops)
        for (int32_t t = 0; t < threads; t++)
            flops += fma_loop(bf16, 400000);
        const double rate = flops / (ck_now_ns() - start);
        best = rate > best ? rate : best;
    }
    known[bf16][threads] = best > 0 ? best : 1;
    return known[bf16][threads];
}
