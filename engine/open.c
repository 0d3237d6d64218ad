/* open.c - config, model and machine become an engine; close gives everything back.
 *
 * Order: config, place, transport (so that a rank that fails later can tell its peers), model, data, resolved config,
 * layout, plan, does it fit, memory, first parameters. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/formats/json.h"
#include "base/formats/yaml.h"
#include "engine/carried.h"
#include "engine/device.h"
#include "engine/hooks.h"
#include "engine/fp8.h"
#include "engine/init_values.h"
#include "engine/internal.h"
#include "engine/planned.h"
#include "engine/machine.h"
#include "engine/memory.h"
#include "engine/model.h"
#include "engine/norm_group.h"
#include "engine/report.h"
#include "engine/value_trace.h"

#define OVERRIDES_MAX 64

const char *dsc_version(void) { return DSC_VERSION_TEXT; }

/* ---- worlds ---- */

dsc_status dsc_world_open(int32_t size, dsc_world **out, dsc_error *err)
{
    *out = NULL;
    if (size < 1)
        return DSC_FAIL(err, DSC_ERR_STATE, "", "a world of %d ranks; expected 1 or more", (int)size);
    dsc_world *world = calloc(1, sizeof *world);
    if (world == NULL)
        return DSC_FAIL(err, DSC_ERR_NOMEM, "", "no memory for a world of %d ranks", (int)size);
    world->size = size;
    const dsc_status status = dsc_local_world_open(size, &world->local, err);
    if (status != DSC_OK) {
        free(world);
        return status;
    }
    *out = world;
    return DSC_OK;
}

void dsc_world_close(dsc_world **world)
{
    if (*world == NULL)
        return;
    dsc_local_world_close(&(*world)->local);
    free(*world);
    *world = NULL;
}

/* ---- config ---- */

/* A checkpoint keeps the config's text as JSON, whatever it was written in. */
static dsc_status keep_json(dsc_engine *engine, const char *name, dsc_error *err)
{
    const dsc_json_limits limits = DSC_JSON_LIMITS_CONFIG;
    char *json = NULL;
    int64_t bytes = 0;
    if (!dsc_yaml_is_name(name))
        return DSC_OK;
    DSC_TRY(dsc_yaml_to_json(engine->alloc, name, engine->config_text, engine->config_bytes, &limits, &json, &bytes,
                             err));
    dsc_alloc_free(engine->alloc, engine->config_text);
    engine->config_text = json;
    engine->config_bytes = bytes;
    return DSC_OK;
}

static dsc_status read_config(dsc_engine *engine, const dsc_engine_options *options, dsc_error *err)
{
    static const char alone[] = "{\"train_micro_batch_size_per_gpu\": 1}";
    const char *name = "<config text>", *text = options->config_text;
    if (options->config_path != NULL && text != NULL)
        return DSC_FAIL(err, DSC_ERR_STATE, "", "both config_path and config_text are given; give one");
    if (options->override_count > OVERRIDES_MAX)
        return DSC_FAIL(err, DSC_ERR_STATE, "", "%d overrides; at most %d", (int)options->override_count,
                        OVERRIDES_MAX);
    if (options->config_path == NULL && text == NULL) {
        if ((options->flags & DSC_ENGINE_NO_MODEL) == 0)
            return DSC_FAIL(err, DSC_ERR_STATE, "", "no config: give config_path or config_text");
        text = alone;
    }
    if (options->config_path != NULL) {
        name = options->config_path;
        DSC_TRY(dsc_io_read_all(&engine->io, engine->alloc, name, 1000000, &engine->config_text, &engine->config_bytes,
                                err));
    } else {
        DSC_TRY(dsc_alloc_strdup(engine->alloc, DSC_TAG_CONTROL, text, &engine->config_text, err));
        engine->config_bytes = (int64_t)strlen(text);
    }
    dsc_config_override overrides[OVERRIDES_MAX + 1];
    int32_t override_count = options->override_count;
    for (int32_t i = 0; i < options->override_count; i++)
        overrides[i] =
            (dsc_config_override) { options->overrides[i].key, options->overrides[i].json, options->overrides[i].flag };
    char comm[128];
    const char *forced = options->world == NULL && !engine->plan_only ? getenv("DSC_COMM") : NULL;
    if (forced != NULL && forced[0] != 0) { /* dsc-launch --comm overrides each rank's setting */
        if (dsc_json_quote(comm, sizeof comm, forced) >= sizeof comm)
            return DSC_FAIL(err, DSC_ERR_CONFIG, "DSC_COMM", "\"%.40s...\" is longer than any name of a transport; "
                            "expected auto, shm, tcp, hier, gloo, mpi or nccl", forced);
        overrides[override_count++] = (dsc_config_override) { "dsc.comm", comm, "DSC_COMM" };
    }
    DSC_TRY(dsc_config_parse(engine->alloc, name, engine->config_text, engine->config_bytes, overrides, override_count,
                             (options->flags & DSC_ENGINE_STRICT) != 0, &engine->config, err));
    DSC_TRY(dsc_config_built(&engine->config, err));
    return keep_json(engine, name, err);
}

