/* buffers.h - buffers of modules, such as running statistics of batch norm (include/dsc/model.h, dsc_buffer_spec).
 *
 * Every rank has all values, on the compute device and where the host reads them, also those of other stages of a
 * pipeline, so that rank 0 saves them. A training forward writes statistics
 * of its micro-batch to the device, and they go to the host behind it. At a step's end one all-gather gives all ranks
 * the statistics of all micro-batches, and every host folds them in the order of micro-batches. So the bits are those
 * of one loop on a CPU, for any number of ranks, stage, device or grouping. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_BUFFERS_H
#define DSC_ENGINE_BUFFERS_H

#include <dsc/dsc.h>

#include "base/base.h"
#include "engine/checkpoint/buffers.h"
#include "engine/config/config.h"

#define DSC_BUFFER_ALIGN 64 /* elements: 256 bytes */

/* A momentum of 0 keeps the value, whatever a statistic would be. */
static inline bool dsc_buffer_is_folded(const dsc_buffer_spec *spec)
{
    return spec->kind == DSC_BUFFER_AVERAGE && !spec->frozen && spec->momentum > 0;
}

/* Whether the run keeps a moving average of the value over updates, beside that of the weights. */
static inline bool dsc_buffer_has_mean(const dsc_config *config, const dsc_buffer_spec *spec)
{
    return config->own.ema.enabled && config->own.ema.buffers && spec->kind == DSC_BUFFER_AVERAGE;
}

/* Lengths of memory for the buffers of a model, in elements of fp32. */
typedef struct dsc_buffer_sizes {
    int64_t values, statistics; /* of all averages; of those that have a statistic */
    int64_t count, most;        /* buffers of all modules, and of the module with most */
} dsc_buffer_sizes;
dsc_buffer_sizes dsc_buffer_sizes_of(const dsc_model *model);

/* The part of struct dsc_engine. */
typedef struct dsc_engine_buffers {
    int32_t count;           /* of all modules; 0: none */
    int32_t *first;          /* [module_count] number of a module's first buffer */
    int64_t *at;             /* [count] first element of its statistics; -1: it has none */
    dsc_ckpt_buffer *stored; /* [count] specs, and values where the host reads them */
    bool *constant;          /* [count] frozen by the run */
    float **on_device;       /* [count] values that modules read; NULL: of STEPS */
    bool warned;             /* a value is not finite */
} dsc_engine_buffers;

/* value <- value + momentum * (statistic - value), three roundings. */
void dsc_buffer_fold(float *value, const float *statistic, int64_t count, float momentum);

/* Opens the lists, when the working memory is open. */
dsc_status dsc_engine_open_buffers(dsc_engine *engine, dsc_error *err);
void dsc_engine_close_buffers(dsc_engine *engine);
/* First values, of the model's files or `init`. Collective. */
dsc_status dsc_engine_init_buffers(dsc_engine *engine, dsc_error *err);
/* The host's values to the device. */
dsc_status dsc_engine_give_buffers(dsc_engine *engine, dsc_error *err);
/* Of a context: values, and places of the statistics of a micro-batch of a pass. NULL: the module has no buffers. The
 * lists are those of the last call. */
const float *const *dsc_engine_buffer_values(const dsc_engine *engine, int32_t module);
const bool *dsc_engine_buffer_constants(const dsc_engine *engine, int32_t module);
float *const *dsc_engine_buffer_statistics(const dsc_engine *engine, int32_t module, int32_t mb);
/* Statistics of a micro-step, whose forward has been launched, to the host. */
dsc_status dsc_engine_fetch_statistics(dsc_engine *engine, int64_t micro_step, dsc_error *err);
/* The end of a step. Collective. */
dsc_status dsc_engine_fold_buffers(dsc_engine *engine, dsc_error *err);
/* After an update: moves the averages of dsc.ema by its share towards the values. The first update copies the values.
 * All ranks have the same bits. */
void dsc_engine_average_buffers(dsc_engine *engine, bool first);
/* Values and averages change places, as those of weights do (zero/zero.h). A second call undoes the first. */
dsc_status dsc_engine_exchange_buffers(dsc_engine *engine, dsc_error *err);

#endif
