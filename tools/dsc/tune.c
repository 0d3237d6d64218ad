/* tune.c - `dsc tune`: a faster config for this model and machine, by short real runs of what the planner leaves.
 *
 * The batch of a step stays as the file has it (--free-batch: it may change), so that what is trained stays the same.
 * For each stage, with and without recomputation, the planner finds the largest micro-batch that fits; runs start there
 * and go down while that pays. Where nothing fits on the device, states go to host memory, then to files. The fastest
 * then tries overlap, bucket sizes and what helps states in files, and is at last run in turns with the file as it is.
 * With --batch A..B: the same config at A, 2A, ... B samples a step. SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "tools/dsc/config_tool.h"
#include "tools/dsc/tool.h"
#include "tools/dsc/tune.h"

enum { TRIALS_MOST = 200, CONFIRM_RUNS = 3 };
#define WORSE 0.98 /* share of the best: runs differ by about this much */

typedef struct tune_trial {
    tune_choice choice;
    int64_t batch, plan_bytes;
    trial_result result;
} tune_trial;

typedef struct tune {
    trial_setup setup;
    tune_limits limits;
    const char *out, *table;
    int64_t first_batch, last_batch; /* --batch */
    int64_t sizes_tried;             /* micro-batches of one choice */
    int64_t trials_most;
    bool free_batch, overwrite, latency, on_gpus, grids;
    int trial_count;
    tune_trial **trial; /* [TRIALS_MOST]; the first is the file as it is */
} tune;

/* ---- trials ---- */

/* Larger is better. */
static double score(const tune *t, const tune_trial *trial)
{
    if (trial == NULL || trial->result.runs == 0)
        return 0;
    return t->latency ? 1 / trial_quantile_s(&trial->result, 0.5) : trial_tokens_per_s(&trial->result);
}

static tune_trial *best_of(const tune *t, int first)
{
    tune_trial *best = NULL;
    for (int i = first; i < t->trial_count; i++)
        if (score(t, t->trial[i]) > score(t, best))
            best = t->trial[i];
    return best;
}

static dsc_status run_again(const tune *t, tune_trial *trial, dsc_error *err)
{
    cJSON *config = NULL;
    DSC_TRY(tune_apply(&t->setup, &trial->choice, &config, err));
    const dsc_status status = trial_run(&t->setup, config, t->limits.ranks, &trial->result, err);
    cJSON_Delete(config);
    return status;
}

static void say(const tune *t, const tune_trial *trial)
{
    char words[160];
    fprintf(stderr, "%3d  %s, micro-batch %" PRId64 " x %" PRId64 ": ", t->trial_count,
            tune_words(&trial->choice, words), trial->choice.micro_batch, trial->choice.accumulation);
    if (trial->result.runs > 0)
        fprintf(stderr, "%.2f ms, %.0f %s/s\n", trial_quantile_s(&trial->result, 0.5) * 1e3,
                trial_tokens_per_s(&trial->result), trial->result.pictures ? "images" : "tokens");
    else
        fprintf(stderr, "%s\n", trial->result.why);
}

static dsc_status plan(tune *t, const tune_choice *choice, tune_fit *out, dsc_error *err)
{
    DSC_TRY(tune_plan(&t->setup, choice, t->limits.ranks, out, err));
    t->on_gpus |= out->on_gpus;
    return DSC_OK;
}

/* *out is NULL when no more trials may be made. */
static dsc_status try(tune *t, const tune_choice *choice, int64_t plan_bytes, tune_trial **out, dsc_error *err)
{
    *out = NULL;
    if (t->trial_count >= t->trials_most)
        return DSC_OK;
    tune_trial *trial = calloc(1, sizeof *trial);
    if (trial == NULL)
        return DSC_FAIL(err, DSC_ERR_NOMEM, "dsc tune", "out of host memory");
    t->trial[t->trial_count++] = *out = trial;
    trial->choice = *choice;
    trial->plan_bytes = plan_bytes;
    trial->batch = choice->micro_batch * choice->accumulation * tune_data_ranks(&t->limits, choice);
    DSC_TRY(run_again(t, trial, err));
    say(t, trial);
    return DSC_OK;
}

