/* snapshot.c - save and load as the host program calls them. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "engine/device.h"
#include "engine/init_values.h"
#include "engine/internal.h"
#include "engine/local_sgd.h"
#include "engine/report.h"
#include "engine/save.h"
#include "engine/schedule/schedule.h"

/* MiCS has several copies of the states; the first copy is saved. */
static bool has_copies(const dsc_engine *engine) { return engine->layout.world_size < engine->stages.grid.data; }

static bool writes(const dsc_engine *engine)
{
    return !has_copies(engine) || engine->place.rank < engine->layout.world_size;
}

/* References of the files that the config names. */
static dsc_ckpt_reference reference_of(const dsc_engine *engine)
{
    const dsc_data *train = engine->input.data, *eval = engine->input.eval;
    if (!engine->preference.known)
        return (dsc_ckpt_reference) { 0 };
    return (dsc_ckpt_reference) { .train = engine->preference.train,
                                  .eval = engine->preference.eval,
                                  .train_count = train != NULL ? dsc_data_stored_count(train) : 0,
                                  .eval_count = eval != NULL ? dsc_data_stored_count(eval) : 0 };
}

static void checkpoint_ctx(dsc_engine *engine, dsc_ckpt_ctx *ctx)
{
    const bool pipelined = dsc_stages_are_used(&engine->stages);
    *ctx = (dsc_ckpt_ctx) { .alloc = engine->alloc,
                            .io = &engine->io,
                            .log = writes(engine) ? &engine->log : NULL,
                            .model = pipelined ? engine->stages.whole : engine->model,
                            .layout = dsc_stages_whole_layout(engine),
                            .stages = pipelined ? &engine->stages.owners : NULL,
                            .zero = engine->zero,
                            .comm = pipelined ? engine->comms.all : dsc_engine_shards(engine),
                            .device = engine->device,
                            .stream = engine->compute,
                            .config_text = engine->config_text,
                            .config_bytes = engine->config_bytes,
                            .companions = { .model = engine->input.model_folder,
                                            .tokenizer = engine->config.own.tokenizer },
                            .reference = reference_of(engine),
                            .buffers = { .buffer = engine->buffers.stored,
                                         .count = engine->buffers.count,
                                         .averages = dsc_zero_has_averages(engine->zero) },
                            .keep = { .last = engine->config.own.keep_last, .every = engine->config.own.keep_every },
                            .node_local = engine->config.own.node_local,
                            .threads = engine->threads,
                            .buffer = engine->io_buf };
    dsc_zero_swap swap = { 0 };
    dsc_plan_swap(&engine->config, &swap);
    ctx->aio = swap.aio;
    if (!dsc_tensor_is_shared_out(engine))
        return;
    ctx->model = &engine->tensor.whole;
    ctx->layout = &engine->tensor.layout;
    ctx->stages = pipelined ? &engine->tensor.owners : NULL;
    ctx->memory = &engine->tensor.memory;
    ctx->comm = engine->comms.all;
}

/* Distributes the result of the first copy's ranks to all ranks. */
static dsc_status agree(dsc_engine *engine, dsc_status mine, const dsc_error *my_error, dsc_error *err)
{
    const dsc_ckpt_ctx ctx = { .comm = engine->comms.all, .stream = engine->compute, .buffer = engine->io_buf };
    if (has_copies(engine))
        return dsc_ckpt_agree(&ctx, mine, my_error, err);
    if (mine != DSC_OK && err != NULL)
        *err = *my_error;
    return mine;
}

static dsc_status between_steps(const dsc_engine *engine, const char *what, dsc_error *err)
{
    if (engine->failed)
        return DSC_FAIL(err, DSC_ERR_STATE, "", "the engine failed before; close it");
    if (engine->zero == NULL)
        return DSC_FAIL(err, DSC_ERR_STATE, "", "the engine was opened without a model");
    if (engine->progress.phase != DSC_PHASE_IDLE || engine->progress.micro_step != 0)
        return DSC_FAIL(err, DSC_ERR_STATE, "", "%s inside a step; call it at a step boundary", what);
    if (engine->saves.begun)
        return DSC_FAIL(err, DSC_ERR_STATE, "", "%s while a save is on its way; call dsc_engine_save_wait first", what);
    return DSC_OK;
}

/* Bytes of a path without the slashes at its end. */
static size_t path_bytes(const char *path)
{
    size_t bytes = strlen(path);
    while (bytes > 1 && path[bytes - 1] == '/')
        bytes--;
    return bytes;
}

