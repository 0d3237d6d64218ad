/* memory.c - does the plan fit this machine, and the working memory that the plan names.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "engine/fp8.h"
#include "engine/activation_offload.h"
#include "engine/internal.h"
#include "engine/machine.h"
#include "engine/memory.h"
#include "engine/report.h"

/* ---- does it fit? ---- */

#define MIB (1024.0 * 1024.0)
#define GB 1e9
#define SPARE_SHARE 16 /* a sixteenth of a GPU's free memory: 5 GB of 80; CUDA itself takes 0.7 GB on an H200 */
#define SMALL_CHUNK_BYTES (INT64_C(64) << 20)

/* The two largest tags of the tiers in `mask`, for the message. */
static void largest_tags(const dsc_plan *plan, uint32_t mask, int largest[2], int64_t bytes[2])
{
    bytes[0] = bytes[1] = -1;
    for (int tag = 0; tag < DSC_TAG_COUNT; tag++) {
        int64_t now = 0;
        for (int tier = 0; tier < DSC_TIER_COUNT; tier++)
            now += (mask >> tier & 1u) != 0 ? plan->bytes[tag][tier] : 0;
        if (now > bytes[0]) {
            largest[1] = largest[0];
            bytes[1] = bytes[0];
            largest[0] = tag;
            bytes[0] = now;
        } else if (now > bytes[1]) {
            largest[1] = tag;
            bytes[1] = now;
        }
    }
}

/* The plan of the same run with another config; false: it cannot be made. */
static bool plan_again(const dsc_engine *engine, const dsc_config *config, int64_t tier_bytes[DSC_TIER_COUNT])
{
    dsc_plan_options options;
    dsc_plan plan = { 0 };
    dsc_engine_plan_options(engine, &options);
    options.config = config;
    const bool made = dsc_plan_open(&options, &plan, NULL) == DSC_OK;
    memcpy(tier_bytes, plan.tier_bytes, sizeof plan.tier_bytes);
    dsc_plan_close(&plan);
    return made;
}

/* The run's config, to be changed and freed; NULL: there is no memory for it. */
static dsc_config *copy_config(const dsc_engine *engine)
{
    dsc_config *config = NULL;
    if (dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, 1, sizeof *config, &config, NULL) == DSC_OK)
        *config = engine->config;
    return config;
}

/* The plan with states elsewhere; false: it cannot be made. */
static bool plan_elsewhere(const dsc_engine *engine, int stage, dsc_offload optimizer, dsc_offload param,
                           int64_t tier_bytes[DSC_TIER_COUNT])
{
    dsc_config *config = copy_config(engine);
    if (config == NULL)
        return false;
    dsc_zero_config *zero = &config->zero;
    zero->stage = stage;
    zero->offload_optimizer = optimizer;
    zero->offload_param = param;
    zero->nvme_optimizer.path_count += zero->nvme_optimizer.path_count == 0; /* planning opens none of them */
    zero->nvme_param.path_count += zero->nvme_param.path_count == 0;
    const bool made = plan_again(engine, config, tier_bytes);
    dsc_alloc_free(engine->alloc, config);
    return made;
}

/* Whether chunks of the head as small as a CPU's make the plan fit into `most` bytes of the GPU. */
static bool smaller_chunks_fit(const dsc_engine *engine, uint32_t mask, int64_t most)
{
    int64_t bytes[DSC_TIER_COUNT];
    if (mask != 1u << DSC_TIER_DEVICE || engine->plan.chunk_bytes <= SMALL_CHUNK_BYTES)
        return false;
    dsc_config *config = copy_config(engine);
    if (config == NULL)
        return false;
    config->own.head_chunk_bytes = SMALL_CHUNK_BYTES;
    const bool fits = plan_again(engine, config, bytes) && bytes[DSC_TIER_DEVICE] <= most;
    dsc_alloc_free(engine->alloc, config);
    return fits;
}

/* Bytes of a rank in the tiers of `mask`, without its states. */
static int64_t work_bytes(const dsc_plan *plan, uint32_t mask)
{
    int64_t bytes = 0;
    for (int tag = 0; tag < DSC_TAG_COUNT; tag++)
        for (int tier = 0; tier < DSC_TIER_COUNT; tier++)
            if ((mask >> tier & 1u) != 0 && tag != DSC_TAG_PARAM && tag != DSC_TAG_GRAD && tag != DSC_TAG_MASTER &&
                tag != DSC_TAG_MOMENT)
                bytes += plan->bytes[tag][tier];
    return bytes;
}

