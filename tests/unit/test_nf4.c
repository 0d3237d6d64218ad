/* test_nf4.c - NF4 codes, scales and scales of scales are bitsandbytes' to the bit (tests/golden/make_nf4.py), packed
 * and unpacked. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/formats/safetensors.h"
#include "kernels/kernels.h"
#include "kernels/scalar.h"

#define COUNT 17000
#define BLOCKS 266
#define TOPS 2
#define UNITS 17

static dsc_alloc *alloc;
static dsc_safetensors *golden;

static void *read_tensor(const char *name, int64_t bytes)
{
    const dsc_safetensors_entry *entry = dsc_safetensors_find(golden, name);
    assert_non_null(entry);
    assert_int_equal(entry->bytes, bytes);
    void *out = malloc((size_t)bytes);
    assert_non_null(out);
    assert_int_equal(dsc_safetensors_read_bytes(golden, entry, 0, bytes, out, NULL), DSC_OK);
    return out;
}

static void expect_tensor(const char *name, const void *got, int64_t bytes)
{
    uint8_t *expected = read_tensor(name, bytes);
    for (int64_t i = 0; i < bytes; i++)
        if (((const uint8_t *)got)[i] != expected[i])
            fail_msg("%s: byte %lld is %d, not %d", name, (long long)i, ((const uint8_t *)got)[i], expected[i]);
    free(expected);
}

static void fill(float *x, bool bf16)
{
    for (int64_t i = 0; i < COUNT; i++) {
        x[i] = (float)(i * 7919 % 2003 - 1001) / (float)(1 << (12 + i / 64 % 5));
        if (bf16)
            x[i] = dsc_f32_from_bf16(dsc_bf16_from_f32(x[i]));
    }
}

typedef struct packed {
    uint8_t codes[COUNT / 2], scale_codes[BLOCKS];
    float scales[BLOCKS], tops[TOPS], offset;
} packed;

static void pack(packed *p, bool bf16)
{
    float *x = malloc(COUNT * sizeof *x);
    assert_non_null(x);
    fill(x, bf16);
    dsc_nf4_pack(x, COUNT, p->codes, p->scales);
    dsc_nf4_pack_scales(p->scales, BLOCKS, p->scale_codes, p->tops, &p->offset);
    free(x);
}

static void tables_are_bitsandbytes(void **state)
{
    expect_tensor("values", dsc_nf4_values, sizeof dsc_nf4_values);
    expect_tensor("scale_values", dsc_nf4_scale_values, sizeof dsc_nf4_scale_values);
}

static void packs_as_bitsandbytes(void **state)
{
    packed *p = calloc(1, sizeof *p);
    assert_non_null(p);
    pack(p, false);
    expect_tensor("codes", p->codes, sizeof p->codes);
    expect_tensor("scales", p->scales, sizeof p->scales);
    expect_tensor("offset", &p->offset, sizeof p->offset);
    expect_tensor("tops", p->tops, sizeof p->tops);
    expect_tensor("scale_codes", p->scale_codes, sizeof p->scale_codes);
    pack(p, true);
    expect_tensor("bf16_codes", p->codes, sizeof p->codes);
    expect_tensor("bf16_scales", p->scales, sizeof p->scales);
    expect_tensor("bf16_offset", &p->offset, sizeof p->offset);
    expect_tensor("bf16_tops", p->tops, sizeof p->tops);
    expect_tensor("bf16_scale_codes", p->scale_codes, sizeof p->scale_codes);
    free(p);
}

static void fill_units(const packed *p, dsc_nf4 kind, uint8_t *units)
{
    const int64_t each = dsc_nf4_unit_bytes(kind), scale_bytes = dsc_nf4_scale_bytes(kind);
    for (int64_t i = 0; i < COUNT / 2; i++)
        units[2 * i / DSC_NF4_UNIT * each + i % DSC_NF4_CODE_BYTES] = p->codes[i];
    for (int64_t b = 0; b < BLOCKS; b++)
        memcpy(units + b / DSC_NF4_UNIT_BLOCKS * each + DSC_NF4_CODE_BYTES + b % DSC_NF4_UNIT_BLOCKS * scale_bytes,
               kind == DSC_NF4_NESTED ? (const void *)&p->scale_codes[b] : &p->scales[b], (size_t)scale_bytes);
}

/* The golden file has the last `count` elements. */
static void expect_unpacked(const packed *p, dsc_nf4 kind, dsc_dtype dtype, int64_t count, const char *name)
{
    uint8_t *units = calloc(UNITS, (size_t)dsc_nf4_unit_bytes(kind)), *to = malloc(COUNT * 4);
    assert_non_null(units);
    assert_non_null(to);
    fill_units(p, kind, units);
    const dsc_nf4_unpack_args args = { .to = to,
                                       .units = units,
                                       .count = COUNT,
                                       .offset = p->offset,
                                       .tops = kind == DSC_NF4_NESTED ? p->tops : NULL,
                                       .to_dtype = dtype };
    const uint32_t caps[] = { 0, DSC_CPU_AVX2, DSC_CPU_AVX512 | DSC_CPU_AVX2 };
    const int64_t each = (int64_t)dsc_dtype_bytes(dtype);
    for (size_t i = 0; i < DSC_COUNT(caps); i++) {
        if ((caps[i] & dsc_cpu_caps()) != caps[i])
            continue;
        const dsc_cpu_threads pool = { .threads = 2, .caps = caps[i] };
        dsc_kernel_table table;
        dsc_kernel_table_init(&table, caps[i]);
        memset(to, 0xff, COUNT * 4);
        assert_int_equal(table.fn[DSC_KERNEL_NF4_UNPACK](&args, &pool, NULL), DSC_OK);
        expect_tensor(name, to + (COUNT - count) * each, count * each);
    }
    free(to);
    free(units);
}

