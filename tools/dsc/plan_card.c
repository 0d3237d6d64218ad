/* plan_card.c - see plan_card.h. SPDX-License-Identifier: Apache-2.0 */
#include "tools/dsc/plan_card.h"

#include <dirent.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/formats/json.h"
#include "base/io.h"
#include "base/strings.h"
#include "engine/data/pictures.h"
#include "engine/planned.h"
#include "kernels/virtual/launch_times.h"
#include "tools/dsc/gpu_cards.h"
#include "tools/dsc/tool.h"

#define CARD_BYTES_MAX 65536
#define STEPS 2
#define MICRO_STEPS_MAX 4096

/* ---- rates ---- */

typedef struct rate_field {
    const char *name;
    size_t at;
    int32_t count;
    bool optional; /* 0 where it is not given */
} rate_field;
#define RATE(name)                                                                                                     \
    {                                                                                                                  \
#name, offsetof(dsc_card_rates, name), 1, false                                                                \
    }
#define RATES(name)                                                                                                    \
    {                                                                                                                  \
#name, offsetof(dsc_card_rates, name), 2, false                                                                \
    }
#define RATES_OR_NONE(name)                                                                                            \
    {                                                                                                                  \
#name, offsetof(dsc_card_rates, name), 2, true                                                                 \
    }
static const rate_field fields[] = {
    RATE(memory_bytes),
    RATE(multiprocessors),
    RATE(product_flops),
    RATE(product_flops_f32),
    RATES(attention_forward_flops),
    RATES(attention_backward_flops),
    RATES_OR_NONE(attention_own_flops),
    RATE(kernel_bytes),
    RATE(kernel_s),
    RATE(launch_s),
    RATE(host_link_bytes),
    RATE(host_update_bytes),
    RATE(peer_bytes),
    RATE(peer_s),
    RATE(cards_of_host),
    RATE(network_bytes),
    RATE(network_s),
};

static bool positive(const cJSON *item, double *out)
{
    if (!cJSON_IsNumber(item) || !(item->valuedouble > 0) || !isfinite(item->valuedouble))
        return false;
    *out = item->valuedouble;
    return true;
}

static dsc_status read_field(const char *path, const cJSON *root, const rate_field *field, void *out, dsc_error *err)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, field->name);
    double *to = (double *)(void *)((char *)out + field->at);
    bool good =
        field->count == 1 ? positive(item, to) : cJSON_IsArray(item) && cJSON_GetArraySize(item) == field->count;
    if (item == NULL && field->optional)
        return DSC_OK;
    for (int i = 0; good && field->count > 1 && i < field->count; i++)
        good = positive(cJSON_GetArrayItem(item, i), &to[i]);
    if (good)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_INPUT, path, "%s is no %s; write %s greater than 0", field->name,
                    field->count == 1 ? "rate" : "list of rates", field->count == 1 ? "a number" : "two numbers");
}

static dsc_status parse_card(dsc_alloc *alloc, const char *path, plan_card *out, dsc_error *err)
{
    static const dsc_json_limits limits = DSC_JSON_LIMITS_CONFIG;
    static const rate_field peak = { "peak_flops", 0, 1, false };
    char *text = NULL;
    int64_t bytes;
    dsc_json *json = NULL;
    DSC_TRY(dsc_io_read_all(NULL, alloc, path, CARD_BYTES_MAX, &text, &bytes, err));
    dsc_status status = dsc_json_open(alloc, path, text, bytes, DSC_JSON_STRICT, &limits, &json, err);
    if (status == DSC_OK)
        status = read_field(path, dsc_json_root(json), &peak, &out->peak_flops, err);
    for (size_t i = 0; status == DSC_OK && i < DSC_COUNT(fields); i++)
        status = read_field(path, dsc_json_root(json), &fields[i], &out->rates, err);
    out->measured = status == DSC_OK && cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(dsc_json_root(json), "measured"));
    dsc_json_close(&json);
    dsc_alloc_free(alloc, text);
    return status;
}

