/* pipeline_transfer.c - messages between stages: outputs, their gradients, and those of tied parameters.
 *
 * A send runs on a stream of its own until its receiver has come, so that no two stages wait for each other. Receives
 * run on the compute stream. GPUs send from their memory: each channel is a communicator of NCCL's own. Outputs are
 * sent from where they lie until their backward has run. Gradients of inputs have dsc_stage_slots buffers, and those of
 * tied parameters two. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "engine/internal.h"
#include "engine/pipeline.h"

/* The communicators along the pipeline, of the memory that modules use and of the host's, and that of tied parameters;
 * the rank in all of them is the stage. */
static dsc_comm *pipeline_comm(const dsc_engine *engine) { return engine->comms.side[DSC_SUB_PIPELINE].device; }
static dsc_comm *host_comm(const dsc_engine *engine) { return engine->comms.side[DSC_SUB_PIPELINE].host; }
static dsc_comm *tied_comm(const dsc_engine *engine) { return engine->comms.side[DSC_SUB_TIED].device; }

/* A stage's channel: neighbours have the two of a pair. */
static int32_t channel_of(int32_t base, int32_t stage) { return base + stage % 2; }

/* ---- open and close ---- */

static dsc_status open_streams(dsc_engine *engine, dsc_error *err)
{
    dsc_engine_stages *stages = &engine->stages;
    dsc_stage_transfers *t = &stages->transfers;
    DSC_TRY(dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, stages->grid.pipeline, sizeof *t->sums, &t->sums, err));
    DSC_TRY(dsc_stream_open(engine->device, DSC_STREAM_ASYNC, "stage out", &t->out, err));
    DSC_TRY(dsc_stream_open(engine->device, DSC_STREAM_ASYNC, "stage back", &t->back, err));
    if (stages->tied_bytes > 0)
        DSC_TRY(dsc_stream_open(engine->device, DSC_STREAM_ASYNC, "tied", &t->tied, err));
    DSC_TRY(dsc_event_open(engine->device, &t->mark, err));
    DSC_TRY(dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, stages->slots, sizeof *t->back_free, &t->back_free, err));
    for (int32_t i = 0; i < stages->slots; i++)
        DSC_TRY(dsc_event_open(engine->device, &t->back_free[i], err));
    const int32_t lanes = engine->plan.lanes;
    DSC_TRY(dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, lanes, sizeof *t->out_free, &t->out_free, err));
    for (int32_t i = 0; i < lanes; i++)
        DSC_TRY(dsc_event_open(engine->device, &t->out_free[i], err));
    for (int32_t i = 0; i < DSC_STAGE_TIED_SLOTS; i++)
        DSC_TRY(dsc_event_open(engine->device, &t->tied_free[i], err));
    return DSC_OK;
}

/* The number of a tie's copy among the tensors of the last stage. */
static int32_t copy_tensor(const dsc_engine *engine, const dsc_stage_tie *tie)
{
    const dsc_layout *layout = &engine->layout;
    const int32_t module = engine->stages.own.count - 1;
    DSC_ASSERT(dsc_stages_is_last(&engine->stages));
    return layout->param[layout->module_first_param[module] + tie->user_param].tensor;
}

/* Ranges of the copies that the last stage's ranks keep, for the owners. */
static dsc_status tell_copies(dsc_engine *engine, dsc_error *err)
{
    dsc_engine_stages *stages = &engine->stages;
    int64_t kept[2 * DSC_STAGE_TIES_MAX] = { 0 };
    for (int32_t i = 0; dsc_stages_is_last(stages) && i < stages->tied_count; i++) {
        void *ptr;
        dsc_zero_kept_params(engine->zero, copy_tensor(engine, &stages->tied[i].tie), &kept[2 * i], &kept[2 * i + 1],
                             &ptr);
    }
    DSC_TRY(dsc_comm_broadcast(host_comm(engine), 0, kept, (int64_t)sizeof kept, stages->grid.pipeline - 1, NULL, err));
    for (int32_t i = 0; i < stages->tied_count; i++) {
        stages->tied[i].first = kept[2 * i];
        stages->tied[i].count = kept[2 * i + 1];
    }
    return DSC_OK;
}

