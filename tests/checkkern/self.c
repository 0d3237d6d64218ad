/* self.c - the checker catches what it is for: each case is a kernel with one bug. SPDX-License-Identifier: Apache-2.0
 */
#include "tests/checkkern/ck_internal.h"
#include "tests/support/sanitizer.h"

#include <math.h>
#include <string.h>

enum { N = 37 };

static void add(const dsc_add_args *a, int64_t first, int64_t last)
{
    for (int64_t i = first; i < last; i++)
        a->to[i] = a->a[i] + a->b[i];
}

static dsc_status drops_the_tail(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    add(args, 0, N - 1);
    return DSC_OK;
}

static dsc_status writes_past_the_end(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    const dsc_add_args *a = args;
    add(a, 0, N);
    memset((char *)(a->to + N), 0, 1);
    return DSC_OK;
}

static dsc_status writes_before_the_start(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    const dsc_add_args *a = args;
    add(a, 0, N);
    memset((char *)a->to - 1, 0, 1);
    return DSC_OK;
}

static dsc_status changes_an_input(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    const dsc_add_args *a = args;
    add(a, 0, N);
    float zero = 0;
    uintptr_t address = (uintptr_t)&a->a[3];
    memcpy((void *)address, &zero, sizeof zero);
    return DSC_OK;
}

static dsc_status depends_on_threads(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    const dsc_add_args *a = args;
    add(a, 0, N);
    if (pool->threads == 3)
        a->to[N / 2] = nextafterf(a->to[N / 2], 1e9f);
    return DSC_OK;
}

static dsc_status a_bit_off(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    const dsc_add_args *a = args;
    add(a, 0, N);
    if (pool->caps != 0)
        a->to[5] = nextafterf(nextafterf(a->to[5], 1e9f), 1e9f); /* the sum itself may be half a spacing off */
    return DSC_OK;
}

static dsc_status writes_into_gaps(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    const dsc_add_args *a = args;
    add(a, 0, N);
    return DSC_OK;
}

static dsc_status fails(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    return DSC_FAIL(err, DSC_ERR_INTERNAL, "", "a canary");
}

static void one_spacing(const void *args)
{
    const dsc_add_args *a = args;
    for (int64_t i = 0; i < N; i++) {
        const double expected = ck_get(a->a, i) + ck_get(a->b, i);
        ck_near(a->to, i, expected, 0.51 * ck_spacing(DSC_F32, expected));
    }
}

void ck_self(void)
{
    static const struct { const char *name; dsc_kernel_fn fn; ck_verify_fn verify; } bug[] = {
        { "drops the tail", drops_the_tail, one_spacing },
        { "writes past the end", writes_past_the_end, NULL },
        { "writes before the start", writes_before_the_start, NULL },
        { "changes an input", changes_an_input, NULL },
        { "depends on threads", depends_on_threads, NULL },
        { "a bit off, exact", a_bit_off, NULL },
        { "a bit off, near", a_bit_off, one_spacing },
        { "writes into gaps", writes_into_gaps, NULL },
        { "returns an error", fails, NULL },
    };
    for (size_t i = 0; i < DSC_COUNT(bug); i++) {
        if (SANITIZE_THREAD && bug[i].fn == depends_on_threads)
            continue; /* that build runs one count */
        if (!ck_case("self canary: %s", bug[i].name))
            continue;
        float *to = ck_buf(CK_OUT, DSC_F32, N, "to");
        const float *a = ck_buf(CK_IN, DSC_F32, N, "a"), *b = ck_buf(CK_IN, DSC_F32, N, "b");
        ck_normal(a, 0, 1);
        ck_normal(b, 0, 1);
        if (bug[i].fn == writes_into_gaps)
            ck_gaps(to, 4, 8, 9);
        const dsc_add_args args = { .to = to, .a = a, .b = b, .count = N };
        ck_canary(bug[i].fn);
        ck_kernel(DSC_KERNEL_ADD, &args, sizeof args, bug[i].verify);
    }
}
