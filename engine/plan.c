/* plan.c - sums what the model, the stage, the transport and the reader will take. SPDX-License-Identifier: Apache-2.0
 */
#include "engine/init_values.h"
#include "engine/plan.h"

#include <assert.h>

#include "engine/buffers.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/data/data.h"
#include "engine/experts.h"
#include "engine/fp8.h"
#include "engine/hooks.h"
#include "engine/local_sgd.h"
#include "engine/norm_group.h"
#include "offload/tile_buffers.h"

#define PLAN_ALIGN 256
#define ROUND_ELEMENTS (INT64_C(1) << 22) /* 16 MiB of fp32: on 8 ranks, four blocks of GPT-2 124M, or one of 7 B */
#define TILE_ELEMENTS (INT64_C(1) << 20) /* 4 MiB of fp32: four requests of DeepSpeed's default block_size */
#define TILE_ELEMENTS_PINNED (INT64_C(1) << 22) /* between a GPU and host memory: enough for many threads at a time */
#define AIO_THREADS 8
#define AIO_TIMEOUT_NS (INT64_C(60) * 1000000000)
#define GPU_CHUNK_BYTES (INT64_C(512) << 20) /* 4096 rows of 50304 logits in bf16; fewer rows slow down the products   \
                                              */
#define LOSS_MIRROR_BYTES (INT64_C(1) << 20) /* host copies of losses of all micro-steps */

static int64_t aligned(int64_t bytes) { return dsc_align_up(bytes, PLAN_ALIGN); }

static dsc_status prepare_gemm(void *user, const dsc_gemm_args *shape, dsc_error *err)
{
    return dsc_gemm_prepare(user, shape, err);
}

static dsc_status prepare_attention(void *user, const dsc_attention_fwd_args *shape, dsc_error *err)
{
    return dsc_attention_prepare(user, shape, err);
}

static dsc_status prepare_conv2d(void *user, const dsc_conv2d_args *shape, dsc_error *err)
{
    return dsc_conv2d_prepare(user, shape, err);
}

dsc_recompute_policy dsc_plan_recompute(const dsc_config *config, const dsc_module *module, const dsc_module_plan *plan)
{
    const bool loss = (module->flags & DSC_MODULE_LOSS) != 0;
    if (config->own.recompute == DSC_RECOMPUTE_FULL && !loss && plan->saved_bytes + plan->rebuilt_bytes > 0)
        return DSC_RECOMPUTE_FORWARD;
    return config->own.recompute == DSC_RECOMPUTE_SELECTIVE && plan->rebuilt_bytes > 0 ? DSC_RECOMPUTE_REBUILD
                                                                                       : DSC_RECOMPUTE_NOTHING;
}

double dsc_plan_recompute_flops(const dsc_config *config, const dsc_module *module, const dsc_module_plan *plan)
{
    const dsc_recompute_policy again = dsc_plan_recompute(config, module, plan);
    return again == DSC_RECOMPUTE_FORWARD   ? plan->forward_flops
           : again == DSC_RECOMPUTE_REBUILD ? plan->rebuild_flops
                                            : 0;
}

double dsc_plan_flops(const dsc_config *config, const dsc_model *model, const dsc_module_plan *modules)
{
    double sum = 0;
    for (int32_t m = 0; m < model->module_count; m++)
        sum += modules[m].forward_flops + modules[m].backward_flops +
               dsc_plan_recompute_flops(config, &model->modules[m], &modules[m]);
    return sum;
}

/* Maximum over the module's plans for shorter samples. */
static dsc_status plan_cuts(const dsc_plan_options *o, dsc_plan *plan, const dsc_plan_sink *sink, int32_t m,
                            dsc_error *err)
{
    dsc_module_plan *most = &plan->module[m];
    for (int32_t c = 0; c < o->cut_count; c++) {
        const dsc_module *module = &o->cut[c].model->modules[m];
        dsc_module_plan *p = &plan->shorter[c * o->model->module_count + m];
        DSC_TRY(module->plan(module, o->config->train_micro_batch_size_per_gpu, o->compute_dtype, sink, p, err));
        most->out_elements = dsc_max_i64(most->out_elements, p->out_elements);
        most->saved_bytes = dsc_max_i64(most->saved_bytes, p->saved_bytes);
        most->rebuilt_bytes = dsc_max_i64(most->rebuilt_bytes, p->rebuilt_bytes);
        most->repeated_bytes = dsc_max_i64(most->repeated_bytes, p->repeated_bytes);
        most->forward_scratch_bytes = dsc_max_i64(most->forward_scratch_bytes, p->forward_scratch_bytes);
        most->backward_scratch_bytes = dsc_max_i64(most->backward_scratch_bytes, p->backward_scratch_bytes);
    }
    return DSC_OK;
}

/* Adds one module: a sum where modules have separate buffers, a maximum where they share one. */
static void add_kept(int64_t *sum, bool shared, int64_t bytes)
{
    *sum = shared ? dsc_max_i64(*sum, aligned(bytes)) : *sum + aligned(bytes);
}

/* Inputs of all lanes, gradients of inputs with loads of experts, and two gradients of tied parameters, one of them on
 * its way. */
