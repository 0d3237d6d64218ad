/* embedding.c - the embedding and its gradient: sums of fp32 in a fixed order, so that every bit is known beforehand.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/scalar.h"
#include "tests/checkkern/ck.h"
#include "tests/checkkern/ck_internal.h"

#include <math.h>
#include <string.h>

static void verify_fwd(const void *args)
{
    const dsc_embedding_fwd_args *a = args;
    for (int64_t r = 0; r < a->rows; r++)
        for (int64_t c = 0; c < a->channels; c++) {
            const int64_t row = a->tokens != NULL ? a->tokens[r] - (a->parted ? a->first : 0) : r;
            const bool absent = a->parted && (row < 0 || row >= a->vocab);
            const float x = absent ? 0 : (float)ck_get(a->table, row * a->channels + c);
            const float factor = a->factor != 0 ? a->factor : 1;
            float once = factor * x;
            if (a->position != NULL)
                once = fmaf(
                    factor, x,
                    (float)ck_get(a->position, (a->places != NULL ? a->places[r] : r % a->sequence) * a->channels + c));
            const float expected = dsc_rounded(once, a->dtype);
            ck_near(a->out, r * a->channels + c, (double)expected, 0);
        }
}

/* Without tokens each row takes its own of the table. */
static void check_rows(int64_t rows, int64_t sequence, int64_t channels, dsc_dtype dtype)
{
    if (!ck_case("embedding_fwd %s rows=%lld T=%lld C=%lld no tokens", ck_dtype_text(dtype), (long long)rows,
                 (long long)sequence, (long long)channels))
        return;
    void *out = ck_buf(CK_OUT, dtype, rows * channels, "out");
    const void *table = ck_buf(CK_IN, dtype, rows * channels, "table");
    const void *position = ck_buf(CK_IN, dtype, sequence * channels, "position");
    ck_normal(table, 0, 1);
    ck_normal(position, 0, 0.1);
    const dsc_embedding_fwd_args args = { .out = out, .table = table, .position = position, .rows = rows,
                                          .sequence = sequence, .channels = channels, .dtype = dtype };
    ck_kernel(DSC_KERNEL_EMBEDDING_FWD, &args, sizeof args, verify_fwd);
}

static void check_fwd(int64_t rows, int64_t sequence, int64_t channels, int32_t vocab, dsc_dtype dtype, bool position,
                      float factor)
{
    const bool given = position && channels % 2 != 0;
    if (!ck_case("embedding_fwd %s rows=%lld T=%lld C=%lld V=%d factor=%g%s", ck_dtype_text(dtype), (long long)rows,
                 (long long)sequence, (long long)channels, (int)vocab, (double)factor,
                 given ? " places" : position ? "" : " no position"))
        return;
    void *out = ck_buf(CK_OUT, dtype, rows * channels, "out");
    const int32_t *tokens = ck_buf(CK_IN, DSC_I32, rows, "tokens");
    const void *table = ck_buf(CK_IN, dtype, vocab * channels, "table");
    const void *at = position ? ck_buf(CK_IN, dtype, sequence * channels, "position") : NULL;
    const int32_t *places = given ? ck_buf(CK_IN, DSC_I32, rows, "places") : NULL;
    if (given)
        ck_int(places, 0, (int32_t)sequence - 1);
    ck_int(tokens, 0, vocab - 1);
    ck_normal(table, 0, 1);
    ck_edges(table);
    if (position)
        ck_normal(at, 0, 0.1);
    const dsc_embedding_fwd_args args = { .out = out,
                                          .tokens = tokens,
                                          .table = table,
                                          .position = at,
                                          .places = places,
                                          .rows = rows,
                                          .sequence = position ? sequence : 0,
                                          .channels = channels,
                                          .dtype = dtype,
                                          .factor = factor };
    ck_kernel(DSC_KERNEL_EMBEDDING_FWD, &args, sizeof args, verify_fwd);
}

/* A table that has rows [first, first + vocab) of all tokens' ones. */
static void check_fwd_parted(int64_t first, int64_t vocab, int32_t tokens_below, dsc_dtype dtype, bool position)
{
    const int64_t rows = 21, sequence = 6, channels = 33;
    if (!ck_case("embedding_fwd %s rows of tokens %lld to %lld of %d%s", ck_dtype_text(dtype), (long long)first,
                 (long long)(first + vocab), (int)tokens_below, position ? "" : " no position"))
        return;
    const int32_t *tokens = ck_buf(CK_IN, DSC_I32, rows, "tokens");
    const void *table = ck_buf(CK_IN, dtype, vocab * channels, "table");
    const void *at = position ? ck_buf(CK_IN, dtype, sequence * channels, "position") : NULL;
    ck_int(tokens, 0, tokens_below - 1);
    ck_normal(table, 0, 1);
    if (position)
        ck_normal(at, 0, 0.1);
    const dsc_embedding_fwd_args args = { .out = ck_buf(CK_OUT, dtype, rows * channels, "out"),
                                          .tokens = tokens,
                                          .table = table,
                                          .position = at,
                                          .rows = rows,
                                          .sequence = sequence,
                                          .channels = channels,
                                          .dtype = dtype,
                                          .factor = 1.5f,
                                          .parted = true,
                                          .first = first,
                                          .vocab = vocab };
    ck_kernel(DSC_KERNEL_EMBEDDING_FWD, &args, sizeof args, verify_fwd);
}