/* ---- the search ---- */

/* The largest micro-batch that the planner lets in; 0: none. */
static dsc_status largest(tune *t, tune_choice *choice, int64_t *bytes, dsc_error *err)
{
    tune_fit fit = { 0 };
    int64_t micro = 0;
    while (!fit.fits && tune_next_batch(&t->limits, micro, choice)) {
        micro = choice->micro_batch;
        DSC_TRY(plan(t, choice, &fit, err));
    }
    *bytes = fit.bytes;
    if (!fit.fits)
        choice->micro_batch = 0;
    return DSC_OK;
}

/* From the largest micro-batch down, as long as that is no slower. */
static dsc_status try_sizes(tune *t, tune_choice choice, int64_t bytes, dsc_error *err)
{
    double best = 0;
    for (int64_t tried = 0; tried < t->sizes_tried; tried++) {
        tune_trial *trial;
        tune_fit fit = { .bytes = bytes };
        if (tried > 0)
            DSC_TRY(plan(t, &choice, &fit, err));
        DSC_TRY(try(t, &choice, fit.bytes, &trial, err));
        if (trial == NULL || (score(t, trial) < WORSE * best && trial->result.runs > 0))
            break;
        best = score(t, trial) > best ? score(t, trial) : best;
        if (!tune_next_batch(&t->limits, choice.micro_batch, &choice))
            break;
    }
    return DSC_OK;
}

static dsc_status try_stages(tune *t, tune_tier tier, bool *any, dsc_error *err)
{
    const bool parameters_offloaded = tier == TUNE_ALL_ON_HOST || tier == TUNE_ALL_IN_FILES;
    for (int stage = parameters_offloaded ? 3 : tier > TUNE_DEVICE ? 1 : 0; stage <= 3; stage++) {
        int64_t without = 0;
        const int first = t->on_gpus ? DSC_RECOMPUTE_KEPT : DSC_RECOMPUTE_NONE;
        for (int recompute = first; recompute <= DSC_RECOMPUTE_FULL; recompute++) {
            tune_choice choice = TUNE_CHOICE_INIT;
            int64_t bytes = 0;
            choice.stage = stage;
            choice.tier = tier;
            choice.recompute = (dsc_recompute)recompute;
            DSC_TRY(largest(t, &choice, &bytes, err));
            if (choice.micro_batch <= without)
                continue; /* recomputation costs time: only what it lets in speaks for it */
            without = choice.micro_batch;
            *any = true;
            DSC_TRY(try_sizes(t, choice, bytes, err));
        }
    }
    return DSC_OK;
}

/* Files only where memory holds no states; then both, since parameters there leave memory for what is worth more. */
static dsc_status try_places(tune *t, dsc_error *err)
{
    bool in_memory = false, in_files = false;
    for (int tier = TUNE_DEVICE; tier <= TUNE_ALL_IN_FILES && !in_memory; tier++)
        if (tune_can_be(&t->setup, (tune_tier)tier, t->on_gpus))
            DSC_TRY(try_stages(t, (tune_tier)tier, tier < TUNE_OPTIMIZER_IN_FILES ? &in_memory : &in_files, err));
    return DSC_OK;
}

static dsc_status try_if_it_fits(tune *t, const tune_choice *choice, bool *fits, dsc_error *err)
{
    tune_trial *trial;
    tune_fit fit;
    DSC_TRY(plan(t, choice, &fit, err));
    *fits = fit.fits;
    return fit.fits ? try(t, choice, fit.bytes, &trial, err) : DSC_OK;
}

/* The states of the first module, whose update compute waits for, are worth most of what memory is left; then
 * gradients, then other states. */
static dsc_status try_first_module(tune *t, dsc_error *err)
{
    tune_choice choice = best_of(t, 1)->choice;
    tune_fit fit;
    choice.ratio = 0.9999;
    DSC_TRY(plan(t, &choice, &fit, err));
    if (!fit.fits || fit.first_ratio == 1)
        return DSC_OK;
    choice.ratio = fit.first_ratio;
    return try_if_it_fits(t, &choice, &fit.fits, err);
}