static int64_t stage_bytes(const dsc_plan_options *o, const dsc_plan *plan)
{
    const int64_t inputs = (plan->lanes + o->stage.slots) * aligned(o->stage.in_bytes);
    const int64_t records = o->stage.in_bytes > 0 ? o->stage.slots * o->stage.record_bytes : 0;
    const int64_t headers = dsc_device_host_visible(o->device) ? 0 : o->stage.header_bytes;
    return inputs + records + 2 * o->stage.tied_bytes + headers;
}

static dsc_status plan_modules(const dsc_plan_options *o, dsc_plan *plan, dsc_error *err)
{
    const int64_t batch = o->config->train_micro_batch_size_per_gpu;
    const int64_t each = (int64_t)dsc_dtype_bytes(o->compute_dtype);
    dsc_plan_sink sink = { .gemm = prepare_gemm,
                           .user = o->device,
                           .attention = prepare_attention,
                           .conv2d = prepare_conv2d,
                           .chunk_bytes = plan->chunk_bytes,
                           .joins_input_gradients = plan->joins_input_gradients,
                           .stores_score_gradients = plan->stores_score_gradients,
                           .tensor_align = o->layout->tensor_align };
    plan->saved_shared = o->config->own.recompute == DSC_RECOMPUTE_FULL;
    plan->rebuilt_shared = o->config->own.recompute > DSC_RECOMPUTE_NONE;
    for (int32_t m = 0; m < o->model->module_count; m++) {
        const dsc_module *module = &o->model->modules[m];
        dsc_module_plan *p = &plan->module[m];
        sink.fp8 = dsc_plan_fp8_of(o, plan, m);
        DSC_TRY(module->plan(module, batch, o->compute_dtype, &sink, p, err));
        DSC_TRY(plan_cuts(o, plan, &sink, m, err));
        dsc_plan_fp8_inputs(o, plan, m);
        if (p->rebuilt_bytes > 0 && module->rebuild == NULL)
            return DSC_FAIL(err, DSC_ERR_STATE, module->name, "plans bytes to rebuild and has no rebuild");
        const int64_t out_bytes = aligned(p->out_elements * each);
        plan->out_bytes_total += out_bytes;
        plan->out_bytes_most = dsc_max_i64(plan->out_bytes_most, out_bytes);
        plan->d_bytes_most = dsc_max_i64(plan->d_bytes_most, out_bytes);
        add_kept(&plan->saved_bytes, plan->saved_shared, p->saved_bytes);
        add_kept(&plan->rebuilt_bytes, plan->rebuilt_shared, p->rebuilt_bytes);
        add_kept(&plan->repeated_bytes, false, p->repeated_bytes);
        plan->scratch_bytes = dsc_max_i64(plan->scratch_bytes, aligned(p->forward_scratch_bytes));
        plan->scratch_bytes = dsc_max_i64(plan->scratch_bytes, aligned(p->backward_scratch_bytes));
        plan->backward_reads_params[m] = dsc_plan_recompute(o->config, module, p) != DSC_RECOMPUTE_NOTHING ||
                                         (module->flags & DSC_MODULE_BACKWARD_WITHOUT_PARAMS) == 0;
    }
    if (plan->norm_each > 0) {
        plan->scratch_frame = plan->scratch_bytes;
        plan->saved_frame = plan->saved_shared ? plan->saved_bytes : 0;
        plan->rebuilt_frame = plan->rebuilt_shared ? plan->rebuilt_bytes : 0;
        plan->scratch_bytes *= plan->norm_each;
    }
    const int32_t sharers = (int32_t)dsc_max_i64(1, plan->norm_each);
    plan->out_bytes_total *= plan->lanes;
    plan->saved_bytes *= plan->saved_shared ? sharers : plan->lanes;
    plan->rebuilt_bytes *= plan->rebuilt_shared ? sharers : plan->lanes;
    plan->repeated_bytes *= plan->lanes;
    plan->stage_bytes = stage_bytes(o, plan);
    plan->flops_per_micro_batch = dsc_plan_flops(o->config, o->model, plan->module);
    return DSC_OK;
}

/* It follows from the config and the kind of the device alone, which ranks and a resumed run have in common. */
static int64_t chunk_bytes(const dsc_plan_options *o)
{
    const int64_t given = o->config->own.head_chunk_bytes;
    return given > 0 || dsc_device_host_visible(o->device) ? given : GPU_CHUNK_BYTES;
}

/* GPUs of sm_90 have kernels for it, which a trial may choose. A GPU that is not here may be one. */
static bool stores_score_gradients(const dsc_plan_options *o)
{
    dsc_device_props props;
    dsc_device_props_get(o->device, &props);
    return o->config->own.gemm_plans != DSC_GEMM_FIRST && !dsc_device_host_visible(o->device) &&
           (props.arch == 0 || props.arch == 90);
}

int64_t dsc_plan_tag_bytes(const dsc_plan *plan, dsc_tag tag)
{
    int64_t bytes = 0;
    for (int tier = 0; tier < DSC_TIER_COUNT; tier++)
        bytes += plan->bytes[tag][tier];
    return bytes;
}