dsc_status dsc_stages_open_transfers(dsc_engine *engine, dsc_error *err)
{
    dsc_engine_stages *stages = &engine->stages;
    if (!dsc_stages_are_used(stages) || engine->plan_only)
        return DSC_OK;
    stages->op_count = dsc_stage_list(&stages->shape, NULL);
    DSC_TRY(dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, stages->op_count, sizeof *stages->op, &stages->op, err));
    dsc_stage_list(&stages->shape, stages->op);
    DSC_TRY(open_streams(engine, err));
    return tell_copies(engine, err);
}

void dsc_stages_close_transfers(dsc_engine *engine)
{
    dsc_stage_transfers *t = &engine->stages.transfers;
    dsc_stream_close(&t->out);
    dsc_stream_close(&t->back);
    dsc_stream_close(&t->tied);
    dsc_event_close(&t->mark);
    for (int32_t i = 0; t->back_free != NULL && i < engine->stages.slots; i++)
        dsc_event_close(&t->back_free[i]);
    for (int32_t i = 0; t->out_free != NULL && i < engine->plan.lanes; i++)
        dsc_event_close(&t->out_free[i]);
    for (int32_t i = 0; i < DSC_STAGE_TIED_SLOTS; i++)
        dsc_event_close(&t->tied_free[i]);
    dsc_alloc_free(engine->alloc, t->out_free);
    dsc_alloc_free(engine->alloc, t->back_free);
    dsc_alloc_free(engine->alloc, t->sums);
}

/* ---- buffers ---- */

/* work.stage_buf: inputs of the open micro-batches, gradients of inputs, each with loads of experts behind it, and
 * gradients of tied parameters. A device has headers behind them. */
static int64_t input_bytes(const dsc_engine_stages *stages) { return dsc_align_up(stages->sizes.in_bytes, 256); }

static int64_t slot_bytes(const dsc_engine_stages *stages)
{
    return stages->sizes.in_bytes > 0 ? input_bytes(stages) + stages->record_bytes : 0;
}

static char *input_at(const dsc_engine *engine, int32_t lane)
{
    DSC_ASSERT(lane < engine->plan.lanes);
    return (char *)engine->work.stage_buf.ptr + lane * input_bytes(&engine->stages);
}

static char *input_gradient_at(const dsc_engine *engine, int64_t micro_batch)
{
    const dsc_engine_stages *stages = &engine->stages;
    return input_at(engine, 0) + engine->plan.lanes * input_bytes(stages) +
           micro_batch % stages->slots * slot_bytes(stages);
}

static char *tied_at(const dsc_engine *engine, int64_t micro_batch)
{
    const dsc_engine_stages *stages = &engine->stages;
    const int64_t inputs = engine->plan.lanes * input_bytes(stages) + stages->slots * slot_bytes(stages);
    return (char *)engine->work.stage_buf.ptr + inputs + micro_batch % DSC_STAGE_TIED_SLOTS * stages->tied_bytes;
}

/* The header of the work that runs: where the host reads it, and where it is sent from and received. */
static dsc_stage_header *header_at(const dsc_engine *engine)
{
    DSC_ASSERT(engine->stages.op_now >= 0 && engine->stages.op_now <= engine->stages.op_count + 1);
    return (dsc_stage_header *)engine->work.stage_headers.ptr + engine->stages.op_now;
}

static dsc_stage_header *device_header_at(const dsc_engine *engine)
{
    const dsc_buf *buf = &engine->work.stage_buf;
    if (engine->host_visible)
        return header_at(engine);
    char *const first = (char *)buf->ptr + buf->bytes - engine->work.stage_headers.bytes;
    return (dsc_stage_header *)(void *)first + engine->stages.op_now;
}

const void *dsc_stages_input(const dsc_engine *engine, int32_t lane)
{
    return engine->stages.sizes.in_bytes > 0 ? input_at(engine, lane) : NULL;
}

dsc_status dsc_stages_input_gradient(dsc_engine *engine, int64_t micro_batch, void **out, dsc_error *err)
{
    *out = NULL;
    if (engine->stages.sizes.in_bytes == 0)
        return DSC_OK;
    *out = input_gradient_at(engine, micro_batch);
    return dsc_stream_wait(engine->compute, engine->stages.transfers.back_free[micro_batch % engine->stages.slots],
                           err);
}

