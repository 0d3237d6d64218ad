/* pipeline.h - the grid of ranks, and pipeline parallelism: stages of modules on ranks of their own.
 *
 * world = pipeline x data x tensor; rank = (stage * data + data rank) * tensor + tensor rank. The data ranks of a stage
 * that have the same tensor rank are the world of zero/, which sees their modules alone. engine/tensor.h is about
 * tensor ranks. Outputs and their gradients go from stage to stage, between ranks of the same data rank. Each
 * stage reads the batches itself. Losses are the last stage's. A step's bits are those of one stage: the same calls of
 * modules, gradient parts in the order of micro-batches, and a norm that is added exactly.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_PIPELINE_H
#define DSC_ENGINE_PIPELINE_H

#include <dsc/dsc.h>

#include "comm/comm.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/stages/schedule.h"
#include "engine/stages/stage_model.h"
#include "kernels/exact.h"

/* Channels of the communicator along the pipeline. A stage sends on one of a pair and receives on the other. */
enum { DSC_STAGE_CHANNEL_OUT, DSC_STAGE_CHANNEL_BACK = 2, DSC_STAGE_CHANNELS = 4 };
#define DSC_STAGE_TIED_SLOTS 2 /* buffers of gradients of tied parameters */

/* Header of each message, so that a wrong one is seen. Where the host reads the device's memory, it is looked at before
 * the message. Devices receive headers as they do messages, and the host looks at those of a step at its end. */
typedef struct dsc_stage_header {
    int64_t step, micro_batch; /* numbers; of an evaluation its number among all of this engine */
    int64_t work;              /* dsc_stage_work of the receiver */
    int64_t stage;             /* of the sender */
} dsc_stage_header;

/* Messages on their way; buffers are in dsc_work. */
typedef struct dsc_stage_transfers {
    dsc_stream *out, *back, *tied;
    dsc_event *mark;
    dsc_event **out_free;  /* [lanes] the output has been received */
    dsc_event **back_free; /* [slots] */
    dsc_event *tied_free[DSC_STAGE_TIED_SLOTS];
    dsc_fixed_sum *sums; /* [stages] */
} dsc_stage_transfers;

/* A tied parameter over stages, as this rank sees it. */
typedef struct dsc_stage_tied {
    dsc_stage_tie tie;
    int64_t first, count; /* elements that the last stage's rank of this data rank keeps of its copy */
} dsc_stage_tied;

/* Sizes that follow from the length of the samples. */
typedef struct dsc_stage_sizes {
    int64_t in_bytes;  /* outputs of the stage before, of a micro-batch; 0: the first stage */
    int64_t out_bytes; /* outputs of this stage, of a micro-batch; 0: the last one */
    double flops;      /* FLOPs of a micro-batch in all stages */
} dsc_stage_sizes;

/* This stage's modules for samples that are shorter than the model's (engine/truncated_model.c). */
typedef struct dsc_short_stage {
    dsc_stage_model own;
    dsc_stage_sizes sizes;
} dsc_short_stage;

/* The part of struct dsc_engine. With one stage only `grid` and `data_rank` are used. */
typedef struct dsc_engine_stages {
    dsc_grid grid;                         /* sizes of the axes */
    int32_t stage, data_rank, tensor_rank; /* this rank's */
    const dsc_model *whole;   /* NULL: there is one stage */
    int32_t *first_module;    /* [stages + 1] */
    dsc_stage_model own;
    dsc_stage_tied tied[DSC_STAGE_TIES_MAX];
    int32_t tied_count;
    int32_t tied_owner;      /* stage that owns them; -1: none */
    bool trains_tied;        /* gradients and new weights of them travel in each step */
    dsc_stage_sizes sizes;   /* of whole samples */
    dsc_short_stage *cut;    /* [models.cut_count] of shorter ones; NULL: there are none */
    int64_t record_bytes;    /* loads of experts of a micro-batch, of the routers of all stages; 0: there are none */
    int64_t tied_bytes;      /* gradients of trainable tied parameters, of a micro-batch, in the last stage */
    dsc_layout layout;       /* layout of the whole model, over the ranks of a stage */
    int32_t *group, *tensor; /* [of it] numbers in this rank's layout; -1 */
    dsc_ckpt_stages owners;
    dsc_stage_shape shape;
    int32_t slots;    /* buffers of gradients of the input */
    dsc_stage_op *op; /* [op_count] of an optimizer step */
    int64_t op_count;
    int64_t op_now; /* number of the work that runs; a pass without gradients has two behind those of a step */
    dsc_stage_transfers transfers;
    bool turned;         /* the last pass was a forward: its backward may follow */
    int64_t evaluations; /* passes without gradients so far */
} dsc_engine_stages;

struct dsc_engine;

/* Headers of a step's work, and of a pass without gradients: its input and its output. */
static inline int64_t dsc_stage_header_count(const dsc_stage_shape *shape) { return dsc_stage_list(shape, NULL) + 2; }

