/* plan_text.h - lines of text about plans. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CUDA_PLAN_TEXT_H
#define DSC_KERNELS_CUDA_PLAN_TEXT_H

#include <stdint.h>
#include <string.h>

namespace {

/* Adds a line if it fits, and counts its bytes in any case. */
inline void put_line(const char *line, char *text, int64_t capacity, int64_t *bytes)
{
    const int64_t length = static_cast<int64_t>(strlen(line));
    if (*bytes + length + 2 <= capacity) {
        memcpy(text + *bytes, line, static_cast<size_t>(length));
        text[*bytes + length] = '\n';
        text[*bytes + length + 1] = 0;
    }
    *bytes += length + 1;
}

/* Whether `line` is a whole line of text. */
inline bool has_line(const char *text, const char *line)
{
    const size_t bytes = strlen(line);
    for (const char *at = text; at != NULL && *at != 0; at = strchr(at, '\n'), at = at != NULL ? at + 1 : NULL)
        if (strncmp(at, line, bytes) == 0 && (at[bytes] == '\n' || at[bytes] == 0))
            return true;
    return false;
}

} // namespace

#endif
