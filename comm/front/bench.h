/* bench.h - times collectives on an open communicator; `dsc comm bench` and bench/bench_comm.c use it.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_COMM_FRONT_BENCH_H
#define DSC_COMM_FRONT_BENCH_H

#include "comm/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Buffers for vectors of up to most_bytes of fp32. Plain value. */
typedef struct dsc_comm_bench {
    dsc_comm *comm;
    dsc_alloc *alloc;
    bool shared; /* buffers that peers read are from dsc_comm_mem_open, like parameters; else plain memory */
    int64_t most_bytes;
    dsc_buf whole, gathered, piece;
} dsc_comm_bench;

/* Collective, as all of these. */
DSC_MUST_USE dsc_status dsc_comm_bench_open(dsc_comm_bench *bench, dsc_comm *comm, dsc_alloc *alloc, int64_t most_bytes,
                                            bool shared, dsc_error *err);
void dsc_comm_bench_close(dsc_comm_bench *bench);

/* One call of ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, or BARRIER, which moves nothing. The whole vector has `bytes`
 * of fp32; sums travel in `wire_dtype`. *seconds is the time of the slowest rank, on every rank. Only all_reduce
 * works in place. */
DSC_MUST_USE dsc_status dsc_comm_bench_once(dsc_comm_bench *bench, dsc_comm_op op, int64_t bytes, dsc_dtype wire_dtype,
                                            double *seconds, dsc_error *err);

#ifdef __cplusplus
}
#endif
#endif