static dsc_status try_gradients(tune *t, dsc_error *err)
{
    static const double shares[] = { 0.3, 0.15 };
    tune_choice choice = best_of(t, 1)->choice;
    bool fits = false;
    for (size_t i = 0; i < DSC_COUNT(shares) && !fits; i++) {
        choice.gradients = shares[i];
        DSC_TRY(try_if_it_fits(t, &choice, &fits, err));
    }
    return DSC_OK;
}

static dsc_status try_most_states(tune *t, dsc_error *err)
{
    tune_choice choice = best_of(t, 1)->choice;
    bool fits = false;
    for (int tenths = 1; tenths < 10 && !fits; tenths++) {
        choice.ratio = tenths / 10.0;
        DSC_TRY(try_if_it_fits(t, &choice, &fits, err));
    }
    return DSC_OK;
}

static dsc_status try_of_files(tune *t, dsc_error *err)
{
    tune_choice choice = best_of(t, 1)->choice;
    bool fits;
    choice.grouped = choice.accumulation > 1;
    if (choice.grouped)
        DSC_TRY(try_if_it_fits(t, &choice, &fits, err));
    choice = best_of(t, 1)->choice;
    choice.speculative = !t->on_gpus && choice.tier == TUNE_ALL_IN_FILES;
    if (choice.speculative)
        DSC_TRY(try_if_it_fits(t, &choice, &fits, err));
    DSC_TRY(try_first_module(t, err));
    DSC_TRY(try_gradients(t, err));
    return try_most_states(t, err);
}

static dsc_status try_of_ranks(tune *t, dsc_error *err)
{
    static const int64_t buckets[] = { 50000000, 500000000 };
    bool fits;
    for (int overlap = TUNE_OVERLAP_OFF; overlap <= TUNE_OVERLAP_ON; overlap++) {
        tune_choice choice = best_of(t, 1)->choice;
        choice.overlap = (tune_overlap)overlap;
        DSC_TRY(try_if_it_fits(t, &choice, &fits, err));
    }
    for (size_t i = 0; i < 2 * DSC_COUNT(buckets); i++) {
        tune_choice choice = best_of(t, 1)->choice;
        if (i < DSC_COUNT(buckets))
            choice.reduce_bucket = buckets[i];
        else if (choice.stage == 3)
            choice.prefetch_bucket = buckets[i - DSC_COUNT(buckets)];
        else
            continue;
        DSC_TRY(try_if_it_fits(t, &choice, &fits, err));
    }
    return DSC_OK;
}

/* The fastest with other numbers of stages. A pipeline waits less with more micro-batches in a step, so smaller ones
 * are tried too. The samples of a step stay. */
static dsc_status try_grids(tune *t, dsc_error *err)
{
    const tune_trial *best = best_of(t, 1);
    const int64_t ranks = t->limits.ranks / t->limits.tensor; /* pipeline x data */
    const int64_t now = ranks / tune_data_ranks(&t->limits, &best->choice);
    for (int64_t p = 1; p <= ranks; p++) {
        tune_choice choice = best->choice;
        int64_t tried = 0;
        bool fits;
        choice.pipeline = p;
        const int64_t each = best->batch / tune_data_ranks(&t->limits, &choice);
        if (p == now || ranks % p != 0 || each * tune_data_ranks(&t->limits, &choice) != best->batch)
            continue;
        for (; choice.micro_batch > 0 && tried < t->sizes_tried; choice.micro_batch--) {
            if (each % choice.micro_batch != 0)
                continue;
            choice.accumulation = each / choice.micro_batch;
            choice.grouped = false;
            DSC_TRY(try_if_it_fits(t, &choice, &fits, err));
            tried++;
        }
    }
    return DSC_OK;
}

