/* resolve.c - values that a config leaves open, from the world size, the model and the machine.
 *
 * The batch triad follows DeepSpeed exactly (T train_batch_size, M train_micro_batch_size_per_gpu,
 * G gradient_accumulation_steps, W world size; integer division from left to right):
 *   T M: G = T / M / W     T G: M = T / W / G     M G: T = M * G * W     T: G = 1, M = T / W     M: G = 1, T = M * W
 * and then T = M * G * W must hold with all of them above 0. SPDX-License-Identifier: Apache-2.0 */
#include "engine/config/internal.h"

#include <stdio.h>
#include <string.h>

#include <dsc/model.h>

#define TRAINER_MICRO_BATCH 8 /* Hugging Face's Trainer: "auto" without a user's setting */
#define WORLDS_SHOWN 12
#define WORLD_LARGEST 1048576 /* end of the search for valid world sizes */

typedef struct triad {
    int64_t t, m, g; /* DSC_AUTO_I64: not given */
} triad;

static bool known(int64_t value) { return value != DSC_AUTO_I64; }

/* The rule for one world size; false when the equation does not hold. *product is M * G * W, -1 above 64 bits. */
static bool triad_infer(triad given, int64_t w, triad *out, int64_t *product)
{
    *out = given;
    if (known(given.t) && known(given.m)) {
        if (!known(given.g))
            out->g = given.t / given.m / w;
    } else if (known(given.t)) {
        out->g = known(given.g) ? given.g : 1;
        out->m = given.t / w / out->g;
    } else {
        out->g = known(given.g) ? given.g : 1;
        if (!dsc_mul_i64(given.m, out->g, &out->t) || !dsc_mul_i64(out->t, w, &out->t))
            out->t = -1;
    }
    if (!dsc_mul_i64(out->m, out->g, product) || !dsc_mul_i64(*product, w, product))
        *product = -1;
    return out->t > 0 && out->m > 0 && out->g > 0 && *product == out->t;
}

/* "1, 2, 4, 8", with "..." when there are more. Returns how many were found. */
static int worlds_that_work(triad given, char *out, size_t out_bytes)
{
    const int64_t last = known(given.t) ? dsc_min_i64(given.t, WORLD_LARGEST) : WORLD_LARGEST;
    triad inferred;
    int64_t product;
    size_t used = 0;
    int count = 0;
    out[0] = 0;
    for (int64_t w = 1; w <= last; w++) {
        if (!triad_infer(given, w, &inferred, &product))
            continue;
        const char *text_end = count == 0 ? "" : ", ";
        if (count++ == WORLDS_SHOWN) {
            snprintf(out + used, out_bytes - used, ", ...");
            break;
        }
        used += (size_t)snprintf(out + used, out_bytes - used, "%s%lld", text_end, (long long)w);
        DSC_ASSERT(used < out_bytes);
    }
    return count;
}

static dsc_status triad_error(const dsc_config *config, triad given, triad got, int64_t w, int64_t product,
                              dsc_error *err)
{
    char where[256], worlds[256], equals[32] = "";
    if (worlds_that_work(given, worlds, sizeof worlds) == 0)
        snprintf(worlds, sizeof worlds, "none; remove one of the three keys and it is inferred");
    if (product >= 0)
        snprintf(equals, sizeof equals, " = %lld", (long long)product);
    return DSC_FAIL(err, DSC_ERR_CONFIG, dsc_config_source_text(config, config->unresolved.batch, where),
                    "train_batch_size %lld is not train_micro_batch_size_per_gpu %lld%s * "
                    "gradient_accumulation_steps %lld%s * world size %lld%s; world sizes that work: %s; with \"dsc\": "
                    "{\"quota\": \"even\"} ranks may have unequal numbers of micro-batches",
                    (long long)got.t, (long long)got.m, known(given.m) ? "" : " (inferred)", (long long)got.g,
                    known(given.g) ? "" : " (inferred)", (long long)w, equals, worlds);
}