/* The file of that card in a folder, and the names of all cards there. */
static bool find_card(const char *folder, const char *name, char *path, size_t path_bytes, char *names,
                      size_t names_bytes)
{
    bool found = false;
    DIR *dir = opendir(folder);
    for (const struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;) {
        const char *dot = strrchr(e->d_name, '.');
        if (dot == NULL || strcmp(dot, ".json") != 0)
            continue;
        const size_t used = strlen(names), length = (size_t)(dot - e->d_name);
        snprintf(names + used, names_bytes - used, "%s%.*s", used > 0 ? ", " : "", (int)length, e->d_name);
        char card[64];
        snprintf(card, sizeof card, "%.*s", (int)length, e->d_name);
        if (dsc_gpu_card_is(name, card)) {
            snprintf(path, path_bytes, "%s/%s", folder, e->d_name);
            found = true;
        }
    }
    if (dir != NULL)
        closedir(dir);
    return found;
}

dsc_status plan_card_read(const char *name, plan_card *out, dsc_error *err)
{
    static const char *const folders[] = { "share/dsc/cards", "bench/cards" };
    char self[4096], folder[4096 + 32], path[8192], names[512] = "";
    dsc_alloc *alloc = NULL;
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = 0;
    for (int i = 0; i < 2; i++) {
        char *slash = strrchr(self, '/');
        if (slash != NULL)
            *slash = 0;
    }
    *out = (plan_card) { 0 };
    for (size_t i = 0; i < DSC_COUNT(folders); i++) {
        snprintf(folder, sizeof folder, "%s/%s", self, folders[i]);
        if (!find_card(folder, name, path, sizeof path, names, sizeof names))
            continue;
        snprintf(out->rates.name, sizeof out->rates.name, "%s", name);
        DSC_TRY(dsc_alloc_open(&alloc, err));
        const dsc_status status = parse_card(alloc, path, out, err);
        dsc_alloc_close(&alloc);
        return status;
    }
    return DSC_FAIL(err, DSC_ERR_INPUT, "--gpu",
                    "no rates of \"%.60s\" were measured, which --time needs; there are "
                    "those of %s",
                    name, names[0] != 0 ? names : "no card");
}

/* ---- a step ---- */

/* One micro-batch whose tokens are all 0; places of predicted tokens are the first ones. */
dsc_status plan_card_open_batch(dsc_alloc *alloc, const dsc_engine_planned *planned, void **data, dsc_error *err)
{
    const dsc_model *model = planned->model;
    DSC_ASSERT(model->batch_count <= PLAN_CARD_BATCH);
    for (int32_t i = 0; i < model->batch_count; i++) {
        const dsc_batch_spec *spec = &model->batch[i];
        const int64_t samples = planned->config->train_micro_batch_size_per_gpu;
        int64_t each = 1;
        for (int32_t d = 0; d < spec->dim_count; d++)
            each *= spec->dim[d];
        DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, samples * each, dsc_dtype_bytes(spec->dtype), &data[i], err));
        int32_t *to = data[i];
        for (int64_t k = 0; strcmp(spec->name, DSC_BATCH_PREDICTED) == 0 && k < samples * each; k++)
            to[k] = (int32_t)(k % each);
    }
    return DSC_OK;
}

dsc_status plan_card_step(dsc_engine *engine, const void *const *batch, int64_t micro_steps, dsc_error *err)
{
    for (int64_t m = 0; m < micro_steps; m++) {
        DSC_TRY(dsc_engine_forward(engine, batch, NULL, err));
        DSC_TRY(dsc_engine_backward(engine, err));
        DSC_TRY(dsc_engine_step(engine, NULL, err));
    }
    return DSC_OK;
}

