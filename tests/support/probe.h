/* probe.h - the only way from a test to the private state of an engine.
 *
 * Only probe.c and probe_zero.c include private headers, so that a change of a private struct changes these two files
 * and no test. A function reads or sets one thing. Pointers are borrowed from the engine and valid until it is closed.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TESTS_PROBE_H
#define DSC_TESTS_PROBE_H

#include <dsc/dsc.h>

#include "base/alloc.h"
#include "base/io.h"
#include "comm/comm.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/config/config.h"
#include "engine/data/data.h"
#include "engine/plan.h"
#include "engine/schedule/loss_scale.h"
#include "engine/stages/schedule.h"
#include "kernels/device.h"
#include "offload/aio.h"
#include "zero/zero.h"

/* ---- parts of an engine (probe.c) ---- */

dsc_alloc *dsc_probe_alloc(const dsc_engine *engine);
dsc_device *dsc_probe_device(const dsc_engine *engine);
dsc_stream *dsc_probe_compute_stream(const dsc_engine *engine);
bool dsc_probe_host_visible(const dsc_engine *engine); /* the host reaches the device's memory */
const dsc_config *dsc_probe_config(const dsc_engine *engine);
const dsc_layout *dsc_probe_layout(const dsc_engine *engine);
/* The layout of all stages; with one stage that of the engine. */
const dsc_layout *dsc_probe_whole_layout(const dsc_engine *engine);
/* The number in the engine's own layout of a tensor of the whole one; -1: another stage has it. */
int32_t dsc_probe_own_tensor(const dsc_engine *engine, int32_t tensor);
/* The work of this rank's stage in a step, which a test may change; NULL: there is one stage. */
dsc_stage_op *dsc_probe_stage_ops(dsc_engine *engine, int64_t **count);
/* Whether gradients and new weights of tied parameters travel between this rank's stage and the others. */
bool *dsc_probe_trains_tied(dsc_engine *engine);
/* Modules of the whole model that this rank's stage has: [*first, *end). */
void dsc_probe_stage_modules(const dsc_engine *engine, int32_t *first, int32_t *end);
const dsc_plan *dsc_probe_plan(const dsc_engine *engine);
/* Bytes of numbers that this rank receives in each step beside parameters and gradients, if replicas are compared in
 * all steps or none. */
int64_t dsc_probe_scalar_bytes(const dsc_engine *engine);
dsc_zero *dsc_probe_zero(const dsc_engine *engine);

/* ---- communicators ---- */

typedef enum dsc_probe_comm {
    DSC_PROBE_COMM_ALL,        /* all ranks; on the device: the ranks that share a copy of the states */
    DSC_PROBE_COMM_NEIGHBOURS, /* ZeRO++'s second partition */
    DSC_PROBE_COMM_SHARDS,     /* MiCS: the ranks that share a copy of the states */
    DSC_PROBE_COMM_PIPELINE,   /* the ranks of all stages with the same samples */
    DSC_PROBE_COMM_TIED,       /* the same ranks, for tied parameters */
    DSC_PROBE_COMM_TENSOR,     /* the ranks that compute each module together */
    DSC_PROBE_COMM_REPLICAS    /* MiCS: the ranks that own the same slices of all copies */
} dsc_probe_comm;
/* NULL: this run has none. */
dsc_comm *dsc_probe_host_comm(const dsc_engine *engine, dsc_probe_comm which);
dsc_comm *dsc_probe_device_comm(const dsc_engine *engine, dsc_probe_comm which);
/* Payload in bytes that this rank plans to send to tensor ranks in a step. */
dsc_status dsc_probe_tensor_sent_bytes(const dsc_engine *engine, int64_t *bytes, dsc_error *err);
/* The operations of an open communicator; set ones are borrowed. */
const dsc_comm_ops *dsc_probe_comm_ops(const dsc_comm *comm);
void dsc_probe_set_comm_ops(dsc_comm *comm, const dsc_comm_ops *ops);
/* Bytes that the shared-memory transport takes for such a communicator. */
int64_t dsc_probe_shm_plan_bytes(const dsc_comm_options *options);

/* ---- progress of a run ---- */

dsc_quota dsc_probe_quota(const dsc_engine *engine);      /* quotas of the next step; borrowed until then */
int64_t dsc_probe_step(const dsc_engine *engine);         /* steps so far, skipped ones too */
int64_t dsc_probe_update_count(const dsc_engine *engine); /* updates so far */
void dsc_probe_set_update_count(dsc_engine *engine, int64_t count);
dsc_loss_scaler dsc_probe_loss_scaler(const dsc_engine *engine);
bool dsc_probe_has_failed(const dsc_engine *engine); /* the engine can only be closed */
bool dsc_probe_values_due(const dsc_engine *engine); /* parameters have no values yet */
/* Waits for all work of an engine that is under way. */
DSC_MUST_USE dsc_status dsc_probe_settle(dsc_engine *engine, dsc_error *err);

/* ---- memory, threads and files ---- */

