/* protobuf.c - see protobuf.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/monitor/protobuf.h"

#include <string.h>

#include "base/base.h"

void dsc_message_bytes(dsc_message *to, const void *from, size_t bytes)
{
    DSC_ASSERT(bytes <= sizeof to->bytes - to->count);
    memcpy(to->bytes + to->count, from, bytes);
    to->count += bytes;
}

void dsc_message_number(dsc_message *to, uint64_t value)
{
    do {
        const uint8_t byte = (uint8_t)((value & 127) | (value > 127 ? 128 : 0));
        dsc_message_bytes(to, &byte, 1);
        value >>= 7;
    } while (value > 0);
}

void dsc_message_part(dsc_message *to, uint64_t field, const void *part, size_t bytes)
{
    dsc_message_number(to, field);
    dsc_message_number(to, bytes);
    dsc_message_bytes(to, part, bytes);
}
