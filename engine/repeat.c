/* repeat.c - see repeat.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/repeat.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/batch_transfer.h"
#include "engine/internal.h"

bool dsc_repeat_is_possible(const dsc_engine *engine)
{
    return engine->progress.in_train_batch && engine->input.reader != NULL;
}

dsc_status dsc_repeat_start(dsc_engine *engine, double loss, double norm, uint32_t requests, dsc_error *err)
{
    dsc_engine_repeat *repeat = &engine->repeat;
    const uint64_t *parts, *params;
    DSC_ASSERT(!repeat->is_second);
    DSC_TRY(dsc_zero_fingerprints(engine->zero, &parts, &params, err));
    memcpy(engine->work.first_parts, parts, (size_t)engine->layout.group_count * sizeof *parts);
    *repeat = (dsc_engine_repeat) { .is_second = true, .loss = loss, .norm = norm, .requests = requests };
    repeat->sum = dsc_zero_rank_sums(engine->zero)[engine->place.rank % engine->layout.world_size];
    for (int i = 0; i < DSC_WORST_SAMPLES; i++)
        repeat->worst[i] = (dsc_sample_loss) { .loss = -INFINITY, .sample = -1 };
    DSC_TRY(dsc_zero_skip(engine->zero, err));
    DSC_TRY(dsc_stream_sync(engine->compute, err));
    DSC_TRY(dsc_reader_seek(engine->input.reader, engine->progress.step, &engine->input.skips, err));
    engine->progress.micro_step = engine->progress.settled = 0;
    return DSC_OK;
}

static bool is_before(const dsc_sample_loss *a, const dsc_sample_loss *b)
{
    return a->loss > b->loss || (a->loss == b->loss && a->sample < b->sample);
}

static void insert(dsc_sample_loss one, dsc_sample_loss *worst)
{
    int at = DSC_WORST_SAMPLES;
    while (at > 0 && is_before(&one, &worst[at - 1]))
        at--;
    if (at == DSC_WORST_SAMPLES)
        return;
    memmove(worst + at + 1, worst + at, (size_t)(DSC_WORST_SAMPLES - 1 - at) * sizeof *worst);
    worst[at] = one;
}

/* A loss that is not a number is the largest one. */
void dsc_repeat_note_losses(dsc_engine *engine, int64_t micro_step)
{
    const dsc_config *config = &engine->config;
    const int64_t batch = config->train_micro_batch_size_per_gpu;
    const int64_t leaf = dsc_quota_number(&engine->quota.now, engine->stages.data_rank, micro_step);
    const int64_t first = dsc_skips_batch(&engine->input.skips, engine->progress.step) * config->train_batch_size +
                          leaf * batch;
    for (int64_t k = 0; k < batch && engine->repeat.is_second; k++) {
        const double loss = dsc_engine_sample_loss(engine, micro_step, k);
        insert((dsc_sample_loss) { isnan(loss) ? (double)INFINITY : loss, first + k }, engine->repeat.worst);
    }
}

/* ---- comparison ---- */

static void fill_report(const dsc_engine *engine, const uint64_t *parts, dsc_rank_report *out)
{
    const dsc_engine_repeat *repeat = &engine->repeat;
    const dsc_layout *layout = &engine->layout;
    const dsc_fixed_sum *sum = &dsc_zero_rank_sums(engine->zero)[engine->place.rank % layout->world_size];
    memset(out, 0, sizeof *out);
    memcpy(out->worst, repeat->worst, sizeof out->worst);
    (void)gethostname(out->host, sizeof out->host - 1);
    if (memcmp(sum, &repeat->sum, sizeof *sum) != 0)
        out->verdict = DSC_RANK_SUM_DIFFERS;
    for (int32_t g = layout->group_count - 1; g >= 0; g--)
        if (parts[g] != engine->work.first_parts[g]) {
            out->verdict = DSC_RANK_PART_DIFFERS;
            snprintf(out->module, sizeof out->module, "%.60s", engine->model->modules[layout->group[g].module].name);
        }
}

/* The first rank of that verdict; -1: none. */
static int32_t find_rank(const dsc_engine *engine, dsc_rank_verdict verdict)
{
    for (int32_t r = 0; r < engine->place.size; r++)
        if (engine->work.reports[r].verdict == (int32_t)verdict)
            return r;
    return -1;
}