static const char *get_env(void *user, const char *name)
{
    return getenv(name);
}

static dsc_status find_place(dsc_engine *engine, const dsc_engine_options *options, dsc_error *err)
{
    if (engine->plan_only && options->plan_world_size > 0) {
        const int32_t size = options->plan_world_size, rank = options->world == NULL ? options->rank : 0;
        if (rank < 0 || rank >= size)
            return DSC_FAIL(err, DSC_ERR_STATE, "", "rank %d of %d planned ranks", (int)rank, (int)size);
        engine->place = (dsc_rank_info) { .rank = rank,
                                          .local_rank = rank,
                                          .size = size,
                                          .local_size = size,
                                          .node_count = 1,
                                          .master_addr = "",
                                          .job_token = "" };
        return DSC_OK;
    }
    if (options->world == NULL)
        return dsc_rank_info_from_env(get_env, NULL, &engine->place, err);
    const int32_t size = options->world->size;
    if (options->rank < 0 || options->rank >= size)
        return DSC_FAIL(err, DSC_ERR_STATE, "", "rank %d of a world of %d", (int)options->rank, (int)size);
    engine->place = (dsc_rank_info) { .rank = options->rank,
                                      .size = size,
                                      .local_rank = options->rank,
                                      .local_size = size,
                                      .node_count = 1,
                                      .master_addr = "",
                                      .job_token = "",
                                      .local_world = options->world->local };
    return DSC_OK;
}

/* ---- the model, and how long the run is ---- */

/* Documents within samples need a model that asks for their tokens' places, and a token of its vocabulary. */
static dsc_status check_documents(const dsc_engine *engine, dsc_error *err)
{
    const int64_t end = engine->config.own.document_end;
    const dsc_model *model = engine->model;
    if (end < 0)
        return DSC_OK;
    if (end >= model->vocab_size)
        return DSC_FAIL(err, DSC_ERR_CONFIG, "dsc.document_end",
                        "%lld is not a token of the model's vocabulary of %lld", (long long)end,
                        (long long)model->vocab_size);
    if (model->batch_count == 3 && strcmp(model->batch[2].name, DSC_BATCH_POSITIONS) == 0)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_CONFIG, "dsc.document_end", "model %s has no third batch tensor \"" DSC_BATCH_POSITIONS
                    "\": its samples are one document each; leave the key out", model->name);
}

static dsc_status check_masking(const dsc_engine *engine, dsc_error *err)
{
    const dsc_mlm_section *mlm = &engine->config.own.mlm;
    if (!mlm->enabled || dsc_model_predictions(engine->model) > 0)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_CONFIG, "dsc.mlm",
                    "model %s has no third batch tensor \"" DSC_BATCH_PREDICTED
                    "\": it is not a masked language model; leave the section out",
                    engine->model->name);
}

