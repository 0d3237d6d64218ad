/* exchange.c - plain C for every CPU: ranks exchange values, owners add them. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/exchange.h"

#include "kernels/cpu/range.h"

#define BLOCK 4096 /* elements of a sum that one thread adds */

/* to[count] = sum over k < parts of from[k * stride ...]. */
typedef struct sum_job {
    void *to;
    const void *from;
    int64_t count, stride;
    int32_t parts;
    dsc_dtype dtype;
} sum_job;

static inline void add_parts(const sum_job *job, int64_t first, int64_t last, dsc_dtype dtype)
{
    float sum[BLOCK];
    for (int64_t i = first; i < last; i++)
        sum[i - first] = dsc_get(job->from, i, dtype);
    for (int32_t k = 1; k < job->parts; k++) {
        const char *part = (const char *)job->from + k * job->stride * (int64_t)dsc_dtype_bytes(dtype);
        for (int64_t i = first; i < last; i++)
            sum[i - first] += dsc_get(part, i, dtype);
    }
    for (int64_t i = first; i < last; i++)
        dsc_put(job->to, i, dtype, sum[i - first]);
}

static void add_blocks(const void *args, int64_t first, int64_t last)
{
    const sum_job *job = args;
    for (int64_t b = first; b < last; b++)
        DSC_FOR_DTYPE(job->dtype, add_parts(job, b * BLOCK, dsc_min_i64(job->count, (b + 1) * BLOCK), dtype));
}

static void add(const sum_job *job, const dsc_cpu_threads *pool)
{
    dsc_range_run(pool, dsc_div_ceil(job->count, BLOCK), add_blocks, job);
}

static void check(const dsc_exchange_args *a)
{
    const dsc_exchange_group *group = a->group;
    DSC_ASSERT(group != NULL);
    DSC_ASSERT(group->rank >= 0 && group->rank < group->size);
    DSC_ASSERT(a->count >= 0);
    DSC_ASSERT(a->sharers >= 0 && (a->sharers == 0 || group->size % a->sharers == 0));
}

static int64_t bytes_of(const dsc_exchange_args *a, int64_t count)
{
    return count * (int64_t)dsc_dtype_bytes(a->dtype);
}

/* to[count], from element `at` on: all ranks get all values and add those of `parts` ranks from rank `first` on. */
static dsc_status sum_gathered(const dsc_exchange_args *a, const dsc_cpu_threads *pool, int64_t at, int64_t count,
                               int32_t first, int32_t parts, dsc_error *err)
{
    const dsc_exchange_group *group = a->group;
    const sum_job job = { .to = (char *)a->to + bytes_of(a, at),
                          .from = (const char *)a->work + bytes_of(a, first * count),
                          .count = count,
                          .stride = count,
                          .parts = parts,
                          .dtype = a->dtype };
    DSC_TRY(group->all_gather(group->user, a->work, (const char *)a->from + bytes_of(a, at), bytes_of(a, count), err));
    add(&job, pool);
    return DSC_OK;
}

/* Each rank adds one of the parts of `each` elements, into to[each]. */
static dsc_status sum_own(const dsc_exchange_args *a, const dsc_cpu_threads *pool, void *to, int64_t each,
                          dsc_error *err)
{
    const dsc_exchange_group *group = a->group;
    const sum_job job = {
        .to = to, .from = a->work, .count = each, .stride = each, .parts = group->size, .dtype = a->dtype
    };
    DSC_TRY(group->all_to_all(group->user, a->work, a->from, bytes_of(a, each), err));
    add(&job, pool);
    return DSC_OK;
}

static dsc_status run_sum(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    const dsc_exchange_args *a = args;
    check(a);
    DSC_TRY(dsc_range_dtype_check("EXCHANGE_SUM", a->dtype, err));
    const dsc_exchange_group *group = a->group;
    const int64_t each = a->count / group->size, rest = a->count % group->size;
    char *const own = (char *)a->to + bytes_of(a, group->rank * each);
    if (a->sharers > 0)
        return sum_gathered(a, pool, 0, a->count, group->rank / a->sharers * a->sharers, a->sharers, err);
    if (each > 0) {
        DSC_TRY(sum_own(a, pool, own, each, err));
        DSC_TRY(group->all_gather(group->user, a->to, own, bytes_of(a, each), err));
    }
    return rest > 0 ? sum_gathered(a, pool, group->size * each, rest, 0, group->size, err) : DSC_OK;
}

static dsc_status run_scatter(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    const dsc_exchange_args *a = args;
    check(a);
    DSC_TRY(dsc_range_dtype_check("EXCHANGE_SCATTER", a->dtype, err));
    return sum_own(a, pool, a->to, a->count, err);
}

static dsc_status run_gather(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    const dsc_exchange_args *a = args;
    (void)pool;
    check(a);
    return a->group->all_gather(a->group->user, a->to, a->from, bytes_of(a, a->count), err);
}

void dsc_exchange_init(dsc_kernel_table *table, uint32_t caps)
{
    (void)caps;
    table->fn[DSC_KERNEL_EXCHANGE_SUM] = run_sum;
    table->fn[DSC_KERNEL_EXCHANGE_SCATTER] = run_scatter;
    table->fn[DSC_KERNEL_EXCHANGE_GATHER] = run_gather;
}
