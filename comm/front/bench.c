/* bench.c - see bench.h. SPDX-License-Identifier: Apache-2.0 */
#include "comm/front/bench.h"

#include <string.h>

#include "base/clock.h"
#include "comm/comm_internal.h"

static dsc_status buffer_open(dsc_comm_bench *bench, bool shared, int64_t bytes, dsc_buf *out, dsc_error *err)
{
    DSC_TRY(shared ? dsc_comm_mem_open(bench->comm, DSC_TAG_SCRATCH, bytes, out, err)
                          : dsc_buf_open(bench->alloc, DSC_TAG_SCRATCH, DSC_TIER_HOST, bytes, out, err));
    memset(out->ptr, 0, (size_t)bytes); /* the pages are there before the first timing */
    return DSC_OK;
}

static void buffer_close(dsc_comm_bench *bench, bool shared, dsc_buf *buf)
{
    if (buf->ptr != NULL && shared)
        dsc_comm_mem_close(bench->comm, buf);
    else
        dsc_buf_close(buf);
}

dsc_status dsc_comm_bench_open(dsc_comm_bench *bench, dsc_comm *comm, dsc_alloc *alloc, int64_t most_bytes, bool shared,
                               dsc_error *err)
{
    *bench = (dsc_comm_bench){ .comm = comm, .alloc = alloc, .shared = shared, .most_bytes = most_bytes };
    dsc_status status = buffer_open(bench, shared, most_bytes, &bench->whole, err);
    if (status == DSC_OK)
        status = buffer_open(bench, false, most_bytes, &bench->gathered, err);
    if (status == DSC_OK)
        status = buffer_open(bench, shared, most_bytes / dsc_comm_size(comm), &bench->piece, err);
    if (status != DSC_OK)
        dsc_comm_bench_close(bench);
    return status;
}

void dsc_comm_bench_close(dsc_comm_bench *bench)
{
    buffer_close(bench, bench->shared, &bench->piece);
    buffer_close(bench, false, &bench->gathered);
    buffer_close(bench, bench->shared, &bench->whole);
}

static dsc_status call(dsc_comm_bench *bench, dsc_comm_op op, int64_t bytes, dsc_dtype wire_dtype, dsc_error *err)
{
    const int64_t count = bytes / (int64_t)sizeof(float), piece = count / dsc_comm_size(bench->comm);
    const dsc_reduce_scatter_args args = { .acc = bench->piece.ptr,
                                           .leaf = bench->whole.ptr,
                                           .leaf_stride = piece,
                                           .count = piece,
                                           .wire_dtype = wire_dtype,
                                           .overwrite = true };
    switch (op) {
    case DSC_COMM_ALL_GATHER:
        return dsc_comm_all_gather(bench->comm, 0, bench->gathered.ptr, bench->piece.ptr, piece, DSC_F32, NULL, err);
    case DSC_COMM_REDUCE_SCATTER: return dsc_comm_reduce_scatter(bench->comm, 0, &args, NULL, err);
    case DSC_COMM_ALL_REDUCE:
        return dsc_comm_all_reduce(bench->comm, 0, bench->whole.ptr, count, wire_dtype, NULL, err);
    case DSC_COMM_BARRIER: return dsc_comm_barrier(bench->comm, 0, NULL, err);
    default: return DSC_FAIL(err, DSC_ERR_STATE, "comm bench", "%s is not timed", dsc_comm_op_text(op));
    }
}

dsc_status dsc_comm_bench_once(dsc_comm_bench *bench, dsc_comm_op op, int64_t bytes, dsc_dtype wire_dtype,
                               double *seconds, dsc_error *err)
{
    int64_t ns[DSC_COMM_RANKS_MAX];
    DSC_ASSERT(bytes > 0 && bytes <= bench->most_bytes);
    DSC_TRY(dsc_comm_barrier(bench->comm, 0, NULL, err));
    const int64_t start_ns = dsc_clock_ns();
    DSC_TRY(call(bench, op, bytes, wire_dtype, err));
    const int64_t mine = dsc_clock_ns() - start_ns;
    DSC_TRY(dsc_comm_all_gather(bench->comm, 0, ns, &mine, 1, DSC_I64, NULL, err));
    int64_t slowest = 0;
    for (int32_t r = 0; r < dsc_comm_size(bench->comm); r++)
        slowest = dsc_max_i64(slowest, ns[r]);
    *seconds = (double)slowest * 1e-9;
    return DSC_OK;
}
