/* preference.c - see preference.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/preference.h"

#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "engine/batch_transfer.h"
#include "engine/internal.h"
#include "kernels/preference.h"

/* ---- Opening ---- */

static dsc_status take_memory(dsc_engine *engine, const dsc_data *data, dsc_data_reference **out, dsc_error *err)
{
    if (data == NULL)
        return DSC_OK;
    return dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, dsc_data_stored_count(data), sizeof **out, out, err);
}

dsc_status dsc_engine_open_preference(dsc_engine *engine, dsc_error *err)
{
    const int64_t batch = engine->config.train_micro_batch_size_per_gpu;
    if (!dsc_model_prefers(engine->model))
        return DSC_OK;
    if (batch % 2 != 0)
        return DSC_FAIL(err, DSC_ERR_CONFIG, "train_micro_batch_size_per_gpu",
                        "%lld is odd; with dsc.dpo it counts sequences, and a pair is two of them: give an even number",
                        (long long)batch);
    DSC_TRY(take_memory(engine, engine->input.data, &engine->preference.train, err));
    return take_memory(engine, engine->input.eval, &engine->preference.eval, err);
}

void dsc_engine_close_preference(dsc_engine *engine)
{
    dsc_alloc_free(engine->alloc, engine->preference.train);
    dsc_alloc_free(engine->alloc, engine->preference.eval);
}

/* ---- The reference ---- */

/* all[found] <- doubles of the samples of a round, of which each rank gives `batch` at its own place. */
static dsc_status gather_found(dsc_engine *engine, double *all, int64_t batch, int64_t found, dsc_error *err)
{
    DSC_TRY(dsc_comm_all_gather(engine->comms.all, DSC_CHANNEL_CONTROL, all, all + engine->place.rank * batch, batch,
                                DSC_F64, NULL, err));
    DSC_ASSERT(found <= batch * engine->stages.grid.data);
    for (int32_t d = 0; d < engine->stages.grid.data; d++)
        memmove(all + d * batch, all + dsc_engine_loss_rank(engine, d) * batch, (size_t)batch * sizeof *all);
    return DSC_OK;
}

/* One micro-batch of each rank from sample `first` on. Ranks give each other what they found. */
static dsc_status refer_round(dsc_engine *engine, dsc_data *data, int64_t first, dsc_data_reference *out,
                              dsc_error *err)
{
    const int64_t batch = engine->config.train_micro_batch_size_per_gpu, rank = engine->stages.data_rank;
    const int64_t items = engine->model->seq_length;
    const int64_t found = dsc_min_i64(dsc_data_stored_count(data) - first, batch * engine->stages.grid.data);
    const dsc_data_source source = dsc_data_stored_source(data);
    void *const *const tensors = engine->work.eval_data;
    double *const all = engine->work.eval_losses, *const own = all + engine->place.rank * batch;
    uint64_t hash = 0;
    DSC_TRY(source.fill(source.user, first + rank * batch, batch, tensors, err)); /* behind the end from the start */
    DSC_TRY(dsc_batch_check(engine->model, batch, (const void *const *)tensors, err));
    DSC_TRY(dsc_engine_give_batch(engine, 0, (const void *const *)tensors, err));
    DSC_TRY(dsc_engine_forward_only(engine, err));
    DSC_TRY(dsc_engine_fetch_losses(engine, 0, err));
    DSC_TRY(dsc_stream_sync(engine->compute, err));
    dsc_engine_sample_rewards(engine, 0, engine->work.host_losses, own);
    DSC_TRY(gather_found(engine, all, batch, found, err));
    for (int64_t i = 0; i < found; i++)
        out[first + i].log_probability = all[i];
    for (int64_t k = 0; k < batch; k++) {
        hash = dsc_data_hash(data, (const int32_t *)tensors[0] + k * items, (const int32_t *)tensors[1] + k * items);
        memcpy(&own[k], &hash, sizeof hash);
    }
    DSC_TRY(gather_found(engine, all, batch, found, err));
    for (int64_t i = 0; i < found; i++)
        memcpy(&out[first + i].hash, &all[i], sizeof hash);
    return DSC_OK;
}

