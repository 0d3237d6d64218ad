/* bench_adam.c - time of one AdamW step per parameter, beside what a loop that only moves the same bytes takes.
 *
 *   bench_adam [--threads T] [--rounds R] [N...]      default: 2 threads, 15 rounds, N = 1000000 16000000 128000000
 *
 * Every round runs all loops once, in turn and from a different one each time, since memory bandwidth drifts within
 * seconds; ratios are taken inside a round. A line is: name value unit min .. max .. ; the value is the median.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/base.h"
#include "base/clock.h"
#include "kernels/kernels.h"

enum { ROUNDS_MAX = 1000 };

typedef struct arrays {
    float *master, *moment1, *moment2, *grad;
    uint8_t *code1, *code2; /* of the moments in 8 bits */
    float *absmax1, *absmax2;
    uint16_t *copy;
    int64_t count, threads;
    dsc_kernel_fn adamw;
} arrays;

/* Reads and writes what AdamW does, with one addition each. */
static void stream(const arrays *x)
{
    float *p = x->master, *m = x->moment1, *v = x->moment2;
    const float *g = x->grad;
    const int64_t count = x->count;
#pragma omp parallel for schedule(static) num_threads((int)x->threads)
    for (int64_t i = 0; i < count; i++) {
        p[i] += g[i];
        m[i] += g[i];
        v[i] += g[i];
    }
}

static void stream_copy(const arrays *x)
{
    float *p = x->master, *m = x->moment1, *v = x->moment2;
    const float *g = x->grad;
    uint16_t *h = x->copy;
    const int64_t count = x->count;
#pragma omp parallel for schedule(static) num_threads((int)x->threads)
    for (int64_t i = 0; i < count; i++) {
        p[i] += g[i];
        m[i] += g[i];
        v[i] += g[i];
        h[i] = (uint16_t)i;
    }
}

static void step(const arrays *x, uint16_t *copy, bool eight_bits)
{
    const dsc_cpu_threads team = { .threads = (int32_t)x->threads, .caps = dsc_cpu_caps() };
    const dsc_update_args args = {
        .master = x->master,
        .state = { eight_bits ? (void *)x->code1 : x->moment1, eight_bits ? (void *)x->code2 : x->moment2 },
        .absmax = { x->absmax1, x->absmax2 }, .grad = x->grad, .param_half = copy,
        .half_dtype = DSC_BF16, .state_dtype = eight_bits ? DSC_U8 : DSC_F32, .count = x->count,
        .scalars = { .grad_scale = 1, .beta1 = 0.9f, .beta2 = 0.999f, .one_minus_beta1 = 0.1f,
                     .one_minus_beta2 = 0.001f, .decay = 0.999999f, .step_size = 1e-4f, .inv_sqrt_bias2 = 3.0f,
                     .eps = 1e-8f },
    };
    if (x->adamw(&args, &team, NULL) != DSC_OK)
        exit(1);
}

static void adamw(const arrays *x) { step(x, NULL, false); }
static void adamw_copy(const arrays *x) { step(x, x->copy, false); }
static void adamw8_copy(const arrays *x) { step(x, x->copy, true); }

static const struct { const char *name; void (*run)(const arrays *x); double bytes; int against; } loops[] = {
    { "stream_28", stream, 28, -1 },
    { "adamw_f32", adamw, 28, 0 },
    { "stream_30", stream_copy, 30, -1 },
    { "adamw_f32_and_bf16", adamw_copy, 30, 2 },
    { "adamw_8bit_and_bf16", adamw8_copy, 18 + 16.0 / DSC_Q8_BLOCK, -1 }, /* codes are read and written */
};

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_line(const char *name, int64_t count, const char *unit, const double *sample, int rounds)
{
    double sorted[ROUNDS_MAX];
    memcpy(sorted, sample, (size_t)rounds * sizeof *sample);
    qsort(sorted, (size_t)rounds, sizeof *sorted, by_value);
    printf("%s_N%lld %.3f %s min %.3f max %.3f\n", name, (long long)count, sorted[rounds / 2], unit, sorted[0],
           sorted[rounds - 1]);
    fflush(stdout);
}

