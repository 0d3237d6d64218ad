/* pipeline.h - chunks that are packed, exchanged and unpacked at the same time, on two streams.
 *
 * The caller's stream exchanges chunks one after the other. A second stream packs the chunk behind it and unpacks the
 * chunk before it meanwhile. Buffers exist twice: chunk i has slot i % 2. A slot is packed again only after its last
 * exchange and unpacking, because the second stream does both in order.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_COMM_PIPELINE_H
#define DSC_COMM_PIPELINE_H

#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DSC_PIPELINE_SLOTS 2

/* Zeroed at first. Without an open all work is on the caller's stream, in slot 0. */
typedef struct dsc_pipeline {
    dsc_stream *beside; /* packs and unpacks; NULL: not open */
    dsc_event *mark;    /* position of either stream that the other one waits for */
    dsc_event *exchanged; /* the last exchange that was given to the caller's stream */
} dsc_pipeline;

/* The work on one chunk. Functions give it to `stream` and return. */
typedef struct dsc_pipeline_work {
    void *user;
    int64_t chunks; /* at least 1 */
    dsc_status (*pack)(void *user, int64_t chunk, int32_t slot, dsc_stream *stream, dsc_error *err);
    dsc_status (*exchange)(void *user, int64_t chunk, int32_t slot, dsc_stream *stream, dsc_error *err);
    dsc_status (*unpack)(void *user, int64_t chunk, int32_t slot, dsc_stream *stream, dsc_error *err);
} dsc_pipeline_work;

/* DSC_ERR_NOMEM and errors of the device; close also after an open that failed. */
DSC_MUST_USE dsc_status dsc_pipeline_open(dsc_pipeline *pipeline, dsc_device *device, const char *name,
                                          dsc_error *err);
void dsc_pipeline_close(dsc_pipeline *pipeline);
/* Buffers of the work are borrowed until `stream` has passed it, also after a failure. A single chunk has nothing to
 * run beside, and stays on `stream`. */
DSC_MUST_USE dsc_status dsc_pipeline_run(const dsc_pipeline *pipeline, const dsc_pipeline_work *work,
                                         dsc_stream *stream, dsc_error *err);

#ifdef __cplusplus
}
#endif
#endif
