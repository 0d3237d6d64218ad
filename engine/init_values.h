/* init_values.h - first values of the parameters, for init_params.c and init_packed.c.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_INIT_VALUES_H
#define DSC_ENGINE_INIT_VALUES_H

#include <dsc/dsc.h>

#include "comm/comm.h"
#include "zero/core/layout.h"

/* The ranks that have this rank's tensors: those of a stage, or all. The first one has the values. */
dsc_comm *dsc_engine_values_comm(const dsc_engine *engine);
/* values[count] <- first values of elements of a tensor, from the model's files or from its initialisation. For ranks
 * that have the files. */
DSC_MUST_USE dsc_status dsc_engine_make_values(const dsc_engine *engine, int32_t tensor, int64_t first, int64_t count,
                                               float *values, dsc_error *err);
/* Storage of frozen weights of linear layers: what the config asks for, or what the model's files have already. */
dsc_nf4 dsc_engine_packed_kind(const dsc_engine *engine);
/* Refuses weights in 4 bits without adapters. */
DSC_MUST_USE dsc_status dsc_engine_check_packed(const dsc_engine *engine, dsc_error *err);
/* Bytes of the buffer that dsc_engine_init_packed needs; 0: no group is packed. */
int64_t dsc_engine_packed_io_bytes(const dsc_layout *layout);
/* Collective. First values of all packed groups; dsc_zero_publish follows. */
DSC_MUST_USE dsc_status dsc_engine_init_packed(dsc_engine *engine, dsc_error *err);

#endif