bool dsc_probe_has_snapshot(const dsc_engine *engine); /* a buffer for asynchronous saves is open */
/* Replaces the buffer for checkpoint files by one of `bytes`. */
DSC_MUST_USE dsc_status dsc_probe_resize_io_buffer(dsc_engine *engine, int64_t bytes, dsc_error *err);
void dsc_probe_set_threads(dsc_engine *engine, int32_t threads);
/* The host memory that the plan finds free from now on; INT64_MAX: unknown. */
void dsc_probe_set_host_free_bytes(dsc_engine *engine, int64_t bytes);
/* Whether the plan fits the machine. */
DSC_MUST_USE dsc_status dsc_probe_check_fit(const dsc_engine *engine, dsc_error *err);
/* dsc_engine_check_world. */
DSC_MUST_USE dsc_status dsc_probe_check_world(const dsc_engine *engine, int32_t ranks, dsc_error *err);
/* Called before each file operation of this rank; before = NULL: no hook. */
void dsc_probe_set_io_hook(dsc_engine *engine, dsc_io_hook hook);
/* Called before each asynchronous block of this rank; borrowed; NULL: no hook. */
void dsc_probe_set_block_hook(dsc_engine *engine, const dsc_aio_hook *hook);
/* The N of a path that ends in step-N; -1: another name. */
int64_t dsc_probe_step_of_folder(const char *path);

/* ---- buffers of modules ---- */

/* out <- the values of a buffer as modules read them on the device, or its int64 if it counts steps. */
DSC_MUST_USE dsc_status dsc_probe_buffer(dsc_engine *engine, const char *name, void *out, dsc_error *err);

/* ---- states and schedule of zero (probe_zero.c) ---- */

typedef struct dsc_probe_memory {
    const void *ptr;
    int64_t bytes;
} dsc_probe_memory;
dsc_probe_memory dsc_probe_params(const dsc_zero *zero);        /* parameters in the compute dtype */
dsc_probe_memory dsc_probe_moments(const dsc_zero *zero);       /* all moments, group by group */
dsc_probe_memory dsc_probe_sign_errors(const dsc_zero *zero);   /* compression errors of sign exchanges */
dsc_probe_memory dsc_probe_local_updates(const dsc_zero *zero); /* 0/1 Adam's local steps since the last exchange */
int64_t dsc_probe_grad_bytes(const dsc_zero *zero);             /* the gradients' sums */
/* fp32, from this rank's first element of a group on. */
const float *dsc_probe_master(const dsc_zero *zero, int32_t group);
const float *dsc_probe_moment(const dsc_zero *zero, int32_t group, int32_t index);
/* 0/1 Adam: the weights from which the local steps began. */
const float *dsc_probe_shared_weights(const dsc_zero *zero, int32_t group);

/* 1-bit optimizers between two exchanges. */
typedef struct dsc_probe_onebit {
    dsc_onebit_phase error_phase; /* the phase whose compression errors are held */
    bool has_local_steps;         /* ranks have taken local steps that other ranks do not know */
    double decays[DSC_UPDATE_CLASSES_MAX], rates[DSC_UPDATE_CLASSES_MAX]; /* product and sum over the local steps */
} dsc_probe_onebit;
dsc_probe_onebit dsc_probe_onebit_get(const dsc_zero *zero);

dsc_stream *dsc_probe_gather_stream(const dsc_zero *zero);
dsc_stream *dsc_probe_reduce_stream(const dsc_zero *zero);
/* A speculative update then begins with all of its groups, or with one if it has none. */
void dsc_probe_set_speculative_target_to_all(dsc_zero *zero);
/* Slots of gradients' memory that were lent to tiles read ahead, of all steps so far. */
int64_t dsc_probe_lent_slots(const dsc_zero *zero);

/* Gathers of a micro-step, in the order of their issue: their number, and the group of one. */
int32_t dsc_probe_gather_count(const dsc_zero *zero);
int32_t dsc_probe_gather_group(const dsc_zero *zero, int32_t index);
/* Steps of the pass between the issue of a gather and its first use; 0: it is issued at its use. */
int32_t dsc_probe_gather_lead(const dsc_zero *zero, int32_t index);

/* The gradient of one use of a group by one of the micro-batches that run together. */
typedef struct dsc_probe_grad_part {
    int32_t module, group;
    int32_t micro_batch; /* within those that run together */
    int32_t slot;        /* -1: the part is made in the group's sum, and waits for none */
    int64_t slot_offset; /* bytes of the arena before the slot; -1: none */
    int32_t after;       /* the slot whose reductions it waits for; -1: none */
    int32_t after_mark;  /* how far these must have come */
    int32_t last_of_run; /* index of the last part of the run that is reduced in step with it */
} dsc_probe_grad_part;
/* Parts of a backward pass, in the order of their reduction. */
int32_t dsc_probe_grad_part_count(const dsc_zero *zero);
dsc_probe_grad_part dsc_probe_grad_part_get(const dsc_zero *zero, int32_t index);
/* Elements of the slice of part `index` that are reduced when its run has passed a mark of its slot. */
int64_t dsc_probe_grad_part_mark_end(const dsc_zero *zero, int32_t index, int32_t mark);
/* Levels of the binary counter that sums gradients independently of the world size; 0: a plain sum. */
int32_t dsc_probe_counter_levels(const dsc_zero *zero);

#endif
