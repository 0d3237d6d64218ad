/* ck.c - cases, guarded buffers, the walk over variants and thread counts, verdicts. See ck.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/ck_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/sanitizer.h"

enum { RED_ZONE_BYTES = 256, PRINT_MAX = 3 };
enum { GPU_CAPS = CK_GPU | DSC_CPU_AVX512_BF16, GPU_RUNS = 2 };
static const unsigned char red_zone_byte = 0xFF; /* as numbers NaN, so that reading it shows as well */
/* ThreadSanitizer finds races between threads of a pool; the other builds compare the counts' bits. The reference cuts
 * rows alone, and no vectors: by day it runs with the first two counts. */
#if SANITIZE_THREAD
static const int32_t thread_counts[] = { 3 };
#else
static const int32_t thread_counts[] = { 1, 3, 2, 8 };
#endif
enum { COUNTS_OF_REFERENCE = 2 };

typedef struct ck_buffer {
    ck_role role;
    dsc_dtype dtype;
    int64_t count, bytes, block_bytes;
    char name[48];
    char *block;                 /* owned: red zone, offset, data, red zone */
    char *data;
    char *start, *first, *ref;   /* owned: before a run, after the 1-thread run, after the reference's run */
    char *passed;                /* owned: after the run of the last variant that `verify` passed */
    int64_t rows, cols, stride;  /* rows > 0: gaps must stay as they were */
} ck_buffer;

/* A test program may have globals; there is one case at a time. */
static struct {
    ck_buffer buf[CK_BUFS_MAX];
    const void *data[CK_BUFS_MAX]; /* of each buffer, side by side: each element that is checked looks for its own */
    int32_t buf_count;
    char name[160];
    bool open;             /* a case is running */
    bool aligned;          /* its buffers are */
    dsc_kernel_fn canary;  /* run instead of the table's function; the case must fail */
    const char *skipped;   /* why nothing was compared; NULL: something was */
    bool has_passed;       /* a variant of this ck_kernel: the buffers' `passed` */
    int64_t failures;      /* of the case */
    int64_t printed;       /* of the variant */
    uint64_t rng;
    uint32_t caps;
    int32_t threads;
    bool failed[DSC_KERNEL_COUNT][CK_VARIANTS]; /* not fit to be timed; a GPU's in column 0 */
} ck;

ck_settings ck_set_up = { .fn = NULL, .seed = 1, .bench = false, .threads = 1 };
int64_t ck_cases_run, ck_cases_failed;

const ck_variant ck_variants[CK_VARIANTS] = {
    { "reference", 0, false },
    { "avx2", DSC_CPU_AVX2, false },
    { "avx512", DSC_CPU_AVX2 | DSC_CPU_AVX512, false },
    { "avx512_bf16", DSC_CPU_AVX2 | DSC_CPU_AVX512 | DSC_CPU_AVX512_BF16, false },
    { "library_bf16", DSC_CPU_AVX2 | DSC_CPU_AVX512 | DSC_CPU_AVX512_BF16 | DSC_CPU_AMX_BF16, true },
};

/* The AMX bit only chooses who computes bf16 products, so it is tried everywhere. */
bool ck_variant_runs(int32_t variant, dsc_kernel kernel)
{
    const ck_variant *v = &ck_variants[variant];
    return (v->caps & ~(dsc_cpu_caps() | DSC_CPU_AMX_BF16)) == 0 && (!v->gemm_only || kernel == DSC_KERNEL_GEMM);
}

/* ---- failures ---- */

void ck_fail(const char *fmt, ...)
{
    ck.failures++;
    if (ck.canary != NULL || ck.printed++ >= PRINT_MAX)
        return;
    va_list args;
    va_start(args, fmt);
    printf("#   %s, %d threads: ", ck_variant_name(ck.caps), ck.threads);
    vprintf(fmt, args);
    printf("\n");
    va_end(args);
}

void ck_skip(const char *why)
{
    DSC_ASSERT(ck.open);
    ck.skipped = why;
}

