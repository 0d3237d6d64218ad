/* run_world.h - trains a model with W ranks as threads of this process and returns what must not depend on how.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TESTS_RUN_WORLD_H
#define DSC_TESTS_RUN_WORLD_H

#include <dsc/dsc.h>

#define RUN_STEPS_MAX 64
#define RUN_RANKS_MAX 16

typedef struct run_result {
    dsc_status status; /* the first rank's that failed */
    dsc_error error;
    dsc_error ranks[RUN_RANKS_MAX]; /* each one's own; status DSC_OK: it came to the end */
    int64_t steps;
    double loss[RUN_STEPS_MAX], norm[RUN_STEPS_MAX];
    char hash[65];     /* SHA-256 over master, m, v of every tensor in order */
    int64_t state_bytes[4]; /* rank 0's measured params, grads, master, moments */
    int64_t device_planned, device_peak; /* rank 0's device tier */
    int64_t wire_planned, wire_bytes; /* from other ranks to rank 0 in a step: by the plan; the mean of all */
    int64_t wire_scalars;             /* dsc_probe_scalar_bytes of rank 0 */
    int64_t pass_reads_planned;       /* bytes of files that the passes of a step read */
    int64_t tracked_peak, planned, alloc_calls_after_first, alloc_calls_at_end;
    float *state; /* master, m, v of every tensor in order; freed by the caller; NULL: not asked for, or a failure */
    int64_t state_count;
} run_result;

typedef struct run_options {
    int32_t world;
    int64_t steps;
    const dsc_model *model;
    dsc_data_source data;
    uint32_t caps_mask;
    const char *config; /* JSON text */
    bool take_states;   /* result.state is filled */
    /* May be NULL: every rank calls them before and after its steps. */
    dsc_status (*before)(dsc_engine *engine, int32_t rank, void *user, dsc_error *err);
    dsc_status (*after)(dsc_engine *engine, int32_t rank, void *user, dsc_error *err);
    void *user;
    dsc_log log; /* rank 0's; fn NULL: none */
    int32_t fault_rank; /* the fields below apply to this rank */
    int64_t fail_alloc_at, fail_comm_at;
    const struct dsc_io *io; /* may be NULL */
} run_options;

void run_world(const run_options *options, run_result *out);

/* As run_world for this model, on ranks without faults; `more` has the other options. */
void run_model(const dsc_model *model, dsc_data_source data, int32_t world, const char *config, const run_options *more,
               run_result *out);

/* For `before` and `after`; user: a checkpoint's folder. */
dsc_status run_save(dsc_engine *engine, int32_t rank, void *user, dsc_error *err);
dsc_status run_load(dsc_engine *engine, int32_t rank, void *user, dsc_error *err);
/* A body of a rank; user: an int64_t, the number of steps that no result has. */
dsc_status run_steps(dsc_engine *engine, int32_t rank, void *user, dsc_error *err);
/* A body of a rank: these steps, then a save to the folder. */
typedef struct run_trip { int64_t steps; char *dir; } run_trip;
dsc_status run_steps_and_save(dsc_engine *engine, int32_t rank, void *user, dsc_error *err);

#endif