/* An update may go on behind the next pass, so that a step lasts from one end to the next. */
static dsc_status run_steps(dsc_engine *engine, const dsc_engine_planned *planned, const void *const *batch,
                            dsc_virtual_trace *trace, dsc_virtual_clock *clock, plan_card_time *out, dsc_error *err)
{
    const int64_t micro_steps = planned->config->gradient_accumulation_steps;
    dsc_virtual_clock before = *clock;
    if (micro_steps > MICRO_STEPS_MAX)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "gradient_accumulation_steps",
                        "%lld micro-batches of a step take too long to predict; give at most %d",
                        (long long)micro_steps, MICRO_STEPS_MAX);
    for (int i = 0; i < STEPS; i++) {
        before = *clock;
        clock->trace = i == STEPS - 1 ? trace : NULL;
        DSC_TRY(plan_card_step(engine, batch, micro_steps, err));
        if (trace != NULL && trace->full)
            return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "gradient_accumulation_steps",
                            "a step has more than %lld launches and waits; give fewer micro-batches",
                            (long long)trace->capacity);
    }
    clock->trace = NULL; /* a step ends before the engine closes */
    if (clock->without_time > 0)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "--cpu",
                        "the card has no time for launches of %s; measure again by dsc simulate --measure FILE with "
                        "this config",
                        dsc_launch_kind_text(clock->without_time - 1));
    out->streams = clock->streams;
    out->events = clock->events;
    out->step_s = clock->host_s - before.host_s;
    out->kernels = clock->kernels - before.kernels;
    for (int p = 0; p < DSC_VIRTUAL_PART_COUNT; p++)
        out->busy_s[p] = clock->busy_s[p] - before.busy_s[p];
    out->flops = planned->flops_per_micro_batch * (double)micro_steps;
    out->pictures = dsc_model_sees_pictures(planned->model);
    out->tokens = (double)(planned->config->train_micro_batch_size_per_gpu * micro_steps *
                           dsc_max_i64(1, planned->model->seq_length)); /* pictures count as one */
    return DSC_OK;
}

/* The virtual card hands out addresses as a card does, so that the peak is that of a run. */
static dsc_status read_memory(dsc_engine *engine, dsc_alloc *alloc, plan_card_time *out, dsc_error *err)
{
    dsc_alloc_stats stats;
    dsc_alloc_stats_get(alloc, &stats);
    out->device_peak_bytes = stats.tier_peak_bytes[DSC_TIER_DEVICE];
    for (int32_t i = 0; i < dsc_engine_plan_row_count(engine); i++) {
        dsc_plan_row row;
        DSC_TRY(dsc_engine_plan_row(engine, i, &row, err));
        if (strcmp(row.tier, dsc_tier_text(DSC_TIER_DEVICE)) == 0)
            out->device_planned_bytes += row.planned_bytes;
    }
    return DSC_OK;
}

dsc_status plan_card_predict(const plan_card *card, const dsc_engine_options *options, dsc_virtual_trace *trace,
                             plan_card_time *out, dsc_error *err)
{
    dsc_virtual_clock clock = { .rates = &card->rates };
    dsc_engine *engine = NULL;
    dsc_alloc *alloc = NULL;
    dsc_engine_planned planned;
    void *batch[PLAN_CARD_BATCH] = { NULL };
    dsc_engine_options mine = *options;
    *out = (plan_card_time) { 0 };
    mine.flags |= DSC_ENGINE_PLAN_ONLY;
    mine.log = (dsc_log) { NULL, NULL }; /* the plan has warned */
    mine.plan_world_size = mine.plan_world_size > 0 ? mine.plan_world_size : 1;
    if (card->rates.cores > 0) /* ranks of a host share its cores */
        clock.share = (double)mine.plan_world_size / card->rates.cores;
    DSC_TRY(dsc_alloc_open(&alloc, err));
    dsc_status status = dsc_engine_open_virtual(&engine, &mine, &clock, err);
    if (status == DSC_OK) {
        dsc_engine_planned_get(engine, &planned);
        status = plan_card_open_batch(alloc, &planned, batch, err);
    }
    if (status == DSC_OK)
        status = run_steps(engine, &planned, (const void *const *)batch, trace, &clock, out, err);
    if (status == DSC_OK)
        status = read_memory(engine, planned.alloc, out, err);
    dsc_engine_close(&engine);
    for (int i = 0; i < PLAN_CARD_BATCH; i++)
        dsc_alloc_free(alloc, batch[i]);
    dsc_alloc_close(&alloc);
    return status;
}

