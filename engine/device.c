/* device.c - the device that config and machine agree on, and the communicators over host and device memory.
 *
 * Verdicts and scalars are host memory and travel on a transport between processes or threads of this host. Parameters
 * and gradients travel on the device's own transport, when the host cannot reach into device memory.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/device.h"
#include "engine/fp8.h"
#include "engine/internal.h"
#include "engine/machine.h"
#include "kernels/virtual/launch_times.h"

#define STAGING_BYTES_MAX (4 << 20) /* per channel and rank: above this a transport gains nothing (bench/comm) */
/* Buffers of a GPU's reduce channel, two to send and two to receive. Pieces of 4 MiB to each of 8 peers keep NVLink
 * busy. The pieces before and behind them are folded and cast at the same time. */
#define DEVICE_STAGING_BYTES_MAX (INT64_C(128) << 20)
#define GATHER_STAGING_BYTES 65536
#define STAGE_STAGING_BYTES (INT64_C(512) << 10) /* outputs of a stage, which are sent piece by piece */

/* ---- device ---- */

/* The launcher divides the cores over the ranks of a host and says so in OMP_NUM_THREADS. */
static int32_t choose_threads(const dsc_engine *engine)
{
    if (engine->config.own.threads > 0)
        return (int32_t)dsc_min_i64(engine->config.own.threads, 1024);
    const char *text = getenv("OMP_NUM_THREADS");
    char *end = NULL;
    const long from_env = text != NULL ? strtol(text, &end, 10) : 0;
    if (engine->place.local_world == NULL && from_env > 0 && from_env <= 1024 && (*end == 0 || *end == ','))
        return (int32_t)from_env;
    return (int32_t)dsc_max_i64(1, dsc_machine_cores() / dsc_max_i64(1, engine->place.local_size));
}

/* The GPU of a rank: index = local rank, or the only visible GPU. Ranks share a GPU only if the user configures NCCL
 * for a shared GPU. */
static dsc_status choose_gpu(dsc_engine *engine, int32_t count, int32_t *index, dsc_error *err)
{
    const dsc_rank_info *place = &engine->place;
    const char *text = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    const bool own_view = count == 1 && place->local_world == NULL, share = text != NULL && strcmp(text, "1") == 0;
    *index = own_view ? 0 : place->local_rank % count;
    engine->ranks_of_gpu = share ? (int32_t)dsc_div_ceil(place->local_size, count) : 1;
    if (own_view || count >= place->local_size || share)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "dsc.device",
                    "\"cuda\": %d ranks on this host and %d GPU%s; start one rank for each GPU",
                    (int)place->local_size, (int)count, count == 1 ? "" : "s");
}

static dsc_status find_device(dsc_engine *engine, const dsc_device_ops **ops, int32_t *index, dsc_error *err)
{
    const char *wanted = engine->config.own.device;
    int32_t count = 0;
    dsc_error why = DSC_ERROR_INIT;
    dsc_status status = DSC_OK;
    *index = 0;
    *ops = &dsc_device_cpu;
    if (strcmp(wanted, "cpu") == 0)
        return DSC_OK;
    status = dsc_device_find("cuda", ops, &count, &why);
    if (status == DSC_OK)
        status = choose_gpu(engine, count, index, &why);
    if (status == DSC_OK)
        return DSC_OK;
    if (strcmp(wanted, "cuda") == 0)
        return DSC_FAIL(err, status, why.where, "%s; \"cpu\" and \"auto\" work here", why.message);
    *ops = &dsc_device_cpu;
    *index = 0;
    if (engine->place.rank == 0 && access("/dev/nvidiactl", F_OK) == 0)
        dsc_log_printf(&engine->log, DSC_LOG_WARNING, "computing on the CPU: %s", why.message);
    return DSC_OK;
}

