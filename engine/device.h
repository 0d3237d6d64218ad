/* device.h - the device that config and machine agree on, and the communicators of this rank (device.c).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_DEVICE_H
#define DSC_ENGINE_DEVICE_H

#include <dsc/dsc.h>

#include "comm/comm.h"
#include "engine/plan.h"

/* Communicators of some ranks: ZeRO++'s second partition, zero_hpz_partition_size ranks; MiCS's ranks that share a copy
 * of the states, and those of all copies that own the same slices. With stages of a pipeline, shards are the ranks of a
 * stage that hold the same parameters. The ranks with the same samples in all stages have two: for outputs and
 * gradients, and for tied parameters. Ranks of a stage with the same samples are tensor ranks. */
typedef enum dsc_side {
    DSC_SUB_NEIGHBOURS,
    DSC_SUB_SHARDS,
    DSC_SUB_REPLICAS,
    DSC_SUB_PIPELINE,
    DSC_SUB_TIED,
    DSC_SUB_TENSOR,
    DSC_SUB_COUNT
} dsc_side;
typedef struct dsc_side_comm { dsc_comm *host, *device; } dsc_side_comm;
/* The part of struct dsc_engine. */
typedef struct dsc_engine_comms {
    dsc_comm *all;    /* over host memory: verdicts, scalars, the host program's collectives */
    dsc_comm *device; /* over device memory: parameters and gradients, of ranks that share a copy of the states;
                       * on a host_visible device one over host memory */
    dsc_side_comm side[DSC_SUB_COUNT]; /* NULL where there is none */
    bool came;                         /* to the opening of the communicator */
} dsc_engine_comms;

dsc_status dsc_engine_open_device(dsc_engine *engine, const dsc_engine_options *options, dsc_error *err);
dsc_status dsc_engine_open_comm(dsc_engine *engine, const dsc_engine_options *options, dsc_error *err);
/* Collective: the sub-communicators of the plan, and between them that of devices. */
dsc_status dsc_engine_open_communicators(dsc_engine *engine, const dsc_engine_options *options, dsc_error *err);
void dsc_engine_close_sub_communicators(dsc_engine *engine);
dsc_status dsc_engine_open_device_comm(dsc_engine *engine, const dsc_engine_options *options, dsc_error *err);
/* The ranks whose slices form this rank's copy of the states. */
dsc_comm *dsc_engine_shards(const dsc_engine *engine);
/* Planned device memory that NCCL takes itself, for its windows. */
int64_t dsc_engine_window_bytes(const dsc_engine *engine);
void dsc_engine_comm_plan(const dsc_engine *engine, dsc_plan_options *out);
void dsc_engine_label_step(dsc_engine *engine, int64_t step);  /* for the flight records of later calls */
void dsc_engine_abort(dsc_engine *engine, const char *reason); /* every open communicator */
/* After a failure the engine can only be closed. The call reports the failure to peers, so that neither they nor this
 * rank's device wait. DSC_OK has no effect. Returns the status. */
dsc_status dsc_engine_fail(dsc_engine *engine, dsc_status status, dsc_error *err);
/* As dsc_engine_fail for a failure that every later collective would meet. Others, of a disk for example, leave the
 * engine usable. */
dsc_status dsc_engine_fail_of_peers(dsc_engine *engine, dsc_status status, dsc_error *err);
/* Waits for all pending work; a failure of that work fails the engine. */
dsc_status dsc_engine_settle(dsc_engine *engine, dsc_error *err);

#endif