/* One setting of the fastest at a time; what is faster stays. */
static dsc_status try_settings(tune *t, dsc_error *err)
{
    const tune_trial *best = best_of(t, 1);
    if (best != NULL && best->choice.tier >= TUNE_OPTIMIZER_IN_FILES)
        DSC_TRY(try_of_files(t, err));
    if (best != NULL && t->grids)
        DSC_TRY(try_grids(t, err));
    return best != NULL && t->limits.ranks > 1 ? try_of_ranks(t, err) : DSC_OK;
}

/* The two that are compared in the end, in turns. */
static dsc_status confirm(tune *t, dsc_error *err)
{
    tune_trial *best = best_of(t, 1), *before = t->trial[0];
    for (int i = 0; best != NULL && before->result.runs > 0 && i < CONFIRM_RUNS; i++) {
        DSC_TRY(run_again(t, before, err));
        DSC_TRY(run_again(t, best, err));
    }
    return DSC_OK;
}

static dsc_status search(tune *t, dsc_error *err)
{
    dsc_config *config = NULL;
    DSC_TRY(trial_resolve(&t->setup, t->setup.config, t->limits.ranks, &config, err));
    tune_choice as_it_is = TUNE_CHOICE_INIT;
    const bool open = t->free_batch || (config->unresolved.batch_auto[0] && config->unresolved.batch_auto[1]);
    as_it_is.micro_batch = config->train_micro_batch_size_per_gpu;
    as_it_is.accumulation = t->limits.accumulation = config->gradient_accumulation_steps;
    t->limits.batch = open ? 0 : config->train_batch_size;
    t->limits.stages = config->own.grid.pipeline;
    t->limits.tensor = config->own.grid.tensor;
    dsc_alloc_free(t->setup.alloc, config);
    tune_trial *trial;
    tune_fit fit;
    DSC_TRY(plan(t, &as_it_is, &fit, err));
    DSC_TRY(try(t, &as_it_is, fit.bytes, &trial, err));
    DSC_TRY(try_places(t, err));
    DSC_TRY(try_settings(t, err));
    return confirm(t, err);
}

/* A batch of A, 2A, ... B samples a step: as many accumulated as the file's micro-batch leaves. */
static dsc_status sweep(tune *t, dsc_error *err)
{
    dsc_config *config = NULL;
    DSC_TRY(trial_resolve(&t->setup, t->setup.config, t->limits.ranks, &config, err));
    const int64_t micro_most = config->train_micro_batch_size_per_gpu;
    const int stage = config->zero.stage;
    const int64_t stages = t->limits.stages = config->own.grid.pipeline;
    const int64_t tensor = t->limits.tensor = config->own.grid.tensor;
    dsc_alloc_free(t->setup.alloc, config);
    for (int64_t batch = t->first_batch; batch <= t->last_batch; batch *= 2) {
        const tune_limits limits = { t->limits.ranks, stages, batch, 0, micro_most, tensor };
        tune_choice choice = TUNE_CHOICE_INIT;
        tune_trial *trial;
        tune_fit fit;
        if (batch % (t->limits.ranks / stages / tensor) != 0 || !tune_next_batch(&limits, 0, &choice))
            return DSC_FAIL(err, DSC_ERR_INPUT, "--batch", "%" PRId64 " samples have no equal parts for %" PRId64
                            " ranks", batch, t->limits.ranks);
        choice.stage = stage;
        DSC_TRY(plan(t, &choice, &fit, err));
        DSC_TRY(try(t, &choice, fit.bytes, &trial, err));
    }
    return DSC_OK;
}

/* ---- output ---- */

static void print_row(const tune_trial *trial, const tune_trial *best, int width)
{
    char words[160];
    const trial_result *r = &trial->result;
    printf("%c %-*s %7" PRId64 " %6" PRId64 "x%-5" PRId64 " %10.1f", trial == best ? '*' : ' ', width,
           tune_words(&trial->choice, words), trial->batch, trial->choice.micro_batch, trial->choice.accumulation,
           (double)trial->plan_bytes / 1048576.0);
    if (r->runs == 0) {
        printf("  %.60s\n", r->why);
        return;
    }
    printf("  %9.2f (%.2f to %.2f)  %10.0f", trial_quantile_s(r, 0.5) * 1e3, trial_quantile_s(r, 0.25) * 1e3,
           trial_quantile_s(r, 0.75) * 1e3, trial_tokens_per_s(r));
    if (r->steps_per_epoch > 0)
        printf("  %8.1f", r->steps_per_epoch * trial_quantile_s(r, 0.5));
    printf("\n");
}