/* True if this run was loaded from `dir`: by its `latest`, by its `best`, or as dir/step-N. Paths are compared as text.
 * So a second name of a folder only means that an existing step-N is refused. */
static bool resumed_from(const dsc_engine *engine, const char *dir)
{
    char name[64];
    const char *resumed = engine->saves.resumed_dir;
    const size_t bytes = path_bytes(dir), resumed_bytes = path_bytes(resumed);
    if (engine->saves.resumed_step < 0 || resumed_bytes < bytes || strncmp(resumed, dir, bytes) != 0)
        return false;
    const int length = snprintf(name, sizeof name, "/step-%lld", (long long)engine->saves.resumed_step);
    return resumed_bytes == bytes || strcmp(resumed + bytes, "/best") == 0 ||
           (resumed_bytes == bytes + (size_t)length && strncmp(resumed + bytes, name, (size_t)length) == 0);
}

/* As the run that resumes from here begins. */
static dsc_status settle_errors(dsc_engine *engine, dsc_error *err)
{
    DSC_TRY(dsc_local_sgd_settle(engine, err));
    DSC_TRY(dsc_zero_forget_errors(engine->zero, err));
    const double beta1 = dsc_schedule_beta1(&engine->config, engine->progress.update_count + 1);
    return dsc_zero_settle_signs(engine->zero, beta1, err);
}

static void note_saved(dsc_engine *engine, const char *dir)
{
    engine->saves.saved_step = engine->progress.step;
    snprintf(engine->saves.saved_dir, sizeof engine->saves.saved_dir, "%s", dir);
}

dsc_status dsc_engine_save(dsc_engine *engine, const char *dir, dsc_error *err)
{
    DSC_TRY(between_steps(engine, "save", err));
    DSC_TRY(dsc_engine_need_values(engine, err));
    DSC_TRY(dsc_engine_settle(engine, err));
    DSC_TRY(settle_errors(engine, err));
    dsc_ckpt_ctx ctx;
    dsc_run_state state;
    checkpoint_ctx(engine, &ctx);
    dsc_engine_run_state(engine, &state);
    const int64_t resumed_step = resumed_from(engine, dir) ? engine->saves.resumed_step : -1;
    dsc_alloc_freeze(engine->alloc, false);
    const int64_t start = dsc_engine_span_start(engine, DSC_SPAN_SAVE, -1);
    dsc_error mine = DSC_ERROR_INIT;
    dsc_status status = dsc_tensor_open_states(engine, true, &mine);
    if (status == DSC_OK && writes(engine))
        status = dsc_ckpt_save(&ctx, dir, &state, resumed_step, &mine);
    dsc_tensor_close_states(engine);
    status = agree(engine, status, &mine, err);
    dsc_engine_span_end(engine, DSC_SPAN_SAVE, -1, start);
    if (status == DSC_OK)
        note_saved(engine, dir);
    dsc_alloc_freeze(engine->alloc, engine->progress.step > 0);
    return dsc_engine_fail_of_peers(engine, status, err);
}

dsc_status dsc_engine_save_best(dsc_engine *engine, const char *dir, int64_t step, double loss, bool *named,
                                dsc_error *err)
{
    bool best = false;
    DSC_TRY(between_steps(engine, "save_best", err));
    if (step < 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, "save_best", "step %lld was not saved; give the number of a step from 0 on",
                        (long long)step);
    dsc_ckpt_ctx ctx;
    checkpoint_ctx(engine, &ctx);
    const bool anew = !resumed_from(engine, dir) && strcmp(engine->saves.best_dir, dir) != 0;
    dsc_alloc_freeze(engine->alloc, false);
    dsc_error mine = DSC_ERROR_INIT;
    dsc_status status = writes(engine) ? dsc_ckpt_note_best(&ctx, dir, step, loss, anew, &best, &mine) : DSC_OK;
    status = agree(engine, status, &mine, err);
    dsc_alloc_freeze(engine->alloc, engine->progress.step > 0);
    if (status == DSC_OK && has_copies(engine))
        status = dsc_comm_broadcast(engine->comms.all, DSC_CHANNEL_CONTROL, &best, (int64_t)sizeof best, 0, NULL, err);
    if (status == DSC_OK && best)
        snprintf(engine->saves.best_dir, sizeof engine->saves.best_dir, "%s", dir);
    if (named != NULL)
        *named = best;
    return dsc_engine_fail_of_peers(engine, status, err);
}

