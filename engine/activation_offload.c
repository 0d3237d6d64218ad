/* activation_offload.c - outputs of modules that wait for their backward in host memory instead of a GPU's.
 *
 * With recomputation a module's output is all that is kept of it. On the device are DSC_OUT_SLOTS of them, each for all
 * micro-batches that run together: output m lies in slot m % DSC_OUT_SLOTS. In the forward pass it leaves for host
 * memory while the next modules compute; in the backward pass it comes back while the module two behind it goes on. The
 * last ones of a pass never leave: their slots are not needed again before backward. Copies have a stream each way;
 * without overlap both are the compute stream. SPDX-License-Identifier: Apache-2.0 */
#include "engine/activation_offload.h"
#include "engine/internal.h"

static dsc_status open_stream(dsc_engine *engine, const char *name, dsc_stream **out, dsc_error *err)
{
    if (engine->config.zero.overlap_comm)
        return dsc_stream_open(engine->device, DSC_STREAM_ASYNC, name, out, err);
    *out = engine->compute;
    return DSC_OK;
}

dsc_status dsc_outputs_open(dsc_engine *engine, dsc_error *err)
{
    dsc_outputs *o = &engine->outputs;
    const dsc_plan *plan = &engine->plan;
    if (plan->out_away_bytes == 0)
        return DSC_OK;
    DSC_ASSERT(engine->work.outputs_buf.bytes == plan->out_away_bytes);
    DSC_TRY(dsc_event_open(engine->device, &o->mark, err));
    for (int i = 0; i < DSC_OUT_SLOTS; i++) {
        DSC_TRY(dsc_event_open(engine->device, &o->left[i], err));
        DSC_TRY(dsc_event_open(engine->device, &o->here[i], err));
    }
    DSC_TRY(open_stream(engine, "outputs in", &o->in, err));
    return open_stream(engine, "outputs out", &o->out, err);
}

void dsc_outputs_close(dsc_engine *engine)
{
    dsc_outputs *o = &engine->outputs;
    if (o->in != engine->compute)
        dsc_stream_close(&o->in);
    if (o->out != engine->compute)
        dsc_stream_close(&o->out);
    for (int i = 0; i < DSC_OUT_SLOTS; i++) {
        dsc_event_close(&o->here[i]);
        dsc_event_close(&o->left[i]);
    }
    dsc_event_close(&o->mark);
}

static void *host_place(const dsc_engine *engine, int32_t m, int32_t mb)
{
    const int64_t index = m * (int64_t)engine->plan.micro_batch_group + mb;
    DSC_ASSERT((index + 1) * engine->plan.out_bytes_most <= engine->work.outputs_buf.bytes);
    return (char *)engine->work.outputs_buf.ptr + index * engine->plan.out_bytes_most;
}

static int64_t bytes_of(const dsc_engine *engine, int32_t m)
{
    return engine->plan.module[m].out_elements * (int64_t)dsc_dtype_bytes(dsc_engine_dtype(engine));
}

dsc_status dsc_outputs_before_forward(dsc_engine *engine, int32_t m, dsc_error *err)
{
    const bool used = engine->plan.out_away_bytes > 0;
    return used ? dsc_stream_wait(engine->compute, engine->outputs.left[m % DSC_OUT_SLOTS], err) : DSC_OK;
}

dsc_status dsc_outputs_after_forward(dsc_engine *engine, int32_t m, int32_t mb, dsc_error *err)
{
    dsc_outputs *o = &engine->outputs;
    if (!dsc_plan_output_is_offloaded(&engine->plan, m))
        return DSC_OK;
    DSC_TRY(dsc_stream_order(o->mark, engine->compute, o->out, err));
    const char *out = engine->work.out[dsc_engine_at(engine, mb, m)];
    DSC_TRY(dsc_copy(o->out, host_place(engine, m, mb), out, bytes_of(engine, m), err));
    return dsc_event_record(o->left[m % DSC_OUT_SLOTS], o->out, err);
}

/* Outputs m and m - 1 are what this backward reads; m - 2 may come to where m + 1 was. */
dsc_status dsc_outputs_before_backward(dsc_engine *engine, int32_t m, dsc_error *err)
{
    dsc_outputs *o = &engine->outputs;
    if (engine->plan.out_away_bytes == 0 || m == 0)
        return DSC_OK;
    if (m > 1 && dsc_plan_output_is_offloaded(&engine->plan, m - 2)) {
        DSC_TRY(dsc_stream_order(o->mark, engine->compute, o->in, err));
        for (int i = 0; i < DSC_OUT_SLOTS; i++)
            DSC_TRY(dsc_stream_wait(o->in, o->left[i], err));
        for (int32_t mb = 0; mb < engine->plan.micro_batch_group; mb++)
            DSC_TRY(dsc_copy(o->in, engine->work.out[dsc_engine_at(engine, mb, m - 2)], host_place(engine, m - 2, mb),
                             bytes_of(engine, m - 2), err));
        DSC_TRY(dsc_event_record(o->here[(m - 2) % DSC_OUT_SLOTS], o->in, err));
    }
    return dsc_stream_wait(engine->compute, o->here[(m - 1) % DSC_OUT_SLOTS], err);
}
