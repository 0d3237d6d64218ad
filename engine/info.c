/* info.c - queries of an engine for a host program, and collectives for its use.
 * SPDX-License-Identifier: Apache-2.0 */
#include <dnnl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "engine/data/pictures.h"
#include "engine/device.h"
#include "engine/fp8.h"
#include "engine/internal.h"
#include "engine/machine.h"
#include "engine/model.h"
#include "engine/report.h"
#include "engine/save.h"
#include "engine/schedule/schedule.h"

int32_t dsc_engine_rank(const dsc_engine *engine) { return engine->place.rank; }
int32_t dsc_engine_size(const dsc_engine *engine) { return engine->place.size; }
int32_t dsc_engine_local_rank(const dsc_engine *engine) { return engine->place.local_rank; }
int32_t dsc_engine_local_size(const dsc_engine *engine) { return engine->place.local_size; }

/* ---- collectives ---- */

static dsc_status ready(const dsc_engine *engine, dsc_error *err)
{
    if (engine->failed || engine->comms.all == NULL)
        return DSC_FAIL(err, DSC_ERR_STATE, "", engine->failed ? "the engine failed before; close it"
                                                               : "the engine was opened for planning only");
    return DSC_OK;
}

dsc_status dsc_engine_broadcast(dsc_engine *engine, void *buf, int64_t bytes, int32_t root, dsc_error *err)
{
    DSC_TRY(ready(engine, err));
    if (root < 0 || root >= engine->place.size || bytes < 0)
        return DSC_FAIL(err, DSC_ERR_STATE, "", "broadcast of %lld bytes from rank %d of %d", (long long)bytes,
                        (int)root, (int)engine->place.size);
    return dsc_engine_fail(
        engine, dsc_comm_broadcast(engine->comms.all, DSC_CHANNEL_CONTROL, buf, bytes, root, NULL, err), err);
}

static dsc_status sum(dsc_engine *engine, float *buf, int64_t count, bool mean, dsc_error *err)
{
    DSC_TRY(
        dsc_engine_fail(
            engine, dsc_comm_all_reduce(engine->comms.all, DSC_CHANNEL_CONTROL, buf, count, DSC_F32, NULL, err), err));
    for (int64_t i = 0; mean && i < count; i++)
        buf[i] /= (float)engine->place.size;
    return DSC_OK;
}

dsc_status dsc_engine_all_reduce(dsc_engine *engine, float *buf, int64_t count, bool mean, dsc_error *err)
{
    DSC_TRY(ready(engine, err));
    if (count < 0)
        return DSC_FAIL(err, DSC_ERR_STATE, "", "all_reduce of %lld elements", (long long)count);
    return sum(engine, buf, count, mean, err);
}

dsc_status dsc_engine_reduce(dsc_engine *engine, float *buf, int64_t count, bool mean, int32_t root, dsc_error *err)
{
    DSC_TRY(ready(engine, err));
    if (count < 0 || root < 0 || root >= engine->place.size)
        return DSC_FAIL(err, DSC_ERR_STATE, "", "reduce of %lld elements to rank %d of %d", (long long)count, (int)root,
                        (int)engine->place.size);
    if (engine->place.rank == root)
        return sum(engine, buf, count, mean, err);
    /* The others' buffers stay as they were: the sum goes through a copy. */
    float *copy = NULL;
    dsc_alloc_freeze(engine->alloc, false);
    DSC_TRY(dsc_alloc_zeroed(engine->alloc, DSC_TAG_COMM, count, 4, &copy, err));
    memcpy(copy, buf, (size_t)count * 4);
    const dsc_status status = sum(engine, copy, count, false, err);
    dsc_alloc_free(engine->alloc, copy);
    return status;
}

dsc_status dsc_engine_barrier(dsc_engine *engine, dsc_error *err)
{
    DSC_TRY(ready(engine, err));
    DSC_TRY(dsc_engine_need_values(engine, err));
    DSC_TRY(dsc_engine_settle(engine, err));
    return dsc_engine_fail(engine, dsc_comm_barrier(engine->comms.all, DSC_CHANNEL_CONTROL, NULL, err), err);
}

/* ---- learning rate, plan, groups ---- */

double dsc_engine_lr(const dsc_engine *engine)
{
    const dsc_engine_progress *at = &engine->progress;
    return at->lr_override >= 0 ? at->lr_override : dsc_schedule_lr(&engine->config, at->update_count + 1);
}