/* Without a world size: what is known of the three, if any world size works at all. */
static dsc_status triad_without_world(dsc_config *config, triad given, dsc_error *err)
{
    char where[256], worlds[256];
    triad out = given;
    if (known(given.t) && worlds_that_work(given, worlds, sizeof worlds) == 0) {
        char micro[32] = "(inferred)", steps[32] = "(inferred)";
        if (known(given.m))
            snprintf(micro, sizeof micro, "%lld", (long long)given.m);
        if (known(given.g))
            snprintf(steps, sizeof steps, "%lld", (long long)given.g);
        return DSC_FAIL(err, DSC_ERR_CONFIG, dsc_config_source_text(config, config->unresolved.batch, where),
                        "train_batch_size %lld is not train_micro_batch_size_per_gpu %s * gradient_accumulation_steps "
                        "%s * world size at any world size; remove one of the keys and it is inferred",
                        (long long)given.t, micro, steps);
    }
    if (!known(given.g) && !(known(given.t) && known(given.m)))
        out.g = 1;
    config->train_batch_size = out.t;
    config->train_micro_batch_size_per_gpu = out.m;
    config->gradient_accumulation_steps = out.g;
    return DSC_OK;
}

/* The resolved value of each "auto". */
static void note_batch(dsc_config *config)
{
    static const char *const names[] = { "train_batch_size", "train_micro_batch_size_per_gpu",
                                         "gradient_accumulation_steps" };
    const int64_t values[] = { config->train_batch_size, config->train_micro_batch_size_per_gpu,
                               config->gradient_accumulation_steps };
    for (size_t i = 0; i < DSC_COUNT(names); i++) {
        const bool filled = i == 1 && (config->auto_mask & DSC_CONFIG_AUTO_BATCH) != 0;
        if (!filled && !config->unresolved.batch_auto[i])
            continue;
        if (filled)
            dsc_config_note(config, "%s \"auto\": %d, as the Trainer fills it; --batch-size sets it", names[i],
                            TRAINER_MICRO_BATCH);
        else if (known(values[i]))
            dsc_config_note(config, "%s \"auto\": %lld, from the other two and the world size", names[i],
                            (long long)values[i]);
        else
            dsc_config_note(config, "%s \"auto\": follows from the world size", names[i]);
    }
}

static dsc_status resolve_batch(dsc_config *config, int64_t w, dsc_error *err)
{
    char where[256];
    triad out, given = { config->unresolved.train_batch_size, config->unresolved.train_micro_batch_size_per_gpu,
                         config->unresolved.gradient_accumulation_steps };
    int64_t product;
    if (config->auto_mask & DSC_CONFIG_AUTO_BATCH)
        given.m = TRAINER_MICRO_BATCH;
    if (!known(given.t) && !known(given.m))
        return DSC_FAIL(err, DSC_ERR_CONFIG, dsc_config_source_text(config, config->unresolved.batch, where),
                        "train_batch_size: not given, nor is train_micro_batch_size_per_gpu; one of them is needed");
    if (w == 0)
        return triad_without_world(config, given, err);
    if (!triad_infer(given, w, &out, &product))
        return triad_error(config, given, out, w, product, err);
    config->train_batch_size = out.t;
    config->train_micro_batch_size_per_gpu = out.m;
    config->gradient_accumulation_steps = out.g;
    return DSC_OK;
}

/* The Trainer's formulas from the model's width. */
static void resolve_buckets(dsc_config *config, int64_t hidden)
{
    dsc_zero_config *zero = &config->zero;
    int64_t square = 0;
    const bool width = hidden > 0 && dsc_mul_i64(hidden, hidden, &square) && square < ((int64_t)1 << 53);
    const char *why = width ? "from the model's width" : "the default, until the model's width is known";
    zero->reduce_bucket_size = config->unresolved.reduce_bucket_size;
    zero->stage3_prefetch_bucket_size = config->unresolved.stage3_prefetch_bucket_size;
    if (!known(zero->reduce_bucket_size)) {
        zero->reduce_bucket_size = width ? square : 500000000;
        dsc_config_note(config, "zero_optimization.reduce_bucket_size \"auto\": %lld, %s",
                        (long long)zero->reduce_bucket_size, why);
    }
    zero->stage3_param_persistence_threshold = config->unresolved.stage3_param_persistence_threshold;
    if (!known(zero->stage3_param_persistence_threshold)) {
        zero->stage3_param_persistence_threshold = hidden > 0 && hidden < ((int64_t)1 << 53) ? 10 * hidden : 100000;
        dsc_config_note(config, "zero_optimization.stage3_param_persistence_threshold \"auto\": %lld, %s",
                        (long long)zero->stage3_param_persistence_threshold, why);
    }
    if (!known(zero->stage3_prefetch_bucket_size)) {
        zero->stage3_prefetch_bucket_size = width ? (int64_t)(0.9 * (double)square) : 50000000;
        dsc_config_note(config, "zero_optimization.stage3_prefetch_bucket_size \"auto\": %lld, %s",
                        (long long)zero->stage3_prefetch_bucket_size, why);
    }
}

