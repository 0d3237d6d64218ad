/* test_gemm.c - prepared products of a device: memory, limits, threads, and equal bits from every caller.
 * The numbers themselves are checked by tests/checkkern/gemm.c. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>
#include <omp.h>
#include <pthread.h>

#include "base/bf16.h"
#include "kernels/device.h"
#include "kernels/thread_pool.h"

#define OK(call) assert_int_equal((call), DSC_OK)

typedef struct fixture {
    dsc_alloc *alloc;
    dsc_device *device;
    dsc_stream *compute, *async;
    uint16_t *a, *b;
    float *c, *d;
} fixture;

enum { ELEMENTS = 1 << 20 };

static void open_team(fixture *f, int32_t threads)
{
    memset(f, 0, sizeof *f);
    OK(dsc_alloc_open(&f->alloc, NULL));
    const dsc_device_options options = { .alloc = f->alloc, .threads = threads, .caps = dsc_cpu_caps() };
    OK(dsc_device_open(&dsc_device_cpu, &f->device, &options, NULL));
    OK(dsc_stream_open(f->device, DSC_STREAM_COMPUTE, "compute", &f->compute, NULL));
    OK(dsc_stream_open(f->device, DSC_STREAM_ASYNC, "async", &f->async, NULL));
    f->a = malloc(ELEMENTS * sizeof *f->a);
    f->b = malloc(ELEMENTS * sizeof *f->b);
    f->c = malloc(ELEMENTS * sizeof *f->c);
    f->d = malloc(ELEMENTS * sizeof *f->d);
    assert_true(f->a != NULL && f->b != NULL && f->c != NULL && f->d != NULL);
    for (int i = 0; i < ELEMENTS; i++) {
        f->a[i] = dsc_bf16_from_f32((float)(i * 37 % 101 - 50) / 64);
        f->b[i] = dsc_bf16_from_f32((float)(i * 53 % 89 - 44) / 64);
    }
}

static void open_all(fixture *f) { open_team(f, 2); }

static void close_all(fixture *f)
{
    free(f->a);
    free(f->b);
    free(f->c);
    free(f->d);
    dsc_stream_close(&f->async);
    dsc_stream_close(&f->compute);
    dsc_device_close(&f->device);
    dsc_alloc_close(&f->alloc);
}

static dsc_gemm_args square(const fixture *f, int64_t n, float *c)
{
    return (dsc_gemm_args){ .a = f->a, .b = f->b, .c = c, .m = n, .n = n, .k = n, .lda = n, .ldb = n, .ldc = n,
                            .a_transposed = true, .ab_dtype = DSC_BF16, .c_dtype = DSC_F32 };
}

static void test_a_prepared_product_allocates_nothing(void **state)
{
    fixture f;
    open_all(&f);
    dsc_gemm_args big = square(&f, 700, NULL), small = square(&f, 60, NULL);
    big.a = big.b = small.a = small.b = NULL; /* pointers are ignored */
    big.c_dtype = small.c_dtype = DSC_BF16;
    OK(dsc_gemm_prepare(f.device, &big, NULL));
    OK(dsc_gemm_prepare(f.device, &small, NULL));
    dsc_alloc_stats before, after;
    dsc_alloc_stats_get(f.alloc, &before);
    if ((dsc_cpu_caps() & DSC_CPU_AVX2) != 0)
        assert_true(before.count[DSC_TAG_LIBRARY][DSC_TIER_DEVICE].current_bytes > 2 * 64 * 192 * 4);
    dsc_alloc_freeze(f.alloc, true);
    for (int i = 0; i < 3; i++) {
        dsc_gemm_args run = i == 1 ? small : big;
        run.a = f.a;
        run.b = f.b;
        run.c = f.c;
        OK(DSC_RUN(f.compute, GEMM, &run, NULL));
    }
    dsc_alloc_freeze(f.alloc, false);
    dsc_alloc_stats_get(f.alloc, &after);
    assert_int_equal(before.call_count, after.call_count);
    close_all(&f);
}