/* Advice for a plan above `most` bytes per rank: states that could move from memory to files or from a GPU to the host,
 * and the bytes after the move. */
static void elsewhere_way_out(const dsc_engine *engine, uint32_t mask, int64_t most, char *out, size_t out_bytes)
{
    const dsc_zero_config *zero = &engine->config.zero;
    const bool on_gpu = !engine->host_visible && mask == 1u << DSC_TIER_DEVICE;
    const bool all_in_files = zero->offload_optimizer == DSC_OFFLOAD_NVME && zero->offload_param == DSC_OFFLOAD_NVME;
    const char *each = engine->place.local_size > 1 ? " each" : "";
    int64_t bytes[DSC_TIER_COUNT];
    out[0] = 0;
    if (work_bytes(&engine->plan, mask) > most)
        return;
    if (on_gpu && zero->offload_optimizer == DSC_OFFLOAD_NONE &&
        plan_elsewhere(engine, zero->stage > 0 ? zero->stage : 1, DSC_OFFLOAD_CPU, DSC_OFFLOAD_NONE, bytes) &&
        bytes[DSC_TIER_DEVICE] <= most)
        snprintf(out, out_bytes, "%soffload_optimizer on cpu (%.1f GB of the GPU and %.1f GB of the host%s), ",
                 zero->stage > 0 ? "zero_optimization." : "zero_optimization.stage 1 with ",
                 (double)bytes[DSC_TIER_DEVICE] / GB, (double)(bytes[DSC_TIER_HOST] + bytes[DSC_TIER_PINNED]) / GB,
                 each);
    if (!engine->host_visible || all_in_files ||
        !plan_elsewhere(engine, 3, DSC_OFFLOAD_NVME, DSC_OFFLOAD_NVME, bytes))
        return;
    const int64_t memory = bytes[DSC_TIER_DEVICE] + bytes[DSC_TIER_HOST] + bytes[DSC_TIER_PINNED];
    if (memory <= most)
        snprintf(out, out_bytes, "%soffload_optimizer and offload_param on nvme (%.1f GB of memory and %.1f GB of "
                 "files%s), ", zero->stage == 3 ? "zero_optimization." : "zero_optimization.stage 3 with ",
                 (double)memory / GB, (double)bytes[DSC_TIER_NVME] / GB, each);
}

/* Whether the copy of saves beside training, which is pinned memory, is among what does not fit. */
static bool plan_copies(const dsc_plan *plan, uint32_t mask)
{
    return plan->snapshot_bytes > 0 && (mask >> DSC_TIER_PINNED & 1u) != 0;
}

/* Only what this run does not do yet. */
static void way_out(const dsc_engine *engine, uint32_t mask, int64_t ranks, const char *place, int64_t available,
                    char *out, size_t out_bytes)
{
    const dsc_config *config = &engine->config;
    const bool sharded = config->zero.stage == 3 && engine->place.size > 1;
    const bool may_shard = config->zero.stage < 3 && engine->place.size > 1;
    char elsewhere[160];
    elsewhere_way_out(engine, mask, available / ranks, elsewhere, sizeof elsewhere);
    const dsc_zero_kept none = { 0 }, *kept = elsewhere[0] == 0 ? &engine->plan.kept : &none;
    const bool sums_stay = kept->sum_groups > 0 && (mask >> DSC_TIER_HOST & 1u) != 0;
    const bool states_stay = kept->state_groups > 0 && (mask >> DSC_TIER_DEVICE & 1u) != 0;
    snprintf(out, out_bytes, "%s%s%s%s%s%s%s%s%s%s%s", may_shard ? "zero_optimization.stage 3, " : "", elsewhere,
             smaller_chunks_fit(engine, mask, available) ? "\"dsc\": {\"head_chunk_bytes\": 67108864}, " : "",
             plan_copies(&engine->plan, mask) ? "dsc.save_async false, " : "",
             engine->plan.micro_batch_group > 1 ? "fewer dsc.micro_batches_together, " : "",
             sums_stay ? "a smaller dsc.gradients_in_memory, " : "",
             states_stay ? "a larger zero_optimization.offload_optimizer.ratio, " : "",
             config->train_micro_batch_size_per_gpu > 1 ? "a smaller train_micro_batch_size_per_gpu, " : "",
             config->own.recompute != DSC_RECOMPUTE_FULL ? "\"dsc\": {\"recompute\": \"full\"}, " : "",
             ranks > 1 ? "fewer ranks on a host, " : "", sharded ? "more hosts, " : "");
    const size_t used = strlen(out);
    snprintf(out + used, out_bytes - used, "a shorter dsc.seq_length, a smaller model or a %s with more memory", place);
}

