/* test_safetensors.c - round trips, every refusal by its line, and mutated files.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bf16.h"
#include "base/formats/safetensors.h"
#include "base/rng.h"

static dsc_alloc *alloc;
static char dir[64];
static char path[128];

static int setup(void **state)
{
    dsc_error err = DSC_ERROR_INIT;
    snprintf(dir, sizeof dir, "/tmp/dsc_st_XXXXXX");
    if (mkdtemp(dir) == NULL)
        return 1;
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    return dsc_alloc_open(&alloc, &err) != DSC_OK;
}

static int teardown(void **state)
{
    unlink(path);
    rmdir(dir);
    dsc_alloc_close(&alloc); /* asserts that nothing is left */
    return 0;
}

static void write_raw(const void *bytes, size_t count)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, count, f), count);
    assert_int_equal(fclose(f), 0);
}

/* A file of this header text and data_bytes bytes 0, 1, 2, ... after it. */
static void write_file(const char *header, size_t data_bytes)
{
    const uint64_t length = strlen(header);
    const size_t total = 8 + length + data_bytes;
    unsigned char *bytes = malloc(total);
    assert_non_null(bytes);
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, header, length);
    for (size_t i = 0; i < data_bytes; i++)
        bytes[8 + length + i] = (unsigned char)i;
    write_raw(bytes, total);
    free(bytes);
}

static void expect_refusal(const char *what)
{
    dsc_safetensors *st = NULL;
    dsc_error err = DSC_ERROR_INIT;
    const dsc_status status = dsc_safetensors_open(&st, NULL, alloc, path, &err);
    if (status != DSC_ERR_INPUT || strstr(err.message, what) == NULL || strncmp(err.where, path, strlen(path)) != 0)
        fail_msg("expected a refusal with \"%s\", got status %d: \"%s\" at \"%s\"", what, (int)status, err.message,
                 err.where);
    assert_null(st);
}

static dsc_safetensors *open_ok(void)
{
    dsc_safetensors *st = NULL;
    dsc_error err = DSC_ERROR_INIT;
    if (dsc_safetensors_open(&st, NULL, alloc, path, &err) != DSC_OK)
        fail_msg("%s", err.message);
    return st;
}

static void reads_a_plain_file(void **state)
{
    write_file("{\"__metadata__\":{\"format\":\"pt\"},\"b\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,8]},"
               "\"a\":{\"shape\":[],\"data_offsets\":[8,10],\"dtype\":\"BF16\"},"
               "\"empty\":{\"dtype\":\"I64\",\"shape\":[0,7],\"data_offsets\":[10,10]},"
               "\"m\":{\"dtype\":\"BOOL\",\"shape\":[3],\"data_offsets\":[10,13]}}   ", 13);
    dsc_safetensors *st = open_ok();
    assert_int_equal(dsc_safetensors_count(st), 4);
    assert_string_equal(dsc_safetensors_at(st, 0)->name, "a");
    assert_string_equal(dsc_safetensors_metadata(st, "format"), "pt");
    assert_null(dsc_safetensors_metadata(st, "other"));
    assert_null(dsc_safetensors_find(st, "c"));
    const dsc_safetensors_entry *b = dsc_safetensors_find(st, "b");
    assert_non_null(b);
    assert_int_equal(b->desc.dtype, DSC_F32);
    assert_int_equal(b->desc.dim_count, 2);
    assert_int_equal(b->count, 2);
    float x[2] = { 0 };
    dsc_error err = DSC_ERROR_INIT;
    assert_int_equal(dsc_safetensors_read_f32(st, b, 0, 2, x, &err), DSC_OK);
    assert_memory_equal(x, "\0\1\2\3\4\5\6\7", 8);
    assert_int_equal(dsc_safetensors_read_f32(st, b, 1, 1, x, &err), DSC_OK);
    assert_memory_equal(x, "\4\5\6\7", 4);
    assert_int_equal(dsc_safetensors_read_f32(st, dsc_safetensors_find(st, "a"), 0, 1, x, &err), DSC_OK);
    assert_memory_equal(x, "\0\0\10\11", 4);
    const dsc_safetensors_entry *m = dsc_safetensors_find(st, "m");
    assert_string_equal(m->dtype_text, "BOOL");
    assert_int_equal(m->desc.dtype, DSC_DTYPE_COUNT);
    assert_int_equal(dsc_safetensors_read_f32(st, m, 0, 1, x, &err), DSC_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "BOOL"));
    assert_non_null(strstr(err.message, "\"m\""));
    assert_int_equal(dsc_safetensors_find(st, "empty")->count, 0);
    dsc_safetensors_close(&st);
    write_file("{}", 0);
    st = open_ok();
    assert_int_equal(dsc_safetensors_count(st), 0);
    dsc_safetensors_close(&st);
}