/* Page-aligned, in large pages where the system gives them, as the engine's own buffers are. */
static void *pages(int64_t bytes)
{
    void *ptr = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (ptr == MAP_FAILED) {
        fprintf(stderr, "bench_adam: no memory for %lld bytes\n", (long long)bytes);
        exit(1);
    }
    madvise(ptr, (size_t)bytes, MADV_HUGEPAGE);
    memset(ptr, 0, (size_t)bytes);
    return ptr;
}

static void bench(int64_t count, int64_t threads, int rounds)
{
    static double ns[DSC_COUNT(loops)][ROUNDS_MAX], gbs[ROUNDS_MAX], share[ROUNDS_MAX];
    dsc_kernel_table table;
    dsc_kernel_table_init(&table, dsc_cpu_caps());
    const int64_t absmax_bytes = dsc_div_ceil(count, DSC_Q8_BLOCK) * 4;
    arrays x = { .master = pages(count * 4), .moment1 = pages(count * 4), .moment2 = pages(count * 4),
                 .grad = pages(count * 4), .copy = pages(count * 2), .count = count, .threads = threads,
                 .code1 = pages(count), .code2 = pages(count), .absmax1 = pages(absmax_bytes),
                 .absmax2 = pages(absmax_bytes),
                 .adamw = table.fn[DSC_KERNEL_ADAMW] };
    for (int64_t i = 0; i < count; i++)
        x.grad[i] = (float)(i % 2001 - 1000) * 1e-6f;
    for (int round = -1; round < rounds; round++)
        for (size_t k = 0; k < DSC_COUNT(loops); k++) {
            const size_t loop = (k + (size_t)(round + 1)) % DSC_COUNT(loops);
            const int64_t start = dsc_clock_ns();
            loops[loop].run(&x);
            if (round >= 0) /* the first round warms up */
                ns[loop][round] = (double)(dsc_clock_ns() - start) / (double)count;
        }
    for (size_t k = 0; k < DSC_COUNT(loops); k++) {
        char name[64];
        print_line(loops[k].name, count, "ns/param", ns[k], rounds);
        for (int round = 0; round < rounds; round++)
            gbs[round] = loops[k].bytes / ns[k][round];
        snprintf(name, sizeof name, "%s_bandwidth", loops[k].name);
        print_line(name, count, "GB/s", gbs, rounds);
        for (int round = 0; round < rounds; round++)
            gbs[round] = 1e3 / ns[k][round];
        snprintf(name, sizeof name, "%s_rate", loops[k].name);
        print_line(name, count, "M/s", gbs, rounds);
        if (loops[k].against < 0)
            continue;
        for (int round = 0; round < rounds; round++)
            share[round] = ns[loops[k].against][round] / ns[k][round];
        snprintf(name, sizeof name, "%s_share_of_stream", loops[k].name);
        print_line(name, count, "ratio", share, rounds);
    }
    munmap(x.master, (size_t)count * 4);
    munmap(x.moment1, (size_t)count * 4);
    munmap(x.moment2, (size_t)count * 4);
    munmap(x.grad, (size_t)count * 4);
    munmap(x.copy, (size_t)count * 2);
    munmap(x.code1, (size_t)count);
    munmap(x.code2, (size_t)count);
    munmap(x.absmax1, (size_t)absmax_bytes);
    munmap(x.absmax2, (size_t)absmax_bytes);
}

int main(int argc, char **argv)
{
    int64_t threads = 2, sizes[16] = { 1000000, 16000000, 128000000 };
    int rounds = 15, size_count = 0;
    for (int i = 1; i < argc; i++) {
        const double value = i + 1 < argc ? strtod(argv[i + 1], NULL) : 0;
        if (strcmp(argv[i], "--threads") == 0 && value >= 1 && value <= 1024)
            threads = (int64_t)value, i++;
        else if (strcmp(argv[i], "--rounds") == 0 && value >= 1 && value <= ROUNDS_MAX)
            rounds = (int)value, i++;
        else if (strtod(argv[i], NULL) >= 1 && strtod(argv[i], NULL) <= 1e11 && size_count < (int)DSC_COUNT(sizes))
            sizes[size_count++] = (int64_t)strtod(argv[i], NULL);
        else {
            fprintf(stderr, "usage: bench_adam [--threads T] [--rounds R] [N...]\n");
            return 2;
        }
    }
    for (int s = 0; s < (size_count != 0 ? size_count : 3); s++)
        bench(sizes[s], threads, rounds);
    return 0;
}
