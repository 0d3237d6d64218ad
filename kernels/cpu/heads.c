/* heads.c - plain C for every CPU: columns are copied, and gradients of shared ones added in the order of heads.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "kernels/cpu/range.h"
#include "kernels/heads.h"
#include "kernels/scalar.h"

static char *at(void *x, int64_t element, const dsc_heads_args *a)
{
    return (char *)x + element * (int64_t)dsc_dtype_bytes(a->dtype);
}

static size_t bytes_of(int64_t columns, const dsc_heads_args *a)
{
    return (size_t)columns * dsc_dtype_bytes(a->dtype);
}

static void put_together(const void *args, int64_t first, int64_t last)
{
    const dsc_heads_args *a = args;
    const int64_t own = dsc_min_i64(a->own_width, a->width), filled = own + a->shared_width;
    for (int64_t r = first; r < last; r++)
        for (int64_t h = 0; h < a->heads; h++) {
            const int64_t to = (r * a->heads + h) * a->width;
            memcpy(at(a->whole, to, a), at(a->own, r * a->own_stride + h * a->own_apart, a), bytes_of(own, a));
            if (a->shared != NULL)
                memcpy(at(a->whole, to + own, a), at(a->shared, r * a->shared_stride, a), bytes_of(filled - own, a));
            memset(at(a->whole, to + filled, a), 0, bytes_of(a->width - filled, a));
        }
}

static void add_shared(const dsc_heads_args *a, int64_t r)
{
    enum { PART = 64 };
    for (int32_t first = 0; first < a->shared_width; first += PART) {
        const int32_t count = a->shared_width - first < PART ? a->shared_width - first : PART;
        float sum[PART] = { 0 };
        for (int64_t h = 0; h < a->heads; h++) {
            const int64_t from = (r * a->heads + h) * a->width + a->own_width + first;
            for (int32_t c = 0; c < count; c++)
                sum[c] += dsc_get(a->whole, from + c, a->dtype);
        }
        for (int32_t c = 0; c < count; c++)
            dsc_put(a->shared, r * a->shared_stride + first + c, a->dtype, sum[c]);
    }
}

static void take_apart(const void *args, int64_t first, int64_t last)
{
    const dsc_heads_args *a = args;
    const int64_t own = dsc_min_i64(a->own_width, a->width);
    for (int64_t r = first; r < last; r++) {
        for (int64_t h = 0; h < a->heads; h++) {
            const int64_t to = r * a->own_stride + h * a->own_apart;
            memcpy(at(a->own, to, a), at(a->whole, (r * a->heads + h) * a->width, a), bytes_of(own, a));
            memset(at(a->own, to + own, a), 0, bytes_of(a->own_width - own, a));
        }
        add_shared(a, r);
    }
}

static dsc_status run(const dsc_heads_args *a, const char *kernel, const dsc_cpu_threads *pool, dsc_range_fn fn,
                      dsc_error *err)
{
    DSC_ASSERT(a->rows >= 0);
    DSC_ASSERT(dsc_heads_are_valid(a));
    DSC_TRY(dsc_range_dtype_check(kernel, a->dtype, err));
    dsc_range_run(pool, a->rows, fn, a);
    return DSC_OK;
}

static dsc_status forward(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    return run(args, "HEADS_FWD", pool, put_together, err);
}

static dsc_status backward(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    return run(args, "HEADS_BWD", pool, take_apart, err);
}

void dsc_heads_init(dsc_kernel_table *table, uint32_t caps)
{
    (void)caps;
    table->fn[DSC_KERNEL_HEADS_FWD] = forward;
    table->fn[DSC_KERNEL_HEADS_BWD] = backward;
}