static int by_score(const void *a, const void *b)
{
    const tune_trial *x = *(tune_trial *const *)a, *y = *(tune_trial *const *)b;
    const double one = trial_tokens_per_s(&x->result), other = trial_tokens_per_s(&y->result);
    return (one < other) - (one > other);
}

static void print_table(const tune *t, const tune_trial *best)
{
    tune_trial *sorted[TRIALS_MOST];
    memcpy(sorted, t->trial, sizeof *sorted * (size_t)t->trial_count);
    if (t->last_batch == 0)
        qsort(sorted, (size_t)t->trial_count, sizeof *sorted, by_score);
    int width = 0;
    for (int i = 0; i < t->trial_count; i++) {
        char words[160];
        width = (int)dsc_max_i64(width, (int64_t)strlen(tune_words(&sorted[i]->choice, words)));
    }
    printf("%" PRId64 " rank%s\n  %-*s %7s %-12s %10s  %-26s  %10s  %8s\n", t->limits.ranks,
           t->limits.ranks == 1 ? "" : "s", width, "what", "batch", " micro x acc", "plan MiB", "step ms (quartiles)",
           best != NULL && best->result.pictures ? "images/s" : "tokens/s", "epoch s");
    for (int i = 0; i < t->trial_count; i++)
        print_row(sorted[i], best, width);
}

static dsc_status add_row(const tune_trial *trial, cJSON *rows)
{
    char words[160];
    cJSON *row = cJSON_CreateObject();
    const trial_result *r = &trial->result;
    const struct {
        const char *name;
        double value;
    } members[] = {
        { "zero_stage", trial->choice.stage },
        { "pipeline", (double)trial->choice.pipeline },
        { "train_batch_size", (double)trial->batch },
        { "train_micro_batch_size_per_gpu", (double)trial->choice.micro_batch },
        { "gradient_accumulation_steps", (double)trial->choice.accumulation },
        { "plan_bytes_per_rank", (double)trial->plan_bytes },
        { "steps", (double)r->step_count },
        { "step_s", trial_quantile_s(r, 0.5) },
        { "step_s_low", trial_quantile_s(r, 0.25) },
        { "step_s_high", trial_quantile_s(r, 0.75) },
        { r->pictures ? "images_per_s" : "tokens_per_s", trial_tokens_per_s(r) },
        { "epoch_s", r->steps_per_epoch * trial_quantile_s(r, 0.5) },
    };
    if (row == NULL || !cJSON_AddItemToArray(rows, row) ||
        cJSON_AddStringToObject(row, "what", tune_words(&trial->choice, words)) == NULL ||
        cJSON_AddStringToObject(row, "recompute", dsc_recompute_text(trial->choice.recompute)) == NULL)
        return DSC_ERR_NOMEM;
    for (size_t i = 0; i < DSC_COUNT(members); i++)
        if (cJSON_AddNumberToObject(row, members[i].name, members[i].value) == NULL)
            return DSC_ERR_NOMEM;
    return r->runs > 0 || cJSON_AddStringToObject(row, "failed", r->why) != NULL ? DSC_OK : DSC_ERR_NOMEM;
}

static dsc_status write_json(const char *path, const cJSON *root, dsc_error *err)
{
    char *text = root != NULL ? cJSON_Print(root) : NULL;
    if (text == NULL)
        return DSC_FAIL(err, DSC_ERR_NOMEM, path, "out of host memory");
    const dsc_status status = dsc_io_write_all_atomic(NULL, path, text, (int64_t)strlen(text), err);
    cJSON_free(text);
    return status;
}