dsc_status dsc_stages_tied_gradients(dsc_engine *engine, int64_t micro_batch, float **grad, dsc_error *err)
{
    const dsc_engine_stages *stages = &engine->stages;
    if (stages->tied_bytes == 0)
        return DSC_OK;
    DSC_TRY(dsc_stream_wait(engine->compute, stages->transfers.tied_free[micro_batch % DSC_STAGE_TIED_SLOTS], err));
    char *at = tied_at(engine, micro_batch);
    for (int32_t i = 0; i < stages->tied_count; i++) {
        if (!stages->tied[i].tie.trainable)
            continue;
        grad[stages->tied[i].tie.user_param] = (float *)(void *)at;
        at += dsc_align_up(stages->tied[i].tie.elements * 4, 256);
    }
    return DSC_OK;
}

/* ---- messages ---- */

static dsc_stage_header header_of(const dsc_engine *engine, dsc_stage_work work, int64_t micro_batch)
{
    return (dsc_stage_header) { engine->progress.step + 1, micro_batch, work, engine->stages.stage };
}

typedef struct message {
    dsc_comm *comm;
    int32_t channel, to;
    dsc_stream *stream;
    dsc_stage_work work; /* of the receiver */
    int64_t micro_batch;
} message;

/* Behind the work that the compute stream has so far. */
static dsc_status send_header(dsc_engine *engine, const message *m, dsc_error *err)
{
    dsc_stage_header *const header = header_at(engine), *const from = device_header_at(engine);
    *header = header_of(engine, m->work, m->micro_batch);
    DSC_TRY(dsc_stream_order(engine->stages.transfers.mark, engine->compute, m->stream, err));
    if (from != header)
        DSC_TRY(dsc_copy(m->stream, from, header, (int64_t)sizeof *header, err));
    return dsc_comm_send(m->comm, m->channel, from, (int64_t)sizeof *from, m->to, m->stream, err);
}

static dsc_status check_header(const dsc_engine *engine, const dsc_stage_header *got, dsc_stage_work work,
                               int64_t micro_batch, int32_t from, dsc_error *err)
{
    const dsc_stage_header want = { engine->progress.step + 1, micro_batch, work, from };
    if (memcmp(got, &want, sizeof want) == 0)
        return DSC_OK;
    return DSC_FAIL(
        err, DSC_ERR_COMM, "dsc.grid.pipeline",
        "stage %d (rank %d) waits for the %s of micro-batch %lld of step %lld from stage %d (rank %d), and "
        "stage %lld has sent the %s of micro-batch %lld of step %lld; the stages run different schedules",
        (int)engine->stages.stage, (int)engine->place.rank, dsc_stage_work_text(work), (long long)micro_batch,
        (long long)want.step, (int)from, (int)dsc_stages_rank_of(&engine->stages, from), (long long)got->stage,
        got->work >= 0 && got->work <= DSC_STAGE_EVALUATE ? dsc_stage_work_text((dsc_stage_work)got->work) : "?",
        (long long)got->micro_batch, (long long)got->step);
}

static dsc_status recv_header(dsc_engine *engine, dsc_comm *comm, int32_t channel, dsc_stage_work work,
                              int64_t micro_batch, int32_t from, dsc_error *err)
{
    dsc_stage_header *const header = header_at(engine), *const to = device_header_at(engine);
    DSC_TRY(dsc_comm_recv(comm, channel, to, (int64_t)sizeof *to, from, engine->compute, err));
    if (to != header)
        DSC_TRY(dsc_copy(engine->compute, header, to, (int64_t)sizeof *header, err));
    if (to != header && work != DSC_STAGE_EVALUATE)
        return DSC_OK; /* check_headers looks at it */
    DSC_TRY(dsc_stream_sync(engine->compute, err));
    return check_header(engine, header, work, micro_batch, from, err);
}

/* Those that devices have received in a step. */
static dsc_status check_headers(dsc_engine *engine, dsc_error *err)
{
    dsc_engine_stages *stages = &engine->stages;
    for (stages->op_now = 0; !engine->host_visible && stages->op_now < stages->op_count; stages->op_now++) {
        const dsc_stage_op *op = &stages->op[stages->op_now];
        const bool tied = op->work == DSC_STAGE_BOUNDARY && stages->stage == stages->shape.tied_owner;
        const int32_t from = tied                                  ? stages->grid.pipeline - 1
                             : op->work == DSC_STAGE_RECV_INPUT    ? stages->stage - 1
                             : op->work == DSC_STAGE_RECV_GRADIENT ? stages->stage + 1
                                                                   : -1;
        if (from >= 0)
            DSC_TRY(check_header(engine, header_at(engine), op->work, op->micro_batch, from, err));
    }
    return DSC_OK;
}

