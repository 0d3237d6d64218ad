/* exchange.h - values that ranks exchange inside one computation: sums over ranks, and rows of all ranks.
 * reference: cpu/exchange.c   check: tests/checkkern/exchange.c   SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_EXCHANGE_H
#define DSC_KERNELS_EXCHANGE_H
#include <dsc/error.h>
#include <dsc/types.h>
#ifdef __cplusplus
extern "C" {
#endif

/* Ranks that share one computation. The owner of the ranks fills this in; kernels and models see sizes and calls alone.
 * All ranks make the same calls in the same order. Memory is the host's, and a call is done on return. */
typedef struct dsc_exchange_group {
    int32_t size, rank;
    /* recv[size * bytes] <- every rank's send[bytes] in rank order. send may be recv + rank * bytes. */
    dsc_status (*all_gather)(void *user, void *recv, const void *send, int64_t bytes, dsc_error *err);
    /* recv[r * bytes] <- rank r's send[rank * bytes]. No overlap. */
    dsc_status (*all_to_all)(void *user, void *recv, const void *send, int64_t bytes, dsc_error *err);
    void *user;
} dsc_exchange_group;

/* Three kernels with the same arguments, for N = size ranks:
 *
 *     SUM      to[count] = sum over ranks r of from_r[count]. `to` may be `from`. Every rank gets the same bits.
 *     SCATTER  to[count] = sum over ranks r of from_r[rank * count ...]. `from` has N * count elements.
 *     GATHER   to[N * count] = the from_r[count] of all ranks in order. `from` may be to + rank * count.
 *
 * Sums are in fp32 from rank 0 on, ((x_0 + x_1) + x_2) + ..., and rounded once. With one rank a kernel copies. */
typedef struct dsc_exchange_args {
    const dsc_exchange_group *group;
    void *to;
    const void *from;
    void *work;      /* [dsc_exchange_sum_bytes] of SUM, [N * count] of SCATTER; GATHER: not used */
    int64_t count;   /* elements */
    int32_t sharers; /* SUM: over the ranks of this rank's run of so many neighbours; 0: over all */
    dsc_dtype dtype; /* F32, BF16 or F16 */
} dsc_exchange_args;

/* Scratch of a SUM. The owner of each part adds it up, and a rest below one element a rank is added by all. With
 * sharers all ranks' values are gathered. */
static inline int64_t dsc_exchange_sum_bytes(int32_t size, int32_t sharers, int64_t count, dsc_dtype dtype)
{
    const int64_t pieces = sharers > 0 ? count : count / size > count % size ? count / size : count % size;
    return size * pieces * (int64_t)dsc_dtype_bytes(dtype);
}

/* Payload in bytes that a rank sends in each kernel. */
static inline int64_t dsc_exchange_sum_sent(int32_t size, int32_t sharers, int64_t count, dsc_dtype dtype)
{
    const int64_t elements = sharers > 0 ? count : 2 * (count / size) + count % size;
    return (size - 1) * elements * (int64_t)dsc_dtype_bytes(dtype);
}
static inline int64_t dsc_exchange_rows_sent(int32_t size, int64_t count, dsc_dtype dtype) /* SCATTER, GATHER */
{
    return (size - 1) * count * (int64_t)dsc_dtype_bytes(dtype);
}

#ifdef __cplusplus
}
#endif
#endif