/* A rate that does not come to its end is what the user has asked for, or a run that is too short. */
static dsc_status warn_long_schedule(dsc_config *config, const char *key, int64_t steps, int64_t total_steps,
                                     dsc_error *err)
{
    if (total_steps == 0 || steps <= total_steps)
        return DSC_OK;
    return dsc_config_warn_at(config, config->name, 0, key, err, "%lld steps are more than the %lld of the run, so the "
                              "rate does not come to the schedule's end", (long long)steps, (long long)total_steps);
}

static dsc_status resolve_schedule(dsc_config *config, int64_t total_steps, dsc_error *err)
{
    dsc_schedule_config *schedule = &config->schedule;
    const bool own = schedule->kind >= DSC_SCHEDULE_LINEAR;
    const char *key = own ? "dsc.lr_schedule" : "scheduler.params.total_num_steps \"auto\"";
    if (total_steps == 0)
        total_steps = config->own.steps;
    if (schedule->kind == DSC_SCHEDULE_ONE_CYCLE)
        return warn_long_schedule(config, "scheduler.params.cycle_first_step_size + cycle_second_step_size",
                                  schedule->cycle_first_step_size + schedule->cycle_second_step_size, total_steps, err);
    if (dsc_schedule_is_torchs(schedule->kind)) {
        schedule->total_num_steps = total_steps > 0 ? total_steps : DSC_AUTO_I64;
        return DSC_OK;
    }
    if (!own && schedule->kind != DSC_SCHEDULE_WARMUP_DECAY && schedule->kind != DSC_SCHEDULE_WARMUP_COSINE)
        return DSC_OK;
    schedule->total_num_steps = own ? DSC_AUTO_I64 : config->unresolved.total_num_steps;
    if (known(schedule->total_num_steps))
        return warn_long_schedule(config, "scheduler.params.total_num_steps", schedule->total_num_steps, total_steps,
                                  err);
    if (total_steps == 0) {
        dsc_config_note(config, "%s: the steps of the run are not known yet; no decay until they are", key);
        return DSC_OK;
    }
    schedule->total_num_steps = total_steps;
    dsc_config_note(config, "%s: %lld, the steps of the run", key, (long long)total_steps);
    return DSC_OK;
}

/* Values of the config, and none that follows from the world size. */
static int64_t eval_batch_size(const dsc_config *config)
{
    const dsc_config_unresolved *given = &config->unresolved;
    if (given->elastic.enabled)
        return given->elastic.max_batch;
    if (config->auto_mask & DSC_CONFIG_AUTO_BATCH)
        return TRAINER_MICRO_BATCH;
    return known(given->train_micro_batch_size_per_gpu) ? given->train_micro_batch_size_per_gpu
                                                        : given->train_batch_size;
}

int32_t dsc_config_micro_batch_group(const dsc_config *config)
{
    const int64_t all = config->gradient_accumulation_steps;
    int64_t group = config->norm_each > 0 ? config->norm_each : dsc_min_i64(config->own.micro_batch_group, all);
    while (all % group != 0)
        group--;
    return (int32_t)group;
}