static dsc_status refer(dsc_engine *engine, dsc_data *data, dsc_data_reference *out, dsc_error *err)
{
    const int64_t each = engine->config.train_micro_batch_size_per_gpu * engine->stages.grid.data;
    const int64_t start = dsc_clock_ns();
    for (int64_t first = 0; data != NULL && first < dsc_data_stored_count(data); first += each)
        DSC_TRY(refer_round(engine, data, first, out, err));
    if (data != NULL && engine->place.rank == 0)
        dsc_log_printf(&engine->log, DSC_LOG_INFO, "dsc.dpo: the reference has seen %lld pairs, once, in %.1f s",
                       (long long)(dsc_data_stored_count(data) / 2), (double)(dsc_clock_ns() - start) * 1e-9);
    return DSC_OK;
}

/* The reader has waited for them. */
static dsc_status use_references(dsc_engine *engine, dsc_error *err)
{
    dsc_engine_preference *p = &engine->preference;
    p->known = true;
    if (engine->input.data != NULL)
        dsc_data_set_references(engine->input.data, p->train);
    if (engine->input.eval != NULL)
        dsc_data_set_references(engine->input.eval, p->eval);
    if (engine->input.data == NULL || engine->input.reader == NULL)
        return DSC_OK;
    return dsc_reader_seek(engine->input.reader, engine->progress.step, &engine->input.skips, err);
}

dsc_status dsc_engine_need_references(dsc_engine *engine, dsc_error *err)
{
    dsc_engine_preference *p = &engine->preference;
    if (!dsc_model_prefers(engine->model) || p->known)
        return DSC_OK;
    DSC_TRY(refer(engine, engine->input.data, p->train, err));
    DSC_TRY(refer(engine, engine->input.eval, p->eval, err));
    return use_references(engine, err);
}

/* ---- Checkpoints ---- */

static int64_t stored(const dsc_data *data) { return data != NULL ? dsc_data_stored_count(data) : 0; }

static dsc_status load_file(dsc_engine *engine, const char *dir, dsc_error *err)
{
    dsc_ckpt_reference kept = { 0 };
    char folder[4096];
    DSC_TRY(dsc_ckpt_find(&engine->io, engine->alloc, dir, folder, sizeof folder, err));
    DSC_TRY(dsc_ckpt_read_reference(&engine->io, engine->alloc, folder, &kept, err));
    const int64_t train = stored(engine->input.data), eval = stored(engine->input.eval);
    dsc_status status = DSC_OK;
    if (train > 0 && kept.train_count != train)
        status = DSC_FAIL(err, DSC_ERR_INPUT, folder,
                          "its reference has seen %lld pairs, and the data has %lld; give the data with which the run "
                          "began, or begin a new run",
                          (long long)(kept.train_count / 2), (long long)(train / 2));
    else if (eval > 0 && kept.eval_count != eval)
        status = DSC_FAIL(err, DSC_ERR_INPUT, folder,
                          "its reference has seen %lld pairs of dsc.eval_data, and there are %lld; give that data with "
                          "which the run began, or remove the key",
                          (long long)(kept.eval_count / 2), (long long)(eval / 2));
    if (status == DSC_OK && train > 0)
        memcpy(engine->preference.train, kept.train, (size_t)train * sizeof *kept.train);
    if (status == DSC_OK && eval > 0)
        memcpy(engine->preference.eval, kept.eval, (size_t)eval * sizeof *kept.eval);
    dsc_alloc_free(engine->alloc, kept.memory);
    return status;
}

static dsc_status share(dsc_engine *engine, dsc_data_reference *references, int64_t count, dsc_error *err)
{
    if (count == 0)
        return DSC_OK;
    return dsc_comm_broadcast(engine->comms.all, DSC_CHANNEL_CONTROL, references, count * (int64_t)sizeof *references,
                              0, NULL, err);
}

