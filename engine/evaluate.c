/* evaluate.c - mean loss of samples without gradients, the same number for every world and micro-batch.
 *
 * Micro-batch i of a round belongs to rank i. Ranks gather the loss of each of their samples, and every rank adds them
 * in the order of the samples. The last round may have fewer samples than its micro-batches hold. The modules' shapes
 * do not change: a copy of a sample fills the rest of a micro-batch, and its loss is not counted.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "engine/batch_transfer.h"
#include "engine/device.h"
#include "engine/fp8.h"
#include "engine/internal.h"
#include "engine/report.h"

/* Samples of one evaluation. */
static dsc_status count_samples(const dsc_engine *engine, const dsc_data_source *source, int64_t max_batches,
                                int64_t *count, dsc_error *err)
{
    const bool endless = source->sample_count == 0;
    *count = source->sample_count;
    if (endless && max_batches == 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, "eval data", "an endless source needs max_batches");
    int64_t limit = 0;
    if (max_batches > 0 && !dsc_mul_i64(max_batches, engine->config.eval_batch_size, &limit))
        limit = INT64_MAX / 2;
    if (max_batches > 0)
        *count = endless ? limit : dsc_min_i64(limit, source->sample_count);
    const bool own = engine->input.eval != NULL && source == &engine->input.eval_source;
    const int64_t unit = dsc_model_prefers(engine->model) ? 2 : own ? dsc_data_unit(engine->input.eval) : 1;
    *count -= *count % unit; /* whole pairs, or rows of texts */
    return DSC_OK;
}

/* Copies of sample 0 of the host's micro-batch from sample `count` on. */
static void repeat_first_sample(const dsc_engine *engine, int64_t count)
{
    const int64_t batch = engine->config.train_micro_batch_size_per_gpu;
    for (int32_t i = 0; i < engine->models.now->batch_count; i++) {
        char *data = engine->work.eval_data[i];
        const int64_t bytes = dsc_batch_tensor_bytes(engine->models.now, 1, i);
        for (int64_t k = count; k < batch; k++)
            memcpy(data + k * bytes, data, (size_t)bytes);
    }
}

enum { TOP = 5 };

/* Means over all targets of each sample, added; and this rank's counted targets. */
typedef struct evaluated {
    double sum;
    int64_t counted, wrong; /* wrong: items of a model with labels, whose losses have a minus sign */
    int64_t behind; /* items of a model with classes whose class is not among the first TOP */
    dsc_pair_sums pairs;
    dsc_text_evaluation texts; /* of a model that makes vectors of texts */
} evaluated;

static bool compares_texts(const dsc_engine *engine) { return dsc_label_kind_pairs(engine->model->labels.kind); }

/* Rows are whole in their micro-batch. */
static dsc_status check_rows(const dsc_engine *engine, const dsc_data *data, const char *key, dsc_error *err)
{
    const int64_t batch = engine->config.train_micro_batch_size_per_gpu;
    const int64_t texts = data != NULL ? dsc_data_unit(data) : 1;
    if (batch % texts == 0)
        return DSC_OK;
    return DSC_FAIL(
        err, DSC_ERR_CONFIG, "train_micro_batch_size_per_gpu",
        "%lld texts are not whole rows; with dsc.embedding it counts texts, and a row of %s has %lld: give a "
        "multiple of %lld",
        (long long)batch, key, (long long)texts, (long long)texts);
}

dsc_status dsc_engine_open_texts(dsc_engine *engine, dsc_error *err)
{
    dsc_engine_texts *texts = &engine->texts;
    const int64_t samples = engine->config.train_micro_batch_size_per_gpu * engine->place.size;
    if (!compares_texts(engine))
        return DSC_OK;
    DSC_TRY(check_rows(engine, engine->input.data, "dsc.data", err));
    DSC_TRY(check_rows(engine, engine->input.eval, "dsc.eval_data", err));
    DSC_TRY(
        dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, 2 * samples, sizeof *texts->targets, &texts->targets, err));
    if (engine->input.eval == NULL)
        return DSC_OK;
    const int64_t room = dsc_data_sample_count(engine->input.eval) / dsc_data_unit(engine->input.eval);
    DSC_TRY(dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, room, sizeof *texts->pair, &texts->pair, err));
    DSC_TRY(dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, room, sizeof *texts->ranks, &texts->ranks, err));
    texts->room = room;
    return DSC_OK;
}

