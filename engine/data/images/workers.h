/* workers.h - threads that do the parts of one job. Which thread does a part has no effect on the result.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_DATA_IMAGES_WORKERS_H
#define DSC_ENGINE_DATA_IMAGES_WORKERS_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dsc_workers dsc_workers;
/* Does part `part` with the memory of thread `thread`. */
typedef dsc_status (*dsc_worker_fn)(void *user, int32_t thread, int64_t part, dsc_error *err);

/* `threads` of them, the caller among them. DSC_ERR_NOMEM: one could not be started. */
DSC_MUST_USE dsc_status dsc_workers_open(int32_t threads, dsc_worker_fn fn, void *user, dsc_workers **out,
                                         dsc_error *err);
void dsc_workers_close(dsc_workers **workers); /* safe on NULL */
/* Parts 0 .. count - 1. The failure of the first part that fails is the one that is returned. */
DSC_MUST_USE dsc_status dsc_workers_run(dsc_workers *workers, int64_t count, dsc_error *err);

#ifdef __cplusplus
}
#endif
#endif