void ck_case_end(void)
{
    if (!ck.open)
        return;
    ck.open = false;
    if (ck.canary != NULL)
        ck.failures = ck.failures == 0;
    ck_cases_run++;
    ck_cases_failed += ck.failures != 0;
    printf("%sok %lld - %s%s%s\n", ck.failures != 0 ? "not " : "", (long long)ck_cases_run, ck.name,
           ck.skipped != NULL ? " # SKIP " : "", ck.skipped != NULL ? ck.skipped : "");
    if (ck.failures != 0)
        printf("#   %lld failures; rerun: make checkkern FN='%s' SEED=%llu\n", (long long)ck.failures, ck.name,
               (unsigned long long)ck_set_up.seed);
    fflush(stdout);
    for (int32_t i = 0; i < ck.buf_count; i++) {
        free(ck.buf[i].block);
        free(ck.buf[i].start);
        free(ck.buf[i].first);
        free(ck.buf[i].ref);
        free(ck.buf[i].passed);
    }
    ck.buf_count = 0;
}

bool ck_case(const char *fmt, ...)
{
    ck_case_end();
    va_list args;
    va_start(args, fmt);
    vsnprintf(ck.name, sizeof ck.name, fmt, args);
    va_end(args);
    if (!ck_matches(ck.name))
        return false;
    ck.open = true;
    ck.canary = NULL;
    ck.skipped = NULL;
    ck.failures = ck.printed = 0;
    ck.caps = 0;
    ck.threads = 1;
    /* The generator starts from the seed and the name, so a case alone sees the numbers it saw in the whole run. */
    ck.rng = ck_set_up.seed;
    for (const char *c = ck.name; *c != 0; c++)
        ck.rng = (ck.rng ^ (unsigned char)*c) * 0x100000001B3ull; /* FNV-1a */
    ck.aligned = ck_random() % 3 == 0 || strstr(ck.name, "bench") != NULL; /* timed: as the engine's arrays are */
    return true;
}

void ck_canary(dsc_kernel_fn fn)
{
    DSC_ASSERT(ck.open);
    ck.canary = fn;
}

uint32_t ck_caps(void) { return ck.caps; }
bool ck_on_gpu(void) { return (ck.caps & CK_GPU) != 0; }
void ck_variant_set(uint32_t caps) { ck.caps = caps; }
bool ck_benching(void) { return ck_set_up.bench; }
int64_t ck_bench_size(int64_t on_cpu, int64_t on_gpu) { return ck_set_up.gpu ? on_gpu : on_cpu; }