dsc_status dsc_engine_open_device(dsc_engine *engine, const dsc_engine_options *options, dsc_error *err)
{
    const dsc_device_ops *ops = NULL;
    dsc_device_options device = { .alloc = engine->alloc,
                                  .attention = engine->config.own.attention,
                                  .convolutions = engine->config.own.convolutions,
                                  .plans = engine->config.own.gemm_plans };
    engine->ranks_of_gpu = 1;
    if (engine->clock != NULL) {
        ops = engine->clock->rates->cores > 0 ? &dsc_device_virtual_cpu : &dsc_device_virtual;
        device.clock = engine->clock;
    } else if (engine->plan_only && options->plan_gpu_bytes > 0) {
        ops = &dsc_device_planned;
        device.planned_bytes = options->plan_gpu_bytes;
    } else {
        DSC_TRY(find_device(engine, &ops, &device.index, err));
    }
    if (engine->times_of_launches != NULL) {
        engine->times_of_launches->inner = ops;
        device.times = engine->times_of_launches;
        ops = dsc_launch_times_device(engine->times_of_launches);
    }
    device.caps = engine->cpu_caps = dsc_cpu_caps() & options->cpu_caps_mask;
    device.threads = engine->threads = choose_threads(engine);
    DSC_TRY(dsc_device_open(ops, &engine->device, &device, err));
    dsc_gemm_fuse(engine->device, engine->config.own.gemm_fused);
    engine->host_visible = dsc_device_host_visible(engine->device);
    DSC_TRY(dsc_engine_check_fp8(engine, err));
    return dsc_stream_open(engine->device, DSC_STREAM_COMPUTE, "compute", &engine->compute, err);
}

/* ---- communicators ---- */

static void comm_options(const dsc_engine *engine, int64_t fault_at, dsc_comm_options *out)
{
    const dsc_config *config = &engine->config;
    const int64_t each = (int64_t)dsc_dtype_bytes(config->communication_dtype);
    const int64_t bucket = config->zero.reduce_bucket_size;
    const int64_t timeout_ns = (int64_t)(config->own.comm_timeout_s * 1e9);
    *out = (dsc_comm_options) {
        .alloc = engine->alloc,
        .rank_info = engine->place,
        .transport = engine->host_visible ? config->own.comm : "auto",
        .channel_count = DSC_CHANNEL_COUNT,
        .staging_bytes = dsc_max_i64(65536, dsc_align_up(dsc_min_i64(bucket, STAGING_BYTES_MAX / each) * each, 4096)),
        .timeout_ns = timeout_ns,
        .open_timeout_ns = config->own.comm_timeout_given ? timeout_ns : 0,
        .fault_at = fault_at,
        .log = &engine->log,
        .only_this_rank = engine->clock != NULL,
        .clock = engine->clock,
        .trace = { engine->output.profile != NULL ? dsc_profile_comm : NULL, engine->output.profile },
    };
}

/* Bytes in which pieces of a sum are sent and received: at most a bucket, and no more than the longest group needs. */
static int64_t device_staging_bytes(const dsc_engine *engine)
{
    const int64_t each = (int64_t)dsc_dtype_bytes(dsc_engine_dtype(engine));
    int64_t longest = 0, bytes;
    for (int32_t g = 0; g < engine->layout.group_count; g++)
        longest = dsc_max_i64(longest, engine->layout.group[g].padded);
    if (longest == 0) /* no model: a host program's tensors, whose lengths come later */
        longest = STAGING_BYTES_MAX / (2 * each);
    longest = dsc_min_i64(longest, engine->config.zero.reduce_bucket_size);
    if (!dsc_mul_i64(longest, 2 * each, &bytes))
        bytes = DEVICE_STAGING_BYTES_MAX;
    return dsc_max_i64(65536, dsc_min_i64(bytes, DEVICE_STAGING_BYTES_MAX));
}

/* The transport between devices, if different from the host's. */
static void device_comm_options(const dsc_engine *engine, int64_t fault_at, dsc_comm_options *out)
{
    comm_options(engine, fault_at, out);
    out->transport = "auto";
    out->device = engine->device;
    out->host = engine->comms.all;
    out->staging_bytes = device_staging_bytes(engine);
    out->staging_channels = 1u << DSC_CHANNEL_REDUCE;
    out->native_sums = engine->config.own.native_sums;
    out->register_memory = engine->config.own.nccl_register;
    const dsc_nccl_section *nccl = &engine->config.own.nccl;
    out->nccl = (dsc_nccl_wishes) { .min_ctas = (int32_t)nccl->min_ctas,
                                    .max_ctas = (int32_t)nccl->max_ctas,
                                    .policy = nccl->policy,
                                    .blocking = nccl->blocking,
                                    .symmetric = nccl->symmetric,
                                    .network = nccl->network };
}

static void trace_gathers(void *user, int32_t channel, dsc_comm_op op, int64_t bytes, int64_t start_ns,
                          int64_t end_ns, dsc_status status)
{
    dsc_profile_comm(user, DSC_CHANNEL_GATHER, op, bytes, start_ns, end_ns, status);
}

