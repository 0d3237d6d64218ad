/* comm.c - opening and closing a communicator: choice of the transport, scratch, counters, shared memory.
 * The calls themselves are in calls.c. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "comm/comm_front.h"
#include "kernels/virtual/virtual.h"

static const dsc_comm_ops *const registry[] = { &dsc_comm_self, &dsc_comm_local, &dsc_comm_shm, &dsc_comm_tcp,
                                                &dsc_comm_hier, &dsc_comm_gloo, &dsc_comm_mpi, &dsc_comm_nccl };

static dsc_status check_options(const dsc_comm_options *options, dsc_error *err)
{
    const dsc_rank_info *info = &options->rank_info;
    DSC_ASSERT(options->alloc != NULL);
    DSC_ASSERT(options->channel_count >= 1 && options->channel_count <= DSC_COMM_CHANNELS_MAX);
    DSC_ASSERT(options->staging_bytes >= 0);
    DSC_ASSERT(options->parent == NULL || (options->device != NULL && options->parent_color >= 0));
    DSC_ASSERT(options->timeout_ns >= 0 && options->open_timeout_ns >= 0 && options->fault_at >= 0);
    if (info->size < 1)
        return DSC_FAIL(err, DSC_ERR_INPUT, "WORLD_SIZE", "%d ranks; expected at least 1", info->size);
    if (info->size > DSC_COMM_RANKS_MAX)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "WORLD_SIZE", "%d ranks; this version takes at most %d", info->size,
                        DSC_COMM_RANKS_MAX);
    if (info->rank < 0 || info->rank >= info->size)
        return DSC_FAIL(err, DSC_ERR_INPUT, "RANK", "rank %d of %d; expected 0..%d", info->rank, info->size,
                        info->size - 1);
    return DSC_OK;
}

/* The transport that "auto" selects here, with the reason. */
static const char *choose_auto(const dsc_comm_options *options, const char **why)
{
    const dsc_rank_info *info = &options->rank_info;
    *why = "one rank";
    if (info->size == 1)
        return "self";
    *why = "ranks compute on GPUs";
    if (options->device != NULL && !dsc_device_host_visible(options->device))
        return "nccl";
    *why = "ranks are threads of one program";
    if (info->local_world != NULL)
        return "local";
    *why = "all ranks are on this host";
    if (info->local_size == info->size)
        return "shm";
    *why = "ranks are on several hosts, mpirun started them, and there is no DSC_JOB_TOKEN";
    if (info->from_mpi && (info->job_token == NULL || info->job_token[0] == 0))
        return "mpi";
    /* Measured over two hosts of two ranks each: 1.1 to 4 times as fast at every size (docs/launch.md). */
    *why = "several ranks on a host, on several hosts: shared memory inside a host, TCP between";
    if (!info->hosts_guessed && info->size > info->node_count)
        return "hier";
    *why = "ranks are on several hosts";
    return "tcp";
}

dsc_status dsc_comm_choose(const dsc_comm_options *options, const dsc_comm_ops **out, dsc_error *err)
{
    const char *name = options->transport != NULL ? options->transport : "auto", *why = NULL;
    if (options->only_this_rank && options->rank_info.size > 1) {
        const bool cpu = options->clock != NULL && options->clock->rates->cores > 0;
        *out = cpu ? &dsc_comm_virtual_cpu : &dsc_comm_virtual;
        return DSC_OK;
    }
    if (strcmp(name, "auto") == 0)
        name = choose_auto(options, &why);
    for (size_t i = 0; i < DSC_COUNT(registry); i++) {
        if (strcmp(name, registry[i]->name) == 0) {
            *out = registry[i];
            return DSC_OK;
        }
    }
    return DSC_FAIL(err, DSC_ERR_INPUT, "dsc.comm",
                    "\"%.40s\" is not a transport; expected \"auto\", \"self\", \"local\", \"shm\", \"tcp\", "
                    "\"hier\", \"gloo\", \"mpi\" or \"nccl\"",
                    name);
}