static dsc_status open_model(dsc_engine *engine, const dsc_engine_options *options, dsc_error *err)
{
    engine->model = options->model;
    if (engine->model == NULL) {
        if (engine->config.own.model[0] == 0 && options->default_model != NULL) {
            snprintf(engine->config.own.model, sizeof engine->config.own.model, "%s", options->default_model);
            dsc_engine_note(engine, "no model is named (dsc.model, --model)", options->default_model);
        }
        if (engine->config.own.model[0] == 0)
            return DSC_FAIL(err, DSC_ERR_CONFIG, "dsc.model",
                            "no model is given; set it in the config or with --model");
        DSC_TRY(dsc_engine_count_tokens(engine, err));
        DSC_TRY(dsc_engine_open_config_model(engine, engine->config.own.seq_length, !engine->plan_only,
                                             &engine->models.opened, err));
        engine->model = engine->models.opened;
    } else if (engine->config.own.dpo.enabled) {
        return DSC_FAIL(err, DSC_ERR_CONFIG, "dsc.dpo",
                        "the model is the host program's own: it opens one for pairs by dsc_model_options.preference");
    } else if (engine->config.own.grow_vocab) {
        return DSC_FAIL(err, DSC_ERR_CONFIG, "dsc.grow_vocab",
                        "the model is the host program's own: it opens one with "
                        "more rows by dsc_model_options.vocab_tokens");
    } else if (engine->config.own.lora.enabled) {
        return DSC_FAIL(err, DSC_ERR_CONFIG, "dsc.lora", "the model is the host program's own: it opens one with "
                        "adapters by dsc_model_options.lora");
    }
    DSC_TRY(dsc_model_check(engine->model, err));
    DSC_TRY(check_documents(engine, err));
    DSC_TRY(check_masking(engine, err));
    if (engine->model->preference.beta > 0) /* a host program's has no section */
        engine->config.own.dpo =
            (dsc_dpo_section) { true, engine->model->preference.beta, engine->model->preference.smoothing };
    DSC_TRY(dsc_engine_check_packed(engine, err));
    DSC_TRY(dsc_engine_freeze(engine, err));
    DSC_TRY(dsc_engine_check_biases(engine, err));
    DSC_TRY(dsc_norm_group_check(engine, err));
    engine->models.now = engine->model;
    DSC_TRY(dsc_tensor_check(engine, err));
    return dsc_engine_open_cuts(engine, err);
}

/* Ranks that keep something together are all of the world's, in groups of `count`. */
static dsc_status check_groups(const dsc_engine *engine, const char *key, int64_t count, const char *none,
                               dsc_error *err)
{
    const int32_t ranks = engine->stages.grid.data;
    if (engine->config.zero.stage != 3 || count < 1 || ranks % count == 0)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_CONFIG, key, "%lld does not divide %d rank%s; give the number of ranks of a host, or "
                    "%s", (long long)count, (int)ranks, ranks == 1 ? "" : "s", none);
}

/* The batch triad first, then, from it and the data, the length of the run, and with that every "auto". */
static dsc_status resolve(dsc_engine *engine, dsc_error *err)
{
    dsc_config *config = &engine->config;
    dsc_config_facts facts = { .world_size = engine->place.size,
                               .hidden_size = engine->model->hidden_size,
                               .device = engine->device->ops->name };
    DSC_TRY(dsc_config_resolve(config, &facts, err));
    if (config->own.label_smoothing > 0 && !engine->model->labels.smooths)
        return DSC_FAIL(err, DSC_ERR_CONFIG, "dsc.label_smoothing",
                        "%g, but %s does not classify: expected a model whose labels are classes; leave this key out",
                        config->own.label_smoothing, engine->model->name);
    DSC_TRY(dsc_engine_check_mix(engine, err));
    DSC_TRY(check_groups(engine, "zero_optimization.zero_hpz_partition_size", config->zero.hpz_partition_size, "1",
                         err));
    DSC_TRY(check_groups(engine, "zero_optimization.mics_shard_size", config->zero.mics_shard_size, "-1", err));
    engine->input.steps_per_epoch = engine->input.samples_per_epoch / config->train_batch_size;
    engine->input.total_steps = config->own.steps;
    if (engine->input.total_steps == 0 && engine->input.samples_per_epoch > 0) {
        engine->input.total_steps = engine->input.steps_per_epoch * dsc_max_i64(1, config->own.epochs);
        if (engine->input.steps_per_epoch == 0)
            return DSC_FAIL(err, DSC_ERR_INPUT, "data",
                            "%lld samples of %lld %s are fewer than one batch of %lld; give more "
                            "data, --steps, or a smaller train_batch_size",
                            (long long)engine->input.samples_per_epoch,
                            (long long)dsc_max_i64(1, engine->model->seq_length),
                            engine->model->seq_length > 0 ? "tokens" : "picture", (long long)config->train_batch_size);
    }
    facts.total_steps = engine->input.total_steps;
    if (config->schedule.by_epoch)
        config->schedule.unit_steps = engine->input.steps_per_epoch;
    if (config->schedule.by_epoch && config->schedule.unit_steps == 0 && engine->input.samples_per_epoch == 0)
        return DSC_FAIL(err, DSC_ERR_CONFIG, "scheduler.params.unit",
                        "\"epoch\", but the data has no end; give counts of steps with \"unit\": \"step\"");
    return dsc_config_resolve(config, &facts, err);
}