dsc_status dsc_engine_set_lr(dsc_engine *engine, double lr, dsc_error *err)
{
    if (!(lr < 1e30))
        return DSC_FAIL(err, DSC_ERR_STATE, "", "a learning rate of %g", lr);
    engine->progress.lr_override = lr;
    return DSC_OK;
}

/* Where device memory is the host's, the tiers of memory are one row of a tag; elsewhere each is its own. */
static bool memory_is_one(const dsc_engine *engine) { return engine->device == NULL || engine->host_visible; }

static int32_t rows_per_tag(const dsc_engine *engine) { return memory_is_one(engine) ? 2 : DSC_TIER_COUNT; }

int32_t dsc_engine_plan_row_count(const dsc_engine *engine) { return DSC_TAG_COUNT * rows_per_tag(engine); }

dsc_status dsc_engine_plan_row(const dsc_engine *engine, int32_t index, dsc_plan_row *row, dsc_error *err)
{
    const int32_t each = rows_per_tag(engine);
    if (index < 0 || index >= DSC_TAG_COUNT * each)
        return DSC_FAIL(err, DSC_ERR_STATE, "", "plan row %d of %d", (int)index, DSC_TAG_COUNT * each);
    const bool one = memory_is_one(engine);
    const int tag = index / each;
    const int first = one && index % each == 1 ? DSC_TIER_NVME : one ? 0 : index % each;
    const int last = one && first == 0 ? DSC_TIER_NVME - 1 : first;
    dsc_alloc_stats stats;
    dsc_alloc_stats_get(engine->alloc, &stats);
    *row = (dsc_plan_row){ .tag = dsc_tag_text((dsc_tag)tag),
                           .tier = dsc_tier_text(one && first == 0 ? DSC_TIER_HOST : (dsc_tier)first) };
    for (int tier = first; tier <= last; tier++) {
        row->planned_bytes += engine->plan.bytes[tag][tier];
        row->current_bytes += stats.count[tag][tier].current_bytes;
        row->peak_bytes += stats.count[tag][tier].peak_bytes;
    }
    return DSC_OK;
}

int32_t dsc_engine_group_count(const dsc_engine *engine) { return engine->layout.group_count; }

dsc_status dsc_engine_group(const dsc_engine *engine, int32_t index, dsc_group_info *info, dsc_error *err)
{
    if (index < 0 || index >= engine->layout.group_count)
        return DSC_FAIL(err, DSC_ERR_STATE, "", "group %d of %d", (int)index, (int)engine->layout.group_count);
    const dsc_layout_group *group = &engine->layout.group[index];
    *info = (dsc_group_info){ .module = engine->model->modules[group->module].name, .trainable = group->trainable,
                              .elements = group->elements, .padded = group->padded, .slice = group->slice };
    return DSC_OK;
}

void dsc_engine_stats_get(dsc_engine *engine, dsc_engine_stats *out)
{
    dsc_alloc_stats memory;
    dsc_comm_stats comm = { 0 };
    dsc_alloc_stats_get(engine->alloc, &memory);
    dsc_engine_stats stats = DSC_ENGINE_STATS_INIT;
    const dsc_config *config = &engine->config;
    stats.step = engine->progress.step;
    stats.micro_step = engine->progress.micro_step;
    stats.next_sample = dsc_skips_batch(&engine->input.skips, engine->progress.step) * config->train_batch_size;
    stats.samples_per_epoch = engine->input.samples_per_epoch;
    stats.parameter_count = dsc_stages_whole_layout(engine)->parameter_count;
    stats.trainable_count = dsc_stages_whole_layout(engine)->trainable_count;
    stats.planned_bytes = engine->plan.total_bytes;
    for (int tier = 0; tier < DSC_TIER_NVME; tier++) {
        stats.tracked_bytes += memory.tier_current_bytes[tier];
        stats.tracked_peak_bytes += memory.tier_peak_bytes[tier];
    }
    stats.alloc_calls = memory.call_count;
    stats.forward_ns = engine->times.last_forward_ns;
    stats.backward_ns = engine->times.last_backward_ns;
    stats.step_ns = engine->times.last_step_ns;
    stats.data_wait_ns = engine->times.last_data_wait_ns;
    dsc_comm *const comms[] = { engine->comms.all, engine->comms.side[DSC_SUB_SHARDS].host,
                                engine->comms.side[DSC_SUB_REPLICAS].host };
    for (size_t c = 0; c < DSC_COUNT(comms); c++) {
        if (comms[c] == NULL)
            continue;
        dsc_comm_stats_get(comms[c], &comm);
        for (int op = 0; op < DSC_COMM_OP_COUNT; op++)
            stats.comm_wait_ns += comm.ns[op];
    }
    stats.flops_per_step = dsc_engine_step_flops(engine, engine->progress.step + 1);
    stats.tokens_per_step = dsc_engine_step_tokens(engine, engine->progress.step + 1);
    stats.threads = engine->threads;
    stats.eval_accuracy = stats.eval_accuracy_top5 = NAN;
    const dsc_evaluation *last = &engine->evaluated;
    if (last->items > 0 && engine->model->labels.smooths)
        stats.eval_accuracy = (double)last->right / (double)last->items;
    if (last->items > 0 && last->ranked)
        stats.eval_accuracy_top5 = (double)last->right_of_five / (double)last->items;
    *out = stats;
}