void dsc_engine_close_texts(dsc_engine *engine)
{
    dsc_alloc_free(engine->alloc, engine->texts.ranks);
    dsc_alloc_free(engine->alloc, engine->texts.pair);
    dsc_alloc_free(engine->alloc, engine->texts.targets);
}

/* The round's first `found` samples, whose losses are gathered: their places and scores too, then micro-batch for
 * micro-batch. */
static dsc_status add_texts(const dsc_engine *engine, const float *own, int64_t found, evaluated *out, dsc_error *err)
{
    const int64_t batch = engine->config.train_micro_batch_size_per_gpu;
    double *const targets = engine->texts.targets, *const mine = targets + 2 * engine->place.rank * batch;
    const double scale = engine->config.own.embedding.scale;
    for (int64_t i = 0; i < 2 * batch; i++)
        mine[i] = (double)own[i];
    DSC_TRY(dsc_comm_all_gather(engine->comms.all, DSC_CHANNEL_CONTROL, targets, mine, 2 * batch, DSC_F64, NULL, err));
    for (int64_t first = 0; first < found; first += batch)
        DSC_TRY(dsc_text_evaluation_add(&out->texts, engine->model->labels.kind, scale,
                                        engine->work.eval_losses + first, targets + 2 * first,
                                        dsc_min_i64(batch, found - first), err));
    return DSC_OK;
}

/* One micro-batch of each rank from sample `first` on, of which `left` remain. */
static dsc_status evaluate_round(dsc_engine *engine, const dsc_data_source *source, int64_t first, int64_t left,
                                 evaluated *out, dsc_error *err)
{
    const int64_t batch = engine->config.train_micro_batch_size_per_gpu, rank = engine->stages.data_rank;
    const int64_t own = dsc_max_i64(0, dsc_min_i64(left - rank * batch, batch));
    const void *const *data = (const void *const *)engine->work.eval_data;
    /* A rank without a sample computes one of others: all ranks take part in the collectives of a pass. */
    const int64_t from = own > 0 ? first + rank * batch : first, filled = dsc_max_i64(1, own);
    DSC_TRY(source->fill(source->user, from, filled, engine->work.eval_data, err));
    repeat_first_sample(engine, filled);
    DSC_TRY(dsc_batch_check(engine->model, batch, data, err));
    out->counted += dsc_batch_counted(engine->model, own * engine->model->losses_per_sample, data);
    DSC_TRY(dsc_engine_give_batch(engine, 0, data, err));
    DSC_TRY(dsc_engine_forward_only(engine, err));
    DSC_TRY(dsc_engine_fetch_losses(engine, 0, err));
    DSC_TRY(dsc_engine_fetch_places(engine, err));
    DSC_TRY(dsc_stream_sync(engine->compute, err));
    double *const losses = engine->work.eval_losses, *const mine = losses + engine->place.rank * batch;
    if (dsc_model_prefers(engine->model))
        dsc_engine_sample_rewards(engine, 0, engine->work.host_losses, mine);
    else
        out->wrong += dsc_engine_sample_losses(engine, own, mine);
    out->behind += dsc_engine_count_behind(engine, own, TOP);
    DSC_TRY(dsc_comm_all_gather(engine->comms.all, DSC_CHANNEL_CONTROL, losses, mine, batch, DSC_F64, NULL, err));
    const int64_t found = dsc_min_i64(left, batch * engine->stages.grid.data);
    for (int32_t d = 0; d < engine->stages.grid.data; d++)
        memmove(losses + d * batch, losses + dsc_engine_loss_rank(engine, d) * batch, (size_t)batch * sizeof *losses);
    if (compares_texts(engine))
        DSC_TRY(add_texts(engine, engine->work.eval_data[1], found, out, err));
    for (int64_t i = 0; dsc_model_prefers(engine->model) && i < found; i += 2)
        dsc_pair_add(&engine->model->preference, losses + i, &out->pairs);
    for (int64_t i = 0; i < found; i++)
        out->sum += losses[i];
    return DSC_OK;
}

/* counted <- the sum over the ranks that have losses. */
static dsc_status gather_counted(dsc_engine *engine, int64_t *counted, dsc_error *err)
{
    const double own = (double)*counted;
    double *const all = engine->work.step_stat_count;
    DSC_TRY(dsc_comm_all_gather(engine->comms.all, DSC_CHANNEL_CONTROL, all, &own, 1, DSC_F64, NULL, err));
    *counted = 0;
    for (int32_t d = 0; d < engine->stages.grid.data; d++)
        *counted += (int64_t)all[dsc_engine_loss_rank(engine, d)];
    return DSC_OK;
}

