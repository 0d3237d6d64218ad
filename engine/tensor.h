/* tensor.h - tensor parallelism: ranks that compute each module together, each with a part of its parameters.
 *
 * Tensor ranks are neighbours in the job, with the same samples. A module's program exchanges values with them
 * (models/program/ops_exchange.c) by the group that this file opens. zero/ runs on the ranks that have the same part,
 * and knows nothing of the others. A parameter that tensor ranks have alike gets equal gradients on all of them, and
 * the first one stands for it in the norm and in checkpoints (dsc_param_part).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_TENSOR_H
#define DSC_ENGINE_TENSOR_H

#include <dsc/dsc.h>

#include "comm/comm.h"
#include "engine/checkpoint/checkpoint.h"
#include "kernels/exact.h"

/* The part of struct dsc_engine. */
typedef struct dsc_engine_tensor {
    dsc_comm_group group; /* comm NULL: this rank is alone, or nothing is open yet */
    /* For checkpoints, which have whole tensors: the model with these, and its layout over all ranks of a stage. */
    dsc_model whole;
    dsc_module *modules;   /* of it */
    dsc_param_spec *specs; /* of these */
    dsc_layout layout;
    int32_t *local_tensor, *held; /* [of it] tensors' numbers in engine->layout, -1; groups' own numbers, or -1 */
    dsc_ckpt_stages owners;
    dsc_ckpt_memory memory; /* while a checkpoint is saved or loaded */
    char *states;           /* memory behind `memory` */
} dsc_engine_tensor;

bool dsc_tensor_is_shared_out(const dsc_engine *engine);
/* The ranks that a module exchanges values with; NULL: this rank computes alone. */
const dsc_exchange_group *dsc_tensor_group(const dsc_engine *engine);
/* Whether the model is one for this rank of the grid, and what the run asks for is built beside tensor ranks. */
dsc_status dsc_tensor_check(const dsc_engine *engine, dsc_error *err);
/* Whether all ranks exchange the same values in the same order, before the first exchange. Collective. */
dsc_status dsc_tensor_agree(const dsc_engine *engine, dsc_error *err);
/* After the communicators. */
void dsc_tensor_open(dsc_engine *engine);
/* *sum <- that of all tensor ranks. Collective. */
dsc_status dsc_tensor_add_sums(dsc_engine *engine, dsc_fixed_sum *sum, dsc_error *err);
/* ---- checkpoints (tensor_states.c) ---- */

/* After the layout of stages. */
dsc_status dsc_tensor_open_layout(dsc_engine *engine, dsc_error *err);
void dsc_tensor_close(dsc_engine *engine);
/* Bytes of host memory that dsc_tensor_open_states takes. */
int64_t dsc_tensor_states_bytes(const dsc_engine *engine);
/* Memory for this rank's slices of whole tensors. With `take` the states of all tensor ranks go there, and
 * dsc_tensor_give_states brings them back. Collective. */
dsc_status dsc_tensor_open_states(dsc_engine *engine, bool take, dsc_error *err);
dsc_status dsc_tensor_give_states(dsc_engine *engine, dsc_error *err);
void dsc_tensor_close_states(dsc_engine *engine);

/* Payload in bytes that this rank sends to tensor ranks in a step, without the norm's. */
dsc_status dsc_tensor_sent_bytes(const dsc_engine *engine, int64_t *bytes, dsc_error *err);

#endif