static dsc_status write_table(const tune *t, dsc_error *err)
{
    cJSON *root = cJSON_CreateObject();
    cJSON *rows = root != NULL && cJSON_AddNumberToObject(root, "ranks", (double)t->limits.ranks) != NULL
                      ? cJSON_AddArrayToObject(root, "rows") : NULL;
    dsc_status status = rows != NULL ? DSC_OK : DSC_ERR_NOMEM;
    for (int i = 0; i < t->trial_count && status == DSC_OK; i++)
        status = add_row(t->trial[i], rows);
    status = write_json(t->table, status == DSC_OK ? root : NULL, err);
    cJSON_Delete(root);
    return status;
}

static dsc_status write_best(const tune *t, const tune_trial *best, dsc_error *err)
{
    const tune_trial *before = t->trial[0];
    cJSON *config = NULL;
    if (before->result.runs > 0 && score(t, best) <= score(t, before)) {
        printf("nothing is faster than the file as it is; %s is not written\n", t->out);
        return DSC_OK;
    }
    DSC_TRY(tune_apply(&t->setup, &best->choice, &config, err));
    dsc_config_tool_remove(config, "autotuning");
    const dsc_status status = write_json(t->out, config, err);
    cJSON_Delete(config);
    if (status == DSC_OK && before->result.runs > 0)
        printf("%s: %.2f times the file as it is (%.0f against %.0f %s/s, runs in turns)\n", t->out,
               score(t, best) / score(t, before), trial_tokens_per_s(&best->result),
               trial_tokens_per_s(&before->result), best->result.pictures ? "images" : "tokens");
    else if (status == DSC_OK)
        printf("%s: %.0f %s/s; the file as it is: %s\n", t->out, trial_tokens_per_s(&best->result),
               best->result.pictures ? "images" : "tokens", before->result.why);
    return status;
}

static dsc_status tell(const tune *t, dsc_error *err)
{
    const tune_trial *best = best_of(t, t->last_batch > 0 ? 0 : 1);
    print_table(t, best);
    if (t->table != NULL)
        DSC_TRY(write_table(t, err));
    if (best == NULL)
        return DSC_FAIL(err, DSC_ERR_INPUT, t->setup.path, "no run ended well; the table has their words");
    return t->last_batch > 0 ? DSC_OK : write_best(t, best, err);
}

/* ---- the command line ---- */

static dsc_status set_batches(void *out, const dsc_flag *flag, const char *text, dsc_error *err)
{
    tune *t = out;
    char *end;
    const long long first = strtoll(text, &end, 10);
    const long long last = strncmp(end, "..", 2) == 0 && end[2] != 0 ? strtoll(end + 2, &end, 10) : 0;
    t->first_batch = first;
    t->last_batch = last;
    if (*end == 0 && first > 0 && last >= first && last <= INT64_C(1) << 32)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_INPUT, flag->name, "\"%.40s\" is not A..B, such as 64..1024", text);
}

static dsc_status set_metric(void *out, const dsc_flag *flag, const char *value, dsc_error *err)
{
    tune *t = out;
    t->latency = strcmp(value, "latency") == 0;
    if (t->latency || strcmp(value, "throughput") == 0)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_INPUT, flag->name, "\"%.40s\" is unknown; expected throughput or latency", value);
}

