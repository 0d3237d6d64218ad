/* progress.h - times at which a GPU reaches and finishes its collectives: the flight record of a transport that
 * enqueues (base/flight_log.h).
 *
 * There is an event before and one after each call; nobody waits for them. The events are queried when the next call is
 * made and, by the device's watch, while the host waits for the GPU. So the record is as new as the last query, and
 * contains the time of the query.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_COMM_PROGRESS_H
#define DSC_COMM_PROGRESS_H

#include "base/flight_log.h"
#include "kernels/device.h"

/* Calls of a channel on their way. When there are more, those that follow are seen as one. */
#define DSC_COMM_PROGRESS_CALLS 256

typedef struct dsc_comm_progress dsc_comm_progress;

/* track[count]: a track for each channel, or NULL. The device is borrowed until close; its streams are idle then, or
 * the communicator is aborted. */
DSC_MUST_USE dsc_status dsc_comm_progress_open(dsc_comm_progress **out, dsc_alloc *alloc, dsc_device *device,
                                               dsc_flight_track *const *track, int32_t count, dsc_error *err);
void dsc_comm_progress_close(dsc_comm_progress **progress); /* NULL inside is allowed */

/* Around a call on `stream`, the only one that the channel uses: one thread at a time for each channel. */
void dsc_comm_progress_begin(dsc_comm_progress *progress, int32_t channel, const dsc_flight_entry *entry,
                             dsc_stream *stream);
void dsc_comm_progress_end(dsc_comm_progress *progress, int32_t channel, dsc_status status, dsc_stream *stream);

/* No more looks: what the GPU is in now it will not finish. */
void dsc_comm_progress_abort(dsc_comm_progress *progress);

#endif