/* ---- saves that are written while training goes on ---- */

dsc_status dsc_engine_save_start(dsc_engine *engine, const char *dir, dsc_error *err)
{
    DSC_TRY(between_steps(engine, "save_start", err));
    if (engine->work.snapshot_buf.ptr == NULL)
        return DSC_FAIL(err, DSC_ERR_STATE, "dsc.save_async", "is not set: no memory is planned for a copy of the "
                        "states");
    DSC_TRY(dsc_engine_need_values(engine, err));
    DSC_TRY(dsc_engine_settle(engine, err));
    DSC_TRY(settle_errors(engine, err));
    dsc_ckpt_ctx ctx;
    dsc_run_state state;
    checkpoint_ctx(engine, &ctx);
    dsc_engine_run_state(engine, &state);
    const int64_t resumed_step = resumed_from(engine, dir) ? engine->saves.resumed_step : -1;
    dsc_alloc_freeze(engine->alloc, false);
    const int64_t start = dsc_engine_span_start(engine, DSC_SPAN_SAVE, -1);
    dsc_error mine = DSC_ERROR_INIT;
    dsc_status status = DSC_OK;
    if (writes(engine))
        status = dsc_ckpt_async_start(&ctx, dir, &state, resumed_step, &engine->work.snapshot_buf,
                                      &engine->saves.running, &mine);
    status = agree(engine, status, &mine, err);
    dsc_engine_span_end(engine, DSC_SPAN_SAVE, -1, start);
    dsc_alloc_freeze(engine->alloc, engine->progress.step > 0 && status != DSC_OK);
    if (status == DSC_OK)
        note_saved(engine, dir);
    engine->saves.step = engine->progress.step;
    engine->saves.begun = status == DSC_OK;
    engine->saves.ended = false;
    return dsc_engine_fail_of_peers(engine, status, err);
}

bool dsc_engine_saving(const dsc_engine *engine)
{
    return engine->saves.running != NULL && dsc_ckpt_async_busy(engine->saves.running);
}

void dsc_engine_snapshot_wait(dsc_engine *engine)
{
    if (engine->saves.running != NULL)
        dsc_ckpt_async_snapped(engine->saves.running);
}

/* Those who write nothing learn from rank 0 how far the others are. */
static void share_verdict(dsc_engine *engine)
{
    struct { bool ended; dsc_status status; dsc_error error; } verdict;
    memset(&verdict, 0, sizeof verdict);
    verdict.ended = engine->saves.ended;
    verdict.status = engine->saves.status;
    verdict.error = engine->saves.error;
    engine->saves.status = dsc_comm_broadcast(engine->comms.all, DSC_CHANNEL_CONTROL, &verdict,
                                              (int64_t)sizeof verdict, 0, NULL, &engine->saves.error);
    engine->saves.ended = engine->saves.status != DSC_OK || verdict.ended;
    if (engine->saves.status != DSC_OK)
        return;
    engine->saves.status = verdict.status;
    engine->saves.error = verdict.error;
}

void dsc_engine_save_advance(dsc_engine *engine)
{
    if (!engine->saves.begun || engine->saves.ended)
        return;
    if (engine->saves.running != NULL)
        engine->saves.ended =
            dsc_ckpt_async_advance(engine->saves.running, &engine->saves.status, &engine->saves.error);
    if (has_copies(engine))
        share_verdict(engine);
}

dsc_status dsc_engine_save_wait(dsc_engine *engine, int64_t *step, dsc_error *err)
{
    if (step != NULL)
        *step = engine->saves.begun ? engine->saves.step : -1;
    if (!engine->saves.begun)
        return DSC_OK;
    while (!engine->saves.ended)
        dsc_engine_save_advance(engine);
    dsc_ckpt_async_close(&engine->saves.running);
    engine->saves.begun = engine->saves.ended = false;
    dsc_alloc_freeze(engine->alloc, engine->progress.step > 0);
    if (engine->saves.status != DSC_OK && err != NULL)
        *err = engine->saves.error;
    return dsc_engine_fail_of_peers(engine, engine->saves.status, err);
}