/* Required hooks are checked here once, so that a table with a hole fails at open and not in step 1000. */
static void check_table(const dsc_comm_ops *ops)
{
    DSC_ASSERT(ops->version == DSC_COMM_OPS_VERSION);
    DSC_ASSERT(ops->name != NULL);
    DSC_ASSERT(ops->open != NULL && ops->close != NULL && ops->abort != NULL);
    DSC_ASSERT(ops->all_gather != NULL && ops->all_to_all != NULL && ops->broadcast != NULL);
    DSC_ASSERT(ops->barrier != NULL && ops->send != NULL && ops->recv != NULL);
    DSC_ASSERT((ops->mem_open == NULL) == (ops->mem_close == NULL));
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

/* Short vectors (and the ends of long ones) are gathered whole and folded by everybody: one collective, not two. */
static int64_t gather_elements(int32_t size)
{
    return dsc_max_i64(1024, (int64_t)(DSC_COMM_PIECE_ALIGN + 1) * size);
}

static int64_t gather_bytes(int32_t size)
{
    return size == 1 ? 0 : dsc_align_up(gather_elements(size) * size * (int64_t)sizeof(float), 64);
}

/* Sums over device memory run on two streams (comm/pipeline.h). */
static bool has_pipeline(const dsc_comm_ops *ops, const dsc_comm_options *options)
{
    return ops->enqueues && ops->reduce_scatter == NULL && options->device != NULL && options->rank_info.size > 1;
}

/* Only transports without a reduce_scatter of their own use the front's staging: half to send, half to receive. With
 * two streams there are two of both. */
static int64_t front_staging_bytes(const dsc_comm_ops *ops, const dsc_comm_options *options)
{
    if (ops->reduce_scatter != NULL)
        return 0;
    const int64_t parts = has_pipeline(ops, options) ? 2 * DSC_PIPELINE_SLOTS : 2;
    const int64_t least = parts * (int64_t)sizeof(float) * DSC_COMM_PIECE_ALIGN * options->rank_info.size;
    return dsc_align_up(dsc_max_i64(options->staging_bytes, least), 32 * parts);
}

static bool needs_staging(const dsc_comm_options *options, int32_t channel)
{
    return options->staging_channels == 0 || (options->staging_channels >> channel & 1u) != 0;
}

/* Memory of the transport's library, which is where it wants what it sends and receives. */
static dsc_status window_open(const dsc_needs *needs, const dsc_need *need, dsc_error *err)
{
    return dsc_comm_mem_open(needs->owner, need->tag, need->bytes, need->out, err);
}

static void window_close(const dsc_needs *needs, const dsc_need *need)
{
    dsc_comm_mem_close(needs->owner, need->out);
}

static const dsc_need_kind window_kind = { dsc_buf_counted, window_open, window_close };

static bool wants_windows(const dsc_comm_ops *ops, const dsc_comm_options *options)
{
    return ops == &dsc_comm_nccl && options->rank_info.size > 1 &&
           (options->nccl.symmetric || options->nccl.policy == DSC_NCCL_POLICY_ZERO);
}

/* The front's buffers of each channel. `comm` is NULL while planning. */
static int list_front(const dsc_comm_ops *ops, const dsc_comm_options *options, dsc_comm *comm, dsc_need *list)
{
    const dsc_tier tier = options->device != NULL ? DSC_TIER_DEVICE : DSC_TIER_HOST;
    const dsc_need_kind *kind = options->device != NULL ? DSC_NEED_DEVICE : DSC_NEED_HOST;
    const int64_t gather = gather_bytes(options->rank_info.size), staging = front_staging_bytes(ops, options);
    int count = 0;
    for (int32_t c = 0; c < options->channel_count; c++) {
        dsc_comm_channel *ch = comm != NULL ? &comm->channel[c] : NULL;
        if (gather > 0)
            list[count++] = (dsc_need) { ch != NULL ? &ch->gather : NULL, DSC_TAG_COMM, tier, gather, kind };
        if (staging > 0 && needs_staging(options, c))
            list[count++] = (dsc_need) { ch != NULL ? &ch->staging : NULL, DSC_TAG_COMM, tier, staging,
                                         wants_windows(ops, options) ? &window_kind : kind };
    }
    DSC_ASSERT(count <= DSC_COMM_NEEDS_MAX);
    return count;
}

/* The sum of both lists under a tag. */
static int64_t planned_bytes(const dsc_comm_options *options, dsc_tag tag)
{
    const dsc_comm_ops *ops = NULL;
    dsc_need list[DSC_COMM_NEEDS_MAX];
    dsc_needs needs = { .alloc = options->alloc };
    int64_t bytes = 0;
    if (dsc_comm_choose(options, &ops, NULL) != DSC_OK)
        return 0;
    dsc_needs_plan(&needs, list, list_front(ops, options, NULL, list));
    if (ops->list_needs != NULL)
        dsc_needs_plan(&needs, list, ops->list_needs(options, NULL, list));
    for (int tier = 0; tier < DSC_TIER_COUNT; tier++)
        bytes += needs.planned[tag][tier];
    return bytes;
}

int64_t dsc_comm_plan_bytes(const dsc_comm_options *options) { return planned_bytes(options, DSC_TAG_COMM); }

int64_t dsc_comm_library_bytes(const dsc_comm_options *options) { return planned_bytes(options, DSC_TAG_LIBRARY); }

int64_t dsc_comm_window_bytes(const dsc_comm_options *options)
{
    const dsc_comm_ops *ops = NULL;
    dsc_need list[DSC_COMM_NEEDS_MAX];
    int64_t bytes = 0;
    if (dsc_comm_choose(options, &ops, NULL) != DSC_OK)
        return 0;
    for (int i = list_front(ops, options, NULL, list); i-- > 0;)
        bytes += list[i].kind == &window_kind ? dsc_need_planned_bytes(&list[i]) : 0;
    return bytes;
}

/* ---- open and close ---------------------------------------------------------------------------------------------- */

static dsc_status channels_open(dsc_comm *comm, const dsc_comm_options *options, dsc_error *err)
{
    for (int32_t c = 0; c < comm->channel_count; c++)
        comm->channel[c].gather_elements = gather_elements(comm->size);
    comm->memory.owner = comm;
    comm->memory.count = list_front(comm->ops, options, comm, comm->memory.need);
    DSC_TRY(dsc_comm_memory_open(&comm->memory, options, err));
    for (int32_t c = 0; c < comm->channel_count; c++)
        if (has_pipeline(comm->ops, options) && needs_staging(options, c))
            DSC_TRY(dsc_pipeline_open(&comm->channel[c].pipeline, options->device, "sums", err));
    return DSC_OK;
}

/* Ranks of one communicator have a token, or a group's name, in common; those of the same ranks' devices another. */
static uint64_t flight_id(const dsc_comm_options *options)
{
    const char *name = options->rank_info.job_token != NULL ? options->rank_info.job_token : "";
    uint64_t id = options->device != NULL ? 2 : 1;
    for (; *name != 0; name++)
        id = (id ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
    return id != 0 ? id : 1;
}

static dsc_status open_flight(dsc_comm *comm, const dsc_comm_options *options, dsc_error *err)
{
    dsc_flight_track *track[DSC_COMM_CHANNELS_MAX];
    bool some = false;
    dsc_flight_open(&comm->flight, options->rank_info.flight);
    dsc_flight_set_timeout(&comm->flight, dsc_comm_timeout_ns(options));
    for (int32_t c = 0; c < comm->channel_count && comm->size > 1; c++) /* a single rank waits in no call */
        comm->channel[c].track = dsc_flight_track_open(&comm->flight, flight_id(options), c, comm->rank, comm->size);
    for (int32_t c = 0; c < comm->channel_count; c++) {
        track[c] = comm->channel[c].track;
        some = some || track[c] != NULL;
    }
    if (!some || !comm->ops->enqueues)
        return DSC_OK;
    return dsc_comm_progress_open(&comm->progress, comm->alloc, comm->device, track, comm->channel_count, err);
}

static void close_flight(dsc_comm *comm)
{
    dsc_comm_progress_close(&comm->progress);
    for (int32_t c = 0; c < comm->channel_count; c++)
        dsc_flight_track_close(comm->channel[c].track);
    dsc_flight_close(&comm->flight);
}

/* Every rank opens or none does: whoever could not set itself up says so before the others come to the barrier. */
static void refuse(dsc_transport *transport, int32_t rank, const dsc_error *why, dsc_error *err)
{
    char reason[320];
    snprintf(reason, sizeof reason, "rank %d could not open its communicator: %.240s", rank, why->message);
    transport->ops->abort(transport, reason);
    if (err != NULL)
        *err = *why;
}

static dsc_status settle(dsc_comm *comm, const dsc_comm_options *options, dsc_error *err)
{
    dsc_transport *inner = comm->transport;
    dsc_error first = DSC_ERROR_INIT;
    dsc_status status = channels_open(comm, options, &first);
    if (status == DSC_OK && options->fault_at > 0)
        status = dsc_comm_fault_wrap(comm->alloc, inner, options->fault_at, &comm->transport, &first);
    if (status == DSC_OK)
        status = open_flight(comm, options, &first);
    if (status == DSC_OK)
        return inner->ops->barrier(inner, 0, NULL, err);
    refuse(inner, comm->rank, &first, err);
    return status;
}

static dsc_status open_transport(const dsc_comm_ops *ops, const dsc_comm_options *options, dsc_transport **out,
                                 dsc_error *err)
{
    const dsc_status status = ops->open(out, options, err);
    if (status == DSC_ERR_STUCK || status == DSC_ERR_INPUT)
        dsc_comm_add_origin(&options->rank_info, err);
    return status;
}

/* The transport comes first: once it stands, whatever fails here reaches the other ranks. */
dsc_status dsc_comm_open_with(const dsc_comm_ops *ops, const dsc_comm_options *options, dsc_comm **out, dsc_error *err)
{
    *out = NULL;
    check_table(ops);
    DSC_TRY(check_options(options, err));
    dsc_transport *transport = NULL;
    dsc_comm *comm = NULL;
    dsc_error first = DSC_ERROR_INIT;
    dsc_status status = open_transport(ops, options, &transport, err);
    if (status != DSC_OK)
        return status;
    status = dsc_alloc_zeroed(options->alloc, DSC_TAG_CONTROL, 1, sizeof *comm, &comm, &first);
    if (status != DSC_OK) {
        refuse(transport, options->rank_info.rank, &first, err);
        transport->ops->close(transport);
        return status;
    }
    comm->ops = ops;
    comm->transport = comm->inner = transport;
    comm->alloc = options->alloc;
    comm->device = options->device;
    comm->rank = options->rank_info.rank;
    comm->size = options->rank_info.size;
    comm->channel_count = options->channel_count;
    comm->trace = options->trace;
    comm->native_sums = options->native_sums;
    for (int32_t c = 0; c < comm->channel_count; c++)
        atomic_store(&comm->channel[c].module, -1);
    dsc_comm_math_init(&comm->math);
    status = settle(comm, options, err);
    if (status != DSC_OK) {
        dsc_comm_close(&comm);
        return status;
    }
    dsc_log_printf(options->log, DSC_LOG_DEBUG, "comm: %s, rank %d of %d, %d channels", ops->name, comm->rank,
                   comm->size, comm->channel_count);
    *out = comm;
    return DSC_OK;
}

dsc_status dsc_comm_open(const dsc_comm_options *options, dsc_comm **out, dsc_error *err)
{
    *out = NULL;
    const dsc_comm_ops *ops = NULL;
    DSC_TRY(check_options(options, err));
    DSC_TRY(dsc_comm_choose(options, &ops, err));
    const char *why = "";
    if (options->rank_info.rank == 0 && (options->transport == NULL || strcmp(options->transport, "auto") == 0)) {
        const char *name = choose_auto(options, &why);
        dsc_log_printf(options->log, options->rank_info.size > 1 ? DSC_LOG_INFO : DSC_LOG_DEBUG,
                       "comm: auto is \"%s\": %s", name, why);
    }
    return dsc_comm_open_with(ops, options, out, err);
}

void dsc_comm_close(dsc_comm **comm_ptr)
{
    dsc_comm *comm = *comm_ptr;
    if (comm == NULL)
        return;
    close_flight(comm);
    if (comm->device != NULL)
        dsc_comm_memory_close(&comm->memory); /* some is the transport's library's, and its streams are idle */
    comm->transport->ops->close(comm->transport);
    for (int32_t c = 0; c < comm->channel_count; c++)
        dsc_pipeline_close(&comm->channel[c].pipeline); /* its waits have ended with the transport */
    dsc_comm_memory_close(&comm->memory);
    dsc_local_world_drop(comm->group_world);
    dsc_alloc_free(comm->alloc, comm);
    *comm_ptr = NULL;
}

dsc_transport *dsc_comm_transport_of(const dsc_comm *comm) { return comm->inner; }
int32_t dsc_comm_rank(const dsc_comm *comm) { return comm->rank; }
int32_t dsc_comm_size(const dsc_comm *comm) { return comm->size; }
const char *dsc_comm_name(const dsc_comm *comm) { return comm->ops->name; }

void dsc_comm_label_step(dsc_comm *comm, int64_t step)
{
    atomic_store_explicit(&comm->step, step, memory_order_relaxed);
}

void dsc_comm_label_module(dsc_comm *comm, int32_t channel, int32_t module)
{
    atomic_store_explicit(&comm->channel[channel].module, module, memory_order_relaxed);
}

void dsc_comm_name_module(dsc_comm *comm, int32_t module, const char *name)
{
    dsc_flight_name_module(&comm->flight, module, name);
}

void dsc_comm_stats_get(dsc_comm *comm, dsc_comm_stats *stats)
{
    for (int op = 0; op < DSC_COMM_OP_COUNT; op++) {
        stats->calls[op] = atomic_load_explicit(&comm->count[op].calls, memory_order_relaxed);
        stats->bytes[op] = atomic_load_explicit(&comm->count[op].bytes, memory_order_relaxed);
        stats->ns[op] = atomic_load_explicit(&comm->count[op].ns, memory_order_relaxed);
    }
}

void dsc_comm_payload_get(const dsc_comm *comm, int32_t channel, dsc_comm_payload *payload)
{
    DSC_ASSERT(channel >= 0 && channel < comm->channel_count);
    payload->sent = atomic_load_explicit(&comm->channel[channel].sent, memory_order_relaxed);
    payload->received = atomic_load_explicit(&comm->channel[channel].received, memory_order_relaxed);
}

int64_t dsc_comm_blocked_ns(const dsc_comm *comm)
{
    return atomic_load_explicit(&comm->blocked_ns, memory_order_relaxed);
}

dsc_status dsc_comm_mem_open(dsc_comm *comm, dsc_tag tag, int64_t bytes, dsc_buf *out, dsc_error *err)
{
    DSC_ASSERT(bytes >= 0);
    *out = (dsc_buf){ 0 };
    if (bytes == 0)
        return DSC_OK;
    if (comm->transport->ops->mem_open != NULL)
        return comm->transport->ops->mem_open(comm->transport, tag, bytes, out, err);
    if (comm->device != NULL)
        return dsc_mem_open(comm->device, tag, DSC_TIER_DEVICE, bytes, out, err);
    return dsc_buf_open(comm->alloc, tag, DSC_TIER_DEVICE, bytes, out, err);
}

void dsc_comm_mem_close(dsc_comm *comm, dsc_buf *buf)
{
    if (buf->ptr == NULL)
        return;
    if (comm->transport->ops->mem_close != NULL)
        comm->transport->ops->mem_close(comm->transport, buf);
    else if (comm->device != NULL)
        dsc_mem_close(comm->device, buf);
    else
        dsc_buf_close(buf);
}