static inline bool dsc_stages_are_used(const dsc_engine_stages *stages) { return stages->whole != NULL; }
static inline bool dsc_stages_is_last(const dsc_engine_stages *stages)
{
    return stages->stage == stages->grid.pipeline - 1;
}
/* This rank's stage ends with the loss module. */
static inline bool dsc_stages_has_loss(const dsc_engine_stages *stages)
{
    return !dsc_stages_are_used(stages) || stages->own.ends;
}
/* The rank of the job that has a stage's modules and this rank's samples. */
static inline int32_t dsc_stages_rank_of(const dsc_engine_stages *stages, int32_t stage)
{
    return (stage * stages->grid.data + stages->data_rank) * stages->grid.tensor + stages->tensor_rank;
}

/* The first of the ranks that have a module of the whole model. */
static inline int32_t dsc_stages_first_rank_of(const dsc_engine_stages *stages, int32_t module)
{
    if (!dsc_stages_are_used(stages))
        return 0;
    return dsc_stage_of_module(stages->first_module, stages->grid.pipeline, module) * stages->grid.data *
           stages->grid.tensor;
}

/* ---- open (pipeline_open.c) ---- */

/* The grid, and this rank's place in it; the axes must divide the ranks. */
dsc_status dsc_stages_place(dsc_engine *engine, dsc_error *err);
/* After the config is resolved: cuts the model, and engine->model becomes the stage's. With one stage nothing. */
dsc_status dsc_stages_open(dsc_engine *engine, dsc_error *err);
/* engine->layout; with stages also that of the whole model, and places of this stage's tensors in it. */
dsc_status dsc_stages_open_layout(dsc_engine *engine, dsc_error *err);
/* After the memory is open: streams and events. Collective: all ranks have the same schedule. */
dsc_status dsc_stages_open_transfers(dsc_engine *engine, dsc_error *err);
void dsc_stages_close_transfers(dsc_engine *engine); /* before the communicators */
void dsc_stages_close(dsc_engine *engine);
/* Sizes for samples of this length, and of the length that the modules run on now. */
const dsc_stage_sizes *dsc_stages_sizes_of(const dsc_engine *engine, int64_t length);
const dsc_stage_sizes *dsc_stages_sizes_now(const dsc_engine *engine);
/* The model with the modules of all stages. */
const dsc_model *dsc_stages_whole_model(const dsc_engine *engine);
/* The layout of all parameters of the run. */
const dsc_layout *dsc_stages_whole_layout(const dsc_engine *engine);
/* The tensor of this rank's layout is a copy of a tied parameter, whose values come from another stage. */
bool dsc_stages_is_copy(const dsc_engine *engine, int32_t tensor);
/* Bytes that this rank sends along the pipeline in a step. */
int64_t dsc_stages_sent_bytes(const dsc_engine *engine);

/* ---- step (pipeline_run.c) ---- */

dsc_status dsc_stages_train_batch(dsc_engine *engine, dsc_step_result *result, dsc_error *err);
/* A pass over work.batch[0]; work.losses are the last stage's. */
dsc_status dsc_stages_forward_only(dsc_engine *engine, dsc_error *err);
/* Around the modules of a pass without gradients over lane 0: the input comes, the output goes. */
dsc_status dsc_stages_enter(dsc_engine *engine, dsc_error *err);
dsc_status dsc_stages_leave(dsc_engine *engine, dsc_error *err);
/* work.host_logits <- the last stage's. */
dsc_status dsc_stages_share_logits(dsc_engine *engine, dsc_error *err);

/* ---- transfers (pipeline_transfer.c) ---- */

/* Where a module finds the output of the stage before, and where it writes its gradient; NULL: the first stage. */
const void *dsc_stages_input(const dsc_engine *engine, int32_t lane);
dsc_status dsc_stages_input_gradient(dsc_engine *engine, int64_t micro_batch, void **out, dsc_error *err);
/* The last stage's loss module: grad[p] of tied parameters <- memory that is sent to their owner. */
dsc_status dsc_stages_tied_gradients(dsc_engine *engine, int64_t micro_batch, float **grad, dsc_error *err);
dsc_status dsc_stages_recv(dsc_engine *engine, dsc_stage_work work, int64_t micro_batch, void *to, int64_t bytes,
                           dsc_error *err);
/* `lane`: of an output. */
dsc_status dsc_stages_send_output(dsc_engine *engine, dsc_stage_work work, int64_t micro_batch, int32_t lane,
                                  dsc_error *err);
dsc_status dsc_stages_send_gradient(dsc_engine *engine, int64_t micro_batch, dsc_error *err);
dsc_status dsc_stages_send_tied(dsc_engine *engine, int64_t micro_batch, dsc_error *err);
dsc_status dsc_stages_recv_tied(dsc_engine *engine, int64_t micro_batch, float *const *grad, dsc_error *err);
/* Waits until all messages of this rank have been received. */
dsc_status dsc_stages_settle(dsc_engine *engine, dsc_error *err);
/* Copies of tied parameters become those of the owners. Collective; zero is idle. */
dsc_status dsc_stages_share_tied(dsc_engine *engine, dsc_error *err);
/* *sum <- that of all stages. Collective. */
dsc_status dsc_stages_add_sums(dsc_engine *engine, dsc_fixed_sum *sum, dsc_error *err);
/* The message of a failure names ranks of the job, with their places in the grid. */
void dsc_stages_explain(const dsc_engine *engine, dsc_error *err);

#endif