static dsc_status refuse_rank(const dsc_engine *engine, int32_t part, int32_t sum, dsc_error *err)
{
    const int64_t step = engine->progress.step + 1;
    const int32_t rank = part >= 0 ? part : sum;
    const dsc_rank_report *report = &engine->work.reports[rank];
    char where[64];
    snprintf(where, sizeof where, "rank %d (%.40s)", (int)rank, report->host);
    if (part >= 0)
        return DSC_FAIL(err, DSC_ERR_DEVICE, where,
                        "step %lld was computed twice from the same weights and samples, and this rank's gradient of "
                        "%s was another one the second time: its hardware is faulty; go on without it from the last "
                        "checkpoint", (long long)step, report->module);
    return DSC_FAIL(err, DSC_ERR_DEVICE, where,
                    "step %lld was computed twice, all ranks made the same gradients again, and this rank's sum of "
                    "them was another one: its memory or network is faulty; go on without it from the last checkpoint",
                    (long long)step);
}

static bool same_bits(double a, double b) { return memcmp(&a, &b, sizeof a) == 0; }

dsc_status dsc_repeat_compare(dsc_engine *engine, double loss, double norm, dsc_error *err)
{
    dsc_engine_repeat *repeat = &engine->repeat;
    dsc_rank_report own;
    const uint64_t *parts, *params;
    DSC_ASSERT(repeat->is_second);
    DSC_TRY(dsc_zero_fingerprints(engine->zero, &parts, &params, err));
    fill_report(engine, parts, &own);
    repeat->is_second = false;
    DSC_TRY(dsc_comm_all_gather(engine->comms.all, DSC_CHANNEL_CONTROL, engine->work.reports, &own,
                                (int64_t)sizeof own, DSC_U8, NULL, err));
    const int32_t part = find_rank(engine, DSC_RANK_PART_DIFFERS), sum = find_rank(engine, DSC_RANK_SUM_DIFFERS);
    if (part >= 0 || sum >= 0)
        return refuse_rank(engine, part, sum, err);
    if (!same_bits(loss, repeat->loss) || !same_bits(norm, repeat->norm))
        return DSC_FAIL(err, DSC_ERR_DEVICE, "",
                        "step %lld was computed twice with the same gradients, and its loss was %.9g and then %.9g: "
                        "the hardware of a rank is faulty", (long long)(engine->progress.step + 1), repeat->loss, loss);
    repeat->is_over = true;
    return DSC_OK;
}

/* ---- samples ---- */

static void put_place(const dsc_engine *engine, int64_t sample, char *out, size_t out_bytes)
{
    out[0] = 0;
    if (engine->input.data == NULL)
        return;
    const dsc_data_place place = dsc_data_place_of(engine->input.data, sample);
    if (place.packed)
        snprintf(out, out_bytes, ", %.80s, sample %lld", place.file, (long long)place.first);
    else
        snprintf(out, out_bytes, ", %.80s, tokens %lld to %lld", place.file, (long long)place.first,
                 (long long)place.last);
}

void dsc_repeat_describe_samples(const dsc_engine *engine, char *out, size_t out_bytes)
{
    dsc_sample_loss worst[DSC_WORST_SAMPLES];
    size_t used = 0;
    out[0] = 0;
    for (int i = 0; i < DSC_WORST_SAMPLES; i++)
        worst[i] = (dsc_sample_loss) { .loss = -INFINITY, .sample = -1 };
    for (int32_t r = 0; r < engine->place.size; r++)
        for (int i = 0; i < DSC_WORST_SAMPLES; i++)
            if (engine->work.reports[r].worst[i].sample >= 0)
                insert(engine->work.reports[r].worst[i], worst);
    for (int i = 0; i < DSC_WORST_SAMPLES && worst[i].sample >= 0 && used < out_bytes; i++) {
        char place[160];
        put_place(engine, worst[i].sample, place, sizeof place);
        used += (size_t)snprintf(out + used, out_bytes - used, "%s%lld (loss %.4g%s)", i > 0 ? ", " : "",
                                 (long long)worst[i].sample, worst[i].loss, place);
    }
}
