/* protobuf.h - writes messages of protocol buffers (protobuf.dev/programming-guides/encoding), field by field.
 *
 * A field is its number << 3 | its wire type. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_MONITOR_PROTOBUF_H
#define DSC_ENGINE_MONITOR_PROTOBUF_H

#include <stddef.h>
#include <stdint.h>

enum { DSC_MESSAGE_BYTES = 4096 };

/* A message that grows; the callers know that it fits. */
typedef struct dsc_message {
    uint8_t bytes[DSC_MESSAGE_BYTES];
    size_t count;
} dsc_message;

void dsc_message_bytes(dsc_message *to, const void *from, size_t bytes);
void dsc_message_number(dsc_message *to, uint64_t value);
/* A string or a message: its field, its length and its bytes. */
void dsc_message_part(dsc_message *to, uint64_t field, const void *part, size_t bytes);

#endif