static void reads_half_precision_exactly(void **state)
{
    /* Every 16-bit pattern, once as F16 and once as BF16. */
    const char *header = "{\"h\":{\"dtype\":\"F16\",\"shape\":[65536],\"data_offsets\":[0,131072]},"
                         "\"b\":{\"dtype\":\"BF16\",\"shape\":[65536],\"data_offsets\":[131072,262144]}}";
    const uint64_t length = strlen(header);
    unsigned char *bytes = malloc(8 + length + 262144);
    assert_non_null(bytes);
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, header, length);
    for (uint32_t i = 0; i < 65536; i++) {
        const uint16_t h = (uint16_t)i;
        memcpy(bytes + 8 + length + 2 * i, &h, 2);
        memcpy(bytes + 8 + length + 131072 + 2 * i, &h, 2);
    }
    write_raw(bytes, 8 + length + 262144);
    free(bytes);
    dsc_safetensors *st = open_ok();
    float *x = malloc(65536 * sizeof *x);
    assert_non_null(x);
    dsc_error err = DSC_ERROR_INIT;
    assert_int_equal(dsc_safetensors_read_f32(st, dsc_safetensors_find(st, "h"), 0, 65536, x, &err), DSC_OK);
    for (int i = 0; i < 65536; i++) {
        const int exponent = (i >> 10) & 31, mantissa = i & 1023;
        const float sign = i & 0x8000 ? -1.0f : 1.0f;
        if (exponent == 31 && mantissa != 0)
            assert_true(isnan(x[i]));
        else if (exponent == 31)
            assert_true(isinf(x[i]) && (x[i] > 0) == (sign > 0));
        else
            assert_true(x[i] == sign * ldexpf((float)(exponent == 0 ? mantissa : mantissa + 1024),
                                              (exponent == 0 ? 1 : exponent) - 25));
        assert_true((signbit(x[i]) != 0) == (sign < 0));
    }
    assert_int_equal(dsc_safetensors_read_f32(st, dsc_safetensors_find(st, "b"), 3, 65533, x, &err), DSC_OK);
    for (int i = 3; i < 65536; i++) {
        const float expected = dsc_f32_from_bf16((uint16_t)i);
        assert_memory_equal(&x[i - 3], &expected, 4);
    }
    free(x);
    dsc_safetensors_close(&st);
}