/* ---- opening ---- */

static dsc_status open_model_states(dsc_engine *engine, const dsc_engine_options *options, dsc_error *err)
{
    engine->input.drawn = dsc_engine_draws_pictures(engine, options);
    DSC_TRY(open_model(engine, options, err));
    DSC_TRY(dsc_engine_open_data(engine, options, err));
    DSC_TRY(resolve(engine, err));
    DSC_TRY(dsc_engine_open_quota(engine, err));
    DSC_TRY(dsc_tensor_agree(engine, err));
    DSC_TRY(dsc_stages_open(engine, err));
    DSC_TRY(dsc_config_settings(engine->alloc, &engine->config, &engine->settings, err));
    dsc_engine_report_config(engine);
    DSC_TRY(dsc_stages_open_layout(engine, err));
    DSC_TRY(dsc_tensor_open_layout(engine, err));
    DSC_TRY(dsc_engine_open_preference(engine, err));
    DSC_TRY(dsc_engine_open_texts(engine, err));
    dsc_plan_options plan;
    dsc_engine_plan_options(engine, &plan);
    DSC_TRY(dsc_engine_open_plan(engine, &plan, err));
    dsc_loss_scaler_start(&engine->config, &engine->progress.loss_scaler);
    dsc_engine_describe_numerics(engine);
    if (engine->plan_only && engine->clock == NULL)
        return DSC_OK;
    DSC_TRY(dsc_engine_agree_fit(engine, err));
    if (!engine->plan_only)
        DSC_TRY(dsc_engine_check_worlds(engine, err));
    if (!engine->plan_only) {
        DSC_TRY(dsc_engine_open_monitors(engine, err));
        DSC_TRY(dsc_engine_scan_data(engine, err));
    }
    /* Libraries allocate their buffers themselves. */
    DSC_TRY(dsc_device_reserve(engine->device,
                               engine->plan.tier_bytes[DSC_TIER_DEVICE] - dsc_engine_window_bytes(engine) -
                                   engine->plan.bytes[DSC_TAG_LIBRARY][DSC_TIER_DEVICE],
                               err));
    DSC_TRY(dsc_engine_choose_plans(engine, err)); /* while nothing lies in that memory */
    DSC_TRY(dsc_engine_open_communicators(engine, options, err));
    dsc_tensor_open(engine);
    dsc_zero_options zero;
    dsc_plan_zero_options(&plan, &engine->plan, &zero);
    const dsc_side_comm *side = engine->comms.side;
    zero.comm = engine->comms.device;
    zero.replicas = side[DSC_SUB_REPLICAS].device;
    zero.neighbours = side[DSC_SUB_NEIGHBOURS].device;
    zero.host_comm = dsc_engine_shards(engine);
    zero.compute = engine->compute;
    zero.swap.log = &engine->log;
    DSC_TRY(dsc_zero_open(&zero, &engine->zero, err));
    DSC_TRY(dsc_engine_open_memory(engine, err));
    DSC_TRY(dsc_engine_open_mirror(engine, err));
    DSC_TRY(dsc_stages_open_transfers(engine, err));
    DSC_TRY(dsc_engine_start_profile(engine, err));
    if (!engine->plan_only)
        DSC_TRY(dsc_value_trace_open(engine, err));
    if (engine->config.own.cuda_graphs)
        DSC_TRY(dsc_sections_open(engine->compute,
                                  DSC_PASS_COUNT * engine->plan.micro_batch_group * engine->model->module_count, err));
    if (engine->input.source.fill != NULL) {
        dsc_reader_options reader;
        dsc_engine_reader_options(engine, &reader);
        DSC_TRY(dsc_reader_open(&reader, 0, &engine->input.reader, err));
    }
    /* Taking memory waits for a whole GPU, which another rank's first collective may keep busy until all have come. */
    if (!engine->host_visible)
        DSC_TRY(dsc_comm_barrier(engine->comms.all, DSC_CHANNEL_CONTROL, NULL, err));
    if (engine->plan_only) /* virtual GPUs have no values */
        return DSC_OK;
    engine->values_due = true;
    if ((options->flags & DSC_ENGINE_CARRIED) != 0)
        DSC_TRY(dsc_engine_load_carried(engine, options->carried != NULL ? *options->carried : NULL, err));
    else if ((options->flags & DSC_ENGINE_LATE_VALUES) == 0)
        DSC_TRY(dsc_engine_need_values(engine, err));
    dsc_engine_describe(engine);
    return dsc_engine_run_folder(engine, err);
}