/* Element c of the gradient of table row v, or with v < 0 of position t. */
static double sum_of(const dsc_embedding_bwd_args *a, int64_t v, int64_t t, int64_t c)
{
    float sum = 0;
    for (int64_t r = 0; r < a->rows; r++)
        if (v >= 0 ? a->tokens[r] == a->first + v && !(a->has_padding && a->tokens[r] == a->padding)
                   : r % a->sequence == t)
            sum = sum + (float)ck_get(a->d_out, r * a->channels + c);
    return (double)(v >= 0 && a->factor != 0 ? sum * a->factor : sum);
}

static void verify_bwd(const void *args)
{
    const dsc_embedding_bwd_args *a = args;
    for (int64_t v = 0; a->d_table != NULL && v < a->vocab; v++)
        for (int64_t c = 0; c < a->channels; c += c + 40 < a->channels ? 3 : 1) /* all of the end, a third before */
            ck_near(a->d_table, v * a->channels + c, sum_of(a, v, -1, c), 0);
    for (int64_t t = 0; a->d_position != NULL && t < a->positions; t++)
        for (int64_t c = 0; c < a->channels; c++)
            ck_near(a->d_position, t * a->channels + c, sum_of(a, -1, t - a->position_first, c), 0);
    if (a->d_table != NULL)
        ck_same(a->d_table);
    if (a->d_position != NULL)
        ck_same(a->d_position);
}

typedef struct bwd_shape {
    int64_t rows, sequence, channels, vocab, positions;
    int32_t used; /* tokens are below it */
    bool table, position;
    int64_t first; /* the row of a sample's first token */
    bool padding;  /* token 1 */
    float factor;
    int64_t part; /* above 0: the table has the rows of tokens from this one on, and `used` may be above `vocab` */
} bwd_shape;

static void check_bwd(const bwd_shape *s, dsc_dtype dtype)
{
    if (!ck_case("embedding_bwd %s rows=%lld T=%lld C=%lld V=%lld P=%lld used=%d factor=%g%s%s from %lld",
                 ck_dtype_text(dtype), (long long)s->rows, (long long)s->sequence, (long long)s->channels,
                 (long long)s->vocab, (long long)s->positions, (int)s->used, (double)s->factor,
                 s->table ? " table" : "", s->position ? " position" : "", (long long)s->part))
        return;
    float *d_table = s->table ? ck_buf(CK_OUT, DSC_F32, s->vocab * s->channels, "d_table") : NULL;
    float *d_position = s->position ? ck_buf(CK_OUT, DSC_F32, s->positions * s->channels, "d_position") : NULL;
    const void *d_out = ck_buf(CK_IN, dtype, s->rows * s->channels, "d_out");
    const int32_t *tokens = ck_buf(CK_IN, DSC_I32, s->rows, "tokens");
    void *scratch = ck_buf(CK_SCRATCH, DSC_I32, dsc_embedding_bwd_scratch_bytes(s->rows, s->vocab) / 4, "scratch");
    ck_normal(d_out, 0, 1);
    ck_int(tokens, 0, s->used - 1);
    const dsc_embedding_bwd_args args = { .d_table = d_table,
                                          .d_position = d_position,
                                          .d_out = d_out,
                                          .tokens = tokens,
                                          .scratch = scratch,
                                          .rows = s->rows,
                                          .sequence = s->sequence,
                                          .channels = s->channels,
                                          .vocab = s->vocab,
                                          .positions = s->positions,
                                          .position_first = s->first,
                                          .has_padding = s->padding,
                                          .padding = 1,
                                          .parted = s->part > 0,
                                          .first = s->part,
                                          .dtype = dtype,
                                          .factor = s->factor };
    ck_kernel(DSC_KERNEL_EMBEDDING_BWD, &args, sizeof args, verify_bwd);
}

static void bench_fwd(void)
{
    const int64_t rows = ck_bench_size(1024, 32768), channels = 768, vocab = 50304;
    if (!ck_case("bench embedding_fwd bf16 %lldx768 V=50304", (long long)rows))
        return;
    const int32_t *tokens = ck_buf(CK_IN, DSC_I32, rows, "tokens");
    void *table = ck_buf(CK_IN, DSC_BF16, vocab * channels, "table");
    void *position = ck_buf(CK_IN, DSC_BF16, 1024 * channels, "position");
    ck_int(tokens, 0, (int32_t)vocab - 1);
    memset(table, 0, (size_t)(vocab * channels * 2));
    memset(position, 0, (size_t)(1024 * channels * 2));
    const dsc_embedding_fwd_args args = {
        .out = ck_buf(CK_OUT, DSC_BF16, rows * channels, "out"), .tokens = tokens, .table = table,
        .position = position, .rows = rows, .sequence = 1024, .channels = channels, .dtype = DSC_BF16,
    };
    ck_bench(DSC_KERNEL_EMBEDDING_FWD, &args, sizeof args, 2 * rows * channels * 2, 0, false);
}

