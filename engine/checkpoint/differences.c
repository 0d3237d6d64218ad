/* differences.c - one warning line for each setting in which a resumed run differs from the saved one.
 *
 * The stage, the tiers of states and other settings that no bit depends on are not among them.
 * SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/formats/json.h"
#include "engine/checkpoint/internal.h"

static const char other_samples[] = "other samples come than without the interruption";

static void warn_text(const dsc_log *log, const char *what, const char *saved, const char *now, const char *effect)
{
    DSC_ASSERT(*what != 0);
    dsc_log_printf(log, DSC_LOG_WARNING, "resume: %s was %s in the saved run and is %s; %s", what,
                   *saved != 0 ? saved : "empty", *now != 0 ? now : "empty", effect);
}

static void warn_number(const dsc_log *log, const char *what, int64_t saved, int64_t now, const char *effect)
{
    char before[24], after[24];
    if (saved == now)
        return;
    snprintf(before, sizeof before, "%" PRId64, saved);
    snprintf(after, sizeof after, "%" PRId64, now);
    DSC_ASSERT(strcmp(before, after) != 0);
    warn_text(log, what, before, after, effect);
}

static void warn_samples(const dsc_log *log, const dsc_run_state *now, const dsc_run_state *saved)
{
    warn_number(log, "train_batch_size", saved->train_batch_size, now->train_batch_size, other_samples);
    warn_number(log, "dsc.seed", saved->seed, now->seed, other_samples);
    warn_number(log, "the sequence length", saved->seq_length, now->seq_length, other_samples);
    warn_number(log, "the number of samples of the data", saved->samples_per_epoch, now->samples_per_epoch,
                other_samples);
    DSC_ASSERT(now->train_batch_size > 0);
    if (saved->shuffle != now->shuffle)
        warn_text(log, "dsc.shuffle", saved->shuffle ? "true" : "false", now->shuffle ? "true" : "false",
                  other_samples);
    warn_number(log, "dsc.document_end", saved->document_end, now->document_end,
                "the model sees other borders than before (-1: samples are one document)");
}

/* Orders of sums. A world is a cause of another order unless both runs have an order that no world changes. */
static void warn_sums(const dsc_log *log, const dsc_run_state *now, const dsc_run_state *saved)
{
    static const char effect[] = "bits may differ";
    static const char *const order[] = { "plan", "world_size" };
    const bool any_world = now->world_size_reproducible && saved->world_size_reproducible;
    const bool same_world = now->world_size == saved->world_size;
    DSC_ASSERT(now->shard_ranks <= now->world_size);
    if (!any_world)
        warn_number(log, "the world size", saved->world_size, now->world_size, effect);
    if (!any_world && (now->shard_ranks != now->world_size || saved->shard_ranks != saved->world_size))
        warn_number(log, "zero_optimization.mics_shard_size", saved->shard_ranks, now->shard_ranks, effect);
    warn_number(log, "dsc.grid.tensor", dsc_max_i64(1, saved->tensor_ranks), dsc_max_i64(1, now->tensor_ranks), effect);
    if (same_world && now->world_size_reproducible != saved->world_size_reproducible)
        warn_text(log, "dsc.reproducible", order[saved->world_size_reproducible], order[now->world_size_reproducible],
                  effect);
    warn_number(log, "train_micro_batch_size_per_gpu", saved->micro_batch, now->micro_batch, effect);
}

static void warn_machine(const dsc_log *log, const dsc_run_state *now, const dsc_run_state *saved)
{
    DSC_ASSERT(now->compute_dtype < DSC_DTYPE_COUNT);
    if (strcmp(now->versions, saved->versions) != 0)
        dsc_log_printf(log, DSC_LOG_WARNING, "resume: saved by %s, this is %s; bits may differ", saved->versions,
                       now->versions);
    if (strcmp(now->cpu_level, saved->cpu_level) != 0)
        dsc_log_printf(log, DSC_LOG_WARNING, "resume: saved on a machine with %s, this one has %s; bits may differ",
                       saved->cpu_level, now->cpu_level);
    if (now->compute_dtype != saved->compute_dtype)
        dsc_log_printf(log, DSC_LOG_WARNING, "resume: saved in %s, the run goes on in %s",
                       dsc_dtype_text(saved->compute_dtype), dsc_dtype_text(now->compute_dtype));
    if (now->moment_dtype != saved->moment_dtype)
        dsc_log_printf(log, DSC_LOG_WARNING, "resume: moments were saved in %s, the run goes on with %s",
                       dsc_dtype_text(saved->moment_dtype),
                       now->moment_dtype == DSC_BF16 ? "bf16, rounded to the nearest once" : "fp32");
}

/* ---- settings of the config: lines of a key, a tab and a value ---- */

typedef struct setting {
    char key[DSC_SETTING_LINE_BYTES], value[DSC_SETTING_LINE_BYTES];
} setting;

/* Reads the line at *at, and moves *at behind it; false: there is none. */
static bool next_setting(const char **at, setting *out)
{
    const size_t line = strcspn(*at, "\n"), key = strcspn(*at, "\t\n");
    if (**at == 0)
        return false;
    DSC_ASSERT(line < sizeof out->key);
    snprintf(out->key, sizeof out->key, "%.*s", (int)key, *at);
    snprintf(out->value, sizeof out->value, "%.*s", (int)(line > key ? line - key - 1 : 0), *at + key + 1);
    *at += line + ((*at)[line] == '\n');
    return true;
}