static void test_growing_scratch_after_the_freeze_is_an_error(void **state)
{
    if ((dsc_cpu_caps() & DSC_CPU_AVX2) == 0)
        skip();
    fixture f;
    open_all(&f);
    dsc_error err = DSC_ERROR_INIT;
    dsc_gemm_args run = square(&f, 500, f.c);
    run.c_dtype = DSC_BF16;
    const dsc_gemm_args tiny = square(&f, 8, f.c);
    OK(DSC_RUN(f.compute, GEMM, &tiny, NULL));
    dsc_alloc_freeze(f.alloc, true);
    assert_int_equal(DSC_RUN(f.compute, GEMM, &run, &err), DSC_ERR_INTERNAL);
    assert_true(strstr(err.message, "library") != NULL); /* the allocator names the tag */
    dsc_alloc_freeze(f.alloc, false);
    close_all(&f);
}

static void test_allocation_failures(void **state)
{
    for (int64_t n = 1;; n++) {
        dsc_alloc *alloc;
        dsc_device *device = NULL;
        dsc_error err = DSC_ERROR_INIT;
        OK(dsc_alloc_open(&alloc, NULL));
        dsc_alloc_fail_at(alloc, n, false);
        const dsc_device_options options = { .alloc = alloc, .threads = 2, .caps = dsc_cpu_caps() };
        const dsc_gemm_args shape = { .m = 60, .n = 70, .k = 30, .lda = 30, .ldb = 70, .ldc = 70, .ab_dtype = DSC_BF16,
                                      .c_dtype = DSC_BF16 };
        dsc_status status = dsc_device_open(&dsc_device_cpu, &device, &options, &err);
        if (status == DSC_OK)
            status = dsc_gemm_prepare(device, &shape, &err);
        if (status != DSC_OK && device != NULL)
            OK(dsc_gemm_prepare(device, &shape, &err)); /* a failure leaves nothing half made */
        dsc_device_close(&device);
        dsc_alloc_close(&alloc);
        if (status == DSC_OK)
            return;
        assert_int_equal(status, DSC_ERR_NOMEM);
    }
}

static void test_more_shapes_than_are_kept(void **state)
{
    fixture f;
    open_all(&f);
    for (int pass = 0; pass < 2; pass++)
        for (int64_t n = 1; n <= 400; n++) {
            dsc_gemm_args run = square(&f, 8, f.c);
            run.n = run.ldb = run.ldc = n;
            OK(DSC_RUN(f.compute, GEMM, &run, NULL));
            double expected = 0;
            for (int k = 0; k < 8; k++)
                expected += (double)dsc_f32_from_bf16(f.a[k * 8 + 3]) * (double)dsc_f32_from_bf16(f.b[k * n + n - 1]);
            assert_true(f.c[3 * n + n - 1] - expected < 1e-5 && expected - f.c[3 * n + n - 1] < 1e-5);
        }
    close_all(&f);
}

static void test_the_async_stream_gives_the_same_bits_meanwhile(void **state)
{
    fixture f;
    open_all(&f);
    const dsc_gemm_args one = square(&f, 410, f.c), two = square(&f, 410, f.d);
    for (int i = 0; i < 4; i++) {
        memset(f.d, 0, ELEMENTS * sizeof *f.d);
        OK(DSC_RUN(f.async, GEMM, &two, NULL));
        OK(DSC_RUN(f.compute, GEMM, &one, NULL));
        OK(dsc_stream_sync(f.async, NULL));
        assert_memory_equal(f.c, f.d, 410 * 410 * sizeof *f.c);
    }
    close_all(&f);
}

static void test_the_program_keeps_its_thread_setting(void **state)
{
    fixture f;
    open_all(&f);
    omp_set_num_threads(5);
    const dsc_gemm_args run = square(&f, 100, f.c);
    OK(DSC_RUN(f.compute, GEMM, &run, NULL));
    assert_int_equal(omp_get_max_threads(), 5);
    close_all(&f);
}

enum { RANKS = 3 };
typedef struct region {
    fixture f[RANKS];
    dsc_status status[RANKS];
    pthread_barrier_t all_here;
} region;

static void multiply_as_rank(void *ctx, int64_t first, int64_t last)
{
    region *all = ctx;
    for (int64_t r = first; r < last; r++) {
        const dsc_gemm_args run = square(&all->f[r], 300, all->f[r].c);
        if (omp_get_num_threads() == RANKS) /* one rank a thread */
            pthread_barrier_wait(&all->all_here);
        all->status[r] = DSC_RUN(all->f[r].compute, GEMM, &run, NULL);
    }
}

/* A program may run its ranks in the threads of its own parallel region (here: a team's). Thread numbers of that region
 * do not affect the ranks' thread pools. */
