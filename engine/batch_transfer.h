/* batch_transfer.h - micro-batches to the device, losses and logits back (batch_transfer.c).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_BATCH_TRANSFER_H
#define DSC_ENGINE_BATCH_TRANSFER_H

#include "engine/internal.h"

/* `mb` is the index within the micro-batch group. */
dsc_status dsc_engine_give_batch(dsc_engine *engine, int32_t mb, const void *const *host, dsc_error *err);
/* Waits until the host may overwrite the last micro-batch. */
dsc_status dsc_engine_batch_passed(dsc_engine *engine, dsc_error *err);
dsc_status dsc_engine_fetch_losses(dsc_engine *engine, int64_t micro_step, dsc_error *err);
/* Of a model with classes: [micro-batch * losses_per_sample] places of the labels among the logits (dsc_module_ctx), in
 * memory of the device; NULL: the model gives none. They come to the host as the losses of slot 0 do. */
int32_t *dsc_engine_places(const dsc_engine *engine);
dsc_status dsc_engine_fetch_places(dsc_engine *engine, dsc_error *err);
/* Items of the first `count` samples with `most` or more logits before the label's. */
int64_t dsc_engine_count_behind(const dsc_engine *engine, int64_t count, int32_t most);
/* Needs the fetched losses. On pairs it also writes their facts of the step. */
double dsc_engine_mean_loss(const dsc_engine *engine, int64_t micro_step);
/* Mean loss of a sample of a micro-step, likewise. */
double dsc_engine_sample_loss(const dsc_engine *engine, int64_t micro_step, int64_t sample);
/* [M], likewise, of micro-step 0. Returns how many items of the first `count` samples are predicted wrongly, of a model
 * with labels that are classes or numbers. */
int64_t dsc_engine_sample_losses(const dsc_engine *engine, int64_t count, double *out);
dsc_status dsc_engine_fetch_logits(dsc_engine *engine, dsc_error *err);

#endif