static dsc_status open_all(dsc_engine *engine, const dsc_engine_options *options, dsc_error *err)
{
    DSC_TRY(read_config(engine, options, err));
    DSC_TRY(find_place(engine, options, err));
    DSC_TRY(dsc_stages_place(engine, err));
    DSC_TRY(dsc_engine_open_device(engine, options, err));
    /* Read here because opening the communicator waits for all to come. Planned GPUs are another machine's. */
    const bool elsewhere = engine->plan_only && (options->plan_gpu_bytes > 0 || engine->clock != NULL);
    engine->host_free_bytes = elsewhere ? INT64_MAX : dsc_machine_available_bytes(engine->place.local_size);
    if (!engine->plan_only)
        DSC_TRY(dsc_engine_open_profile(engine, err));
    if (!engine->plan_only || engine->clock != NULL)
        DSC_TRY(dsc_engine_open_comm(engine, options, err));
    DSC_TRY(dsc_mem_open(engine->device, DSC_TAG_IO, DSC_TIER_PINNED, DSC_CKPT_BUFFER_BYTES, &engine->io_buf, err));
    if ((options->flags & DSC_ENGINE_NO_MODEL) == 0)
        return open_model_states(engine, options, err);
    if (engine->stages.grid.pipeline > 1 || engine->stages.grid.tensor > 1)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "dsc.grid",
                        "the host program has a model of its own, which "
                        "is cut neither into stages nor over tensor ranks; leave the section out");
    const dsc_config_facts facts = { .world_size = engine->place.size, .device = engine->device->ops->name };
    DSC_TRY(dsc_config_resolve(&engine->config, &facts, err));
    return engine->plan_only ? DSC_OK : dsc_engine_open_device_comm(engine, options, err);
}

/* A rank that ends before its communicator was asked for must not be waited for by the threads of its world. */
static void tell_peers(dsc_engine *engine, const dsc_engine_options *options, const dsc_error *failure)
{
    if (engine != NULL && engine->comms.all != NULL)
        dsc_engine_abort(engine, failure->message);
    else if (options->world != NULL && (engine == NULL || !engine->comms.came) &&
             (options->flags & DSC_ENGINE_PLAN_ONLY) == 0 && options->rank >= 0 && options->rank < options->world->size)
        dsc_local_world_refuse(options->world->local, options->rank, failure->message);
}