/* The longest sum of rows decides: with one token it has all of them. */
static void bench_bwd(int32_t used)
{
    const int64_t rows = ck_bench_size(1024, 32768), channels = 768, vocab = 50304;
    if (!ck_case("bench embedding_bwd bf16 %lldx768 V=50304 used=%d", (long long)rows, (int)used))
        return;
    const int32_t *tokens = ck_buf(CK_IN, DSC_I32, rows, "tokens");
    void *d_out = ck_buf(CK_IN, DSC_BF16, rows * channels, "d_out");
    ck_int(tokens, 0, used - 1);
    memset(d_out, 0, (size_t)(rows * channels * 2));
    const dsc_embedding_bwd_args args = {
        .d_table = ck_buf(CK_OUT, DSC_F32, vocab * channels, "d_table"),
        .d_position = ck_buf(CK_OUT, DSC_F32, 1024 * channels, "d_position"), .d_out = d_out, .tokens = tokens,
        .scratch = ck_buf(CK_SCRATCH, DSC_I32, 2 * rows + vocab, "scratch"), .rows = rows, .sequence = 256,
        .channels = channels, .vocab = vocab, .positions = 1024, .dtype = DSC_BF16,
    };
    const int64_t bytes = (vocab + 1024) * channels * 4 + 2 * rows * channels * 2;
    ck_bench(DSC_KERNEL_EMBEDDING_BWD, &args, sizeof args, bytes, 0, false);
}

/* Tokens that take many rows. Simulated GPUs compare each row with all others of its token, which takes too long for
 * the most rows. */
static void check_frequent(void)
{
    const int64_t most = ck_device_is_simulated() ? 1100 : 32768;
    const bwd_shape shape[] = {
        { most, 16, 68, 3, 16, 1, true, false, 0, false, 0, 0 }, /* one token has all of them */
        { 256, 16, 33, 5, 16, 1, true, false, 0, false, 0, 0 },  /* as few as a frequent token has */
        { 255, 16, 32, 5, 16, 1, true, false, 0, false, 0, 0 },
        { 1030, 16, 100, 7, 16, 3, true, false, 0, true, 0, 0 },     /* three tokens, one of them padding */
        { 1500, 16, 31, 300, 16, 5, true, true, 0, false, 5.5f, 0 }, /* a short last tile, a short last column */
        { 1030, 16, 100, 2, 16, 3, true, false, 0, true, 0, 1 },     /* of tokens 1, which is padding, and 2 */
    };
    for (dsc_dtype dtype = DSC_F32; dtype <= DSC_F16; dtype++)
        for (size_t s = 0; s < DSC_COUNT(shape); s++)
            check_bwd(&shape[s], dtype);
}

void ck_embedding(void)
{
    static const int64_t channels[] = { 1, 7, 15, 16, 17, 31, 60, 63, 64, 65, 100, 768 };
    static const bwd_shape shape[] = {
        { 40, 8, 33, 11, 8, 11, true, true, 0, false, 0, 0 },
        { 40, 8, 64, 311, 13, 311, true, true, 2, true, 0, 0 },
        { 37, 8, 17, 70, 8, 1, true, true, 0, false, 0, 0 }, /* one token takes all; a short last sequence */
        { 40, 40, 768, 65, 40, 65, true, false, 0, true, 0, 0 },
        { 40, 10, 130, 64, 12, 64, false, true, 2, false, 0, 0 },
        { 1, 1, 5, 1, 1, 1, true, true, 0, false, 0, 0 },
        { 0, 4, 16, 129, 6, 1, true, true, 1, true, 0, 0 }, /* all zero */
        /* fewer rows than positions, long stretches of unused rows */
        { 3, 8, 20, 1000, 8, 2, true, true, 0, false, 0, 0 },
        { 300, 30, 48, 2500, 32, 2500, true, true, 2, true, 45.25f, 0 },
        { 300, 30, 48, 11, 32, 40, true, true, 2, false, 0, 13 }, /* tokens on either side are elsewhere */
        { 40, 8, 17, 11, 8, 9, true, true, 0, false, 0, 20 },     /* and so are all */
    };
    for (dsc_dtype dtype = DSC_F32; dtype <= DSC_F16; dtype++) {
        for (size_t c = 0; c < DSC_COUNT(channels); c++)
            check_fwd(21, 6, channels[c], 37, dtype, c % 3 != 0, c % 2 == 0 ? 0 : 27.6875f);
        check_fwd(0, 6, 16, 37, dtype, true, 2);
        check_fwd_parted(0, 13, 37, dtype, false);
        check_fwd_parted(13, 12, 37, dtype, true);
        check_rows(21, 6, 33, dtype);
        check_rows(8, 1, 64, dtype);
        for (size_t s = 0; s < DSC_COUNT(shape); s++)
            check_bwd(&shape[s], dtype);
    }
    check_frequent();
    if (ck_benching()) {
        bench_fwd();
        bench_bwd(50304);
        bench_bwd(255); /* about 128 rows each, too few for blocks of columns */
        bench_bwd(1);
    }
}