static void plan_batch(const dsc_plan_options *o, dsc_plan *plan)
{
    for (int32_t i = 0; i < o->model->batch_count; i++)
        plan->batch_bytes += aligned(dsc_batch_tensor_bytes(o->model, o->config->train_micro_batch_size_per_gpu, i));
}

static int32_t swap_folders(const dsc_nvme_config *nvme, const char *out[DSC_SWAP_FOLDERS_MAX])
{
    static_assert(DSC_NVME_PATHS_MAX <= DSC_SWAP_FOLDERS_MAX, "every folder of a config has its place");
    for (int i = 0; i < nvme->path_count; i++)
        out[i] = nvme->path[i];
    return nvme->path_count;
}

void dsc_plan_swap(const dsc_config *config, dsc_zero_swap *out)
{
    const dsc_zero_config *zero = &config->zero;
    const dsc_aio_config *aio = &config->aio;
    /* As DeepSpeed counts an optimizer's buffers: weight, gradient and states. */
    const int64_t buffers_of_element = 2 + dsc_recipe_states_most(config->optimizer.recipe);
    if (zero->offload_optimizer == DSC_OFFLOAD_NVME)
        out->state_folder_count = swap_folders(&zero->nvme_optimizer, out->state_folders);
    if (zero->offload_param == DSC_OFFLOAD_NVME)
        out->param_folder_count = swap_folders(&zero->nvme_param, out->param_folders);
    out->state_share = zero->offload_ratio;
    out->param_elements_in_memory = zero->max_in_cpu;
    out->params_with_states = zero->params_with_states;
    if (zero->offload_param == DSC_OFFLOAD_NVME && zero->param_buffers_given)
        out->window_elements = dsc_max_i64(1, zero->param_buffer_count * zero->param_buffer_size);
    out->persistent_elements = zero->stage3_param_persistence_threshold;
    const bool files = out->state_folder_count > 0 || out->param_folder_count > 0;
    out->tile_elements = dsc_min_i64(files ? TILE_ELEMENTS : TILE_ELEMENTS_PINNED, zero->sub_group_size);
    out->read_ahead = zero->pipeline_read;
    out->write_behind = zero->pipeline_write;
    out->early_update = config->own.early_update;
    out->early_share = config->own.early_update_share;
    out->sums_in_memory = config->own.gradients_in_memory;
    out->sums_on_device = config->own.gradients_on_gpu;
    out->unclipped = config->gradient_clipping <= 0;
    out->pin_states = zero->pin_optimizer;
    out->pin_params = zero->pin_param;
    const int64_t tiles = dsc_max_i64(1 + zero->pipeline_read + zero->pipeline_write,
                                      zero->offload_buffer_count / buffers_of_element);
    out->slot_count = (int32_t)dsc_min_i64(tiles, DSC_TILE_BUFFERS_MAX);
    /* A device that does not respond is reported before the timeout of waiting ranks. */
    const int64_t comm_timeout_ns = (int64_t)(config->own.comm_timeout_s * 1e9);
    out->aio = (dsc_aio_options){ .engine = config->own.aio,
                                  .block_bytes = aio->block_size,
                                  .queue_depth = (int32_t)aio->queue_depth,
                                  .thread_count = (int32_t)aio->thread_count,
                                  .single_submit = aio->single_submit,
                                  .overlap_events = aio->overlap_events,
                                  .poll = config->own.aio_poll,
                                  .timeout_ns = dsc_min_i64(AIO_TIMEOUT_NS, comm_timeout_ns / 2) };
    if (aio->thread_count == 0)
        out->aio.thread_count = (int32_t)dsc_min_i64(AIO_THREADS, aio->queue_depth);
}

int32_t dsc_plan_neighbours(const dsc_config *config, int32_t world_size)
{
    const int64_t count = config->zero.hpz_partition_size;
    return config->zero.stage == 3 && count > 1 && count < world_size ? (int32_t)count : 0;
}

int32_t dsc_plan_shards(const dsc_config *config, int32_t world_size)
{
    const int64_t count = config->zero.mics_shard_size;
    world_size = (int32_t)dsc_config_data_ranks(config, world_size);
    return config->zero.stage == 3 && count > 0 && count < world_size ? (int32_t)count : world_size;
}

/* Micro-batches of one copy of the states. Copies have equal shares of a step. */
static dsc_quota quota_of_states(const dsc_plan_options *o)
{
    const dsc_quota quota = dsc_config_quota(o->config, o->data_ranks);
    const int32_t shards = o->layout->world_size;
    return shards == o->data_ranks ? quota : dsc_quota_even(quota.total * shards / o->data_ranks, shards);
}

uint32_t dsc_plan_fingerprints(const dsc_config *config)
{
    const dsc_ext_config *own = &config->own;
    return (own->spikes.enabled || own->check_gradients > 0 ? DSC_FINGERPRINTS_PARTS : 0u) |
           (own->check_replicas > 0 ? DSC_FINGERPRINTS_PARAMS : 0u);
}

