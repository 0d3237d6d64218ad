/* strings.c - edit distance, the nearest name and quoting. SPDX-License-Identifier: Apache-2.0 */
#include "base/strings.h"

#include <string.h>

#include "base/base.h"

/* Three rows of the alignment table are enough, because a swap refers to the row before the last one. */
int dsc_string_distance(const char *a, const char *b, int limit)
{
    const size_t m = strlen(a), n = strlen(b);
    if (m > DSC_STRING_BYTES_MAX || n > DSC_STRING_BYTES_MAX)
        return limit + 1;
    const size_t gap = m > n ? m - n : n - m;
    if (gap > (size_t)limit)
        return limit + 1;
    int rows[3][DSC_STRING_BYTES_MAX + 1];
    int *before = rows[0], *last = rows[1], *now = rows[2];
    for (size_t j = 0; j <= n; j++)
        last[j] = (int)j;
    for (size_t i = 1; i <= m; i++) {
        int best = now[0] = (int)i;
        for (size_t j = 1; j <= n; j++) {
            int cost = last[j - 1] + (a[i - 1] != b[j - 1]);
            if (last[j] + 1 < cost)
                cost = last[j] + 1;
            if (now[j - 1] + 1 < cost)
                cost = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && before[j - 2] + 1 < cost)
                cost = before[j - 2] + 1;
            now[j] = cost;
            if (cost < best)
                best = cost;
        }
        /* A swap can reach back two rows, so one row above the limit is not the end; two are. */
        if (best > limit + 1)
            return limit + 1;
        int *const free_row = before;
        before = last;
        last = now;
        now = free_row;
    }
    return last[n] > limit ? limit + 1 : last[n];
}

const char *dsc_string_nearest(const char *text, dsc_string_name_fn name_of, const void *user, int32_t count,
                               int limit)
{
    const char *best = NULL;
    for (int32_t i = 0; i < count; i++) {
        const char *name = name_of(user, i);
        const int distance = name != NULL ? dsc_string_distance(text, name, limit) : limit + 1;
        if (distance <= limit) {
            best = name;
            limit = distance - 1;
        }
        if (limit < 0)
            break;
    }
    return best;
}

const char *dsc_string_quote(char *out, size_t out_bytes, const char *text)
{
    DSC_ASSERT(out_bytes >= 8);
    size_t used = 0;
    out[used++] = '"';
    for (const char *c = text; *c != 0; c++) {
        const bool escape = *c == '"' || *c == '\\';
        if (used + (escape ? 2 : 1) + 5 > out_bytes) { /* "...", the quote and the end */
            memcpy(out + used, "...", 3);
            used += 3;
            break;
        }
        if (escape)
            out[used++] = '\\';
        out[used++] = *c;
    }
    out[used++] = '"';
    out[used] = 0;
    return out;
}
