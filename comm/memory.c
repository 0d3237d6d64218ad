/* memory.c - the memory of a communicator or transport from its list of needs. SPDX-License-Identifier: Apache-2.0 */
#include "comm/comm_internal.h"

dsc_status dsc_comm_memory_open(dsc_comm_memory *memory, const dsc_comm_options *options, dsc_error *err)
{
    dsc_needs needs = { .alloc = options->alloc, .device = options->device, .owner = memory->owner };
    DSC_ASSERT(memory->count >= 0 && memory->count <= DSC_COMM_NEEDS_MAX);
    memory->alloc = options->alloc;
    memory->device = options->device;
    DSC_TRY(dsc_needs_plan_and_open(&needs, memory->need, memory->count, err));
    dsc_needs_check(&needs);
    return DSC_OK;
}

void dsc_comm_memory_close(dsc_comm_memory *memory)
{
    const dsc_needs needs = { .alloc = memory->alloc, .device = memory->device, .owner = memory->owner };
    DSC_ASSERT(memory->count == 0 || memory->alloc != NULL);
    dsc_needs_close(&needs, memory->need, memory->count);
    memory->count = 0;
}
