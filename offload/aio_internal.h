/* aio_internal.h - the state that the files of the front share; only they include it.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_OFFLOAD_AIO_INTERNAL_H
#define DSC_OFFLOAD_AIO_INTERNAL_H

#include "offload/aio.h"

enum { DSC_AIO_REGIONS_MAX = 64, DSC_AIO_FILES_MAX = 64, DSC_AIO_BATCH = 64, DSC_AIO_LISTS = 3 };

typedef struct dsc_aio_slot {
    dsc_aio_piece piece; /* first: the engine gives pieces back by address */
    dsc_aio_op *op;      /* NULL: free, or given up while it was with the engine */
    dsc_aio_fault_kind fault;
    int64_t fault_result;
    bool with_engine;
} dsc_aio_slot;

struct dsc_aio {
    dsc_alloc *alloc;
    dsc_aio_options options;
    const dsc_aio_engine_ops *ops;
    dsc_aio_engine_state *state;
    dsc_aio_slot *slots; /* [queue_depth] */
    int32_t with_engine, held_count;
    dsc_aio_slot *held[DSC_AIO_DEPTH_MAX]; /* completions kept back by the hook */
    /* Operations with bytes to give: reads, writes that are wanted soon, writes. */
    struct { dsc_aio_op *first, *last; } waiting[DSC_AIO_LISTS];
    struct { char *begin, *end; } regions[DSC_AIO_REGIONS_MAX];
    int32_t region_count;
    dsc_aio_file *files[DSC_AIO_FILES_MAX]; /* that the engine keeps open; NULL: a free place */
    int64_t piece_count, last_event_ns;
    bool broken; /* the engine may keep pieces for good: nothing is given to it any more */
    dsc_status broken_status;
    int broken_errno;
    char why[512], word[320];
};

/* The index at which the engine keeps a file (NULL: a free index), or -1. */
int32_t dsc_aio_fixed_fd(const dsc_aio *aio, const dsc_aio_file *file);
/* Completions, without telling anybody; waits up to timeout_ns for the first. How many came, or -errno. */
int dsc_aio_drain(dsc_aio *aio, int64_t timeout_ns);

#endif