/* ---- printing ---- */

/* The part with the longest time bounds the step. */
static dsc_virtual_part longest_part(const plan_card_time *time)
{
    int longest = 0;
    for (int p = 1; p < DSC_VIRTUAL_PART_COUNT; p++)
        longest = time->busy_s[p] > time->busy_s[longest] ? p : longest;
    return (dsc_virtual_part)longest;
}

static double tokens_per_s(const plan_card_time *time) { return time->step_s > 0 ? time->tokens / time->step_s : 0; }

static double mfu(const plan_card *card, const plan_card_time *time)
{
    return time->step_s > 0 ? time->flops / (time->step_s * card->peak_flops) : 0;
}

void plan_card_print(const plan_card *card, const plan_card_time *time, int64_t ranks)
{
    const dsc_virtual_part bound = longest_part(time);
    printf("predicted step on %lld x %s:  %.1f ms, %.0f %s/s a card, MFU %.1f %%\n", (long long)ranks, card->rates.name,
           time->step_s * 1e3, tokens_per_s(time), time->pictures ? "images" : "tokens", mfu(card, time) * 100);
    for (int p = 0; p < DSC_VIRTUAL_PART_COUNT; p++)
        if (time->busy_s[p] > 0)
            printf("  %-22s %10.2f ms  %5.1f %%%s\n", dsc_virtual_part_text((dsc_virtual_part)p), time->busy_s[p] * 1e3,
                   time->step_s > 0 ? time->busy_s[p] / time->step_s * 100 : 0.0,
                   p == (int)bound ? "  bounds the step" : "");
    if (card->measured)
        printf("  runs on this card were within %d %% of such predictions\n", PLAN_CARD_ERROR_PERCENT);
    else
        printf("  the rates come from data sheets: no run on this card has been measured\n");
    printf("  memory of the card: %.2f MiB planned, %.2f MiB taken by these steps\n",
           (double)time->device_planned_bytes / 1048576.0, (double)time->device_peak_bytes / 1048576.0);
    printf("  %lld kernels; exchanges and copies run beside kernels, so that the parts may add up to more\n",
           (long long)time->kernels);
}

void plan_card_print_json(const plan_card *card, const plan_card_time *time)
{
    printf(",\"time\":{\"card\":");
    dsc_tool_json_text(card->rates.name);
    printf(",\"step_s\":%.6g,\"%s\":%.6g,\"mfu\":%.4g,\"kernels\":%lld,\"measured\":%s,\"parts_s\":{", time->step_s,
           time->pictures ? "images_per_s" : "tokens_per_s", tokens_per_s(time), mfu(card, time),
           (long long)time->kernels, card->measured ? "true" : "false");
    for (int p = 0; p < DSC_VIRTUAL_PART_COUNT; p++) {
        printf("%s", p > 0 ? "," : "");
        dsc_tool_json_text(dsc_virtual_part_text((dsc_virtual_part)p));
        printf(":%.6g", time->busy_s[p]);
    }
    printf("},\"device_planned_bytes\":%lld,\"device_peak_bytes\":%lld", (long long)time->device_planned_bytes,
           (long long)time->device_peak_bytes);
    printf(",\"bound\":");
    dsc_tool_json_text(dsc_virtual_part_text(longest_part(time)));
    printf("}");
}