#define T(dtype, shape, offsets) "{\"t\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static void refuses_bad_files(void **state)
{
    static const struct { const char *header; size_t data_bytes; const char *what; } cases[] = {
        { "", 0, "does not start with '{'" },
        { " {}", 0, "does not start with '{'" },
        { "[]", 0, "does not start with '{'" },
        { "{}", 1, "1 bytes at the end belong to no tensor" },
        { "{\"t\":1}", 0, "expected an object" },
        { "{\"t\":{}}", 0, "\"dtype\" is missing" },
        { "{\"t\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "\"data_offsets\" is missing" },
        { "{\"t\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "\"shape\" is missing" },
        { "{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":0}}", 4, "unknown field \"x\"" },
        { "{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "shape" },
        { "{\"t\":{\"dtype\":4,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "\"dtype\" must be a string" },
        { T("F33", "[1]", "[0,4]"), 4, "dtype \"F33\"" },
        { T("f32", "[1]", "[0,4]"), 4, "dtype \"f32\"" },
        { T("F32", "1", "[0,4]"), 4, "\"shape\" must be an array" },
        { T("F32", "[-1]", "[0,4]"), 4, "a dimension of \"shape\" must be" },
        { T("F32", "[1.5]", "[0,4]"), 4, "a dimension of \"shape\" must be" },
        { T("F32", "[\"1\"]", "[0,4]"), 4, "a dimension of \"shape\" must be" },
        { T("F32", "[1e300]", "[0,4]"), 4, "a dimension of \"shape\" must be" },
        { T("F32", "[1.0]", "[0,4]"), 4, "tensor \"t\": a dimension of \"shape\" must be an unsigned integer" },
        { T("F32", "[1e0]", "[0,4]"), 4, "a dimension of \"shape\" must be" },
        { T("F32", "[-0]", "[0,0]"), 0, "a dimension of \"shape\" must be" },
        { T("F32", "[true]", "[0,4]"), 4, "a dimension of \"shape\" must be" },
        { T("F32", "[1]", "[0.0,4]"), 4, "tensor \"t\": \"data_offsets\" must be two unsigned integers" },
        { T("F32", "[1]", "[0,4.0]"), 4, "\"data_offsets\" must be" },
        { T("F32", "[1]", "[0,4e0]"), 4, "\"data_offsets\" must be" },
        { T("F32", "[1]", "[-0,4]"), 4, "\"data_offsets\" must be" },
        { T("F32", "[1]", "[0,9007199254740993.0]"), 4, "\"data_offsets\" must be" },
        { T("F32", "[1,1,1,1,1,1,1]", "[0,4]"), 4, "more than 6 dimensions" },
        { T("F32", "[4294967296,4294967296]", "[0,4]"), 4, "is out of range" },
        { T("F32", "[4611686018427387904]", "[0,0]"), 0, "" }, /* 2^62: refused by the scan or as a size */
        { T("F32", "[2]", "[0,4]"), 4, "do not fill" },
        { T("F32", "[1]", "[0,5]"), 5, "do not fill" },
        { T("F4", "[3]", "[0,2]"), 2, "do not fill" },
        { T("F32", "[1]", "[0,8]"), 4, "outside the data" },
        { T("F32", "[1]", "[4,0]"), 4, "outside the data" },
        { T("F32", "[1]", "[-4,0]"), 4, "two unsigned integers" },
        { T("F32", "[1]", "[0,4,4]"), 4, "two unsigned integers" },
        { T("F32", "[1]", "[0]"), 4, "two unsigned integers" },
        { T("F32", "[1]", "{}"), 4, "\"data_offsets\"" },
        { T("F32", "[1]", "[0,9007199254740993]"), 4, "" },
        { T("F32", "[1]", "[4,8]"), 8, "a hole of 4 bytes before tensor \"t\"" },
        { T("F32", "[1]", "[0,4]"), 12, "8 bytes at the end" },
        { "{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
          "\"u\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "tensors \"" },
        { "{\"t\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
          "\"u\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, "overlap" },
        { "{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
          "\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, "\"t\"" },
        { "{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
          "\"\\u0074\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, "\"t\"" },
        { "{\"\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "has 0 bytes" },
        { "{\"__metadata__\":[]}", 0, "object of strings" },
        { "{\"__metadata__\":{\"a\":1}}", 0, "\"a\" must be a string" },
        { "{\"t\":", 0, "" },
        { "{} x", 0, "" },
        { "{,}", 0, "" },
        { "{\"\xff\":1}", 0, "" },
        { "{\"a\":NaN}", 0, "" },
        { "{}//", 0, "" },
    };
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        write_file(cases[i].header, cases[i].data_bytes);
        expect_refusal(cases[i].what);
    }
}

static void refuses_bad_lengths(void **state)
{
    write_raw("", 0);
    expect_refusal("a file of 0 bytes");
    write_raw("\2\0\0\0\0\0\0", 7);
    expect_refusal("a file of 7 bytes");
    write_raw("\3\0\0\0\0\0\0\0{}", 10);
    expect_refusal("truncated");
    write_raw("\0\0\0\0\0\0\0\0", 8);
    expect_refusal("does not start");
    write_raw("\377\377\377\377\377\377\377\377{}", 10);
    expect_refusal("at most 33554432");
    write_raw("\0\0\0\0\0\0\0\200{}", 10);
    expect_refusal("at most 33554432");
    write_raw("\0\0\0\2\0\0\0\0{}", 10);
    expect_refusal("truncated");
    unlink(path);
    expect_refusal("No such file");
    /* A long name, bounded in the message. */
    char header[3000];
    char name[1500];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = 0;
    snprintf(header, sizeof header, "{\"%s\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", name);
    write_file(header, 4);
    expect_refusal("1499 bytes; expected 1 to 1024");
}