static void trace_sums(void *user, int32_t channel, dsc_comm_op op, int64_t bytes, int64_t start_ns, int64_t end_ns,
                       dsc_status status)
{
    dsc_profile_comm(user, DSC_CHANNEL_REDUCE, op, bytes, start_ns, end_ns, status);
}

/* Which ranks are on this rank's side. */
typedef struct side_ranks { int32_t size, rank, color; } side_ranks;

static bool is_along_pipeline(dsc_side side) { return side == DSC_SUB_PIPELINE || side == DSC_SUB_TIED; }

/* Sides of a grid with several stages or tensor ranks. */
static bool find_side_of_grid(const dsc_engine *engine, dsc_side side, side_ranks *out)
{
    const dsc_engine_stages *stages = &engine->stages;
    const dsc_grid *grid = &stages->grid;
    if (side == DSC_SUB_SHARDS)
        *out = (side_ranks) { grid->data, stages->data_rank, stages->stage * grid->tensor + stages->tensor_rank };
    else if (side == DSC_SUB_TENSOR)
        *out = (side_ranks) { grid->tensor, stages->tensor_rank, stages->stage * grid->data + stages->data_rank };
    else
        *out = (side_ranks) { grid->pipeline, stages->stage, stages->data_rank * grid->tensor + stages->tensor_rank };
    if (side == DSC_SUB_TENSOR)
        return grid->tensor > 1;
    return side == DSC_SUB_SHARDS ||
           (is_along_pipeline(side) && grid->pipeline > 1 && (side == DSC_SUB_PIPELINE || stages->tied_count > 0));
}

static bool find_side(const dsc_engine *engine, dsc_side side, side_ranks *out)
{
    const int32_t ranks = engine->place.size, rank = engine->place.rank;
    const int32_t shards = dsc_plan_shards(&engine->config, ranks);
    const int32_t near = side == DSC_SUB_NEIGHBOURS ? dsc_plan_neighbours(&engine->config, ranks) : shards;
    if (engine->stages.grid.pipeline > 1 || engine->stages.grid.tensor > 1)
        return find_side_of_grid(engine, side, out);
    if (near == 0 || is_along_pipeline(side) || side == DSC_SUB_TENSOR)
        return false;
    if (side != DSC_SUB_NEIGHBOURS && shards == ranks)
        return false;
    *out = side == DSC_SUB_REPLICAS ? (side_ranks) { ranks / near, rank / near, rank % near }
                                    : (side_ranks) { near, rank % near, rank / near };
    return true;
}

/* They meet as ranks of a job of their own. Neighbours only gather and replicas only add, on one channel. */
static void side_options(const dsc_engine *engine, dsc_side side, bool device, dsc_comm_options *out)
{
    if (device)
        device_comm_options(engine, 0, out);
    else
        comm_options(engine, 0, out);
    out->transport = "auto";
    out->host = device ? engine->comms.side[side].host : NULL;
    if (side == DSC_SUB_SHARDS)
        return;
    if (is_along_pipeline(side) || side == DSC_SUB_TENSOR) {
        out->channel_count = side == DSC_SUB_PIPELINE ? DSC_STAGE_CHANNELS : 1;
        out->staging_bytes = dsc_min_i64(out->staging_bytes, STAGE_STAGING_BYTES);
        out->staging_channels = 0;
        return;
    }
    const bool sums = side == DSC_SUB_REPLICAS;
    out->channel_count = 1;
    out->staging_bytes = sums ? out->staging_bytes : GATHER_STAGING_BYTES;
    out->staging_channels = sums ? 1u : 0;
    if (out->trace.fn != NULL)
        out->trace.fn = sums ? trace_sums : trace_gathers;
}

/* Their place, before they have met: hosts have as many ranks as this one, and ranks of a side that follow each other
 * fill them. */
static void plan_side(const dsc_engine *engine, dsc_side side, const side_ranks *ranks, dsc_plan_options *out)
{
    dsc_comm_options options;
    side_options(engine, side, false, &options);
    dsc_rank_info *place = &options.rank_info;
    const int32_t apart = side == DSC_SUB_SHARDS                                ? engine->stages.grid.tensor
                          : side == DSC_SUB_REPLICAS || is_along_pipeline(side) ? place->size / ranks->size
                                                                                : 1;
    place->local_size = (int32_t)dsc_max_i64(1, dsc_min_i64(ranks->size, place->local_size / apart));
    place->size = ranks->size;
    place->rank = ranks->rank;
    place->local_rank = ranks->rank % place->local_size;
    place->node_count = (int32_t)dsc_div_ceil(ranks->size, place->local_size);
    place->node = ranks->rank / place->local_size;
    const dsc_rank_info planned = *place;
    out->comm_bytes += dsc_comm_plan_bytes(&options);
    if (engine->host_visible)
        return;
    side_options(engine, side, true, &options);
    options.rank_info = planned;
    out->device_comm_bytes += dsc_comm_plan_bytes(&options);
    out->device_library_bytes += dsc_comm_library_bytes(&options);
}