void dsc_plan_zero_options(const dsc_plan_options *o, const dsc_plan *plan, dsc_zero_options *out)
{
    const dsc_config *config = o->config;
    *out = (dsc_zero_options) {
        .alloc = o->alloc,
        .model = o->model,
        .layout = o->layout,
        .stage = config->zero.stage,
        .rank = o->rank,
        .compute_dtype = o->compute_dtype,
        .wire_dtype = config->communication_dtype,
        .grad_part_factor = dsc_config_grad_part_factor(config, o->data_ranks),
        .recipe = config->optimizer.recipe,
        .round_elements = dsc_min_i64(ROUND_ELEMENTS, config->zero.sub_group_size),
        .moment_dtype = config->own.moments,
        .average_share = config->own.ema.enabled ? (float)(1 - config->own.ema.decay) : 0,
        .sum_dtype = config->own.gradients,
        .quant_params = config->zero.quantized_weights ? DSC_QUANT_INT8 : DSC_QUANT_NONE,
        .quant_frozen = config->zero.quantized_frozen_weights ? DSC_QUANT_INT8 : DSC_QUANT_NONE,
        .packed_gather_elements = dsc_max_i64(1, config->zero.allgather_bucket_size),
        .packed_grad_part_elements = dsc_max_i64(1, config->zero.reduce_bucket_size),
        .quant_grad_parts = dsc_config_grad_part_quant(config),
        .grad_part_errors = config->own.compression != DSC_QUANT_NONE,
        .signs = dsc_config_signs(config),
        .power_sgd = dsc_hooks_power_sgd(config),
        .outer = dsc_local_sgd_options(config),
        .fingerprints = dsc_plan_fingerprints(config),
        .gather_fp8 = dsc_plan_gathers_fp8(config, o->world_size),
        .neighbour_count = dsc_plan_neighbours(config, o->data_ranks),
        .replica_count = o->data_ranks / o->layout->world_size,
        .seed = (uint64_t)config->seed,
        .overlap = config->zero.overlap_comm,
        .late_update = config->own.late_update && config->own.grid.pipeline <= 1,
        .prefetch_elements = config->zero.stage3_prefetch_bucket_size,
        .prefetch_within_limit = config->zero.prefetch_within_bucket,
        .reuse_elements = config->zero.stage3_max_reuse_distance,
        .live_elements = config->zero.stage3_max_live_parameters,
        .quota = quota_of_states(o),
        .micro_batch_group = plan->micro_batch_group,
        .backward_reads_params = plan->backward_reads_params,
        .world_size_reproducible = config->own.reproducible == DSC_REPRODUCIBLE_WORLD_SIZE,
        .device = o->device,
    };
    dsc_plan_swap(config, &out->swap);
    out->swap.io = o->io;
    const bool apart = !dsc_device_host_visible(o->device);
    out->swap.states_on_host = config->zero.offload_optimizer == DSC_OFFLOAD_CPU && apart;
    out->swap.params_on_host = config->zero.offload_param == DSC_OFFLOAD_CPU && apart;
    out->swap.host_threads = o->threads;
    out->swap.host_caps = o->cpu_caps;
}

static dsc_status plan_states(const dsc_plan_options *o, dsc_plan *plan, dsc_error *err)
{
    dsc_zero_options zero_options;
    dsc_zero_plan_bytes states;
    dsc_plan_zero_options(o, plan, &zero_options);
    DSC_TRY(dsc_zero_plan(&zero_options, &states, err));
    for (int tag = 0; tag < DSC_TAG_COUNT; tag++)
        for (int tier = 0; tier < DSC_TIER_COUNT; tier++)
            plan->bytes[tag][tier] += states.bytes[tag][tier];
    plan->lent_bytes = states.lent_bytes;
    plan->traffic = states.traffic;
    plan->kept = states.kept;
    plan->prefetch_exceeds = states.prefetch_exceeds;
    plan->prefetch_held = states.prefetch_held;
    return DSC_OK;
}

static int64_t records_bytes(const dsc_plan_options *o)
{
    return dsc_model_records_bytes(o->model, o->config->train_micro_batch_size_per_gpu);
}

/* Host buffers of results that are in transfer. */
static void plan_mirrors(const dsc_plan_options *o, dsc_plan *plan)
{
    const int64_t micro_steps = o->config->micro_steps_most;
    plan->losses_bytes = aligned(o->config->train_micro_batch_size_per_gpu * o->model->losses_per_sample * 4);
    plan->places_bytes = o->model->labels.smooths ? plan->losses_bytes : 0;
    plan->losses_bytes += plan->places_bytes;
    plan->logits_bytes = aligned(o->model->vocab_size * 4);
    plan->loss_slots = 1;
    if (dsc_device_host_visible(o->device))
        return;
    const int64_t each = dsc_max_i64(1, plan->losses_bytes + records_bytes(o));
    plan->loss_slots = (int32_t)dsc_max_i64(1, dsc_min_i64(micro_steps, LOSS_MIRROR_BYTES / each));
}

int64_t dsc_plan_away_of(const dsc_plan *plan, int32_t m, dsc_dtype dtype)
{
    const dsc_module_plan *module = &plan->module[m];
    return module->out_elements * (int64_t)dsc_dtype_bytes(dtype) + (plan->away.saved > 0 ? module->saved_bytes : 0) +
           (plan->away.repeated > 0 ? module->repeated_bytes : 0);
}