#define AT(field) offsetof(tune, field)
static const dsc_flag rows[] = {
    { "--ranks", NULL, "N", DSC_FLAG_INTEGER, AT(limits.ranks), .min = 1, .max = 1 << 20,
      .help = "number of ranks; default: as many as dsc-launch starts" },
    { "--free-batch", NULL, NULL, DSC_FLAG_BOOL, AT(free_batch), .help = "let the batch of a step change too" },
    { "--grid", NULL, NULL, DSC_FLAG_BOOL, AT(grids), .help = "also try grids of pipeline x data ranks" },
    { "--metric", NULL, "NAME", DSC_FLAG_CALL, 0, .set = set_metric,
      .help = "throughput, the default, for the most tokens/s, or latency for the shortest step" },
    { "--micro-batches", NULL, "N", DSC_FLAG_INTEGER, AT(sizes_tried), .min = 1, .max = 32,
      .help = "micro-batch sizes to try for each candidate; default 3" },
    { "--max-micro-batch", NULL, "N", DSC_FLAG_INTEGER, AT(limits.micro_most), .min = 1, .max = 1 << 20,
      .help = "largest micro-batch to try; default 1024" },
    { "--trials", NULL, "N", DSC_FLAG_INTEGER, AT(trials_most), .min = 1, .max = TRIALS_MOST,
      .help = "most runs; default 50" },
    { "--batch", NULL, "A..B", DSC_FLAG_CALL, 0, .set = set_batches,
      .help = "measure batch sizes A, 2A, ... up to B instead of searching" },
    { "-o", "--out", "TUNED.json", DSC_FLAG_TEXT, AT(out), .help = "config to write; default ds_config_tuned.json" },
    { "--table", NULL, "FILE.json", DSC_FLAG_TEXT, AT(table), .help = "also write the table of runs as JSON" },
    { "--overwrite", NULL, NULL, DSC_FLAG_BOOL, AT(overwrite), .help = "replace an existing -o file" },
};
static const dsc_flag_command page = {
    .name = "dsc tune",
    .description = "Searches for a faster config by short real runs, and writes it. The training stays the same.",
    .flags = rows, .flag_count = DSC_COUNT(rows), .shared = { trial_flags, TRIAL_FLAG_ROWS, AT(setup) },
    .exit_codes = "0 done; 1 failed; 2 wrong command line or config",
};

/* DeepSpeed's section sets the same; flags win. Unset values are 0 here. */
static void read_section(tune *t)
{
    const struct { const char *path; int64_t *to; int64_t least, most, otherwise; } keys[] = {
        { "autotuning.tuner_num_trials", &t->trials_most, 1, TRIALS_MOST, 50 },
        { "autotuning.num_tuning_micro_batch_sizes", &t->sizes_tried, 1, 32, 3 },
        { "autotuning.max_train_micro_batch_size_per_gpu", &t->limits.micro_most, 1, 1 << 20, 1024 },
    };
    for (size_t i = 0; i < DSC_COUNT(keys); i++) {
        const cJSON *item = dsc_config_tool_get(t->setup.config, keys[i].path);
        if (*keys[i].to != 0)
            continue;
        *keys[i].to = keys[i].otherwise;
        if (cJSON_IsNumber(item) && item->valuedouble >= (double)keys[i].least)
            *keys[i].to = (int64_t)fmin(item->valuedouble, (double)keys[i].most);
    }
    const cJSON *metric = dsc_config_tool_get(t->setup.config, "autotuning.metric");
    t->latency |= cJSON_IsString(metric) && strcmp(metric->valuestring, "latency") == 0;
}

static dsc_status run(tune *t, dsc_error *err)
{
    if (t->last_batch == 0 && !t->overwrite && dsc_io_kind(t->out) != DSC_PATH_MISSING)
        return DSC_FAIL(err, DSC_ERR_INPUT, t->out, "is there already; give -o another name, or --overwrite");
    DSC_TRY(trial_open(&t->setup, err));
    read_section(t);
    if (t->limits.ranks == 0)
        DSC_TRY(trial_usual_ranks(&t->setup, &t->limits.ranks, err));
    DSC_TRY(t->last_batch > 0 ? sweep(t, err) : search(t, err));
    return tell(t, err);
}

int dsc_cmd_tune(int argc, char **argv)
{
    tune t = { .setup = TRIAL_SETUP_INIT, .out = "ds_config_tuned.json" };
    tune_trial *trials[TRIALS_MOST];
    dsc_error err = DSC_ERROR_INIT;
    t.trial = trials;
    const int code = dsc_tool_parse(&page, argc, argv, &t);
    if (code >= 0)
        return code;
    dsc_status status = run(&t, &err);
    const dsc_status closed = trial_close(&t.setup, status == DSC_OK ? &err : NULL);
    for (int i = 0; i < t.trial_count; i++)
        free(trials[i]);
    status = status == DSC_OK ? closed : status;
    return status == DSC_OK ? dsc_tool_end() : dsc_tool_fail(&err);
}