void dsc_engine_comm_plan(const dsc_engine *engine, dsc_plan_options *out)
{
    dsc_comm_options options;
    comm_options(engine, 0, &options);
    out->comm_bytes = dsc_comm_plan_bytes(&options);
    if (!engine->host_visible && dsc_plan_shards(&engine->config, engine->place.size) == engine->place.size) {
        device_comm_options(engine, 0, &options);
        out->device_comm_bytes = dsc_comm_plan_bytes(&options);
        out->device_library_bytes = dsc_comm_library_bytes(&options);
    }
    for (int side = 0; side < DSC_SUB_COUNT; side++) {
        side_ranks ranks;
        if (find_side(engine, (dsc_side)side, &ranks))
            plan_side(engine, (dsc_side)side, &ranks, out);
    }
}

/* Sides open their staging the same way, but each rank has one of them at most. */
int64_t dsc_engine_window_bytes(const dsc_engine *engine)
{
    const dsc_nccl_section *nccl = &engine->config.own.nccl;
    dsc_comm_options options;
    if (engine->host_visible || engine->place.size == 1 || engine->clock != NULL ||
        !(nccl->symmetric || nccl->policy == DSC_NCCL_POLICY_ZERO))
        return 0;
    device_comm_options(engine, 0, &options);
    return engine->plan.lent_bytes + dsc_comm_window_bytes(&options);
}

/* Nothing but compute streams, which a processor runs on the thread that calls. */
static bool has_one_thread(const dsc_engine *engine, const dsc_engine_options *options)
{
    const dsc_zero_config *zero = &engine->config.zero;
    return (options->flags & DSC_ENGINE_ONE_THREAD) != 0 && engine->host_visible && !zero->overlap_comm &&
           zero->offload_optimizer != DSC_OFFLOAD_NVME && zero->offload_param != DSC_OFFLOAD_NVME;
}

dsc_status dsc_engine_open_comm(dsc_engine *engine, const dsc_engine_options *options, dsc_error *err)
{
    dsc_comm_options comm;
    const char *name = engine->config.own.comm;
    if (!engine->host_visible && engine->place.size > 1 && strcmp(name, "auto") != 0 && strcmp(name, "nccl") != 0)
        return DSC_FAIL(err, DSC_ERR_CONFIG, "dsc.comm", "\"%s\" moves host memory and these ranks compute on GPUs; "
                        "use \"auto\" or \"nccl\"", name);
    comm_options(engine, options->fail_comm_at, &comm);
    comm.one_thread = has_one_thread(engine, options);
    engine->comms.came = true;
    return dsc_comm_open(&comm, &engine->comms.all, err);
}

dsc_status dsc_engine_open_device_comm(dsc_engine *engine, const dsc_engine_options *options, dsc_error *err)
{
    dsc_comm_options comm;
    dsc_comm *const shards = engine->comms.side[DSC_SUB_SHARDS].device;
    engine->comms.device = shards != NULL ? shards : engine->comms.all;
    for (int32_t m = 0; engine->model != NULL && m < engine->model->module_count; m++)
        dsc_comm_name_module(dsc_engine_shards(engine), m, engine->model->modules[m].name);
    if (engine->host_visible || shards != NULL)
        return DSC_OK;
    engine->comms.device = NULL;
    device_comm_options(engine, options->fail_comm_at, &comm);
    return dsc_comm_open(&comm, &engine->comms.device, err);
}

/* The communicator of devices that a side's ranks are a part of, and this rank's side among all of its ranks. Replicas
 * of shards are in none: its ranks are one copy of the states. */
static dsc_comm *find_parent(const dsc_engine *engine, dsc_side side, int32_t *color)
{
    dsc_comm *const device = engine->comms.device;
    const int32_t ranks = device != NULL ? dsc_comm_size(device) : 0;
    side_ranks of;
    if (side != DSC_SUB_NEIGHBOURS || engine->host_visible || ranks == 0 || !find_side(engine, side, &of))
        return NULL;
    *color = engine->place.rank % ranks / of.size;
    return ranks % of.size == 0 ? device : NULL;
}