static dsc_status refuse(const dsc_engine *engine, uint32_t mask, int64_t ranks, const char *place, int64_t each,
                         int64_t available, dsc_error *err)
{
    int tag[2] = { 0, 0 };
    int64_t bytes[2];
    char use[sizeof err->message], beside[64] = "";
    largest_tags(&engine->plan, mask & ~(1u << DSC_TIER_NVME), tag, bytes); /* memory alone */
    way_out(engine, mask, ranks, place, available, use, sizeof use);
    if ((mask >> DSC_TIER_HOST & 1u) != 0)
        snprintf(beside, sizeof beside, "beside %.0f MiB for each process ", (double)DSC_PROCESS_BYTES / MIB);
    return DSC_FAIL(err, DSC_ERR_NOFIT, "memory",
                    "%d rank%s on this %s need%s %.0f MiB%s (%s %.0f MiB, %s %.0f MiB, ...) but %s%.0f MiB are free; "
                    "use %s",
                    (int)ranks, ranks == 1 ? "" : "s", place, ranks == 1 ? "s" : "", (double)each / MIB,
                    ranks == 1 ? "" : " each", dsc_tag_text((dsc_tag)tag[0]), (double)bytes[0] / MIB,
                    dsc_tag_text((dsc_tag)tag[1]), (double)bytes[1] / MIB, beside, (double)available / MIB, use);
}

/* Every rank of the host takes about the same, so all of them must fit together. A GPU is one rank's. */
dsc_status dsc_engine_check_fit(const dsc_engine *engine, dsc_error *err)
{
    const dsc_plan *plan = &engine->plan;
    const int64_t ranks = engine->place.local_size, available = engine->host_free_bytes;
    const uint32_t device = 1u << DSC_TIER_DEVICE;
    int64_t on_host = plan->total_bytes, wanted;
    if (!engine->host_visible) {
        dsc_device_props props;
        dsc_device_props_get(engine->device, &props);
        const int64_t on_device = plan->tier_bytes[DSC_TIER_DEVICE];
        if (on_device > props.free_bytes)
            return refuse(engine, device, 1, "GPU", on_device, props.free_bytes, err);
        on_host -= on_device;
    }
    if (!dsc_mul_i64(on_host, ranks, &wanted))
        wanted = INT64_MAX;
    if (wanted <= available)
        return dsc_engine_check_files(engine, err);
    return refuse(engine, engine->host_visible ? ~0u : ~device, ranks, "host", on_host, available, err);
}

static void log_table(const dsc_engine *engine)
{
    dsc_log_printf(&engine->log, DSC_LOG_INFO, "plan per rank (MiB):");
    for (int32_t i = 0; i < dsc_engine_plan_row_count(engine); i++) {
        dsc_plan_row row;
        if (dsc_engine_plan_row(engine, i, &row, NULL) == DSC_OK && row.planned_bytes > 0)
            dsc_log_printf(&engine->log, DSC_LOG_INFO, "  %-12s %-7s %10.2f", row.tag, row.tier,
                           (double)row.planned_bytes / MIB);
    }
    dsc_log_printf(&engine->log, DSC_LOG_INFO, "  %-12s %-7s %10.2f", "total", "",
                   (double)engine->plan.total_bytes / MIB);
}

/* Rank 0 shows the table before anyone gives up: a launcher ends all ranks with the first. */
dsc_status dsc_engine_agree_fit(const dsc_engine *engine, dsc_error *err)
{
    dsc_error mine = DSC_ERROR_INIT;
    const dsc_status status = dsc_engine_check_fit(engine, &mine);
    const dsc_ckpt_ctx ctx = { .comm = engine->comms.all, .stream = engine->compute, .buffer = engine->io_buf };
    if (status != DSC_OK && engine->place.rank == 0)
        log_table(engine);
    return dsc_ckpt_agree(&ctx, status, &mine, err);
}

/* A level that the user did not ask for must not be what memory runs out of. So a part of the GPU stays free for what
 * no plan has: the driver's memory for kernels and graphs, and programs beside this one. */