static dsc_status create(const dsc_engine_options *options, dsc_engine **out, dsc_error *err)
{
    dsc_alloc *alloc = NULL;
    DSC_TRY(dsc_alloc_open(&alloc, err));
    if (options->fail_alloc_at > 0)
        dsc_alloc_fail_at(alloc, options->fail_alloc_at, false);
    const dsc_status status = dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, 1, sizeof **out, out, err);
    if (status != DSC_OK) {
        dsc_alloc_close(&alloc);
        return status;
    }
    (*out)->alloc = alloc;
    (*out)->log = options->log;
    if (options->io != NULL)
        (*out)->io = *options->io;
    (*out)->plan_only = (options->flags & DSC_ENGINE_PLAN_ONLY) != 0;
    (*out)->saves.resumed_step = -1;
    (*out)->progress.lr_override = DSC_LR_SCHEDULE;
    return DSC_OK;
}

/* Bytes of a save's or load's lists while it runs. */
static int64_t checkpoint_bytes(const dsc_engine *engine)
{
    const dsc_ckpt_uses uses = { .saves = engine->config.own.save[0] != 0,
                                 .loads = engine->config.own.load[0] != 0,
                                 .node_local = engine->config.own.node_local,
                                 .averages = engine->config.own.ema.enabled,
                                 .outer = engine->config.own.local_sgd.inner_steps > 0 };
    if (engine->zero == NULL || (!uses.saves && !uses.loads))
        return 0;
    const dsc_ckpt_buffers buffers = { .buffer = engine->buffers.stored, .count = engine->buffers.count };
    const dsc_layout *layout =
        dsc_tensor_is_shared_out(engine) ? &engine->tensor.layout : dsc_stages_whole_layout(engine);
    return dsc_ckpt_plan_bytes(layout, dsc_engine_dtype(engine), engine->config.own.moments,
                               engine->config.optimizer.recipe, &uses) +
           dsc_tensor_states_bytes(engine) + (buffers.count > 0 ? 4 * dsc_ckpt_buffers_bytes(&buffers) : 0);
}

/* Small structures and library scratch are known exactly only now; both are in place before the first step. Where
 * nothing was opened, what was planned for libraries stays, and what was for structures comes beside those that are
 * there. */
static void complete_plan(dsc_engine *engine)
{
    static const dsc_tag late[] = { DSC_TAG_CONTROL, DSC_TAG_LIBRARY, DSC_TAG_IO };
    dsc_alloc_stats stats;
    dsc_alloc_stats_get(engine->alloc, &stats);
    dsc_plan *plan = &engine->plan;
    for (size_t i = 0; i < (engine->plan_only ? 1 : DSC_COUNT(late)); i++) {
        for (int tier = 0; tier < DSC_TIER_COUNT && (late[i] != DSC_TAG_IO || engine->zero != NULL); tier++) {
            int64_t now = stats.count[late[i]][tier].current_bytes;
            if (engine->plan_only)
                now += plan->bytes[late[i]][tier];
            if (late[i] == DSC_TAG_CONTROL && tier == DSC_TIER_HOST)
                now += checkpoint_bytes(engine);
            plan->tier_bytes[tier] += now - plan->bytes[late[i]][tier];
            plan->total_bytes += now - plan->bytes[late[i]][tier];
            plan->bytes[late[i]][tier] = now;
        }
    }
}

static dsc_status open_engine(dsc_engine **out, const dsc_engine_options *options, struct dsc_virtual_clock *clock,
                              struct dsc_launch_times *times, dsc_error *err)
{
    *out = NULL;
    if (options == NULL || options->struct_bytes != sizeof *options)
        return DSC_FAIL(err, DSC_ERR_STATE, "",
                        "options of another version of dsc (start from DSC_ENGINE_OPTIONS_INIT)");
    dsc_engine *engine = NULL;
    dsc_error failure = DSC_ERROR_INIT;
    dsc_status status = create(options, &engine, &failure);
    if (status == DSC_OK) {
        engine->clock = clock;
        engine->times_of_launches = times;
        status = open_all(engine, options, &failure);
    }
    if (status != DSC_OK) {
        if (failure.rank < 0 && engine != NULL)
            failure.rank = engine->place.rank;
        if (err != NULL)
            *err = failure;
        tell_peers(engine, options, &failure);
        dsc_engine_close(&engine);
        return status;
    }
    complete_plan(engine);
    dsc_engine_keep_carried(engine, options->carried);
    *out = engine;
    return DSC_OK;
}

