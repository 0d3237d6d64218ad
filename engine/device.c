/* device.c - the device that config and machine agree on, and the communicators over host and device memory.
 *
 * Verdicts and scalars are host memory and travel on a transport between processes or threads of this host. Parameters
 * and gradients travel on the device's own transport, when the host cannot reach into device memory.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "engine/internal.h"

#define STAGING_BYTES_MAX (4 << 20) /* per channel and rank: above this a transport gains nothing (bench/comm) */

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

dsc_status dsc_engine_open_device(dsc_engine *engine, const dsc_engine_options *options, dsc_error *err)
{
    engine->cpu_caps = dsc_cpu_caps() & options->cpu_caps_mask;
    engine->threads = choose_threads(engine);
    const dsc_device_options device_options = { .alloc = engine->alloc,
                                                .threads = engine->threads,
                                                .caps = engine->cpu_caps };
    DSC_TRY(dsc_device_open(&dsc_device_cpu, &engine->device, &device_options, err));
    engine->host_visible = dsc_device_host_visible(engine->device);
    return dsc_stream_open(engine->device, DSC_STREAM_COMPUTE, "compute", &engine->compute, err);
}

/* ---- communicators ---- */

static void comm_options(const dsc_engine *engine, int64_t fault_at, dsc_comm_options *out)
{
    const dsc_config *config = &engine->config;
    const int64_t each = config->precision == DSC_PRECISION_BF16 ? 2 : 4;
    const int64_t bucket = config->zero.reduce_bucket_size > 0 ? config->zero.reduce_bucket_size : STAGING_BYTES_MAX;
    *out = (dsc_comm_options) {
        .alloc = engine->alloc,
        .place = engine->place,
        .transport = config->own.comm,
        .channel_count = DSC_CHANNEL_COUNT,
        .staging_bytes = dsc_max_i64(65536, dsc_align_up(dsc_min_i64(bucket, STAGING_BYTES_MAX / each) * each, 4096)),
        .timeout_ns = (int64_t)(config->own.comm_timeout_s * 1e9),
        .fault_at = fault_at,
        .log = &engine->log,
    };
}

/* The transport between devices, where it is another. Sums need room for pieces that keep a link busy. */
static void device_comm_options(const dsc_engine *engine, int64_t fault_at, dsc_comm_options *out)
{
    comm_options(engine, fault_at, out);
    out->device = engine->device;
    out->host = engine->comm;
    out->staging_channels = 1u << DSC_CHANNEL_REDUCE;
}

void dsc_engine_comm_plan(const dsc_engine *engine, int64_t *host_bytes, int64_t *device_bytes)
{
    dsc_comm_options options;
    comm_options(engine, 0, &options);
    *host_bytes = dsc_comm_plan_bytes(&options);
    *device_bytes = 0;
    if (engine->host_visible)
        return;
    device_comm_options(engine, 0, &options);
    *device_bytes = dsc_comm_plan_bytes(&options);
}

dsc_status dsc_engine_open_comm(dsc_engine *engine, const dsc_engine_options *options, dsc_error *err)
{
    dsc_comm_options comm;
    comm_options(engine, options->fail_comm_at, &comm);
    engine->came = true;
    return dsc_comm_open(&comm, &engine->comm, err);
}

dsc_status dsc_engine_open_device_comm(dsc_engine *engine, const dsc_engine_options *options, dsc_error *err)
{
    dsc_comm_options comm;
    engine->device_comm = engine->comm;
    if (engine->host_visible)
        return DSC_OK;
    engine->device_comm = NULL;
    device_comm_options(engine, options->fail_comm_at, &comm);
    return dsc_comm_open(&comm, &engine->device_comm, err);
}