/* The places of a kind of values whose module `last`, the loss, has its own behind them. */
static int64_t places_bytes(const dsc_plan *plan, int64_t each, int64_t last)
{
    return plan->micro_batch_group * (DSC_OUT_SLOTS * each + aligned(last));
}

/* Outputs, saved and repeated values that wait in host memory. The loss module has no output. */
static void plan_away(const dsc_plan_options *o, dsc_plan *plan)
{
    const int32_t last = o->model->module_count - 1, count = last - DSC_OUT_SLOTS;
    const bool repeats = plan->repeated_bytes > 0;
    dsc_plan_away *away = &plan->away;
    if (!o->config->own.outputs_on_host || count < 1 || dsc_device_host_visible(o->device))
        return;
    *away = (dsc_plan_away) { .count = count, .out = plan->out_bytes_most };
    for (int32_t m = 0; m < last; m++) {
        const dsc_module_plan *module = &plan->module[m];
        away->saved = dsc_max_i64(away->saved, plan->saved_shared ? 0 : aligned(module->saved_bytes));
        away->repeated = dsc_max_i64(away->repeated, repeats ? aligned(module->repeated_bytes) : 0);
    }
    away->bytes = count * plan->micro_batch_group * dsc_plan_away_each(away);
    plan->out_bytes_total = places_bytes(plan, away->out, 0);
    if (!plan->saved_shared)
        plan->saved_bytes = places_bytes(plan, away->saved, plan->module[last].saved_bytes);
    if (repeats)
        plan->repeated_bytes = places_bytes(plan, away->repeated, plan->module[last].repeated_bytes);
    for (int32_t m = 0; m < count; m++) {
        const int64_t bytes = o->config->gradient_accumulation_steps * dsc_plan_away_of(plan, m, o->compute_dtype);
        plan->traffic.to_host_bytes += bytes;
        plan->traffic.to_device_bytes += bytes;
    }
}

typedef struct work_sizes {
    int64_t activation, scratch, eval, outputs, batch, mirror, snapshot, fp8, stage, stage_headers; /* bytes */
    int64_t modules, micro_batch_group, lanes, tensors, params, all_params;          /* lengths of arrays */
    int64_t stats, ranks, samples, step_samples;
    int64_t records, records_mirror; /* bytes */
    int64_t router_stats, expert_loads;
    int64_t values, values_mirror, means, statistics, statistics_own, statistics_all; /* bytes */
    int64_t buffers, buffers_most, d_buffers;
    int64_t norm, norm_mirror, norm_grads; /* bytes */
    int64_t norm_each;
    int64_t first_parts, reports, params_read; /* lengths */
} work_sizes;

static void size_norm_group(const dsc_plan_options *o, const dsc_plan *plan, work_sizes *out)
{
    const dsc_norm_group_sizes sizes = dsc_norm_group_sizes_of(o->model);
    out->norm_each = plan->norm_each;
    out->norm = (1 + o->world_size) * plan->norm_each * sizes.numbers * 4;
    out->norm_mirror = dsc_device_host_visible(o->device) ? 0 : out->norm;
    out->norm_grads = plan->norm_each * sizes.grads * 4;
}

static void size_buffers(const dsc_plan_options *o, const dsc_plan *plan, work_sizes *out)
{
    const dsc_buffer_sizes sizes = dsc_buffer_sizes_of(o->whole);
    DSC_ASSERT(sizes.values <= DSC_BUFFERS_ELEMENTS_MAX + sizes.count * DSC_BUFFER_ALIGN);
    out->values = sizes.values * 4;
    out->values_mirror = dsc_device_host_visible(o->device) ? 0 : out->values;
    out->means = o->config->own.ema.enabled && o->config->own.ema.buffers ? out->values : 0;
    out->statistics = plan->lanes * sizes.statistics * 4;
    out->statistics_own = o->config->micro_steps_most * sizes.statistics * 4;
    out->statistics_all = o->world_size * out->statistics_own;
    out->buffers = sizes.count;
    out->buffers_most = sizes.most;
}

