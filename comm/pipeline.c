/* pipeline.c - see pipeline.h. SPDX-License-Identifier: Apache-2.0 */
#include "comm/pipeline.h"

dsc_status dsc_pipeline_open(dsc_pipeline *pipeline, dsc_device *device, const char *name, dsc_error *err)
{
    DSC_ASSERT(pipeline->beside == NULL);
    DSC_TRY(dsc_event_open(device, &pipeline->mark, err));
    DSC_TRY(dsc_event_open(device, &pipeline->exchanged, err));
    return dsc_stream_open(device, DSC_STREAM_ASYNC, name, &pipeline->beside, err);
}

void dsc_pipeline_close(dsc_pipeline *pipeline)
{
    dsc_stream_close(&pipeline->beside);
    dsc_event_close(&pipeline->exchanged);
    dsc_event_close(&pipeline->mark);
}

static dsc_status run_in_turn(const dsc_pipeline_work *work, dsc_stream *stream, dsc_error *err)
{
    for (int64_t i = 0; i < work->chunks; i++) {
        DSC_TRY(work->pack(work->user, i, 0, stream, err));
        DSC_TRY(work->exchange(work->user, i, 0, stream, err));
        DSC_TRY(work->unpack(work->user, i, 0, stream, err));
    }
    return DSC_OK;
}

/* The second stream's order: pack 0, pack 1, unpack 0, pack 2, unpack 1 and so on. So the wait for pack i + 2 is one
 * for unpack i too. The slot is free in both directions then. */
static dsc_status run_beside(const dsc_pipeline *p, const dsc_pipeline_work *work, dsc_stream *stream, dsc_error *err)
{
    for (int64_t i = 0; i <= work->chunks; i++) {
        const int32_t slot = (int32_t)(i % DSC_PIPELINE_SLOTS);
        if (i < work->chunks) {
            DSC_TRY(work->pack(work->user, i, slot, p->beside, err));
            DSC_TRY(dsc_stream_order(p->mark, p->beside, stream, err));
        }
        if (i > 0) {
            DSC_TRY(dsc_stream_wait(p->beside, p->exchanged, err));
            DSC_TRY(work->unpack(work->user, i - 1, 1 - slot, p->beside, err));
        }
        if (i < work->chunks) {
            DSC_TRY(work->exchange(work->user, i, slot, stream, err));
            DSC_TRY(dsc_event_record(p->exchanged, stream, err));
        }
    }
    return DSC_OK;
}

dsc_status dsc_pipeline_run(const dsc_pipeline *pipeline, const dsc_pipeline_work *work, dsc_stream *stream,
                            dsc_error *err)
{
    DSC_ASSERT(work->chunks >= 1);
    if (pipeline->beside == NULL || work->chunks == 1)
        return run_in_turn(work, stream, err);
    DSC_ASSERT(stream != NULL && stream != pipeline->beside);
    DSC_TRY(dsc_stream_order(pipeline->mark, stream, pipeline->beside, err));
    const dsc_status status = run_beside(pipeline, work, stream, err);
    /* After a failure too: whoever waits for `stream` then knows that no buffer is in use. */
    const dsc_status joined = dsc_stream_order(pipeline->mark, pipeline->beside, stream, status == DSC_OK ? err : NULL);
    return status != DSC_OK ? status : joined;
}