static dsc_status check_spare(const dsc_engine *engine, dsc_error *err)
{
    dsc_device_props props;
    DSC_ASSERT(!engine->host_visible);
    dsc_device_props_get(engine->device, &props);
    const int64_t own = props.free_bytes / engine->ranks_of_gpu;
    if (engine->plan.tier_bytes[DSC_TIER_DEVICE] <= own - own / SPARE_SHARE)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_NOFIT, "memory", "too little is spare to keep more activations");
}

/* The same everywhere: whether every rank has room for its plan, with `spare` also for more. Nothing is started by a
 * rank that only plans. */
static dsc_status all_fit(const dsc_engine *engine, bool spare, bool *fit, dsc_error *err)
{
    dsc_error refusal = DSC_ERROR_INIT, first = DSC_ERROR_INIT;
    dsc_status status = dsc_engine_check_fit(engine, &refusal);
    if (status == DSC_OK && spare)
        status = check_spare(engine, &refusal);
    const dsc_ckpt_ctx ctx = { .comm = engine->comms.all, .stream = engine->compute, .buffer = engine->io_buf };
    if (!engine->plan_only) {
        status = dsc_ckpt_agree(&ctx, status, &refusal, &first);
        refusal = first;
    }
    *fit = status != DSC_ERR_NOFIT;
    if (status == DSC_OK || status == DSC_ERR_NOFIT)
        return DSC_OK;
    if (err != NULL)
        *err = refusal;
    return status;
}

/* A plan that gathers modules of more than the prefetch bucket in advance gives way to one that does not, if only the
 * latter fits. `ask`: whether the plan fits is asked in any case. */
static dsc_status open_fitting(dsc_engine *engine, const dsc_plan_options *options, bool ask, bool spare, bool *fit,
                               dsc_error *err)
{
    *fit = true;
    /* Stages have other modules, and must not decide differently. */
    for (int within = dsc_stages_are_used(&engine->stages) ? 1 : 0; within < 2; within++) {
        engine->config.zero.prefetch_within_bucket = within == 1;
        dsc_plan_close(&engine->plan);
        DSC_TRY(dsc_plan_open(options, &engine->plan, err));
        const bool exceeds = engine->plan.prefetch_exceeds;
        DSC_ASSERT(within == 0 || !exceeds);
        if (ask || exceeds || within == 1)
            DSC_TRY(all_fit(engine, spare, fit, err));
        if (*fit || !exceeds)
            return DSC_OK;
    }
    return DSC_OK;
}

static void note_prefetch(const dsc_engine *engine)
{
    const char *const key = "zero_optimization.stage3_prefetch_bucket_size";
    if (dsc_stages_are_used(&engine->stages))
        return;
    if (engine->config.zero.prefetch_within_bucket)
        dsc_engine_note(engine, key, "no prefetch of larger modules, for whose windows there is no memory");
    else if (engine->plan.prefetch_held)
        dsc_engine_note(engine, key, "no prefetch of larger modules, whose windows would exceed "
                        "stage3_max_live_parameters, offload_param's buffers or the size of all parameters");
}

/* At a level that keeps no repeated values, inputs of products in fp8 are kept if they fit: they take the least. */
static dsc_status open_level(dsc_engine *engine, const dsc_plan_options *options, bool *fit, dsc_error *err)
{
    const dsc_recompute level = engine->config.own.recompute;
    dsc_fp8_section *const fp8 = &engine->config.own.fp8;
    const bool asks = fp8->enabled && fp8->inputs == DSC_FP8_INPUTS_AUTO && level == DSC_RECOMPUTE_NONE;
    if (asks) {
        fp8->inputs = DSC_FP8_INPUTS_KEPT;
        DSC_TRY(open_fitting(engine, options, true, true, fit, err));
        if (*fit) {
            dsc_engine_note(engine, "dsc.fp8.inputs", "kept");
            return DSC_OK;
        }
        fp8->inputs = DSC_FP8_INPUTS_AUTO;
    }
    return open_fitting(engine, options, true, level == DSC_RECOMPUTE_KEPT, fit, err);
}