/* splitmix64 (Steele, Lea, Flood 2014) */
uint32_t ck_random(void)
{
    uint64_t z = (ck.rng += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return (uint32_t)((z ^ (z >> 31)) >> 32);
}

/* ---- buffers ---- */

static void *must(void *ptr)
{
    if (ptr == NULL) {
        printf("Bail out! no memory for a test buffer\n");
        exit(1);
    }
    return ptr;
}

void ck_align(void) { ck.aligned = true; }

void *ck_buf(ck_role role, dsc_dtype dtype, int64_t count, const char *name)
{
    DSC_ASSERT(ck.open);
    DSC_ASSERT(ck.buf_count < CK_BUFS_MAX);
    ck_buffer *b = &ck.buf[ck.buf_count++];
    memset(b, 0, sizeof *b);
    b->role = role;
    b->dtype = dtype;
    b->count = count;
    b->bytes = count * (int64_t)dsc_dtype_bytes(dtype);
    snprintf(b->name, sizeof b->name, "%s", name);
    const bool aligned = ck.aligned || dtype == DSC_U8 || (ck_random() & 1) == 0;
    const size_t offset = aligned ? 0 : dsc_dtype_bytes(dtype);
    const size_t total = (size_t)b->bytes + 2 * RED_ZONE_BYTES + 64;
    b->block = must(aligned_alloc(64, (total + 63) / 64 * 64));
    memset(b->block, red_zone_byte, (total + 63) / 64 * 64);
    b->data = b->block + RED_ZONE_BYTES + offset;
    memset(b->data, 0xFF, (size_t)b->bytes);
    b->block_bytes = (int64_t)((total + 63) / 64 * 64);
    ck.data[b - ck.buf] = b->data;
    return b->data;
}

static ck_buffer *find(const void *data)
{
    for (int32_t i = 0; i < ck.buf_count; i++)
        if (ck.data[i] == data)
            return &ck.buf[i];
    dsc_assert_fail("pointer is a ck_buf", __FILE__, __LINE__);
}

void ck_gaps(const void *buf, int64_t rows, int64_t cols, int64_t stride)
{
    ck_buffer *b = find(buf);
    DSC_ASSERT((rows - 1) * stride + cols <= b->count);
    b->rows = rows;
    b->cols = cols;
    b->stride = stride;
}

#define F16_MOST 65504.0

static double get(dsc_dtype dtype, const char *data, int64_t i)
{
    switch (dtype) {
    case DSC_F32: { float x; memcpy(&x, data + 4 * i, 4); return x; }
    case DSC_BF16: { uint16_t x; memcpy(&x, data + 2 * i, 2); return dsc_f32_from_bf16(x); }
    case DSC_F16: { uint16_t x; memcpy(&x, data + 2 * i, 2); return dsc_f32_from_f16(x); }
    case DSC_F64: { double x; memcpy(&x, data + 8 * i, 8); return x; }
    case DSC_I32: { int32_t x; memcpy(&x, data + 4 * i, 4); return x; }
    case DSC_I64: { int64_t x; memcpy(&x, data + 8 * i, 8); return (double)x; }
    default: return (double)(unsigned char)data[i];
    }
}

double ck_get(const void *buf, int64_t i) { return get(find(buf)->dtype, buf, i); }
double ck_ref(const void *buf, int64_t i) { const ck_buffer *b = find(buf); return get(b->dtype, b->ref, i); }
double ck_start(const void *buf, int64_t i) { const ck_buffer *b = find(buf); return get(b->dtype, b->start, i); }

/* A finite number stays finite. */
void ck_set(const void *buf, int64_t i, double value)
{
    ck_buffer *b = find(buf);
    DSC_ASSERT(i >= 0 && i < b->count);
    if (b->dtype == DSC_F16 && isfinite(value))
        value = fmax(-F16_MOST, fmin(F16_MOST, value));
    const float f = (float)value;
    switch (b->dtype) {
    case DSC_F32: memcpy(b->data + 4 * i, &f, 4); break;
    case DSC_BF16: { const uint16_t h = dsc_bf16_from_f32(f); memcpy(b->data + 2 * i, &h, 2); break; }
    case DSC_F16: { const uint16_t h = dsc_f16_from_f32(f); memcpy(b->data + 2 * i, &h, 2); break; }
    case DSC_F64: memcpy(b->data + 8 * i, &value, 8); break;
    case DSC_I32: { const int32_t x = (int32_t)value; memcpy(b->data + 4 * i, &x, 4); break; }
    default: DSC_ASSERT(!"a dtype that ck_set knows");
    }
}

const char *ck_dtype_text(dsc_dtype dtype)
{
    return dtype == DSC_BF16 ? "bf16" : dtype == DSC_F16 ? "f16" : "f32";
}

static double unit(void) { return (ck_random() + 0.5) / 4294967296.0; } /* (0, 1) */

void ck_uniform(const void *buf, double low, double high)
{
    const int64_t count = find(buf)->count;
    for (int64_t i = 0; i < count; i++)
        ck_set(buf, i, low + (high - low) * unit());
}

void ck_normal(const void *buf, double mean, double std)
{
    const int64_t count = find(buf)->count;
    for (int64_t i = 0; i < count; i++)
        ck_set(buf, i, mean + std * sqrt(-2 * log(unit())) * cos(6.283185307179586 * unit()));
}

void ck_int(const void *buf, int32_t low, int32_t high)
{
    const int64_t count = find(buf)->count;
    for (int64_t i = 0; i < count; i++)
        ck_set(buf, i, low + (double)(ck_random() % (uint32_t)(high - low + 1)));
}

void ck_edges(const void *buf)
{
    static const double edge[] = {
        0, -0.0, 1e-40, -1e-45, 0x1p-126, 0x1p-133, 1, -2, 1e30, -1e30, 0x1p-24, 65536, 3e-39
    };
    const int64_t count = find(buf)->count;
    for (int64_t i = 0; i < count; i++)
        if (ck_random() % 16 == 0)
            ck_set(buf, i, edge[ck_random() % DSC_COUNT(edge)]);
}

double ck_spacing(dsc_dtype dtype, double x)
{
    const int digits = dtype == DSC_BF16 ? 8 : dtype == DSC_F16 ? 11 : 24, least = dtype == DSC_F16 ? -13 : -125;
    int exponent;
    frexp(x, &exponent); /* |x| in [2^(e-1), 2^e) */
    if (x == 0 || exponent < least)
        exponent = least;
    return ldexp(1, exponent - digits);
}

double ck_rounding(dsc_dtype dtype, double x) { return dtype == DSC_F32 ? 0 : 0.5001 * ck_spacing(dtype, x); }

/* ---- one run ---- */

static void restore(void)
{
    for (int32_t i = 0; i < ck.buf_count; i++) {
        ck_buffer *b = &ck.buf[i];
        if (b->role == CK_OUT || b->role == CK_SCRATCH)
            memset(b->data, 0xFF, (size_t)b->bytes);
        else
            memcpy(b->data, b->start, (size_t)b->bytes);
    }
}

static bool is_output(const ck_buffer *b) { return b->role == CK_OUT || b->role == CK_INOUT; }

static void check_guards(const ck_buffer *b)
{
    const unsigned char *low = (const unsigned char *)b->block;
    const unsigned char *high = (const unsigned char *)b->data + b->bytes;
    for (const unsigned char *p = low; p < (const unsigned char *)b->data; p++)
        if (*p != red_zone_byte) {
            ck_fail("%s: written %td bytes before its start", b->name, (const unsigned char *)b->data - p);
            break;
        }
    for (int32_t i = 0; i < RED_ZONE_BYTES; i++)
        if (high[i] != red_zone_byte) {
            ck_fail("%s: written %d bytes after its end", b->name, i);
            break;
        }
    if (b->role == CK_IN && memcmp(b->data, b->start, (size_t)b->bytes) != 0)
        ck_fail("%s: an input was changed", b->name);
    const int64_t each = (int64_t)dsc_dtype_bytes(b->dtype);
    for (int64_t r = 0; r + 1 < b->rows; r++) {
        const int64_t at = (r * b->stride + b->cols) * each;
        if (memcmp(b->data + at, b->start + at, (size_t)((b->stride - b->cols) * each)) != 0) {
            ck_fail("%s: written between rows %lld and %lld", b->name, (long long)r, (long long)r + 1);
            break;
        }
    }
}

static void compare_bits(const ck_buffer *b, const char *expected, const char *what)
{
    if (memcmp(b->data, expected, (size_t)b->bytes) == 0)
        return;
    const size_t each = dsc_dtype_bytes(b->dtype);
    for (int64_t i = 0; i < b->count; i++)
        if (memcmp(b->data + (size_t)i * each, expected + (size_t)i * each, each) != 0) {
            ck_fail("%s[%lld] = %.9g, expected %.9g: bits differ from %s", b->name, (long long)i,
                    get(b->dtype, b->data, i), get(b->dtype, expected, i), what);
            return;
        }
}

bool ck_has_ref_bits(const void *buf)
{
    const ck_buffer *b = find(buf);
    return memcmp(b->data, b->ref, (size_t)b->bytes) == 0;
}

void ck_same(const void *buf)
{
    const ck_buffer *b = find(buf);
    compare_bits(b, b->ref, "the reference");
}

void ck_same_on_cpu(const void *buf)
{
    if (!ck_on_gpu())
        ck_same(buf);
}

void ck_near(const void *buf, int64_t i, double expected, double tol)
{
    const double got = ck_get(buf, i);
    const bool beyond = find(buf)->dtype == DSC_F16 && fabs(expected) + tol >= F16_MOST + 16; /* half a step */
    if (beyond && isinf(got) && (got > 0) == (expected > 0))
        return;
    if (!(fabs(got - expected) <= tol) && !(got == expected))
        ck_fail("%s[%lld] = %.9g, expected %.9g: off by %.3g, allowed %.3g", find(buf)->name, (long long)i, got,
                expected, fabs(got - expected), tol);
}

void ck_near_ref(const void *buf, double tol_relative, double tol_absolute)
{
    const ck_buffer *b = find(buf);
    for (int64_t i = 0; i < b->count; i++) {
        const double expected = get(b->dtype, b->ref, i);
        const bool gap = b->rows > 0 && (i / b->stride >= b->rows || i % b->stride >= b->cols);
        if (!gap && !(isnan(expected) && isnan(get(b->dtype, b->data, i))))
            ck_near(buf, i, expected, tol_absolute + tol_relative * fabs(expected));
    }
}

/* ---- the walk ---- */

static bool run_once(dsc_kernel_fn fn, const void *args, int32_t threads)
{
    const dsc_cpu_threads pool = { .threads = threads, .caps = ck.caps, .gemm = ck_gemm_store(ck.caps) };
    dsc_error err = DSC_ERROR_INIT;
    ck.threads = threads;
    restore();
    const dsc_status status = fn(args, &pool, &err);
    if (status != DSC_OK)
        ck_fail("status %s: %s", dsc_status_text(status), err.message);
    for (int32_t i = 0; i < ck.buf_count; i++)
        check_guards(&ck.buf[i]);
    return status == DSC_OK;
}

/* Whether the last variant that passed had the same bits: their double sums need not be added up again. */
static bool has_passed_bits(void)
{
    for (int32_t i = 0; i < ck.buf_count && ck.has_passed; i++) {
        const ck_buffer *b = &ck.buf[i];
        if (is_output(b) && memcmp(b->data, b->passed, (size_t)b->bytes) != 0)
            return false;
    }
    return ck.has_passed;
}

static void verify_variant(const void *args, ck_verify_fn verify)
{
    const int64_t before = ck.failures;
    if (has_passed_bits())
        return;
    verify(args);
    if (ck.failures != before)
        return;
    ck.has_passed = true;
    for (int32_t i = 0; i < ck.buf_count; i++)
        memcpy(ck.buf[i].passed, ck.buf[i].data, (size_t)ck.buf[i].bytes);
}

static void run_variant(dsc_kernel_fn fn, const void *args, ck_verify_fn verify)
{
    const bool all = ck.caps != 0 || getenv("DSC_TEST_NIGHT") != NULL;
    for (size_t t = 0; t < DSC_COUNT(thread_counts) && (all || t < COUNTS_OF_REFERENCE); t++) {
        if (!run_once(fn, args, thread_counts[t]))
            return;
        for (int32_t i = 0; i < ck.buf_count; i++) {
            ck_buffer *b = &ck.buf[i];
            if (t == 0)
                memcpy(b->first, b->data, (size_t)b->bytes);
            else if (is_output(b))
                compare_bits(b, b->first, "1 thread");
        }
    }
    ck.threads = 1;
    for (int32_t i = 0; i < ck.buf_count; i++) {
        ck_buffer *b = &ck.buf[i];
        memcpy(b->data, b->first, (size_t)b->bytes);
        if (ck.caps == 0)
            memcpy(b->ref, b->first, (size_t)b->bytes);
    }
    if (verify != NULL) {
        verify_variant(args, verify);
        return;
    }
    for (int32_t i = 0; i < ck.buf_count; i++)
        if (is_output(&ck.buf[i]))
            ck_same(ck.buf[i].data);
}

/* ---- the GPU's walk ---- */

int32_t ck_spans(ck_span span[CK_BUFS_MAX])
{
    for (int32_t i = 0; i < ck.buf_count; i++)
        span[i] = (ck_span){ ck.buf[i].block, ck.buf[i].block_bytes };
    return ck.buf_count;
}

/* Runs with different schedules give the same bits. */
static bool run_gpu(dsc_kernel kernel, const void *args, int64_t args_bytes)
{
    for (int32_t r = 0; r < GPU_RUNS; r++) {
        restore();
        if (!ck_device_run(kernel, args, args_bytes, r))
            return false;
        for (int32_t i = 0; i < ck.buf_count; i++) {
            ck_buffer *b = &ck.buf[i];
            check_guards(b);
            if (r == 0)
                memcpy(b->first, b->data, (size_t)b->bytes);
            else if (is_output(b))
                compare_bits(b, b->first, "the first run");
        }
    }
    return true;
}

static void check_gpu(dsc_kernel kernel, const void *args, int64_t args_bytes, ck_verify_fn verify)
{
    const int64_t before = ck.failures;
    dsc_kernel_table table;
    ck.caps = 0;
    dsc_kernel_table_init(&table, 0);
    (void)run_once(table.fn[kernel], args, 1);
    for (int32_t i = 0; i < ck.buf_count; i++)
        memcpy(ck.buf[i].ref, ck.buf[i].data, (size_t)ck.buf[i].bytes);
    ck.caps = GPU_CAPS;
    ck.printed = 0;
    if (!run_gpu(kernel, args, args_bytes))
        return;
    if (verify != NULL)
        verify(args);
    for (int32_t i = 0; verify == NULL && i < ck.buf_count; i++)
        if (is_output(&ck.buf[i]))
            ck_same(ck.buf[i].data);
    if (ck.failures != before)
        ck.failed[kernel][0] = true;
}

void ck_run(dsc_kernel kernel, uint32_t caps, const void *args, int64_t args_bytes)
{
    dsc_kernel_table table;
    dsc_error err = DSC_ERROR_INIT;
    if ((caps & CK_GPU) != 0) {
        (void)ck_device_run(kernel, args, args_bytes, 0);
        return;
    }
    const dsc_cpu_threads pool = { .threads = 2, .caps = caps, .gemm = ck_gemm_store(caps) };
    dsc_kernel_table_init(&table, caps);
    if (table.fn[kernel](args, &pool, &err) != DSC_OK)
        ck_fail("%s", err.message);
}

static void poison_gaps(const ck_buffer *b)
{
    const int64_t each = (int64_t)dsc_dtype_bytes(b->dtype);
    for (int64_t r = 0; r + 1 < b->rows; r++)
        memset(b->data + (r * b->stride + b->cols) * each, 0xFF, (size_t)((b->stride - b->cols) * each));
}

void ck_kernel(dsc_kernel kernel, const void *args, int64_t args_bytes, ck_verify_fn verify)
{
    DSC_ASSERT(ck.open);
    DSC_ASSERT(args_bytes <= 256); /* DSC_LAUNCH_ARGS_MAX */
    for (int32_t i = 0; i < ck.buf_count; i++) {
        ck_buffer *b = &ck.buf[i];
        if (b->role == CK_OUT)
            memset(b->data, 0xFF, (size_t)b->bytes);
        poison_gaps(b);
        if (b->start == NULL) {
            b->start = must(malloc((size_t)b->bytes + 1));
            b->first = must(malloc((size_t)b->bytes + 1));
            b->ref = must(malloc((size_t)b->bytes + 1));
            b->passed = must(malloc((size_t)b->bytes + 1));
        }
        memcpy(b->start, b->data, (size_t)b->bytes);
    }
    ck.has_passed = false;
    if (ck_set_up.gpu) {
        check_gpu(kernel, args, args_bytes, verify);
        return;
    }
    for (int32_t v = 0; v < CK_VARIANTS; v++) {
        if (!ck_variant_runs(v, kernel))
            continue;
        const int64_t before = ck.failures;
        dsc_kernel_table table;
        ck.caps = ck_variants[v].caps;
        ck.printed = 0;
        dsc_kernel_table_init(&table, ck.caps);
        if (ck.canary != NULL)
            run_variant(ck.canary, args, verify);
        else if (table.fn[kernel] == NULL)
            ck_fail("%s has no function in the table", dsc_kernel_text(kernel));
        else
            run_variant(table.fn[kernel], args, verify);
        if (ck.failures != before && ck.canary == NULL)
            ck.failed[kernel][v] = true;
    }
}

bool ck_may_bench(dsc_kernel kernel, int32_t variant)
{
    if (!ck_variant_runs(variant, kernel))
        return false;
    if (ck.failed[kernel][variant])
        ck_fail("%s of %s failed its check and is not timed", ck_variants[variant].name, dsc_kernel_text(kernel));
    return !ck.failed[kernel][variant];
}

const char *ck_case_name(void) { return ck.name; }