static void size_work(const dsc_plan_options *o, const dsc_plan *plan, work_sizes *out)
{
    const bool apart = !dsc_device_host_visible(o->device);
    DSC_ASSERT(plan->micro_batch_group >= 1 && plan->loss_slots >= 1);
    DSC_ASSERT(plan->away.count < o->model->module_count);
    *out = (work_sizes) {
        .activation = plan->out_bytes_total + dsc_plan_d_buffers(plan) * plan->d_bytes_most + plan->losses_bytes +
                      plan->saved_bytes + plan->rebuilt_bytes + plan->repeated_bytes,
        .d_buffers = dsc_plan_d_buffers(plan),
        .scratch = plan->scratch_bytes + plan->logits_bytes,
        .eval = plan->batch_bytes,
        .outputs = plan->away.bytes,
        .batch = apart || o->stage.lanes > 0 ? plan->lanes * plan->batch_bytes : 0,
        .stage = plan->stage_bytes,
        .stage_headers = o->stage.header_bytes,
        .mirror = apart ? plan->loss_slots * plan->losses_bytes + plan->logits_bytes : 0,
        .snapshot = plan->snapshot_bytes,
        .fp8 = dsc_fp8_plan_bytes(&plan->fp8),
        .modules = (int64_t)o->model->module_count * plan->lanes,
        .micro_batch_group = plan->micro_batch_group,
        .lanes = plan->lanes,
        .tensors = o->model->batch_count,
        .params = 1,
        .stats = dsc_step_stat_count(o->config),
        .ranks = o->world_size,
        .samples = o->config->train_micro_batch_size_per_gpu,
        .step_samples = o->config->micro_steps_most * o->config->train_micro_batch_size_per_gpu,
        .records = plan->lanes * records_bytes(o),
        .records_mirror = apart ? plan->loss_slots * records_bytes(o) : 0,
        .router_stats = dsc_model_router_stats(o->model, o->config->micro_steps_most),
        .expert_loads = (int64_t)o->model->experts.routers * o->model->experts.experts,
    };
    for (int32_t m = 0; m < o->model->module_count; m++) {
        out->params = dsc_max_i64(out->params, o->model->modules[m].param_count);
        out->all_params += o->config->own.fp8.enabled ? o->model->modules[m].param_count : 0;
    }
    size_buffers(o, plan, out);
    const uint32_t prints = dsc_plan_fingerprints(o->config);
    if ((prints & DSC_FINGERPRINTS_PARTS) != 0) {
        out->first_parts = o->layout->group_count;
        out->reports = o->world_size;
    }
    if ((prints & DSC_FINGERPRINTS_PARAMS) != 0)
        out->params_read = (int64_t)o->world_size * o->layout->group_count * o->layout->world_size;
    size_norm_group(o, plan, out);
}

