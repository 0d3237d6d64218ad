/* norm.c - see norm.h. SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/norm.h"

const char *ck_norm_trait_text(ck_norm_trait trait)
{
    static const char *const text[NORM_TRAITS] = { "", " without bias", " of 1 + weight", " without weight" };
    return ck_norm_parts == 0 ? text[trait] : ck_norm_parts == 1 ? " of columns" : " of heads";
}

int32_t ck_norm_parts;

dsc_norm_rows ck_norm_wide(int64_t channels)
{
    const int64_t gap = channels % 8 == 0 ? 16 : 5;
    return (dsc_norm_rows) { ck_norm_parts > 0 ? ck_norm_parts * channels + gap : 0, ck_norm_parts };
}

int64_t ck_norm_at(int64_t row, int64_t channels, int64_t c)
{
    const dsc_norm_rows wide = ck_norm_wide(channels);
    return ck_norm_parts == 0 ? row * channels + c : row / wide.parts * wide.stride + row % wide.parts * channels + c;
}

void *ck_norm_input(ck_role role, dsc_dtype dtype, int64_t rows, int64_t channels, const char *name)
{
    if (ck_norm_parts == 0)
        return ck_buf(role, dtype, rows * channels, name);
    const int64_t stride = ck_norm_wide(channels).stride, wide_rows = rows / ck_norm_parts;
    void *const x = ck_buf(role, dtype, (wide_rows - 1) * stride + ck_norm_parts * channels, name);
    ck_gaps(x, wide_rows, ck_norm_parts * channels, stride);
    return x;
}

const char *const ck_norm_add_text[ADD_COUNT] = { "", " add", " add over in", " add over add" };

void ck_norm_rows(const void *x, int64_t rows, int64_t channels, double constant)
{
    ck_normal(x, 0, 1);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < channels; c++) {
            const double z = ck_get(x, ck_norm_at(r, channels, c));
            ck_set(x, ck_norm_at(r, channels, c), r % 5 == 3 ? constant : z * (double)(r % 3 + 1) + (double)(r % 4));
        }
}

void ck_norm_near_sum(const void *sum, const void *in, const void *add, dsc_dtype dtype, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const double x = sum == in ? ck_start(in, i) : ck_get(in, i);
        const double y = sum == add ? ck_start(add, i) : ck_get(add, i), expected = x + y;
        ck_near(sum, i, expected, 0.5001 * ck_spacing(DSC_F32, expected) + ck_rounding(dtype, expected));
    }
}

double ck_norm_residual(const void *d_residual, const void *d_in, int64_t i)
{
    return d_residual == NULL ? 0 : d_residual == d_in ? ck_start(d_in, i) : ck_get(d_residual, i);
}

/* Of no residual, since wider rows have none. */
static void check_parts(const ck_norm_cases *check)
{
    check->fwd(12, 33, DSC_F32, ADD_NONE);
    check->fwd(9, 128, DSC_F16, ADD_NONE);
    check->bwd(66, 33, DSC_F32, true, 0);
    check->bwd(6, 64, DSC_F16, false, 0);
    check->wide(66, 128, DSC_BF16); /* residuals follow from the number of rows */
    check->wide(69, 512, DSC_F32);
    check->wide(6, 4096, DSC_BF16);
}

void ck_norm_shapes(const ck_norm_cases *check, const int64_t *channels, size_t count, ck_norm_trait trait)
{
    static const int64_t rows[] = { 1, 3, 4, 5, 63, 64, 65, 131 };
    for (size_t c = trait == NORM_WHOLE ? 0 : (size_t)trait; c < count; c += trait == NORM_WHOLE ? 1 : 3)
        for (dsc_dtype dtype = DSC_F32; dtype <= DSC_F16; dtype++) {
            check->fwd(7, channels[c], dtype, ADD_NONE);
            check->fwd(6, channels[c], dtype, 1 + (int)(c + (size_t)dtype) % 3);
            check->bwd(rows[c % DSC_COUNT(rows)], channels[c], dtype, true, (int)(c % 3));
            check->bwd(6, channels[c], dtype, false, (int)((c + 1) % 3));
        }
    check->wide(66, 1280, DSC_BF16);
    check->wide(6, 248, DSC_BF16); /* fewer than a warp has lanes */
    check->wide(20, 3000, DSC_F32);
    if (trait != NORM_WHOLE)
        return;
    for (int add = ADD_NONE; add < ADD_COUNT; add++)
        check->fwd(9, 128, DSC_BF16, add);
    for (size_t r = 0; r < DSC_COUNT(rows); r++)
        check->bwd(rows[r], 33, r % 2 == 0 ? DSC_F32 : DSC_BF16, true, (int)((r + 2) % 3));
    check->fwd(0, 33, DSC_F32, ADD_NONE);
    check->bwd(0, 33, DSC_F32, true, 0);
    check->wide(131, 512, DSC_F32);
    check->wide(9, 1600, DSC_F32);
    check->wide(65, 1024, DSC_BF16);
    check->wide(10, 2304, DSC_BF16);
    check->wide(73, 4104, DSC_BF16);
    check->wide(12, 1600, DSC_F16);
    check->wide(70, 768, DSC_BF16);
    check->wide(70, 256, DSC_BF16); /* a warp */
    check->wide(66, 4096, DSC_BF16);
    check->wide(67, 8192, DSC_BF16);
    check->wide(5, 4096, DSC_F32);
    check->wide(2, 8200, DSC_BF16);  /* more vectors than a block has threads */
    check->wide(3, 16384, DSC_BF16); /* four rows of the forward take more than half of the shared memory */
    check->wide(6, 12288, DSC_F16);
    for (int32_t parts = 3; parts > 0; parts -= 2) {
        ck_norm_parts = parts;
        check_parts(check);
    }
    ck_norm_parts = 0;
}