void dsc_engine_run_info(const dsc_engine *engine, dsc_run_info *info)
{
    const dsc_config *config = &engine->config;
    *info = (dsc_run_info) {
        .struct_bytes = (uint32_t)sizeof *info,
        .model_name = engine->model != NULL ? engine->model->name : "",
        .transport = engine->comms.device != NULL ? dsc_comm_name(engine->comms.device) : "none",
        .device = engine->device != NULL ? engine->device->ops->name : "none",
        .numerics = engine->output.numerics,
        .zero_stage = config->zero.stage,
        .train_batch_size = config->train_batch_size,
        .micro_batch_size = config->train_micro_batch_size_per_gpu,
        .accumulation_steps = config->gradient_accumulation_steps,
        .seq_length = engine->model != NULL ? engine->model->seq_length : 0,
        .vocab_size = engine->model != NULL ? engine->model->vocab_size : 0,
        .steps = engine->input.total_steps,
        .pictures = engine->model != NULL && dsc_model_sees_pictures(engine->model),
        .steps_per_epoch = engine->input.steps_per_epoch,
        .save_every = config->own.save_every,
        .eval_every = config->own.eval_every,
        .eval_batches = config->own.eval_batches,
        .steps_per_print = config->steps_per_print,
        .seed = config->seed,
        .save_dir = config->own.save,
        .load_dir = config->own.load,
        .log_path = config->own.log,
        .log_text_path = config->own.log_text,
        .has_data = engine->input.source.fill != NULL,
        .has_eval_data = engine->input.eval_source.fill != NULL,
        .overlap_comm = config->zero.overlap_comm,
        .recompute = dsc_recompute_text(config->own.recompute),
        .save_failure_stops = config->own.save_failure_stops,
        .save_async = config->own.save_async,
        .eval_patience = config->own.eval_patience,
        .tokenizer = engine->input.tokenizer,
        .curriculum = config->curriculum.enabled,
        .pairs = engine->model != NULL && dsc_model_prefers(engine->model),
        .routers = engine->model != NULL ? engine->model->experts.routers : 0,
        .experts = engine->model != NULL ? engine->model->experts.experts : 0,
        .router_losses = engine->model != NULL && (engine->model->experts.balance > 0 || engine->model->experts.z > 0),
        .log_expert_load = config->own.moe.log_load,
        .node_local = config->own.node_local,
        .stages = engine->stages.grid.pipeline,
        .data_ranks = engine->stages.grid.data,
    };
}

static const char *cpu_level(uint32_t caps)
{
    if ((caps & DSC_CPU_AMX_BF16) != 0)
        return "amx-bf16"; /* other products than without AMX, so other bits */
    return (caps & DSC_CPU_AVX512_BF16) != 0 ? "avx512-bf16" : (caps & DSC_CPU_AVX512) != 0 ? "avx512"
           : (caps & DSC_CPU_AVX2) != 0      ? "avx2" : "portable";
}

