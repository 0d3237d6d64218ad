/* borrowed_memory.h - the memory of sums, lent to tiles that are read ahead between two backward passes.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_OFFLOAD_BORROWED_MEMORY_H
#define DSC_ZERO_OFFLOAD_BORROWED_MEMORY_H

#include "zero/core/options.h"

/* After the state store and gradient parts are planned. */
void dsc_borrowed_memory_plan(dsc_zero *zero);
dsc_status dsc_borrowed_memory_open(dsc_zero *zero, dsc_error *err); /* after tile buffers and sums have addresses */
void dsc_borrowed_memory_close(dsc_zero *zero);
/* Before a speculative update begins: the reductions wait until the memory of a sum is returned. */
void dsc_borrowed_memory_lend(dsc_zero *zero);
bool dsc_borrowed_memory_is_returned(const dsc_zero *zero, int32_t group);
/* On the update stream: tile buffers use their further slots for tiles of these groups. */
dsc_status dsc_borrowed_memory_begin(dsc_zero *zero, const int32_t *group, int32_t count, dsc_error *err);
/* On the update stream: memory that tiles have left is returned; all memory is returned. */
void dsc_borrowed_memory_publish(dsc_zero *zero);
dsc_status dsc_borrowed_memory_end(dsc_zero *zero, dsc_error *err);

#endif