static void unpacks_as_bitsandbytes(void **state)
{
    packed *p = calloc(1, sizeof *p);
    assert_non_null(p);
    pack(p, false);
    expect_unpacked(p, DSC_NF4_NESTED, DSC_F32, 1500, "unpacked");
    expect_unpacked(p, DSC_NF4_PLAIN, DSC_F32, 1500, "unpacked_plain");
    pack(p, true);
    expect_unpacked(p, DSC_NF4_NESTED, DSC_BF16, COUNT, "unpacked_bf16");
    free(p);
}

/* The mean of scales has torch's order of additions, whatever their number. */
static void means_are_torchs(void **state)
{
    static const int64_t counts[] = { 1, 7, 8, 33, 64, 150, 511, 512, 704, 1000, 5000, 16383, 17000 };
    float *x = malloc(COUNT * sizeof *x), means[DSC_COUNT(counts)], tops[COUNT / DSC_NF4_NESTED_BLOCK + 1];
    uint8_t *codes = malloc(COUNT);
    assert_non_null(x);
    assert_non_null(codes);
    fill(x, false);
    for (int64_t i = 0; i < COUNT; i++)
        x[i] = (x[i] < 0 ? -x[i] : x[i]) + 0.03125f;
    for (size_t i = 0; i < DSC_COUNT(counts); i++)
        dsc_nf4_pack_scales(x, counts[i], codes, tops, &means[i]);
    expect_tensor("means", means, sizeof means);
    free(codes);
    free(x);
}

/* A block of zeros has the scale 0; the short block at the end the least one that can be divided by. */
static void zeros_stay_zeros(void **state)
{
    float x[DSC_NF4_BLOCK + 3] = { 0 }, scales[2];
    uint8_t codes[34];
    dsc_nf4_pack(x, DSC_NF4_BLOCK + 3, codes, scales);
    for (int i = 0; i < 34; i++)
        assert_int_equal(codes[i], 0x77);
    assert_true(scales[0] == 0.0f);
    assert_true(scales[1] == 1e-38f);
    float tops[1], offset;
    uint8_t scale_codes[2];
    scales[1] = 0;
    dsc_nf4_pack_scales(scales, 2, scale_codes, tops, &offset);
    assert_true(tops[0] == 0.0f);
    assert_true(dsc_nf4_scale(scale_codes[1], tops[0], offset) == 0.0f);
}

static int open_golden(void **state)
{
    return dsc_alloc_open(&alloc, NULL) != DSC_OK ||
           dsc_safetensors_open(&golden, NULL, alloc, "tests/golden/nf4.safetensors", NULL) != DSC_OK;
}

static int close_golden(void **state)
{
    dsc_safetensors_close(&golden);
    dsc_alloc_close(&alloc);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_are_bitsandbytes), cmocka_unit_test(packs_as_bitsandbytes),
        cmocka_unit_test(unpacks_as_bitsandbytes), cmocka_unit_test(means_are_torchs),
        cmocka_unit_test(zeros_stay_zeros),
    };
    return cmocka_run_group_tests(tests, open_golden, close_golden);
}