dsc_status dsc_stages_recv(dsc_engine *engine, dsc_stage_work work, int64_t micro_batch, void *to, int64_t bytes,
                           dsc_error *err)
{
    const bool back = work == DSC_STAGE_RECV_GRADIENT;
    const int32_t from = engine->stages.stage + (back ? 1 : -1);
    const int32_t channel = channel_of(back ? DSC_STAGE_CHANNEL_BACK : DSC_STAGE_CHANNEL_OUT, from);
    DSC_ASSERT(from >= 0 && from < engine->stages.grid.pipeline);
    DSC_TRY(recv_header(engine, pipeline_comm(engine), channel, work, micro_batch, from, err));
    DSC_TRY(dsc_comm_recv(pipeline_comm(engine), channel, to, bytes, from, engine->compute, err));
    const int32_t lane = (int32_t)(micro_batch % engine->plan.lanes);
    if (back) /* its sender has received the output, which the backward may write again */
        DSC_TRY(dsc_stream_wait(engine->compute, engine->stages.transfers.out_free[lane], err));
    if (engine->stages.record_bytes == 0 || work == DSC_STAGE_EVALUATE)
        return DSC_OK;
    void *const records = dsc_engine_records(engine, lane);
    return dsc_comm_recv(pipeline_comm(engine), channel, records, engine->stages.record_bytes, from, engine->compute,
                         err);
}

dsc_status dsc_stages_send_output(dsc_engine *engine, dsc_stage_work work, int64_t micro_batch, int32_t lane,
                                  dsc_error *err)
{
    dsc_engine_stages *stages = &engine->stages;
    const message m = { .comm = pipeline_comm(engine),
                        .channel = channel_of(DSC_STAGE_CHANNEL_OUT, stages->stage),
                        .to = stages->stage + 1,
                        .stream = stages->transfers.out,
                        .work = work,
                        .micro_batch = micro_batch };
    DSC_ASSERT(stages->sizes.out_bytes > 0);
    DSC_TRY(send_header(engine, &m, err));
    const char *output = engine->work.out[dsc_engine_at(engine, lane, stages->own.count - 1)];
    DSC_TRY(dsc_comm_send(m.comm, m.channel, output, dsc_stages_sizes_now(engine)->out_bytes, m.to, m.stream, err));
    if (stages->record_bytes > 0 && work != DSC_STAGE_EVALUATE)
        DSC_TRY(dsc_comm_send(m.comm, m.channel, dsc_engine_records(engine, lane), stages->record_bytes, m.to, m.stream,
                              err));
    return dsc_event_record(stages->transfers.out_free[lane], m.stream, err);
}

dsc_status dsc_stages_send_gradient(dsc_engine *engine, int64_t micro_batch, dsc_error *err)
{
    dsc_engine_stages *stages = &engine->stages;
    const int slot = (int)(micro_batch % stages->slots);
    const message m = { .comm = pipeline_comm(engine),
                        .channel = channel_of(DSC_STAGE_CHANNEL_BACK, stages->stage),
                        .to = stages->stage - 1,
                        .stream = stages->transfers.back,
                        .work = DSC_STAGE_RECV_GRADIENT,
                        .micro_batch = micro_batch };
    char *const gradient = input_gradient_at(engine, micro_batch), *const records = gradient + input_bytes(stages);
    DSC_ASSERT(stages->stage > 0);
    if (stages->record_bytes > 0) /* the lane may have another micro-batch before the receiver comes */
        DSC_TRY(dsc_copy(engine->compute, records,
                         dsc_engine_records(engine, (int32_t)(micro_batch % engine->plan.lanes)), stages->record_bytes,
                         err));
    DSC_TRY(send_header(engine, &m, err));
    DSC_TRY(dsc_comm_send(m.comm, m.channel, gradient, dsc_stages_sizes_now(engine)->in_bytes, m.to, m.stream, err));
    if (stages->record_bytes > 0)
        DSC_TRY(dsc_comm_send(m.comm, m.channel, records, stages->record_bytes, m.to, m.stream, err));
    return dsc_event_record(stages->transfers.back_free[slot], m.stream, err);
}

/* ---- tied parameters ---- */