/* Seeded mutations of a good file: never a crash, and what still opens keeps the promise of an exact cover. */
static void survives_mutations(void **state)
{
    write_file(
        "{\"__metadata__\":{\"format\":\"pt\"},\"wte\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
        "\"h.0.b\":{\"dtype\":\"F16\",\"shape\":[5],\"data_offsets\":[24,34]},"
        "\"h.0.c\":{\"dtype\":\"BF16\",\"shape\":[1,1,1],\"data_offsets\":[34,36]}}",
        36);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    unsigned char good[1024], bytes[1040];
    const size_t good_bytes = fread(good, 1, sizeof good, f);
    fclose(f);
    int opened = 0;
    for (uint64_t round = 0; round < 4000; round++) {
        size_t count = good_bytes;
        memcpy(bytes, good, count);
        const uint32_t edits = 1 + dsc_rng_u32(11, round, 0) % 3;
        for (uint32_t e = 0; e < edits; e++) {
            const uint32_t kind = dsc_rng_u32(11, round, 4 * e + 1) % 4;
            const size_t at = dsc_rng_u32(11, round, 4 * e + 2) % count;
            const uint32_t value = dsc_rng_u32(11, round, 4 * e + 3);
            if (kind == 0)
                bytes[at] = (unsigned char)value;
            else if (kind == 1)
                bytes[at] = (unsigned char)"0123456789{}[],:\"-eE."[value % 21];
            else if (kind == 2 && count > 1)
                memmove(bytes + at, bytes + at + 1, --count - at);
            else
                bytes[at] ^= (unsigned char)(1u << value % 8);
        }
        write_raw(bytes, count);
        dsc_safetensors *st = NULL;
        dsc_error err = DSC_ERROR_INIT;
        const dsc_status status = dsc_safetensors_open(&st, NULL, alloc, path, &err);
        if (status != DSC_OK) {
            assert_int_equal(status, DSC_ERR_INPUT);
            assert_true(err.message[0] != 0);
            continue;
        }
        opened++;
        int64_t sum = 0;
        for (int64_t i = 0; i < dsc_safetensors_count(st); i++) {
            const dsc_safetensors_entry *entry = dsc_safetensors_at(st, i);
            float x[64];
            sum += entry->bytes;
            assert_true(entry->count <= 72);
            if (entry->count <= 64)
                (void)!dsc_safetensors_read_f32(st, entry, 0, entry->count, x, &err);
            assert_ptr_equal(dsc_safetensors_find(st, entry->name), entry);
        }
        assert_true(sum <= 36);
        dsc_safetensors_close(&st);
    }
    assert_true(opened > 0);
}

static void writes_what_it_reads(void **state)
{
    const dsc_safetensors_spec specs[] = {
        { "odd \"name\"\\\xc3\xa9", { DSC_BF16, 1, { 3 } } },
        { "w", { DSC_F32, 2, { 2, 5 } } },
        { "u", { DSC_U8, 3, { 1, 1, 7 } } },
        { "scalar", { DSC_F64, 0, { 0 } } },
        { "none", { DSC_F32, 2, { 0, 4 } } },
    };
    const dsc_safetensors_pair metadata[] = { { "format", "pt" }, { "note", "a \"quoted\" \n line" } };
    dsc_safetensors_plan plan = { 0 };
    dsc_error err = DSC_ERROR_INIT;
    assert_int_equal(dsc_safetensors_plan_open(&plan, alloc, specs, DSC_COUNT(specs), metadata, 2, &err), DSC_OK);
    assert_int_equal(plan.header_bytes % 64, 0);
    assert_int_equal(plan.file_bytes, plan.header_bytes + 8 + 40 + 6 + 7);
    for (size_t i = 0; i < DSC_COUNT(specs); i++)
        assert_int_equal(plan.offset[i] % (int64_t)dsc_dtype_bytes(specs[i].desc.dtype), 0);
    dsc_file file = DSC_FILE_INIT;
    assert_int_equal(dsc_io_open(NULL, path, DSC_IO_CREATE, &file, &err), DSC_OK);
    assert_int_equal(dsc_safetensors_write_header(&plan, NULL, &file, &err), DSC_OK);
    float w[10], back[10];
    for (int i = 0; i < 10; i++)
        w[i] = (float)i * 0.25f - 1;
    /* Two owners, each its own range. */
    assert_int_equal(dsc_io_write(NULL, &file, w + 4, 24, plan.offset[1] + 16, &err), DSC_OK);
    assert_int_equal(dsc_io_write(NULL, &file, w, 16, plan.offset[1], &err), DSC_OK);
    assert_int_equal(dsc_io_close(NULL, &file, &err), DSC_OK);
    dsc_safetensors *st = open_ok();
    assert_int_equal(dsc_safetensors_count(st), DSC_COUNT(specs));
    for (size_t i = 0; i < DSC_COUNT(specs); i++) {
        const dsc_safetensors_entry *entry = dsc_safetensors_find(st, specs[i].name);
        assert_non_null(entry);
        assert_int_equal(entry->offset, plan.offset[i]);
        assert_int_equal(entry->desc.dtype, specs[i].desc.dtype);
        assert_int_equal(entry->desc.dim_count, specs[i].desc.dim_count);
        assert_memory_equal(entry->desc.dim, specs[i].desc.dim, sizeof entry->desc.dim);
    }
    assert_string_equal(dsc_safetensors_metadata(st, "note"), metadata[1].value);
    assert_int_equal(dsc_safetensors_read_f32(st, dsc_safetensors_find(st, "w"), 0, 10, back, &err), DSC_OK);
    assert_memory_equal(w, back, sizeof w);
    dsc_safetensors_close(&st);
    dsc_safetensors_plan_close(&plan);
}