dsc_status dsc_engine_open_plan(dsc_engine *engine, const dsc_plan_options *options, dsc_error *err)
{
    dsc_recompute *recompute = &engine->config.own.recompute;
    const bool all = *recompute == DSC_RECOMPUTE_AUTO, on_gpu = !engine->host_visible;
    /* Repeated values cost more in host memory than another computation. */
    const bool keeps = on_gpu && !engine->config.own.outputs_on_host;
    const int first = keeps ? DSC_RECOMPUTE_KEPT : DSC_RECOMPUTE_NONE;
    const int last = all ? DSC_RECOMPUTE_FULL : DSC_RECOMPUTE_NONE;
    bool fit = false;
    const bool choose = all || (!engine->config.own.recompute_given && on_gpu);
    if (!choose)
        DSC_TRY(open_fitting(engine, options, false, false, &fit, err));
    DSC_ASSERT(!choose || first < last);
    for (int level = first; choose && level <= last && !fit; level++) {
        *recompute = (dsc_recompute)level;
        DSC_TRY(open_level(engine, options, &fit, err));
    }
    if (choose)
        dsc_engine_note(engine, all ? "dsc.recompute \"auto\"" : "dsc.recompute is not given",
                        dsc_recompute_text(*recompute));
    note_prefetch(engine);
    return DSC_OK;
}

/* ---- working memory ---- */

static int64_t batch_tensor_bytes(const dsc_engine *engine, int32_t i)
{
    return dsc_align_up(dsc_batch_tensor_bytes(engine->model, engine->config.train_micro_batch_size_per_gpu, i), 256);
}

/* A micro-batch that the host fills, for evaluation and generation. */
static void place_eval_batch(dsc_engine *engine)
{
    const int32_t count = engine->model->batch_count;
    char *data = engine->work.eval_buf.ptr;
    for (int32_t i = 0; i < count; i++) {
        engine->work.eval_data[i] = data;
        data += batch_tensor_bytes(engine, i);
    }
    DSC_ASSERT(data == (char *)engine->work.eval_buf.ptr + engine->plan.batch_bytes);
}

/* Where the device reads batches and the host reads results, when neither can reach into the other's memory. */
static void place_mirrors(dsc_engine *engine)
{
    const dsc_plan *plan = &engine->plan;
    const int32_t count = engine->model->batch_count;
    engine->work.host_losses = engine->work.losses;
    engine->work.host_logits = engine->work.logits;
    char *data = engine->work.batch_buf.ptr;
    for (int32_t i = 0; data != NULL && i < plan->lanes * count; i++) {
        engine->work.device_batch[i] = data;
        data += batch_tensor_bytes(engine, i % count);
    }
    DSC_ASSERT(data == NULL || data == (char *)engine->work.batch_buf.ptr + engine->work.batch_buf.bytes);
    if (engine->host_visible)
        return;
    engine->work.host_losses = engine->work.mirror_buf.ptr;
    engine->work.host_logits = (float *)((char *)engine->work.mirror_buf.ptr + plan->loss_slots * plan->losses_bytes);
}

/* Ends of the parts of the activations that are placed already. */
typedef struct kept_ends {
    char *out, *saved, *rebuilt, *repeated;
} kept_ends;

/* Values of module m: behind what is placed already, or in a place that modules take in turn. `each`: bytes of such a
 * place, behind which the last module has its own; 0: there are none. */
static char *place_values(const dsc_engine *engine, int32_t m, int32_t mb, int64_t each, int64_t bytes, char **end)
{
    const int64_t group = engine->plan.micro_batch_group, own = dsc_align_up(bytes, 256);
    char *const at = *end;
    if (each > 0)
        return m + 1 < engine->model->module_count ? at + (m % DSC_OUT_SLOTS * group + mb) * each
                                                   : at + DSC_OUT_SLOTS * group * each + mb * own;
    *end += own;
    return at;
}

/* Places of one micro-batch's values of each module; modules that share memory have the same place. */
static void place_module_buffers(dsc_engine *engine, int32_t mb, kept_ends *end)
{
    const dsc_plan *plan = &engine->plan;
    const int64_t each = (int64_t)dsc_dtype_bytes(dsc_engine_dtype(engine));
    for (int32_t m = 0; m < engine->model->module_count; m++) {
        const dsc_module_plan *module = &plan->module[m];
        const int32_t at = dsc_engine_at(engine, mb, m);
        engine->work.out[at] = place_values(engine, m, mb, plan->away.out, module->out_elements * each, &end->out);
        engine->work.saved[at] = plan->saved_shared
                                     ? end->saved + mb * plan->saved_frame
                                     : place_values(engine, m, mb, plan->away.saved, module->saved_bytes, &end->saved);
        engine->work.rebuilt[at] = end->rebuilt + mb * plan->rebuilt_frame;
        end->rebuilt += plan->rebuilt_shared ? 0 : dsc_align_up(module->rebuilt_bytes, 256);
        const int64_t repeated = plan->repeated_bytes > 0 ? module->repeated_bytes : 0;
        char *const place = place_values(engine, m, mb, plan->away.repeated, repeated, &end->repeated);
        engine->work.repeated[at] = repeated > 0 ? place : NULL;
    }
}