dsc_status dsc_stages_send_tied(dsc_engine *engine, int64_t micro_batch, dsc_error *err)
{
    dsc_engine_stages *stages = &engine->stages;
    const int slot = (int)(micro_batch % DSC_STAGE_TIED_SLOTS);
    const message m = { .comm = tied_comm(engine),
                        .to = stages->tied_owner,
                        .stream = stages->transfers.tied,
                        .work = DSC_STAGE_BOUNDARY,
                        .micro_batch = micro_batch };
    const char *at = tied_at(engine, micro_batch);
    DSC_TRY(send_header(engine, &m, err));
    for (int32_t i = 0; i < stages->tied_count; i++) {
        const int64_t bytes = stages->tied[i].tie.elements * 4;
        if (!stages->tied[i].tie.trainable)
            continue;
        DSC_TRY(dsc_comm_send(m.comm, m.channel, at, bytes, m.to, m.stream, err));
        at += dsc_align_up(bytes, 256);
    }
    return dsc_event_record(stages->transfers.tied_free[slot], m.stream, err);
}

dsc_status dsc_stages_recv_tied(dsc_engine *engine, int64_t micro_batch, float *const *grad, dsc_error *err)
{
    dsc_engine_stages *stages = &engine->stages;
    const int32_t last = stages->grid.pipeline - 1;
    int32_t p = 0; /* of the boundary */
    DSC_TRY(recv_header(engine, tied_comm(engine), 0, DSC_STAGE_BOUNDARY, micro_batch, last, err));
    for (int32_t i = 0; i < stages->tied_count; i++)
        if (stages->tied[i].tie.trainable)
            DSC_TRY(dsc_comm_recv(tied_comm(engine), 0, grad[p++], stages->tied[i].tie.elements * 4, last,
                                  engine->compute, err));
    return DSC_OK;
}

/* NULL: the calling thread. */
static dsc_stream *weights_stream(const dsc_engine *engine) { return engine->host_visible ? NULL : engine->compute; }

/* The owners' weights, gathered as a pass without gradients would gather them. */
static dsc_status send_weights(dsc_engine *engine, dsc_error *err)
{
    const dsc_engine_stages *stages = &engine->stages;
    const int64_t each = (int64_t)dsc_dtype_bytes(dsc_engine_dtype(engine));
    for (int32_t m = 0; m < stages->own.count; m++) {
        DSC_TRY(dsc_zero_acquire(engine->zero, m, m, engine->work.param, err));
        for (int32_t i = 0; i < stages->tied_count; i++) {
            const dsc_stage_tied *tied = &stages->tied[i];
            if (tied->tie.owner_module != stages->own.first + m)
                continue;
            DSC_TRY(dsc_stream_sync(engine->compute, err));
            const char *from = engine->work.param[tied->tie.owner_param];
            DSC_TRY(dsc_comm_send(tied_comm(engine), 0, from + tied->first * each, tied->count * each,
                                  stages->grid.pipeline - 1, weights_stream(engine), err));
        }
    }
    return dsc_stream_sync(engine->compute, err);
}

/* In the order in which the owners' modules send them. */
static dsc_status recv_weights(dsc_engine *engine, dsc_error *err)
{
    const dsc_engine_stages *stages = &engine->stages;
    const int64_t each = (int64_t)dsc_dtype_bytes(dsc_engine_dtype(engine));
    for (int32_t m = 0; m < stages->own.first; m++)
        for (int32_t i = 0; i < stages->tied_count; i++) {
            int64_t first, count;
            void *ptr;
            if (stages->tied[i].tie.owner_module != m)
                continue;
            dsc_zero_kept_params(engine->zero, copy_tensor(engine, &stages->tied[i].tie), &first, &count, &ptr);
            DSC_TRY(dsc_comm_recv(tied_comm(engine), 0, ptr, count * each, stages->tied_owner, weights_stream(engine),
                                  err));
        }
    return dsc_stream_sync(engine->compute, err);
}

dsc_status dsc_stages_share_tied(dsc_engine *engine, dsc_error *err)
{
    const dsc_engine_stages *stages = &engine->stages;
    if (!dsc_stages_are_used(stages) || stages->tied_count == 0)
        return DSC_OK;
    if (dsc_stages_is_last(stages)) {
        DSC_TRY(dsc_zero_sync(engine->zero, err)); /* nobody reads or gathers the copies meanwhile */
        return recv_weights(engine, err);
    }
    return stages->stage == stages->tied_owner ? send_weights(engine, err) : DSC_OK;
}