int dsc_work_list_needs(const dsc_plan_options *o, const dsc_plan *plan, dsc_work *w, dsc_need list[DSC_WORK_NEEDS_MAX])
{
    const dsc_tier device = DSC_TIER_DEVICE, pinned = DSC_TIER_PINNED, host = DSC_TIER_HOST;
    const int64_t word = (int64_t)sizeof(void *), number = (int64_t)sizeof(double);
    work_sizes s = { 0 };
    int count = 0;
    if (o != NULL)
        size_work(o, plan, &s);
    const dsc_need buffers[] = {
        { &w->activation_buf, DSC_TAG_ACTIVATION, device, s.activation, DSC_NEED_DEVICE },
        { &w->stage_buf, DSC_TAG_ACTIVATION, device, s.stage, DSC_NEED_DEVICE },
        { &w->stage_headers, DSC_TAG_DATA, pinned, s.stage_headers, DSC_NEED_DEVICE },
        { &w->scratch_buf, DSC_TAG_SCRATCH, device, s.scratch, DSC_NEED_DEVICE },
        { &w->eval_buf, DSC_TAG_DATA, pinned, s.eval, DSC_NEED_DEVICE },
        { &w->outputs_buf, DSC_TAG_ACTIVATION, pinned, s.outputs, DSC_NEED_DEVICE },
        { &w->batch_buf, DSC_TAG_DATA, device, s.batch, DSC_NEED_DEVICE },
        { &w->mirror_buf, DSC_TAG_DATA, pinned, s.mirror, DSC_NEED_DEVICE },
        { &w->snapshot_buf, DSC_TAG_IO, pinned, s.snapshot, DSC_NEED_DEVICE },
        { &w->fp8_buf, DSC_TAG_SCRATCH, device, s.fp8, DSC_NEED_DEVICE },
    };
    /* Table of step facts that ranks exchange; a config can make it large at any number of modules. */
    const dsc_need arrays[] = {
        { &w->out, DSC_TAG_CONTROL, host, s.modules * word, DSC_NEED_SMALL },
        { &w->saved, DSC_TAG_CONTROL, host, s.modules * word, DSC_NEED_SMALL },
        { &w->rebuilt, DSC_TAG_CONTROL, host, s.modules * word, DSC_NEED_SMALL },
        { &w->repeated, DSC_TAG_CONTROL, host, s.modules * word, DSC_NEED_SMALL },
        { &w->d_buffer, DSC_TAG_CONTROL, host, s.d_buffers * word, DSC_NEED_SMALL },
        { &w->eval_data, DSC_TAG_CONTROL, host, s.tensors * word, DSC_NEED_SMALL },
        { &w->device_batch, DSC_TAG_CONTROL, host, s.lanes * s.tensors * word, DSC_NEED_SMALL },
        { &w->batch, DSC_TAG_CONTROL, host, s.lanes * word, DSC_NEED_SMALL },
        { &w->param, DSC_TAG_CONTROL, host, s.params * word, DSC_NEED_SMALL },
        { &w->grad, DSC_TAG_CONTROL, host, s.params * word, DSC_NEED_SMALL },
        { &w->fp8_is_cast, DSC_TAG_CONTROL, host, s.all_params * (int64_t)sizeof(bool), DSC_NEED_SMALL },
        { &w->fp8_gathered, DSC_TAG_CONTROL, host, s.all_params * (int64_t)sizeof(void *), DSC_NEED_SMALL },
        { &w->fp8_kept, DSC_TAG_CONTROL, host, s.lanes * s.all_params * (int64_t)sizeof(dsc_fp8_matrix),
          DSC_NEED_SMALL },
        { &w->step_stats, DSC_TAG_CONTROL, host, s.stats * number, DSC_NEED_ARRAY },
        { &w->step_stat_count, DSC_TAG_CONTROL, host, s.stats * s.ranks * number, DSC_NEED_ARRAY },
        { &w->eval_losses, DSC_TAG_CONTROL, host, s.samples * s.ranks * number, DSC_NEED_ARRAY },
    };
    const dsc_need of_routers[] = {
        { &w->records_buf, DSC_TAG_SCRATCH, device, s.records, DSC_NEED_DEVICE },
        { &w->records_mirror, DSC_TAG_DATA, pinned, s.records_mirror, DSC_NEED_DEVICE },
        { &w->router_stats, DSC_TAG_CONTROL, host, s.router_stats * number, DSC_NEED_ARRAY },
        { &w->router_stats_all, DSC_TAG_CONTROL, host, s.router_stats * s.ranks * number, DSC_NEED_ARRAY },
        { &w->expert_load, DSC_TAG_CONTROL, host, s.expert_loads * number, DSC_NEED_ARRAY },
    };
    const dsc_need of_pairs[] = {
        { &w->references, DSC_TAG_CONTROL, host, s.step_samples * number, DSC_NEED_ARRAY },
        { &w->above_reference, DSC_TAG_CONTROL, host, s.samples * number, DSC_NEED_ARRAY },
    };
    const dsc_need of_buffers[] = {
        { &w->buffers_buf, DSC_TAG_BUFFER, device, s.values, DSC_NEED_DEVICE },
        { &w->buffers_mirror, DSC_TAG_BUFFER, pinned, s.values_mirror, DSC_NEED_DEVICE },
        { &w->statistics_buf, DSC_TAG_BUFFER, device, s.statistics, DSC_NEED_DEVICE },
        { &w->statistics_own, DSC_TAG_BUFFER, pinned, s.statistics_own, DSC_NEED_DEVICE },
        { &w->statistics_all, DSC_TAG_BUFFER, host, s.statistics_all, DSC_NEED_ARRAY },
        { &w->buffer_means, DSC_TAG_BUFFER, host, s.means, DSC_NEED_ARRAY },
        { &w->buffer_steps, DSC_TAG_BUFFER, host, s.buffers * (int64_t)sizeof(int64_t), DSC_NEED_ARRAY },
        { &w->buffer_values, DSC_TAG_CONTROL, host, s.buffers_most * word, DSC_NEED_SMALL },
        { &w->buffer_statistics, DSC_TAG_CONTROL, host, s.buffers_most * word, DSC_NEED_SMALL },
    };
    const dsc_need of_checks[] = {
        { &w->first_parts, DSC_TAG_CONTROL, host, s.first_parts * number, DSC_NEED_ARRAY },
        { &w->reports, DSC_TAG_CONTROL, host, s.reports * (int64_t)sizeof(dsc_rank_report), DSC_NEED_ARRAY },
        { &w->params_read, DSC_TAG_CONTROL, host, s.params_read * number, DSC_NEED_ARRAY },
    };
    const dsc_need of_norm_group[] = {
        { &w->norm_buf, DSC_TAG_SCRATCH, device, s.norm, DSC_NEED_DEVICE },
        { &w->norm_mirror, DSC_TAG_DATA, pinned, s.norm_mirror, DSC_NEED_DEVICE },
        { &w->norm_grads_buf, DSC_TAG_SCRATCH, device, s.norm_grads, DSC_NEED_DEVICE },
        { &w->norm_ctx, DSC_TAG_CONTROL, host, s.norm_each * (int64_t)sizeof *w->norm_ctx, DSC_NEED_SMALL },
        { &w->norm_grad, DSC_TAG_CONTROL, host, s.norm_each * s.params * word, DSC_NEED_SMALL },
    };
    for (size_t i = 0; i < DSC_COUNT(buffers); i++)
        if (o == NULL || buffers[i].bytes > 0)
            list[count++] = buffers[i];
    for (size_t i = 0; i < DSC_COUNT(arrays); i++)
        list[count++] = arrays[i];
    for (size_t i = 0; i < DSC_COUNT(of_routers); i++)
        if (o == NULL || of_routers[i].bytes > 0)
            list[count++] = of_routers[i];
    for (size_t i = 0; i < DSC_COUNT(of_buffers); i++)
        if (o == NULL || of_buffers[i].bytes > 0)
            list[count++] = of_buffers[i];
    for (size_t i = 0; i < DSC_COUNT(of_checks); i++)
        if (o == NULL || of_checks[i].bytes > 0)
            list[count++] = of_checks[i];
    for (size_t i = 0; i < DSC_COUNT(of_norm_group); i++)
        if (o == NULL || of_norm_group[i].bytes > 0)
            list[count++] = of_norm_group[i];
    for (size_t i = 0; i < DSC_COUNT(of_pairs) && (o == NULL || o->config->own.dpo.enabled); i++)
        list[count++] = of_pairs[i];
    if (o != NULL) {
        list[count++] = (dsc_need) { NULL, DSC_TAG_COMM, host, o->comm_bytes, DSC_NEED_INSIDE };
        list[count++] = (dsc_need) { NULL, DSC_TAG_COMM, device, o->device_comm_bytes, DSC_NEED_INSIDE };
        list[count++] = (dsc_need) { NULL, DSC_TAG_DATA, pinned, o->data_bytes, DSC_NEED_INSIDE };
        list[count++] = (dsc_need) { NULL, DSC_TAG_MIRROR, host, o->mirror_bytes, DSC_NEED_INSIDE };
        list[count++] = (dsc_need) { NULL, DSC_TAG_IO, pinned, plan->io_bytes, DSC_NEED_INSIDE };
    }
    DSC_ASSERT(count <= DSC_WORK_NEEDS_MAX);
    return count;
}