/* Three parts of [2,2] under names of their own, and behind them another tensor. */
static const dsc_safetensors_spec parted_specs[] = { { "h.*.w", { DSC_F32, 3, { 3, 2, 2 } } },
                                                     { "h.4.w", { DSC_F32, 2, { 2, 2 } } } };

static void writes_parts_and_unites_them(void **state)
{
    static const bool parted[] = { true, false };
    dsc_safetensors_plan plan = { 0 };
    dsc_error err = DSC_ERROR_INIT;
    dsc_file file = DSC_FILE_INIT;
    assert_int_equal(dsc_safetensors_plan_parts(&plan, alloc, parted_specs, parted, 2, NULL, 0, &err), DSC_OK);
    assert_int_equal(dsc_io_open(NULL, path, DSC_IO_CREATE, &file, &err), DSC_OK);
    assert_int_equal(dsc_safetensors_write_header(&plan, NULL, &file, &err), DSC_OK);
    assert_int_equal(dsc_io_close(NULL, &file, &err), DSC_OK);
    dsc_safetensors *st = open_ok();
    assert_int_equal(dsc_safetensors_count(st), 4);
    assert_null(dsc_safetensors_find(st, "h.*.w"));
    assert_int_equal(dsc_safetensors_find(st, "h.2.w")->offset, plan.offset[0] + 2 * 16);
    assert_int_equal(dsc_safetensors_find(st, "h.2.w")->desc.dim_count, 2);
    assert_int_equal(dsc_safetensors_unite(st, "x.*.w", &err), DSC_OK); /* no such parts */
    assert_int_equal(dsc_safetensors_unite(st, "h.w", &err), DSC_OK);   /* no '*' */
    assert_int_equal(dsc_safetensors_count(st), 4);
    assert_int_equal(dsc_safetensors_unite(st, "h.*.w", &err), DSC_OK);
    assert_int_equal(dsc_safetensors_count(st), 2);
    const dsc_safetensors_entry *all = dsc_safetensors_find(st, "h.*.w");
    assert_non_null(all);
    assert_int_equal(all->offset, plan.offset[0]);
    assert_int_equal(all->count, 12);
    assert_int_equal(all->bytes, 48);
    assert_int_equal(all->desc.dim_count, 3);
    assert_int_equal(all->desc.dim[0], 3);
    assert_null(dsc_safetensors_find(st, "h.1.w"));
    assert_non_null(dsc_safetensors_find(st, "h.4.w")); /* 3 is missing before it */
    assert_int_equal(dsc_safetensors_unite(st, "h.*.w", &err), DSC_OK); /* again: nothing to do */
    dsc_safetensors_close(&st);
    dsc_safetensors_plan_close(&plan);
}

static void refuses_parts_that_do_not_follow(void **state)
{
    dsc_error err = DSC_ERROR_INIT;
    write_file("{\"h.0.w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]},"
               "\"h.1.w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
               8);
    dsc_safetensors *st = open_ok();
    assert_int_equal(dsc_safetensors_unite(st, "h.*.w", &err), DSC_ERR_INPUT);
    assert_non_null(strstr(err.message, "h.1.w"));
    dsc_safetensors_close(&st);
    static const dsc_safetensors_spec bad[] = { { "h.w", { DSC_F32, 2, { 3, 2 } } },
                                                { "a.*.*", { DSC_F32, 2, { 3, 2 } } },
                                                { "a.*", { DSC_F32, 0, { 0 } } } };
    static const bool parted = true;
    for (size_t i = 0; i < DSC_COUNT(bad); i++) {
        dsc_safetensors_plan plan = { 0 };
        assert_int_equal(dsc_safetensors_plan_parts(&plan, alloc, &bad[i], &parted, 1, NULL, 0, &err), DSC_ERR_STATE);
        assert_non_null(strstr(err.message, "no parts"));
    }
}