dsc_status dsc_engine_load_references(dsc_engine *engine, const char *dir, dsc_error *err)
{
    const dsc_ckpt_ctx ctx = { .comm = engine->comms.all, .stream = engine->compute, .buffer = engine->io_buf };
    dsc_error mine = DSC_ERROR_INIT;
    if (!dsc_model_prefers(engine->model) || (engine->input.data == NULL && engine->input.eval == NULL))
        return DSC_OK;
    const dsc_status status = engine->place.rank == 0 ? load_file(engine, dir, &mine) : DSC_OK;
    DSC_TRY(dsc_ckpt_agree(&ctx, status, &mine, err));
    DSC_TRY(share(engine, engine->preference.train, stored(engine->input.data), err));
    DSC_TRY(share(engine, engine->preference.eval, stored(engine->input.eval), err));
    return use_references(engine, err);
}

/* ---- Pairs of a step ---- */

void dsc_engine_keep_references(dsc_engine *engine, int64_t micro_step, const void *const *host)
{
    const int64_t batch = engine->config.train_micro_batch_size_per_gpu;
    if (dsc_model_prefers(engine->model))
        memcpy(engine->work.references + micro_step * batch, host[engine->model->batch_count - 1],
               (size_t)batch * sizeof(double));
}

void dsc_engine_sample_rewards(const dsc_engine *engine, int64_t micro_step, const float *losses, double *out)
{
    const int64_t batch = engine->config.train_micro_batch_size_per_gpu, items = engine->model->losses_per_sample;
    for (int64_t k = 0; k < batch; k++)
        out[k] = -dsc_preference_sum(losses + k * items, items) - engine->work.references[micro_step * batch + k];
}

void dsc_pair_add(const dsc_preference *preference, const double *above, dsc_pair_sums *sums)
{
    const double margin = above[0] - above[1];
    sums->loss += dsc_preference_loss(preference->beta, preference->smoothing, margin);
    sums->chosen += preference->beta * above[0];
    sums->rejected += preference->beta * above[1];
    sums->accuracy += margin > 0;
}

dsc_pair_sums dsc_pair_means(dsc_pair_sums sums, int64_t pairs)
{
    const double count = (double)pairs;
    return (dsc_pair_sums) { sums.loss / count, sums.chosen / count, sums.rejected / count, sums.accuracy / count };
}

static double *facts_of(const dsc_engine *engine, double *facts, int64_t micro_step)
{
    return facts + dsc_step_stat_count(&engine->config) -
           DSC_PAIR_STATS * (engine->config.micro_steps_most - micro_step);
}

double dsc_engine_pair_loss(const dsc_engine *engine, int64_t micro_step, const float *losses)
{
    const int64_t batch = engine->config.train_micro_batch_size_per_gpu;
    double *const above = engine->work.above_reference, *const facts =
                                                            facts_of(engine, engine->work.step_stats, micro_step);
    dsc_pair_sums sums = { 0 };
    dsc_engine_sample_rewards(engine, micro_step, losses, above);
    for (int64_t k = 0; k < batch; k += 2)
        dsc_pair_add(&engine->model->preference, above + k, &sums);
    const dsc_pair_sums means = dsc_pair_means(sums, batch / 2);
    facts[0] = means.chosen;
    facts[1] = means.rejected;
    facts[2] = means.accuracy;
    return means.loss;
}

dsc_pair_sums dsc_engine_step_pairs(const dsc_engine *engine)
{
    const int64_t words = dsc_step_stat_count(&engine->config);
    dsc_pair_sums sums = { 0 };
    for (int64_t m = 0; m < engine->quota.micro_steps; m++)
        for (int32_t d = 0; d < engine->stages.grid.data; d++) {
            if (!dsc_quota_has(&engine->quota.now, d, m))
                continue;
            double *const rank = engine->work.step_stat_count + dsc_engine_loss_rank(engine, d) * words;
            const double *facts = facts_of(engine, rank, m);
            sums.chosen += facts[0];
            sums.rejected += facts[1];
            sums.accuracy += facts[2];
        }
    return dsc_pair_means(sums, engine->quota.now.total);
}