dsc_status dsc_engine_save_check(dsc_engine *engine, const char *dir, int64_t every, int64_t last, dsc_error *err)
{
    DSC_TRY(between_steps(engine, "save_check", err));
    dsc_ckpt_ctx ctx;
    checkpoint_ctx(engine, &ctx);
    const dsc_ckpt_saves saves = { .after = engine->progress.step,
                                   .every = every,
                                   .last = last,
                                   .resumed = resumed_from(engine, dir),
                                   .compute_dtype = dsc_engine_dtype(engine),
                                   .moment_dtype = engine->config.own.moments,
                                   .recipe = engine->config.optimizer.recipe,
                                   .averages = engine->config.own.ema.enabled };
    dsc_alloc_freeze(engine->alloc, false);
    dsc_error mine = DSC_ERROR_INIT;
    dsc_status status = writes(engine) ? dsc_ckpt_check(&ctx, dir, &saves, &mine) : DSC_OK;
    status = agree(engine, status, &mine, err);
    dsc_alloc_freeze(engine->alloc, engine->progress.step > 0);
    return dsc_engine_fail_of_peers(engine, status, err);
}

/* State of an engine at open: the first values again, if present, and no moments. */
static dsc_status begin_again(dsc_engine *engine, dsc_recipe recipe, dsc_error *err)
{
    for (int32_t g = 0; g < engine->layout.group_count; g++) {
        const dsc_recipe_info *info = &dsc_recipes[dsc_layout_recipe(&engine->layout, g, recipe)];
        const int planes = DSC_PLANE_MOMENT1 + info->state_count;
        dsc_zero_slice slice;
        dsc_zero_slice_get(engine->zero, g, &slice);
        for (int plane = DSC_PLANE_MOMENT1; plane < planes && slice.trainable; plane++)
            for (int64_t done = 0, now; done < slice.count; done += now) {
                void *ptr;
                now = slice.count - done;
                DSC_TRY(dsc_zero_view(engine->zero, g, (dsc_plane)plane, done, &now, true, &ptr, err));
                DSC_TRY(dsc_fill_zero(engine->compute, ptr,
                                      now * (int64_t)dsc_dtype_bytes(dsc_zero_dtype(engine->zero, (dsc_plane)plane)),
                                      err));
            }
        for (int32_t k = 0; k < info->state_count && slice.trainable && engine->config.own.moments == DSC_U8; k++)
            DSC_TRY(dsc_fill_zero(engine->compute, dsc_zero_absmax(engine->zero, g, k, 0),
                                  slice.count / DSC_Q8_BLOCK * (int64_t)sizeof(float), err));
    }
    dsc_zero_forget_shared(engine->zero);
    dsc_zero_set_averages(engine->zero, false);
    return engine->values_due ? DSC_OK : dsc_engine_init_params(engine, err);
}

/* Each copy of the states is loaded by its own ranks. All or none have loaded it; *changed: states of some may be
 * others than before. */
static dsc_status load_copies(dsc_engine *engine, const char *dir, bool fresh, const dsc_run_state *now,
                              dsc_run_state *state, bool *changed, dsc_error *err)
{
    dsc_ckpt_ctx ctx;
    dsc_error mine = DSC_ERROR_INIT;
    checkpoint_ctx(engine, &ctx);
    DSC_TRY(dsc_tensor_open_states(engine, false, err));
    dsc_status own = dsc_ckpt_load(&ctx, dir, fresh, now, state, changed, &mine);
    if (own == DSC_OK)
        own = dsc_tensor_give_states(engine, &mine);
    dsc_tensor_close_states(engine);
    const dsc_status status = agree(engine, own, &mine, err);
    if (own == DSC_OK && status != DSC_OK)
        dsc_alloc_free(engine->alloc, state->gemm_plans);
    if (status == DSC_OK || !has_copies(engine))
        return status;
    const bool here = *changed;
    bool *all = engine->io_buf.ptr;
    DSC_TRY(dsc_comm_all_gather(engine->comms.all, DSC_CHANNEL_CONTROL, all, &here, (int64_t)sizeof here, DSC_U8, NULL,
                                err));
    for (int32_t r = 0; r < engine->place.size; r++)
        *changed |= all[r];
    return status;
}

