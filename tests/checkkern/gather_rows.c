/* gather_rows.c - rows of samples by their positions: bits are copied. SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/ck.h"

static void verify_fwd(const void *args)
{
    const dsc_gather_rows_args *a = args;
    for (int64_t r = 0; r < a->batch * a->gathered; r++)
        for (int64_t c = 0; c < a->channels; c++) {
            const int64_t from = r / a->gathered * a->tokens + a->positions[r];
            ck_near(a->some, r * a->channels + c, ck_get(a->all, from * a->channels + c), 0);
        }
    ck_same(a->some);
}

static void verify_bwd(const void *args)
{
    const dsc_gather_rows_args *a = args;
    for (int64_t r = 0; r < a->batch * a->tokens; r++)
        for (int64_t c = 0; c < a->channels; c++) {
            double expected = 0;
            for (int64_t k = r / a->tokens * a->gathered; k < (r / a->tokens + 1) * a->gathered; k++)
                if (a->positions[k] == r % a->tokens)
                    expected = ck_get(a->some, k * a->channels + c);
            ck_near(a->all, r * a->channels + c, expected, 0);
        }
    ck_same(a->all);
}

typedef struct gather_shape {
    int64_t batch, tokens, gathered, channels;
} gather_shape;

/* Every third place or so, up to the last; each above the one before it. */
static void set_positions(int32_t *positions, const gather_shape *s)
{
    const bool apart = s->tokens / s->gathered > 1;
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t k = 0; k < s->gathered; k++)
            positions[b * s->gathered + k] = (int32_t)((k + 1) * s->tokens / s->gathered - 1 - (apart ? b % 2 : 0));
}

static void check(const gather_shape *s, dsc_dtype dtype, bool back)
{
    if (!ck_case("gather_rows_%s %s B=%lld T=%lld K=%lld C=%lld", back ? "bwd" : "fwd", ck_dtype_text(dtype),
                 (long long)s->batch, (long long)s->tokens, (long long)s->gathered, (long long)s->channels))
        return;
    void *all = ck_buf(back ? CK_OUT : CK_IN, dtype, s->batch * s->tokens * s->channels, "all");
    void *some = ck_buf(back ? CK_IN : CK_OUT, dtype, s->batch * s->gathered * s->channels, "some");
    int32_t *positions = ck_buf(CK_IN, DSC_I32, s->batch * s->gathered, "positions");
    ck_normal(back ? some : all, 0, 1);
    ck_edges(back ? some : all);
    set_positions(positions, s);
    const dsc_gather_rows_args args = { .all = all,
                                        .some = some,
                                        .positions = positions,
                                        .batch = s->batch,
                                        .tokens = s->tokens,
                                        .gathered = s->gathered,
                                        .channels = s->channels,
                                        .dtype = dtype };
    ck_kernel(back ? DSC_KERNEL_GATHER_ROWS_BWD : DSC_KERNEL_GATHER_ROWS_FWD, &args, sizeof args,
              back ? verify_bwd : verify_fwd);
}

void ck_gather_rows(void)
{
    static const gather_shape shapes[] = { { 1, 1, 1, 1 },  { 3, 20, 3, 7 },   { 2, 64, 10, 64 },
                                           { 2, 9, 9, 24 }, { 5, 33, 5, 768 }, { 0, 8, 2, 16 } };
    for (dsc_dtype dtype = DSC_F32; dtype <= DSC_F16; dtype++)
        for (size_t s = 0; s < DSC_COUNT(shapes); s++)
            for (int back = 0; back < 2; back++)
                check(&shapes[s], dtype, back != 0);
}