static void test_ranks_inside_a_parallel_region(void **state)
{
    const dsc_cpu_threads program = { .threads = RANKS };
    region all;
    pthread_barrier_init(&all.all_here, NULL, RANKS);
    for (int r = 0; r < RANKS; r++)
        open_team(&all.f[r], r == 0 ? 2 : 1);
    dsc_thread_pool_run(&program, RANKS, multiply_as_rank, &all);
    for (int r = 0; r < RANKS; r++) {
        OK(all.status[r]);
        assert_memory_equal(all.f[r].c, all.f[0].c, 300 * 300 * sizeof *all.f[r].c);
    }
    for (int r = 0; r < RANKS; r++)
        close_all(&all.f[r]);
    pthread_barrier_destroy(&all.all_here);
}

/* The stack of the thread that multiplies, and where the frames of its signals were. */
static char *stack_low, *stack_high;
static atomic_int frames_on_stack, frames_elsewhere, thread_is_done;

static void on_signal(int number)
{
    const char here = 0, *p = &here;
    atomic_fetch_add(p >= stack_low && p < stack_high ? &frames_on_stack : &frames_elsewhere, 1);
}

static void *send_signals(void *thread)
{
    while (!atomic_load(&thread_is_done)) {
        pthread_kill(*(pthread_t *)thread, SIGUSR1);
        const struct timespec pause = { .tv_nsec = 20000 };
        nanosleep(&pause, NULL);
    }
    return NULL;
}

static void find_stack(void)
{
    pthread_attr_t attributes;
    void *low = NULL;
    size_t bytes = 0;
    assert_int_equal(pthread_getattr_np(pthread_self(), &attributes), 0);
    assert_int_equal(pthread_attr_getstack(&attributes, &low, &bytes), 0);
    pthread_attr_destroy(&attributes);
    stack_low = low;
    stack_high = stack_low + bytes;
}

/* A library's kernel whose stack pointer is elsewhere has the frame of a signal written over the heap. */
static void test_signals_find_the_stack(void **state)
{
    fixture f;
    open_team(&f, 1);
    find_stack();
    struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART }, before;
    pthread_t self = pthread_self(), sender;
    for (int i = 0; i < ELEMENTS; i++)
        f.d[i] = (float)(i % 17 - 8) / 64;
    assert_int_equal(sigaction(SIGUSR1, &action, &before), 0);
    assert_int_equal(pthread_create(&sender, NULL, send_signals, &self), 0);
    for (int i = 0; i < 4000 || atomic_load(&frames_on_stack) == 0; i++) {
        /* GPT-2 nano's products, and one whose sums are long. */
        const int64_t k = i % 8 == 0 ? 4000 : 128;
        dsc_gemm_args run = { .a = f.d,
                              .b = f.d,
                              .c = f.c,
                              .m = 16,
                              .n = i % 2 == 0 ? 192 : 128,
                              .k = k,
                              .lda = k,
                              .ldb = i % 4 < 2 ? 192 : k,
                              .ldc = 192,
                              .b_transposed = i % 4 >= 2,
                              .ab_dtype = DSC_F32,
                              .c_dtype = DSC_F32 };
        OK(DSC_RUN(f.compute, GEMM, &run, NULL));
    }
    atomic_store(&thread_is_done, 1);
    pthread_join(sender, NULL);
    sigaction(SIGUSR1, &before, NULL);
    assert_int_equal(atomic_load(&frames_elsewhere), 0);
    close_all(&f);
}

static void test_empty_products(void **state)
{
    fixture f;
    open_all(&f);
    dsc_gemm_args run = square(&f, 8, NULL);
    run.m = 0;
    OK(DSC_RUN(f.compute, GEMM, &run, NULL));
    OK(dsc_gemm_prepare(f.device, &run, NULL));
    close_all(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_prepared_product_allocates_nothing),
        cmocka_unit_test(test_growing_scratch_after_the_freeze_is_an_error),
        cmocka_unit_test(test_allocation_failures),
        cmocka_unit_test(test_more_shapes_than_are_kept),
        cmocka_unit_test(test_the_async_stream_gives_the_same_bits_meanwhile),
        cmocka_unit_test(test_the_program_keeps_its_thread_setting),
        cmocka_unit_test(test_ranks_inside_a_parallel_region),
        cmocka_unit_test(test_signals_find_the_stack),
        cmocka_unit_test(test_empty_products),
    };
    return cmocka_run_group_tests_name("gemm", tests, NULL, NULL);
}