/* Adapters are of the weights in 4 bits that they were trained beside. A checkpoint has only the hash of these. */
static dsc_status check_packed_weights(const dsc_engine *engine, const char *dir, const dsc_run_state *saved,
                                       dsc_error *err)
{
    const char *model = engine->config.own.model[0] != 0 ? engine->config.own.model : "the program";
    DSC_ASSERT(dir[0] != 0);
    if (saved->packed_hash[0] != 0 && strcmp(saved->packed_hash, engine->packed_hash) != 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, dir,
                        "adapters were trained beside the weights %s, and the weights of %s in 4 bits are %s; resume "
                        "with the model folder and the dsc.quantize_base of the saved run",
                        saved->packed_hash, model, engine->packed_hash);
    if (saved->packed_hash[0] == 0 && engine->packed_hash[0] != 0 && engine->place.rank == 0)
        dsc_log_printf(
            &engine->log, DSC_LOG_WARNING,
            "resume: %s does not tell which weights in 4 bits its adapters are of; those of the model are %s", dir,
            engine->packed_hash);
    return DSC_OK;
}

/* A run with averages begins them at its next update if the checkpoint has none. */
static void take_averages(dsc_engine *engine, const char *dir, const dsc_run_state *saved)
{
    const bool wanted = engine->config.own.ema.enabled;
    dsc_zero_set_averages(engine->zero, wanted && saved->averages);
    if (wanted == saved->averages || engine->place.rank != 0)
        return;
    dsc_log_printf(
        &engine->log, DSC_LOG_WARNING, "resume: %s has %s averages of weights, %s", dir, wanted ? "no" : "moving",
        wanted ? "which begin with the next update" : "which this run leaves out: the config has no dsc.ema");
}

static dsc_status load(dsc_engine *engine, const char *dir, dsc_error *err)
{
    dsc_run_state now, state;
    bool changed = false;
    dsc_engine_run_state(engine, &now);
    DSC_TRY(dsc_engine_settle(engine, err));
    DSC_TRY(dsc_engine_load_references(engine, dir, err));
    /* Before the first step and load the states are those that opening made, and can make again: one pass is enough. */
    const bool fresh =
        engine->progress.step == 0 && engine->progress.update_count == 0 && engine->saves.resumed_dir[0] == 0;
    dsc_status status = load_copies(engine, dir, fresh, &now, &state, &changed, err);
    /* From here on the engine's states may have changed. */
    engine->failed = changed;
    if (status != DSC_OK && changed && fresh)
        engine->failed = begin_again(engine, now.recipe, NULL) != DSC_OK;
    DSC_TRY(status);
    status = dsc_engine_set_plans(engine, state.gemm_plans, err);
    dsc_alloc_free(engine->alloc, state.gemm_plans);
    DSC_TRY(status);
    if (engine->values_due) /* a checkpoint has no packed weights: they are the model's, and never change */
        DSC_TRY(dsc_engine_init_packed(engine, err));
    DSC_TRY(check_packed_weights(engine, dir, &state, err));
    take_averages(engine, dir, &state);
    DSC_TRY(dsc_engine_give_buffers(engine, err));
    DSC_TRY(dsc_zero_publish(engine->zero, err));
    DSC_TRY(dsc_stages_share_tied(engine, err));
    engine->values_due = false; /* the load has asked for every other tensor of the model */
    snprintf(engine->saves.resumed_dir, sizeof engine->saves.resumed_dir, "%s", dir);
    engine->saves.resumed_step = state.step;
    engine->progress.step = state.step;
    engine->progress.update_count = state.update_count;
    engine->progress.skipped_in_row = 0;
    dsc_engine_forget_mirrors(engine);
    engine->input.skips = state.skips;
    engine->spikes.watch = state.spikes;
    if (state.loss_scaler.scale > 0 && dsc_engine_dtype(engine) == DSC_F16 && engine->config.fp16.loss_scale == 0)
        engine->progress.loss_scaler = state.loss_scaler;
    if (engine->input.reader != NULL)
        DSC_TRY(dsc_reader_seek(engine->input.reader, engine->progress.step, &engine->input.skips, err));
    DSC_TRY(dsc_local_sgd_start(engine, err));
    engine->failed = false;
    return DSC_OK;
}

dsc_status dsc_engine_load(dsc_engine *engine, const char *dir, dsc_error *err)
{
    DSC_TRY(between_steps(engine, "load", err));
    dsc_alloc_freeze(engine->alloc, false);
    const dsc_status status = load(engine, dir, err);
    dsc_alloc_freeze(engine->alloc, engine->progress.step > 0 && status == DSC_OK && engine->input.reader == NULL);
    return dsc_engine_fail_of_peers(engine, status, err);
}