dsc_status dsc_engine_open(dsc_engine **out, const dsc_engine_options *options, dsc_error *err)
{
    return open_engine(out, options, NULL, NULL, err);
}

dsc_status dsc_engine_open_timed(dsc_engine **out, const dsc_engine_options *options, struct dsc_launch_times *times,
                                 dsc_error *err)
{
    DSC_ASSERT(times != NULL);
    return open_engine(out, options, NULL, times, err);
}

dsc_status dsc_engine_open_virtual(dsc_engine **out, const dsc_engine_options *options, struct dsc_virtual_clock *clock,
                                   dsc_error *err)
{
    DSC_ASSERT((options->flags & DSC_ENGINE_PLAN_ONLY) != 0);
    DSC_ASSERT(options->plan_world_size > 0);
    return open_engine(out, options, clock, NULL, err);
}

void dsc_engine_close(dsc_engine **engine_ptr)
{
    dsc_engine *engine = *engine_ptr;
    if (engine == NULL)
        return;
    dsc_alloc *alloc = engine->alloc;
    /* Freeing a GPU's memory waits for all its work without end; this wait looks at the peers and has a timeout. */
    const bool waits = engine->zero != NULL && !engine->host_visible;
    if (waits && !engine->failed)
        engine->failed = dsc_zero_sync(engine->zero, NULL) != DSC_OK;
    if (engine->failed)
        dsc_engine_abort(engine, "an engine was closed after an error");
    dsc_ckpt_async_close(&engine->saves.running);
    dsc_monitors_close(&engine->output.monitors, engine->failed);
    dsc_gpu_sensor_close(&engine->output.sensor);
    dsc_alloc_free(engine->alloc, engine->output.hosts);
    if (waits && engine->failed) { /* the abort ends what waits for peers; the rest must not meet memory's next owner */
        dsc_device_watch(engine->device, NULL, NULL);
        (void)!dsc_zero_sync(engine->zero, NULL);
    }
    dsc_reader_close(&engine->input.reader);
    dsc_stages_close_transfers(engine);
    dsc_zero_close(&engine->zero);
    dsc_engine_close_hooks(engine);
    dsc_engine_close_mirror(engine);
    dsc_engine_close_memory(engine);
    if (engine->device != NULL)
        dsc_mem_close(engine->device, &engine->io_buf);
    dsc_plan_close(&engine->plan);
    dsc_layout_close(&engine->layout);
    dsc_engine_close_quota(engine);
    dsc_data_close(&engine->input.eval);
    dsc_data_close(&engine->input.data);
    dsc_pictures_close(&engine->input.eval_pictures);
    dsc_pictures_close(&engine->input.pictures);
    dsc_engine_close_preference(engine);
    dsc_engine_close_texts(engine);
    dsc_engine_close_cuts(engine);
    dsc_tensor_close(engine);
    dsc_stages_close(engine);
    dsc_engine_close_freeze(engine);
    if (engine->comms.device != engine->comms.all && engine->comms.device != engine->comms.side[DSC_SUB_SHARDS].device)
        dsc_comm_close(&engine->comms.device);
    dsc_engine_close_sub_communicators(engine);
    dsc_comm_close(&engine->comms.all);
    dsc_profile_close(&engine->output.profile); /* writes the modules' names */
    dsc_value_trace_close(engine);
    dsc_model_close(&engine->models.opened);
    dsc_alloc_free(alloc, engine->input.class_config);
    dsc_stream_close(&engine->compute);
    dsc_device_close(&engine->device);
    dsc_alloc_free(alloc, engine->settings);
    dsc_alloc_free(alloc, engine->gemm_plans);
    dsc_alloc_free(alloc, engine->config_text);
    dsc_alloc_free(alloc, engine);
    dsc_alloc_close(&alloc);
    *engine_ptr = NULL;
}
