/* rope_ref.c - rotary embeddings, an operation a line. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/range.h"
#include "kernels/scalar.h"

static void turn_head(const dsc_rope_args *a, int64_t at, const float *c, const float *s)
{
    for (int32_t i = 0; i < a->pairs; i++) {
        const int64_t first = at + (a->neighbours ? 2 * i : i), second = first + (a->neighbours ? 1 : a->pairs);
        const float x = dsc_get(a->in, first, a->dtype), y = dsc_get(a->in, second, a->dtype);
        const float sine = a->inverse ? -s[i] : s[i];
        dsc_put(a->out, first, a->dtype, fmaf(-y, sine, x * c[i]));
        dsc_put(a->out, second, a->dtype, fmaf(x, sine, y * c[i]));
    }
    const size_t bytes = dsc_dtype_bytes(a->dtype), rest = (size_t)(at + 2 * a->pairs) * bytes;
    if (a->out != a->in)
        memcpy((char *)a->out + rest, (const char *)a->in + rest, (size_t)(a->head_size - 2 * a->pairs) * bytes);
}

void dsc_rope_ref(const void *args, int64_t first, int64_t last)
{
    const dsc_rope_args *a = args;
    for (int64_t r = first; r < last; r++)
        for (int64_t h = 0; h < a->heads; h++)
            turn_head(a, r * a->stride + h * a->head_size, a->cos + dsc_rope_position(a, r) * a->pairs,
                      a->sin + dsc_rope_position(a, r) * a->pairs);
}
