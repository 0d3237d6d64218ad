/* exchange.c - exchanges in a group whose other ranks have multiples of this rank's values.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "kernels/scalar.h"
#include "tests/checkkern/ck.h"

/* Rank r's value is (r + 1) times this rank's. */
typedef struct fake_group {
    dsc_exchange_group group;
    dsc_dtype dtype;
} fake_group;

static void copy_times(const fake_group *fake, char *to, const char *from, int64_t bytes, int32_t rank)
{
    const int64_t count = bytes / (int64_t)dsc_dtype_bytes(fake->dtype);
    for (int64_t i = 0; i < count; i++)
        dsc_put(to, i, fake->dtype, dsc_get(from, i, fake->dtype) * (float)(rank == fake->group.rank ? 1 : rank + 2));
}

static dsc_status all_gather(void *user, void *recv, const void *send, int64_t bytes, dsc_error *err)
{
    const fake_group *fake = user;
    (void)err;
    for (int32_t r = 0; r < fake->group.size; r++)
        if (r != fake->group.rank)
            copy_times(fake, (char *)recv + r * bytes, send, bytes, r);
    if ((char *)recv + fake->group.rank * bytes != (const char *)send)
        memcpy((char *)recv + fake->group.rank * bytes, send, (size_t)bytes);
    return DSC_OK;
}

static dsc_status all_to_all(void *user, void *recv, const void *send, int64_t bytes, dsc_error *err)
{
    const fake_group *fake = user;
    (void)err;
    for (int32_t r = 0; r < fake->group.size; r++)
        copy_times(fake, (char *)recv + r * bytes, (const char *)send + fake->group.rank * bytes, bytes, r);
    return DSC_OK;
}

static double factor(const dsc_exchange_group *group, int32_t rank) { return rank == group->rank ? 1 : rank + 2; }

/* x times the factors of ranks [first, end), each product and the sum rounded as the kernel rounds. */
static double sum_of(const dsc_exchange_args *a, float x, int32_t first, int32_t end)
{
    float sum = 0;
    for (int32_t r = first; r < end; r++) {
        const float part = dsc_rounded(x * (float)factor(a->group, r), a->dtype);
        sum = r == first ? part : sum + part;
    }
    return (double)dsc_rounded(sum, a->dtype);
}

static int64_t part_count(const dsc_exchange_args *a) { return a->count / a->group->size; }

/* Other owners' sums come as multiples of this rank's by the fake all_gather. */
static void verify_sum(const void *args)
{
    const dsc_exchange_args *a = args;
    const int64_t each = part_count(a), own = a->group->rank * each;
    const int32_t n = a->group->size, first = a->sharers > 0 ? a->group->rank / a->sharers * a->sharers : 0;
    const int32_t end = a->sharers > 0 ? first + a->sharers : n;
    for (int64_t i = 0; i < a->count; i++) {
        const bool alone = a->sharers > 0 || i >= n * each || (i >= own && i < own + each);
        const double mine = sum_of(a, (float)ck_get(a->from, alone ? i : own + i % each), first, end);
        const float others = (float)mine * (float)factor(a->group, alone ? a->group->rank : (int32_t)(i / each));
        ck_near(a->to, i, (double)dsc_rounded(others, a->dtype), 0);
    }
}

static void verify_scatter(const void *args)
{
    const dsc_exchange_args *a = args;
    for (int64_t i = 0; i < a->count; i++)
        ck_near(a->to, i, sum_of(a, (float)ck_get(a->from, a->group->rank * a->count + i), 0, a->group->size), 0);
}

static void verify_gather(const void *args)
{
    const dsc_exchange_args *a = args;
    for (int32_t r = 0; r < a->group->size; r++)
        for (int64_t i = 0; i < a->count; i++)
            ck_near(a->to, r * a->count + i,
                    (double)dsc_rounded((float)ck_get(a->from, i) * (float)factor(a->group, r), a->dtype), 0);
}

static void check(dsc_kernel kernel, int32_t size, int32_t rank, int32_t sharers, int64_t count, dsc_dtype dtype)
{
    if (!ck_case("%s ranks=%d rank=%d sharers=%d n=%lld %s", dsc_kernel_text(kernel), (int)size, (int)rank,
                 (int)sharers, (long long)count, ck_dtype_text(dtype)))
        return;
    fake_group fake = { { size, rank, all_gather, all_to_all, &fake }, dtype };
    const bool scatters = kernel == DSC_KERNEL_EXCHANGE_SCATTER, gathers = kernel == DSC_KERNEL_EXCHANGE_GATHER;
    const int64_t each = (int64_t)dsc_dtype_bytes(dtype);
    const int64_t work = scatters ? size * count : dsc_exchange_sum_bytes(size, sharers, count, dtype) / each;
    dsc_exchange_args args = { .group = &fake.group,
                               .to = ck_buf(CK_OUT, dtype, gathers ? size * count : count, "to"),
                               .from = ck_buf(CK_IN, dtype, scatters ? size * count : count, "from"),
                               .work = gathers ? NULL : ck_buf(CK_SCRATCH, dtype, work, "work"),
                               .count = count,
                               .sharers = sharers,
                               .dtype = dtype };
    ck_normal(args.from, 0, 1);
    ck_kernel(kernel, &args, sizeof args, scatters ? verify_scatter : gathers ? verify_gather : verify_sum);
}

void ck_exchange(void)
{
    static const dsc_dtype dtypes[] = { DSC_F32, DSC_BF16, DSC_F16 };
    if (ck_on_gpu()) /* whose launches refuse */
        return;
    for (size_t d = 0; d < DSC_COUNT(dtypes); d++) {
        check(DSC_KERNEL_EXCHANGE_SUM, 1, 0, 0, 100, dtypes[d]);
        check(DSC_KERNEL_EXCHANGE_SUM, 2, 1, 0, 9000, dtypes[d]);
        check(DSC_KERNEL_EXCHANGE_SUM, 3, 0, 0, 100, dtypes[d]); /* one element is left over */
        check(DSC_KERNEL_EXCHANGE_SUM, 4, 2, 0, 3, dtypes[d]);   /* nobody owns a part */
        check(DSC_KERNEL_EXCHANGE_SUM, 4, 3, 2, 130, dtypes[d]);
        check(DSC_KERNEL_EXCHANGE_SCATTER, 1, 0, 0, 10, dtypes[d]);
        check(DSC_KERNEL_EXCHANGE_SCATTER, 3, 1, 0, 5000, dtypes[d]);
        check(DSC_KERNEL_EXCHANGE_GATHER, 1, 0, 0, 10, dtypes[d]);
        check(DSC_KERNEL_EXCHANGE_GATHER, 4, 2, 0, 77, dtypes[d]);
    }
}