static void place_work_buffers(dsc_engine *engine)
{
    const dsc_plan *plan = &engine->plan;
    char *at = engine->work.activation_buf.ptr;
    for (int32_t i = 0; i < dsc_plan_d_buffers(plan); i++, at += plan->d_bytes_most)
        engine->work.d_buffer[i] = at;
    engine->work.losses = (float *)(void *)at;
    at += plan->losses_bytes;
    kept_ends end = { .saved = at };
    end.rebuilt = at += plan->saved_bytes;
    end.repeated = at += plan->rebuilt_bytes;
    char *const outputs = end.out = at += plan->repeated_bytes;
    for (int32_t mb = 0; mb < plan->lanes; mb++)
        place_module_buffers(engine, mb, &end);
    DSC_ASSERT(plan->away.count > 0 || (end.repeated == outputs && end.out == outputs + plan->out_bytes_total));
    at += plan->out_bytes_total;
    DSC_ASSERT(at == (char *)engine->work.activation_buf.ptr + engine->work.activation_buf.bytes);
    engine->work.logits = (float *)(void *)((char *)engine->work.scratch_buf.ptr + plan->scratch_bytes);
}

/* No other folder takes memory under these tags, so what is taken here is the plan's. */
static void check_taken(const dsc_engine *engine, const dsc_needs *needs)
{
    static const dsc_tag own[] = { DSC_TAG_ACTIVATION, DSC_TAG_SCRATCH, DSC_TAG_DATA, DSC_TAG_COMM, DSC_TAG_BUFFER };
    dsc_needs_check(needs);
    for (size_t i = 0; i < DSC_COUNT(own); i++)
        for (int tier = 0; tier < DSC_TIER_COUNT; tier++)
            DSC_ASSERT(needs->taken[own[i]][tier] == engine->plan.bytes[own[i]][tier]);
}

static dsc_status open_work(dsc_engine *engine, dsc_error *err)
{
    dsc_plan_options options;
    dsc_need list[DSC_WORK_NEEDS_MAX];
    dsc_needs needs = { .alloc = engine->alloc, .device = engine->device };
    dsc_engine_plan_options(engine, &options);
    const int count = dsc_work_list_needs(&options, &engine->plan, &engine->work, list);
    DSC_TRY(dsc_needs_plan_and_open(&needs, list, count, err));
    check_taken(engine, &needs);
    return DSC_OK;
}

/* The one that was there before the model was known may be smaller than the plan's. */
static dsc_status open_io_buffer(dsc_engine *engine, dsc_error *err)
{
    if (engine->io_buf.bytes >= engine->plan.io_bytes)
        return DSC_OK;
    dsc_mem_close(engine->device, &engine->io_buf);
    return dsc_mem_open(engine->device, DSC_TAG_IO, DSC_TIER_PINNED, engine->plan.io_bytes, &engine->io_buf, err);
}

dsc_status dsc_engine_open_memory(dsc_engine *engine, dsc_error *err)
{
    DSC_TRY(open_work(engine, err));
    DSC_TRY(open_io_buffer(engine, err));
    place_work_buffers(engine);
    place_eval_batch(engine);
    place_mirrors(engine);
    dsc_engine_open_fp8(engine);
    DSC_TRY(dsc_engine_open_buffers(engine, err));
    DSC_TRY(dsc_event_open(engine->device, &engine->batch_given, err));
    return dsc_outputs_open(engine, err);
}

void dsc_engine_close_memory(dsc_engine *engine)
{
    const dsc_needs needs = { .alloc = engine->alloc, .device = engine->device };
    dsc_need list[DSC_WORK_NEEDS_MAX];
    dsc_event_close(&engine->batch_given);
    dsc_outputs_close(engine);
    dsc_engine_close_buffers(engine);
    dsc_needs_close(&needs, list, dsc_work_list_needs(NULL, NULL, &engine->work, list));
}