/* ---- the end of a step ---- */

dsc_status dsc_stages_settle(dsc_engine *engine, dsc_error *err)
{
    dsc_stage_transfers *t = &engine->stages.transfers;
    DSC_TRY(dsc_stream_sync(t->out, err));
    DSC_TRY(dsc_stream_sync(t->back, err));
    if (t->tied != NULL)
        DSC_TRY(dsc_stream_sync(t->tied, err));
    DSC_TRY(dsc_stream_sync(engine->compute, err));
    return check_headers(engine, err);
}

dsc_status dsc_stages_add_sums(dsc_engine *engine, dsc_fixed_sum *sum, dsc_error *err)
{
    dsc_fixed_sum *all = engine->stages.transfers.sums;
    if (!dsc_stages_are_used(&engine->stages))
        return DSC_OK;
    DSC_TRY(dsc_comm_all_gather(host_comm(engine), 0, all, sum, (int64_t)sizeof *sum, DSC_U8, NULL, err));
    *sum = all[0];
    for (int32_t s = 1; s < engine->stages.grid.pipeline; s++)
        dsc_fixed_sum_merge(sum, &all[s]);
    return DSC_OK;
}

dsc_status dsc_stages_share_logits(dsc_engine *engine, dsc_error *err)
{
    if (!dsc_stages_are_used(&engine->stages))
        return DSC_OK;
    return dsc_comm_broadcast(host_comm(engine), 0, engine->work.host_logits, engine->model->vocab_size * 4,
                              engine->stages.grid.pipeline - 1, NULL, err);
}

int64_t dsc_stages_sent_bytes(const dsc_engine *engine)
{
    const dsc_engine_stages *stages = &engine->stages;
    const int64_t headers = (int64_t)sizeof(dsc_stage_header), beside = headers + stages->record_bytes;
    int64_t bytes = 0;
    bytes += stages->sizes.out_bytes > 0 ? stages->sizes.out_bytes + beside : 0;
    bytes += stages->sizes.in_bytes > 0 ? stages->sizes.in_bytes + beside : 0;
    for (int32_t i = 0; stages->tied_bytes > 0 && i < stages->tied_count; i++)
        bytes += stages->tied[i].tie.trainable ? stages->tied[i].tie.elements * 4 : 0;
    bytes += stages->tied_bytes > 0 ? headers : 0;
    return bytes * engine->config.gradient_accumulation_steps;
}

/* A rank's places in the grid. */
static const char *places_of(const dsc_engine_stages *stages, int32_t rank, char out[96])
{
    const dsc_grid *grid = &stages->grid;
    char tensor[32] = "";
    if (grid->tensor > 1)
        snprintf(tensor, sizeof tensor, ", tensor rank %d", (int)(rank % grid->tensor));
    snprintf(out, 96, "stage %d, data rank %d%s", (int)(rank / grid->tensor / grid->data),
             (int)(rank / grid->tensor % grid->data), tensor);
    return out;
}

void dsc_stages_explain(const dsc_engine *engine, dsc_error *err)
{
    const dsc_engine_stages *stages = &engine->stages;
    const bool has_groups = dsc_stages_are_used(stages) || stages->grid.tensor > 1;
    dsc_error of_all = DSC_ERROR_INIT;
    if (err == NULL || !has_groups || engine->comms.all == NULL ||
        (err->status != DSC_ERR_PEER && err->status != DSC_ERR_STUCK))
        return;
    const dsc_status status = dsc_comm_health(engine->comms.all, &of_all);
    const int32_t lost = status != DSC_OK ? of_all.rank : -1;
    char text[sizeof err->message], own[96], theirs[96];
    snprintf(text, sizeof text, "%s", status != DSC_OK ? of_all.message : err->message);
    if (lost >= 0 && lost < engine->place.size)
        DSC_FAIL(err, err->status, err->where, "%s (rank %d) lost %s: %s", places_of(stages, engine->place.rank, own),
                 (int)engine->place.rank, places_of(stages, lost, theirs), text);
    else
        DSC_FAIL(err, err->status, err->where, "%s (rank %d): %s", places_of(stages, engine->place.rank, own),
                 (int)engine->place.rank, text);
    err->rank = lost;
}