static void plan_work(const dsc_plan_options *o, dsc_plan *plan)
{
    dsc_work unopened = { 0 };
    dsc_need list[DSC_WORK_NEEDS_MAX];
    dsc_needs needs = { .alloc = o->alloc, .device = o->device };
    DSC_ASSERT(plan->total_bytes == 0); /* summed behind this list */
    dsc_needs_plan(&needs, list, dsc_work_list_needs(o, plan, &unopened, list));
    for (int tag = 0; tag < DSC_TAG_COUNT; tag++)
        for (int tier = 0; tier < DSC_TIER_COUNT; tier++)
            plan->bytes[tag][tier] += needs.planned[tag][tier];
}

static void plan_rows(const dsc_plan_options *o, dsc_plan *plan)
{
    plan_mirrors(o, plan);
    plan_away(o, plan);
    if (o->config->own.save_async)
        plan->snapshot_bytes =
            dsc_ckpt_snapshot_bytes(o->layout, o->compute_dtype, o->config->own.moments, o->config->optimizer.recipe,
                                    o->config->own.ema.enabled, o->rank);
    plan->io_bytes =
        dsc_max_i64(dsc_ckpt_buffer_bytes(o->layout, o->config->zero.offload_optimizer == DSC_OFFLOAD_NVME),
                    dsc_align_up(dsc_engine_packed_io_bytes(o->layout), 4096));
    plan_work(o, plan);
    dsc_alloc_stats stats; /* libraries have taken what they need for prepared products */
    dsc_alloc_stats_get(o->alloc, &stats);
    for (int tier = 0; tier < DSC_TIER_COUNT; tier++)
        plan->bytes[DSC_TAG_LIBRARY][tier] += stats.count[DSC_TAG_LIBRARY][tier].current_bytes;
    plan->bytes[DSC_TAG_LIBRARY][DSC_TIER_DEVICE] += o->device_library_bytes;
    plan->bytes[DSC_TAG_LIBRARY][DSC_TIER_HOST] += o->decoder_bytes;
    for (int tier = 0; tier < DSC_TIER_COUNT; tier++) {
        for (int tag = 0; tag < DSC_TAG_COUNT; tag++)
            plan->tier_bytes[tier] += plan->bytes[tag][tier];
        plan->total_bytes += tier != DSC_TIER_NVME ? plan->tier_bytes[tier] : 0;
    }
}

dsc_status dsc_plan_open(const dsc_plan_options *o, dsc_plan *out, dsc_error *err)
{
    dsc_plan plan = { .alloc = o->alloc,
                      .micro_batch_group = dsc_config_micro_batch_group(o->config),
                      .norm_each = o->config->norm_each,
                      .chunk_bytes = chunk_bytes(o),
                      .joins_input_gradients = !dsc_device_host_visible(o->device),
                      .stores_score_gradients = stores_score_gradients(o) };
    dsc_status status = DSC_OK;
    const int64_t modules = o->model->module_count;
    plan.lanes = o->stage.lanes > 0 ? o->stage.lanes : plan.micro_batch_group;
    DSC_TRY_OUT(dsc_alloc_zeroed(o->alloc, DSC_TAG_CONTROL, modules, sizeof *plan.module, &plan.module, err));
    DSC_TRY_OUT(dsc_alloc_zeroed(o->alloc, DSC_TAG_CONTROL, modules, sizeof(bool), &plan.backward_reads_params, err));
    DSC_TRY_OUT(dsc_alloc_zeroed(o->alloc, DSC_TAG_CONTROL, o->cut_count * modules, sizeof *plan.shorter, &plan.shorter,
                                 err));
    DSC_TRY_OUT(dsc_plan_fp8_open(o, &plan, err));
    DSC_TRY_OUT(plan_modules(o, &plan, err));
    plan_batch(o, &plan);
    DSC_TRY_OUT(plan_states(o, &plan, err));
    plan_rows(o, &plan);
    *out = plan;
    return DSC_OK;
out:
    dsc_plan_close(&plan);
    return status;
}

void dsc_plan_close(dsc_plan *plan)
{
    if (plan->alloc == NULL)
        return;
    dsc_alloc_free(plan->alloc, plan->fp8.weight_at);
    dsc_alloc_free(plan->alloc, plan->fp8_inputs);
    dsc_alloc_free(plan->alloc, plan->shorter);
    dsc_alloc_free(plan->alloc, plan->module);
    dsc_alloc_free(plan->alloc, plan->backward_reads_params);
    *plan = (dsc_plan){ 0 };
}