/* All samples, of which there are `count`. */
static dsc_status evaluate_rounds(dsc_engine *engine, const dsc_data_source *source, int64_t count, evaluated *all,
                                  dsc_error *err)
{
    const int64_t per_round = engine->config.train_micro_batch_size_per_gpu * engine->stages.grid.data;
    all->texts.pair = engine->texts.pair;
    all->texts.ranks = engine->texts.ranks;
    all->texts.room = engine->texts.room;
    for (int64_t first = 0; first < count; first += per_round)
        DSC_TRY(evaluate_round(engine, source, first, count - first, all, err));
    return compares_texts(engine) ? dsc_text_evaluation_finish(&all->texts, err) : DSC_OK;
}

static dsc_status evaluate(dsc_engine *engine, const dsc_data_source *source, int64_t max_batches, dsc_evaluation *out,
                           dsc_error *err)
{
    int64_t count = 0;
    evaluated all = { 0 };
    DSC_TRY(count_samples(engine, source, max_batches, &count, err));
    DSC_TRY(evaluate_rounds(engine, source, count, &all, err));
    DSC_TRY(gather_counted(engine, &all.counted, err));
    DSC_TRY(gather_counted(engine, &all.wrong, err));
    if (engine->model->labels.smooths)
        DSC_TRY(gather_counted(engine, &all.behind, err));
    if (all.counted == 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, "eval data",
                        "none of %lld targets is counted, all are -1 or -100; give data with targets",
                        (long long)(count * engine->model->losses_per_sample));
    out->pairs = dsc_pair_means(all.pairs, count / 2);
    out->texts = all.texts;
    out->items = all.counted;
    out->right = all.counted - all.wrong;
    out->ranked = engine->model->labels.smooths && engine->model->labels.count > TOP;
    out->right_of_five = all.counted - all.behind;
    if (dsc_model_prefers(engine->model))
        out->loss = out->pairs.loss;
    else if (compares_texts(engine))
        out->loss = all.texts.loss;
    else
        out->loss = dsc_counted_mean(all.sum / (double)count, all.counted, count * engine->model->losses_per_sample);
    return DSC_OK;
}

/* The averages are the weights for the time of the evaluation. */
static dsc_status exchange_averages(dsc_engine *engine, dsc_error *err)
{
    DSC_TRY(dsc_zero_exchange_averages(engine->zero, err));
    DSC_TRY(dsc_engine_exchange_buffers(engine, err));
    if (engine->stages.trains_tied)
        DSC_TRY(dsc_stages_share_tied(engine, err));
    dsc_engine_fp8_changed(engine);
    return DSC_OK;
}

static dsc_status evaluate_averages(dsc_engine *engine, const dsc_data_source *source, int64_t max_batches,
                                    dsc_evaluation *out, dsc_error *err)
{
    DSC_TRY(exchange_averages(engine, err));
    DSC_TRY(evaluate(engine, source, max_batches, out, err));
    DSC_TRY(dsc_engine_settle(engine, err));
    return exchange_averages(engine, err);
}

dsc_status dsc_engine_evaluate(dsc_engine *engine, const dsc_data_source *source, int64_t max_batches, double *loss,
                               dsc_error *err)
{
    DSC_TRY(dsc_engine_check_idle(engine, "evaluate", err));
    if (source == NULL || source->fill == NULL)
        source = &engine->input.eval_source;
    if (source->fill == NULL)
        return DSC_FAIL(err, DSC_ERR_STATE, "dsc.eval_data", "no evaluation data is given");
    DSC_TRY(dsc_engine_need_values(engine, err));
    const int64_t start = dsc_engine_span_start(engine, DSC_SPAN_EVALUATE, -1);
    dsc_evaluation result = { 0 };
    const bool averages = engine->config.own.ema.evaluate && dsc_zero_has_averages(engine->zero);
    const dsc_status status = averages ? evaluate_averages(engine, source, max_batches, &result, err)
                                       : evaluate(engine, source, max_batches, &result, err);
    dsc_engine_warn_of_pictures(engine);
    dsc_engine_span_end(engine, DSC_SPAN_EVALUATE, -1, start);
    if (status == DSC_OK) {
        *loss = result.loss;
        engine->evaluated = result;
        dsc_engine_report_evaluation(engine, &result);
    }
    return dsc_engine_fail(engine, status, err);
}