static void refuses_bad_plans(void **state)
{
    static const struct { dsc_safetensors_spec spec[2]; const char *what; } cases[] = {
        { { { "a", { DSC_F32, 1, { 1 } } }, { "a", { DSC_F32, 1, { 1 } } } }, "listed twice" },
        { { { "a", { DSC_F32, 1, { 1 } } }, { "", { DSC_F32, 1, { 1 } } } }, "0 bytes" },
        { { { "a", { DSC_F32, 1, { 1 } } }, { "b\n", { DSC_F32, 1, { 1 } } } }, "control" },
        { { { "a", { DSC_F32, 1, { 1 } } }, { "__metadata__", { DSC_F32, 1, { 1 } } } }, "not allowed as the name" },
        { { { "a", { DSC_F32, 1, { 1 } } }, { "b", { DSC_F32, 1, { -1 } } } }, "is out of range" },
        { { { "a", { DSC_F32, 1, { 1 } } }, { "b", { DSC_F32, 2, { INT64_MAX, 2 } } } }, "is out of range" },
        { { { "a", { DSC_F32, 1, { 1 } } }, { "b", { DSC_DTYPE_COUNT, 1, { 1 } } } }, "no such dtype" },
        { { { "a", { DSC_F32, 1, { 1 } } }, { "b", { DSC_F32, 7, { 1 } } } }, "no such dtype" },
        { { { "a", { DSC_F32, 1, { INT64_C(1) << 60 } } }, { "b", { DSC_F32, 1, { INT64_C(1) << 60 } } } },
          "larger than any" },
    };
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        dsc_safetensors_plan plan = { 0 };
        dsc_error err = DSC_ERROR_INIT;
        assert_int_equal(dsc_safetensors_plan_open(&plan, alloc, cases[i].spec, 2, NULL, 0, &err), DSC_ERR_STATE);
        if (strstr(err.message, cases[i].what) == NULL)
            fail_msg("expected \"%s\", got \"%s\"", cases[i].what, err.message);
        dsc_safetensors_plan_close(&plan);
    }
}

/* Every allocation and every file operation fails once: a status, no leak (teardown asserts), nothing half open. */
static dsc_status fail_nth(void *user, dsc_io_op op, const char *file, int64_t offset, int64_t bytes, int *errno_value)
{
    int *left = user;
    return --*left == 0 ? DSC_ERR_IO : DSC_OK;
}

static void survives_faults(void **state)
{
    write_file("{\"__metadata__\":{\"format\":\"pt\"},\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
               4);
    dsc_safetensors *st = NULL;
    dsc_error err = DSC_ERROR_INIT;
    int failed = 0;
    for (int64_t n = 1;; n++) {
        dsc_alloc_stats stats;
        dsc_alloc_stats_get(alloc, &stats);
        dsc_alloc_fail_at(alloc, stats.call_count + n, false);
        const dsc_status status = dsc_safetensors_open(&st, NULL, alloc, path, &err);
        dsc_alloc_fail_at(alloc, 0, false);
        if (status == DSC_OK)
            break;
        assert_int_equal(status, DSC_ERR_NOMEM);
        assert_null(st);
        failed++;
    }
    dsc_safetensors_close(&st);
    assert_true(failed >= 8);
    int left = 0;
    const dsc_io io = { .hook = { fail_nth, &left } };
    for (int n = 1;; n++) {
        left = n;
        const dsc_status status = dsc_safetensors_open(&st, &io, alloc, path, &err);
        if (status == DSC_OK)
            break;
        assert_int_equal(status, DSC_ERR_IO);
        assert_null(st);
        assert_true(n < 20);
    }
    dsc_safetensors_close(&st);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_a_plain_file),   cmocka_unit_test(reads_half_precision_exactly),
        cmocka_unit_test(refuses_bad_files),    cmocka_unit_test(refuses_bad_lengths),
        cmocka_unit_test(survives_mutations),   cmocka_unit_test(writes_what_it_reads),
        cmocka_unit_test(writes_parts_and_unites_them),
        cmocka_unit_test(refuses_parts_that_do_not_follow),
        cmocka_unit_test(refuses_bad_plans),    cmocka_unit_test(survives_faults),
    };
    return cmocka_run_group_tests_name("safetensors", tests, setup, teardown);
}