void dsc_engine_run_state(const dsc_engine *engine, dsc_run_state *out)
{
    const dsc_config *config = &engine->config;
    *out = (dsc_run_state) {
        .step = engine->progress.step,
        .update_count = engine->progress.update_count,
        .next_sample = dsc_skips_batch(&engine->input.skips, engine->progress.step) * config->train_batch_size,
        .seed = config->seed,
        .train_batch_size = config->train_batch_size,
        .micro_batch = config->train_micro_batch_size_per_gpu,
        .accumulation_steps = config->gradient_accumulation_steps,
        .world_size = engine->stages.grid.data, /* stages change no number */
        .shard_ranks = engine->layout.world_size,
        .samples_per_epoch = engine->input.samples_per_epoch,
        .seq_length = engine->model->seq_length,
        .document_end = config->own.document_end,
        .zero_stage = config->zero.stage,
        .compute_dtype = dsc_engine_dtype(engine),
        .moment_dtype = config->own.moments,
        .recipe = config->optimizer.recipe,
        .averages = engine->zero != NULL && dsc_zero_has_averages(engine->zero),
        .outer = engine->config.own.local_sgd.inner_steps > 0,
        .tensor_ranks = engine->stages.grid.tensor > 1 ? engine->stages.grid.tensor : 0,
        .loss_scaler = engine->progress.loss_scaler,
        .skips = engine->input.skips,
        .spikes = engine->spikes.watch,
        .world_size_reproducible = config->own.reproducible == DSC_REPRODUCIBLE_WORLD_SIZE,
        .shuffle = config->own.shuffle,
        .gemm_plans = engine->gemm_plans,
        .settings = engine->settings,
    };
    snprintf(out->packed_hash, sizeof out->packed_hash, "%s", engine->packed_hash);
    const dnnl_version_t *dnnl = dnnl_version();
    if (!engine->host_visible) {
        dsc_device_props props;
        dsc_device_props_get(engine->device, &props);
        snprintf(out->cpu_level, sizeof out->cpu_level, "sm_%d", (int)props.arch);
        snprintf(out->versions, sizeof out->versions, "dsc %s, %.100s", DSC_VERSION_TEXT, props.versions);
        return;
    }
    snprintf(out->cpu_level, sizeof out->cpu_level, "%s", cpu_level(engine->cpu_caps));
    snprintf(out->versions, sizeof out->versions, "dsc %s, oneDNN %d.%d.%d", DSC_VERSION_TEXT, dnnl->major, dnnl->minor,
             dnnl->patch);
}

void dsc_engine_describe_numerics(dsc_engine *engine)
{
    const dsc_config *config = &engine->config;
    const char *low = dsc_dtype_text(dsc_engine_dtype(engine));
    const bool bf16_on_cpu = config->precision == DSC_PRECISION_BF16 && (engine->cpu_caps & DSC_CPU_AVX512_BF16) != 0;
    const bool by_panels = config->precision != DSC_PRECISION_FP32 && engine->host_visible && !bf16_on_cpu;
    const bool packed = config->zero.quantized_weights && config->zero.stage == 3;
    const dsc_quant leaves = dsc_config_grad_part_quant(config);
    const bool packs = leaves != DSC_QUANT_NONE;
    const float factor = dsc_config_grad_part_factor(config, engine->stages.grid.data);
    const char *fp8 = !config->own.fp8.enabled ? ""
                      : config->own.fp8.hybrid ? " (blocks: fp8 e4m3 and e5m2)"
                                               : " (blocks: fp8 e4m3)";
    char scale[48] = "", before[48] = "";
    if (factor != 1)
        snprintf(before, sizeof before, " of leaves times %.9g", (double)factor);
    if (config->precision == DSC_PRECISION_FP16)
        snprintf(scale, sizeof scale, ", loss scale %s %.9g",
                 config->fp16.loss_scale == 0 ? "dynamic from" : "fixed at", engine->progress.loss_scaler.scale);
    snprintf(engine->output.numerics, sizeof engine->output.numerics,
             "params %s%s, matrix products %s%s%s with fp32 sums, leaf grads fp32, wire %s%s%s, accumulation %s, "
             "master fp32, moments %s%s%s",
             low,
             packed                                             ? " (int8 on the wire)"
             : dsc_plan_gathers_fp8(config, engine->place.size) ? " (fp8 on the wire for products in fp8)"
                                                                : "",
             low, fp8, by_panels ? " by fp32 panels" : "",
             packs ? dsc_quant_text(leaves) : dsc_dtype_text(config->communication_dtype),
             config->own.compression != DSC_QUANT_NONE ? " with error feedback" : "", before,
             config->own.gradients == DSC_BF16 ? "fp32 rounded to bf16" : "fp32",
             dsc_recipe_states_most(config->optimizer.recipe) == 0 ? "none"
             : config->own.moments == DSC_U8                       ? "8-bit codes in blocks of 256"
             : config->own.moments == DSC_BF16                     ? "bf16 rounded by chance"
                                                                   : "fp32",
             engine->config.own.reproducible == DSC_REPRODUCIBLE_WORLD_SIZE ? ", sums independent of the world size"
                                                                            : "",
             scale);
}