/* All of them at most, as the key says; but fewer than both is said. */
static void note_micro_batch_group(dsc_config *config)
{
    const int64_t all = config->gradient_accumulation_steps, asked = config->own.micro_batch_group;
    if (known(all) && config->norm_each == 0 && asked < all && all % asked != 0)
        dsc_config_note(config,
                        "dsc.micro_batches_together %lld: %d, the largest divisor of "
                        "gradient_accumulation_steps %lld up to it",
                        (long long)asked, (int)dsc_config_micro_batch_group(config), (long long)all);
}

/* A group of synchronised batch norms has equally many micro-batches of each rank, which pass a module together. */
static dsc_status resolve_norm_group(dsc_config *config, int64_t ranks, dsc_error *err)
{
    static const char key[] = "dsc.batch_norm.synchronized";
    const int64_t group = config->own.norm_group, steps = config->gradient_accumulation_steps;
    config->norm_each = 0;
    if (group == 0 || ranks == 0)
        return DSC_OK;
    if (config->own.grid.pipeline > 1 || config->own.grid.tensor > 1)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, key,
                        "is not built beside pipeline stages and tensor ranks; leave one of them out");
    if (config->own.quota.kind != DSC_QUOTA_ABSENT)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, key, "is not built beside dsc.quota; leave one of them out");
    const int64_t each = group / ranks;
    if (group % ranks != 0 || each > DSC_NORM_GROUP_MAX)
        return DSC_FAIL(err, DSC_ERR_CONFIG, key,
                        "%lld micro-batches and %lld ranks: each rank must have equally many of a group, at most %d; "
                        "give a multiple of %lld",
                        (long long)group, (long long)ranks, DSC_NORM_GROUP_MAX, (long long)ranks);
    if (steps % each != 0)
        return DSC_FAIL(err, DSC_ERR_CONFIG, key,
                        "%lld micro-batches are %lld of each rank, which do not divide gradient_accumulation_steps "
                        "%lld; change one of them",
                        (long long)group, (long long)each, (long long)steps);
    if (config->own.micro_batch_group > 1 && config->own.micro_batch_group != each)
        return DSC_FAIL(err, DSC_ERR_CONFIG, key,
                        "%lld micro-batches are %lld of each rank, and dsc.micro_batches_together is %lld; leave that "
                        "key out",
                        (long long)group, (long long)each, (long long)config->own.micro_batch_group);
    config->norm_each = (int32_t)each;
    return DSC_OK;
}

dsc_status dsc_config_resolve(dsc_config *config, const dsc_config_facts *facts, dsc_error *err)
{
    DSC_ASSERT(facts->world_size >= 0);
    DSC_TRY(dsc_config_resolve_grid(config, facts->world_size, err));
    const int64_t data_ranks = dsc_config_data_ranks(config, facts->world_size);
    config->warning_count = config->unresolved.warning_count;
    config->note_count = config->unresolved.note_count;
    DSC_TRY(config->unresolved.elastic.enabled           ? dsc_config_resolve_elastic(config, data_ranks, err)
            : config->own.quota.kind != DSC_QUOTA_ABSENT ? dsc_config_resolve_quota(config, data_ranks, err)
                                                         : resolve_batch(config, data_ranks, err));
    config->micro_steps_most = data_ranks > 0 ? dsc_config_micro_steps_most(config, (int32_t)data_ranks) : DSC_AUTO_I64;
    config->eval_batch_size = eval_batch_size(config);
    DSC_TRY(resolve_norm_group(config, data_ranks, err));
    note_batch(config);
    note_micro_batch_group(config);
    config->lr_scale = config->own.lr_linear && data_ranks > 0 ? (double)data_ranks : 1;
    if (config->lr_scale != 1)
        dsc_config_note(config, "dsc.lr_scaling linear: every rate is times %g, the world size", config->lr_scale);
    resolve_buckets(config, facts->hidden_size);
    DSC_TRY(resolve_schedule(config, facts->total_steps, err));
    if (!config->unresolved.overlap_comm) /* on CPUs compute takes every core anyway */
        config->zero.overlap_comm = facts->device != NULL && strcmp(facts->device, "cuda") == 0;
    return dsc_config_resolve_offload(config, facts, err);
}