static dsc_status open_side(dsc_engine *engine, dsc_side side, dsc_error *err)
{
    side_ranks ranks;
    dsc_comm_options comm;
    dsc_side_comm *out = &engine->comms.side[side];
    if (!find_side(engine, side, &ranks))
        return DSC_OK;
    side_options(engine, side, false, &comm);
    DSC_TRY(dsc_comm_split(engine->comms.all, ranks.color, engine->place.rank, &comm, &out->host, err));
    if (engine->host_visible) {
        out->device = out->host;
        return DSC_OK;
    }
    const dsc_rank_info info = comm.rank_info;
    side_options(engine, side, true, &comm);
    comm.rank_info = info;
    comm.parent = find_parent(engine, side, &comm.parent_color);
    return dsc_comm_open(&comm, &out->device, err);
}

dsc_status dsc_engine_open_communicators(dsc_engine *engine, const dsc_engine_options *options, dsc_error *err)
{
    DSC_TRY(open_side(engine, DSC_SUB_SHARDS, err));
    DSC_TRY(dsc_engine_open_device_comm(engine, options, err));
    for (int side = 0; side < DSC_SUB_COUNT; side++)
        if (side != DSC_SUB_SHARDS)
            DSC_TRY(open_side(engine, (dsc_side)side, err));
    return DSC_OK;
}

void dsc_engine_close_sub_communicators(dsc_engine *engine)
{
    for (int side = DSC_SUB_COUNT - 1; side >= 0; side--) {
        if (engine->comms.side[side].device != engine->comms.side[side].host)
            dsc_comm_close(&engine->comms.side[side].device);
        dsc_comm_close(&engine->comms.side[side].host);
    }
}

dsc_comm *dsc_engine_shards(const dsc_engine *engine)
{
    dsc_comm *const shards = engine->comms.side[DSC_SUB_SHARDS].host;
    return shards != NULL ? shards : engine->comms.all;
}

static void abort_comm(dsc_comm *comm, const char *reason)
{
    if (comm != NULL)
        dsc_comm_abort(comm, reason);
}

static void label_step(const dsc_side_comm *of, int64_t step)
{
    if (of->host != NULL)
        dsc_comm_label_step(of->host, step);
    if (of->device != NULL && of->device != of->host)
        dsc_comm_label_step(of->device, step);
}

void dsc_engine_label_step(dsc_engine *engine, int64_t step)
{
    dsc_comm *const shards = engine->comms.side[DSC_SUB_SHARDS].device;
    const dsc_engine_comms *comms = &engine->comms;
    label_step(&(dsc_side_comm){ comms->all, comms->device != shards ? comms->device : NULL }, step);
    for (int side = 0; side < DSC_SUB_COUNT; side++)
        label_step(&engine->comms.side[side], step);
}

void dsc_engine_abort(dsc_engine *engine, const char *reason)
{
    if (engine->zero != NULL)
        dsc_zero_cancel(engine->zero);
    if (engine->comms.device != engine->comms.all && engine->comms.device != engine->comms.side[DSC_SUB_SHARDS].device)
        abort_comm(engine->comms.device, reason);
    for (int side = 0; side < DSC_SUB_COUNT; side++) {
        if (engine->comms.side[side].device != engine->comms.side[side].host)
            abort_comm(engine->comms.side[side].device, reason);
        abort_comm(engine->comms.side[side].host, reason);
    }
    abort_comm(engine->comms.all, reason);
}

dsc_status dsc_engine_fail(dsc_engine *engine, dsc_status status, dsc_error *err)
{
    if (status == DSC_OK)
        return status;
    engine->failed = true;
    dsc_stages_explain(engine, err);
    if (err != NULL && err->rank < 0)
        err->rank = engine->place.rank;
    dsc_engine_abort(engine, err != NULL && err->message[0] != 0 ? err->message : dsc_status_text(status));
    return status;
}

dsc_status dsc_engine_fail_of_peers(dsc_engine *engine, dsc_status status, dsc_error *err)
{
    const bool of_peers = status == DSC_ERR_PEER || status == DSC_ERR_STUCK || status == DSC_ERR_COMM;
    return of_peers ? dsc_engine_fail(engine, status, err) : status;
}

dsc_status dsc_engine_settle(dsc_engine *engine, dsc_error *err)
{
    return engine->zero != NULL ? dsc_engine_fail(engine, dsc_zero_sync(engine->zero, err), err) : DSC_OK;
}