/* ---- the machine's own limit ---- */

#define PEAK_SIZE 1024 /* square product; above 4 PEAK_NS the small product is used */
#define PEAK_SIZE_SMALL 256
#define PEAK_NS INT64_C(50000000)

static dsc_status time_product(dsc_engine *engine, const dsc_gemm_args *gemm, int64_t *ns, dsc_error *err)
{
    const int64_t start = dsc_clock_ns();
    DSC_TRY(DSC_RUN(engine->compute, GEMM, gemm, err));
    DSC_TRY(dsc_stream_sync(engine->compute, err));
    *ns = dsc_max_i64(1, dsc_clock_ns() - start);
    return DSC_OK;
}

/* The best of three runs, or more while they take less than PEAK_NS, after one that prepares the size. */
static dsc_status time_best(dsc_engine *engine, dsc_gemm_args *gemm, int64_t size, int64_t *best_ns, dsc_error *err)
{
    int64_t ns, total = 0;
    gemm->m = gemm->n = gemm->k = size;
    DSC_TRY(time_product(engine, gemm, &ns, err));
    *best_ns = INT64_MAX;
    for (int32_t round = 0; round < 3 || (round < 7 && total < PEAK_NS); round++) {
        DSC_TRY(time_product(engine, gemm, &ns, err));
        *best_ns = dsc_min_i64(*best_ns, ns);
        total += ns;
    }
    return DSC_OK;
}

static dsc_status time_products(dsc_engine *engine, dsc_gemm_args *gemm, double *flops_per_s, dsc_error *err)
{
    static const int64_t times = PEAK_SIZE / PEAK_SIZE_SMALL;
    int64_t ns;
    DSC_TRY(time_best(engine, gemm, PEAK_SIZE_SMALL, &ns, err));
    if (ns <= 4 * PEAK_NS / (times * times * times))
        DSC_TRY(time_best(engine, gemm, PEAK_SIZE, &ns, err));
    *flops_per_s = 2.0 * (double)(gemm->m * gemm->n * gemm->k) / ((double)ns * 1e-9);
    return DSC_OK;
}

dsc_status dsc_engine_peak_flops(dsc_engine *engine, double *flops_per_s, dsc_error *err)
{
    DSC_TRY(ready(engine, err));
    const dsc_dtype dtype = dsc_engine_dtype(engine);
    const int64_t matrix_bytes = (int64_t)PEAK_SIZE * PEAK_SIZE * (int64_t)dsc_dtype_bytes(dtype);
    dsc_buf buf = { 0 };
    dsc_device_props props;
    dsc_device_props_get(engine->device, &props);
    if (props.peak_flops > 0 && dtype != DSC_F32) {
        *flops_per_s = props.peak_flops;
        return DSC_OK;
    }
    dsc_alloc_freeze(engine->alloc, false);
    DSC_TRY(dsc_mem_open(engine->device, DSC_TAG_SCRATCH, DSC_TIER_DEVICE, 3 * matrix_bytes, &buf, err));
    char *base = buf.ptr;
    dsc_gemm_args gemm = { .a = base, .b = base + matrix_bytes, .c = base + 2 * matrix_bytes, .lda = PEAK_SIZE,
                           .ldb = PEAK_SIZE, .ldc = PEAK_SIZE, .ab_dtype = dtype, .c_dtype = dtype };
    const dsc_status status = time_products(engine, &gemm, flops_per_s, err);
    dsc_mem_close(engine->device, &buf);
    if (engine->host_visible) /* the best round may have had the cores of ranks that waited */
        *flops_per_s *= dsc_machine_share(engine->threads, engine->place.local_size);
    return status;
}
