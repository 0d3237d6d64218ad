/* activation_offload.c - values of modules that wait for their backward in host memory instead of a GPU's.
 *
 * They are what a level of recomputation keeps: a module's output, and below "full" the values saved for backward and
 * the repeated ones. Values that "selective" rebuilds stay on the device at the levels that keep them. On the device
 * are DSC_OUT_SLOTS places of each kind, each for all micro-batches that run together: values of module m lie in place
 * m % DSC_OUT_SLOTS. In the forward pass they leave for host memory while the next modules compute. In the backward
 * pass they come back while the second module behind goes on. The last ones of a pass never leave: their places are
 * not needed again before backward. Copies have a stream each way; without overlap both are the compute stream.
 * SPDX-License-Identifier: Apache-2.0 */
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
    if (plan->away.count == 0)
        return DSC_OK;
    DSC_ASSERT(engine->work.outputs_buf.bytes == plan->away.bytes);
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

/* Copies the values of a micro-batch of module m to host memory, or back. */
static dsc_status move(const dsc_engine *engine, dsc_stream *stream, int32_t m, int32_t mb, bool back, dsc_error *err)
{
    const dsc_plan_away *away = &engine->plan.away;
    const dsc_module_plan *module = &engine->plan.module[m];
    const int32_t at = dsc_engine_at(engine, mb, m);
    const struct {
        void *values;
        int64_t bytes, place;
    } kinds[] = {
        { engine->work.out[at], module->out_elements * (int64_t)dsc_dtype_bytes(dsc_engine_dtype(engine)), away->out },
        { engine->work.saved[at], away->saved > 0 ? module->saved_bytes : 0, away->saved },
        { engine->work.repeated[at], away->repeated > 0 ? module->repeated_bytes : 0, away->repeated },
    };
    char *host = (char *)engine->work.outputs_buf.ptr +
                 (m * (int64_t)engine->plan.micro_batch_group + mb) * dsc_plan_away_each(away);
    for (size_t i = 0; i < DSC_COUNT(kinds); host += kinds[i++].place)
        if (kinds[i].bytes > 0)
            DSC_TRY(
                dsc_copy(stream, back ? kinds[i].values : host, back ? host : kinds[i].values, kinds[i].bytes, err));
    DSC_ASSERT(host <= (char *)engine->work.outputs_buf.ptr + engine->work.outputs_buf.bytes);
    return DSC_OK;
}

dsc_status dsc_outputs_before_forward(dsc_engine *engine, int32_t m, dsc_error *err)
{
    const bool used = engine->plan.away.count > 0;
    return used ? dsc_stream_wait(engine->compute, engine->outputs.left[m % DSC_OUT_SLOTS], err) : DSC_OK;
}

dsc_status dsc_outputs_after_forward(dsc_engine *engine, int32_t m, int32_t mb, dsc_error *err)
{
    dsc_outputs *o = &engine->outputs;
    if (!dsc_plan_is_away(&engine->plan, m))
        return DSC_OK;
    DSC_TRY(dsc_stream_order(o->mark, engine->compute, o->out, err));
    DSC_TRY(move(engine, o->out, m, mb, false, err));
    return dsc_event_record(o->left[m % DSC_OUT_SLOTS], o->out, err);
}

/* This backward reads outputs m and m - 1 and the other values of m; those of m - 2 may come to where m + 1 was. */
dsc_status dsc_outputs_before_backward(dsc_engine *engine, int32_t m, dsc_error *err)
{
    dsc_outputs *o = &engine->outputs;
    if (engine->plan.away.count == 0 || m == 0)
        return DSC_OK;
    if (m > 1 && dsc_plan_is_away(&engine->plan, m - 2)) {
        DSC_TRY(dsc_stream_order(o->mark, engine->compute, o->in, err));
        for (int i = 0; i < DSC_OUT_SLOTS; i++)
            DSC_TRY(dsc_stream_wait(o->in, o->left[i], err));
        for (int32_t mb = 0; mb < engine->plan.micro_batch_group; mb++)
            DSC_TRY(move(engine, o->in, m - 2, mb, true, err));
        DSC_TRY(dsc_event_record(o->here[(m - 2) % DSC_OUT_SLOTS], o->in, err));
    }
    return dsc_stream_wait(engine->compute, o->here[(m - 1) % DSC_OUT_SLOTS], err);
}