static bool find_setting(const char *lines, const char *key, setting *out)
{
    DSC_ASSERT(*key != 0);
    while (next_setting(&lines, out))
        if (strcmp(out->key, key) == 0)
            return true;
    return false;
}

/* Nothing is known of a checkpoint without settings. */
static void warn_settings(const dsc_log *log, const char *now, const char *saved)
{
    static const char effect[] = "the run goes on with the new value";
    setting before, after;
    if (now == NULL || saved == NULL)
        return;
    DSC_ASSERT(log != NULL);
    for (const char *at = saved; next_setting(&at, &before);)
        if (!find_setting(now, before.key, &after))
            warn_text(log, before.key, before.value, "not set", effect);
        else if (strcmp(before.value, after.value) != 0)
            warn_text(log, before.key, before.value, after.value, effect);
    for (const char *at = now; next_setting(&at, &after);)
        if (!find_setting(saved, after.key, &before))
            warn_text(log, after.key, "not set", after.value, effect);
}

/* ---- the model: config.json, member by member ---- */

/* Members that name files and programs, or say how weights are stored. */
static bool is_of_the_model(const char *member)
{
    static const char *const others[] = { "_name_or_path", "architectures", "dtype", "torch_dtype",
                                          "transformers_version", "use_cache" };
    for (size_t i = 0; i < DSC_COUNT(others); i++)
        if (strcmp(member, others[i]) == 0)
            return false;
    return true;
}

static void json_text(const cJSON *item, char out[DSC_SETTING_BYTES])
{
    snprintf(out, DSC_SETTING_BYTES, "not set");
    char *text = item != NULL ? cJSON_PrintUnformatted(item) : NULL;
    if (text != NULL)
        snprintf(out, DSC_SETTING_BYTES, "%s", text);
    dsc_text_printable(out);
    cJSON_free(text);
}

/* Members of the saved file whose value is another now; `missing`: those that only the present file has. */
static void warn_members(const dsc_log *log, const cJSON *saved, const cJSON *now, bool missing)
{
    const cJSON *item, *of = missing ? now : saved;
    char what[DSC_SETTING_BYTES], before[DSC_SETTING_BYTES], after[DSC_SETTING_BYTES];
    cJSON_ArrayForEach(item, of)
    {
        const cJSON *other = cJSON_GetObjectItemCaseSensitive(missing ? saved : now, item->string);
        if (!is_of_the_model(item->string) || (missing ? other != NULL : dsc_json_equal(item, other)))
            continue;
        snprintf(what, sizeof what, "\"%.200s\" of the model's config.json", item->string);
        dsc_text_printable(what);
        json_text(missing ? other : item, before);
        json_text(missing ? item : other, after);
        warn_text(log, what, before, after, "the model computes otherwise than before");
    }
}

void dsc_ckpt_warn_model(const dsc_ckpt_ctx *c, const dsc_ckpt_reader *reader, const char *step_dir)
{
    static const dsc_json_limits limits = DSC_JSON_LIMITS_MODEL;
    const char *text = c->model->config_json;
    char path[DSC_CKPT_PATH_BYTES], *saved_text = NULL;
    int64_t bytes = 0;
    dsc_json *saved = NULL, *now = NULL;
    if (dsc_comm_rank(c->comm) != 0 || c->log == NULL || text == NULL || reader->far ||
        reader->manifest.file[DSC_CKPT_CONFIG].bytes < 0)
        return;
    DSC_ASSERT(c->io != NULL || step_dir != NULL);
    /* Only warnings are lost with a file that is not JSON: the manifest vouches for its bytes. */
    if (dsc_ckpt_file_path(path, step_dir, dsc_ckpt_file_name[DSC_CKPT_CONFIG], NULL) == DSC_OK &&
        dsc_io_read_all(c->io, c->alloc, path, DSC_CKPT_SMALL_BYTES_MAX, &saved_text, &bytes, NULL) == DSC_OK &&
        dsc_json_open(c->alloc, path, saved_text, bytes, DSC_JSON_STRICT, &limits, &saved, NULL) == DSC_OK &&
        dsc_json_open(c->alloc, "config.json", text, (int64_t)strlen(text), DSC_JSON_STRICT, &limits, &now, NULL) ==
            DSC_OK) {
        warn_members(c->log, dsc_json_root(saved), dsc_json_root(now), false);
        warn_members(c->log, dsc_json_root(saved), dsc_json_root(now), true);
    }
    dsc_json_close(&now);
    dsc_json_close(&saved);
    dsc_alloc_free(c->alloc, saved_text);
}

void dsc_ckpt_warn_differences(const dsc_ckpt_ctx *c, const dsc_run_state *now, const dsc_run_state *saved)
{
    DSC_ASSERT(now->recipe == saved->recipe); /* others are refused */
    if (dsc_comm_rank(c->comm) != 0 || c->log == NULL)
        return;
    warn_machine(c->log, now, saved);
    warn_samples(c->log, now, saved);
    warn_sums(c->log, now, saved);
    warn_settings(c->log, now->settings, saved->settings);
}
