/* crc32.c - CRC-32, reflected polynomial 0xEDB88320. SPDX-License-Identifier: Apache-2.0 */
#include "base/hash.h"

uint32_t dsc_crc32(uint32_t crc, const void *data, size_t bytes)
{
    const uint8_t *p = data;
    crc = ~crc;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= p[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ ((crc & 1) != 0 ? UINT32_C(0xEDB88320) : 0);
    }
    return ~crc;
}
