/* ck_device.c - runs kernels on a GPU, real or simulated, in the place of the CPU's variants: checkkern --device cuda.
 *
 * A case's buffers are host memory. For a run each buffer is mirrored on the device, including red zones, with its
 * offset from a multiple of 64 bytes. Every pointer into a buffer in the kernel's argument struct is replaced by the
 * mirror's. So op files are the same for CPU and GPU. SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/ck_internal.h"

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/device.h"

enum { LEAVES_MAX = 64, BENCH_RUNS = 9, FLUSH_BYTES = 256 << 20, PEAK_BYTES = 1 << 30 };

typedef void (*schedule_fn)(uint64_t seed, int policy); /* cusim_set_schedule: tests/sim/cusim.h */

/* A test program may have globals. */
static struct {
    dsc_alloc *alloc;
    dsc_device *device;
    dsc_stream *stream;
    dsc_device_props props;
    schedule_fn schedule; /* NULL: a real GPU */
    dsc_buf mirror[CK_BUFS_MAX];
    double peak_bytes_per_ns; /* measured when first asked for */
} gpu;

/* dlsym gives an object pointer for what is a function. */
static schedule_fn find_schedule(void)
{
    void *found = dlsym(RTLD_DEFAULT, "cusim_set_schedule");
    schedule_fn fn;
    memcpy(&fn, &found, sizeof fn);
    return fn;
}

bool ck_wants_cudnn(void) { return getenv("CK_CUDNN") != NULL; }

bool ck_device_is_simulated(void) { return find_schedule() != NULL; }

bool ck_shortened(void) { return ck_set_up.gpu && ck_device_is_simulated() && getenv("DSC_TEST_NIGHT") == NULL; }

bool ck_device_open(dsc_error *err)
{
    const dsc_device_ops *ops;
    int32_t count = 0;
    gpu.schedule = find_schedule();
    if (dsc_alloc_open(&gpu.alloc, err) != DSC_OK || dsc_device_find("cuda", &ops, &count, err) != DSC_OK)
        return false;
    const dsc_device_options options = { .alloc = gpu.alloc,
                                         .threads = 1,
                                         .attention = ck_wants_cudnn() ? DSC_CUDNN_ALWAYS : DSC_CUDNN_NEVER,
                                         .convolutions = DSC_CUDNN_ALWAYS };
    if (dsc_device_open(ops, &gpu.device, &options, err) != DSC_OK ||
        dsc_stream_open(gpu.device, DSC_STREAM_COMPUTE, "compute", &gpu.stream, err) != DSC_OK)
        return false;
    dsc_device_props_get(gpu.device, &gpu.props);
    return true;
}

void ck_device_close(void)
{
    if (gpu.stream != NULL)
        dsc_stream_close(&gpu.stream);
    if (gpu.device != NULL)
        dsc_device_close(&gpu.device);
    if (gpu.alloc != NULL)
        dsc_alloc_close(&gpu.alloc);
}

void ck_device_describe(char *text, size_t text_bytes)
{
    snprintf(text, text_bytes, "%s, sm_%d, %d multiprocessors, %s", gpu.props.name, (int)gpu.props.arch,
             (int)gpu.props.multiprocessors, gpu.props.versions);
}

/* ---- mirrors ---- */

static dsc_status open_mirrors(const ck_span *span, int32_t count, dsc_error *err)
{
    for (int32_t i = 0; i < count; i++) {
        DSC_TRY(dsc_mem_open(gpu.device, DSC_TAG_SCRATCH, DSC_TIER_DEVICE, span[i].bytes, &gpu.mirror[i], err));
        DSC_TRY(dsc_copy(gpu.stream, gpu.mirror[i].ptr, span[i].block, span[i].bytes, err));
    }
    return DSC_OK;
}

static void close_mirrors(void)
{
    for (int32_t i = 0; i < CK_BUFS_MAX; i++)
        if (gpu.mirror[i].ptr != NULL)
            dsc_mem_close(gpu.device, &gpu.mirror[i]);
}

static const void *translate(const void *p, const ck_span *span, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        if ((const char *)p >= span[i].block && (const char *)p < span[i].block + span[i].bytes)
            return (const char *)gpu.mirror[i].ptr + ((const char *)p - span[i].block);
    return p;
}

/* The kernel's arguments with device pointers. Pointers are aligned words in the struct; a count that looks like an
 * address of a buffer does not happen. */
typedef struct device_args {
    _Alignas(16) unsigned char bytes[DSC_LAUNCH_ARGS_MAX];
    const void *leaf_ptr[LEAVES_MAX]; /* ORDERED_REDUCE's list stays on the host: the launch reads it */
} device_args;

static void translate_args(device_args *to, dsc_kernel kernel, const void *args, int64_t args_bytes,
                           const ck_span *span, int32_t count)
{
    memset(to->bytes, 0, sizeof to->bytes);
    memcpy(to->bytes, args, (size_t)args_bytes);
    for (int64_t at = 0; at + 8 <= args_bytes; at += 8) {
        const void *p;
        memcpy(&p, to->bytes + at, sizeof p);
        p = translate(p, span, count);
        memcpy(to->bytes + at, &p, sizeof p);
    }
    dsc_ordered_reduce_args reduce;
    if (kernel != DSC_KERNEL_ORDERED_REDUCE)
        return;
    memcpy(&reduce, to->bytes, sizeof reduce);
    if (reduce.leaf_ptr == NULL)
        return;
    DSC_ASSERT(reduce.grad_part_count <= LEAVES_MAX);
    for (int64_t k = 0; k < reduce.grad_part_count; k++)
        to->leaf_ptr[k] = translate(reduce.leaf_ptr[k], span, count);
    reduce.leaf_ptr = to->leaf_ptr;
    memcpy(to->bytes, &reduce, sizeof reduce);
}

static dsc_status run(dsc_kernel kernel, const void *args, int64_t args_bytes, const ck_span *span, int32_t count,
                      dsc_error *err)
{
    device_args on_device;
    DSC_TRY(open_mirrors(span, count, err));
    translate_args(&on_device, kernel, args, args_bytes, span, count);
    DSC_TRY(dsc_launch(gpu.stream, kernel, on_device.bytes, args_bytes, err));
    DSC_TRY(dsc_stream_sync(gpu.stream, err));
    for (int32_t i = 0; i < count; i++)
        DSC_TRY(dsc_copy(gpu.stream, span[i].block, gpu.mirror[i].ptr, span[i].bytes, err));
    return dsc_stream_sync(gpu.stream, err);
}

bool ck_device_run(dsc_kernel kernel, const void *args, int64_t args_bytes, int32_t number)
{
    ck_span span[CK_BUFS_MAX];
    const int32_t count = ck_spans(span);
    dsc_error err = DSC_ERROR_INIT;
    if (gpu.schedule != NULL) /* blocks, warps and lanes in another order each time */
        gpu.schedule(ck_set_up.seed * 1000 + (uint64_t)number, 0);
    const dsc_status status = run(kernel, args, args_bytes, span, count, &err);
    if (status != DSC_OK)
        ck_fail("status %s: %s", dsc_status_text(status), err.message);
    close_mirrors();
    return status == DSC_OK;
}

/* ---- which kernel ---- */

/* Every line of a choice of attention kernels says `kind` now. */
static void choose_in_text(char *text, int64_t room, const char *kind)
{
    for (char *at = text; (at = strstr(at, "\nattention ")) != NULL;) {
        char *const choice = strstr(at, " by ") + 4, *const end = strchr(choice, '\n');
        const size_t rest = strlen(end) + 1, length = strlen(kind);
        DSC_ASSERT(choice + length + rest <= text + room);
        memmove(choice + length, end, rest);
        memcpy(choice, kind, length);
        at = choice;
    }
}

/* The plans of `text` with another kind; true: a pass of the shape takes it. `text` becomes what the plans are then. */
static bool set_choice(char *text, int64_t room, const char *kind, const char *shape)
{
    int64_t bytes, others;
    dsc_error err = DSC_ERROR_INIT;
    choose_in_text(text, room, kind);
    if (dsc_gemm_plans_set(gpu.device, text, &others, &err) != DSC_OK ||
        dsc_gemm_plans_get(gpu.device, text, room, &bytes, &err) != DSC_OK)
        ck_fail("choosing a kernel: %s", err.message);
    bool taken = false;
    for (const char *line = strstr(text, shape); line != NULL; line = strstr(line + 1, shape)) {
        const char *const end = strchr(line, '\n'), *const by = strstr(line, " by ");
        taken = taken || (by != NULL && by < end && strncmp(by + 4, kind, strlen(kind)) == 0);
    }
    return taken;
}

bool ck_device_choose_attention(const dsc_attention_fwd_args *args, const char *kind)
{
    static char text[1 << 18];
    char shape[256], v_stride[24] = "";
    int64_t bytes;
    dsc_error err = DSC_ERROR_INIT;
    if (dsc_attention_prepare(gpu.device, args, &err) != DSC_OK ||
        dsc_gemm_plans_get(gpu.device, text, sizeof text, &bytes, &err) != DSC_OK ||
        bytes >= (int64_t)sizeof text / 2) {
        ck_fail("choosing a kernel: %s", err.message);
        return false;
    }
    if (strstr(text, "\nattention ") == NULL)
        return false;
    if (args->v_stride != args->k_stride)
        snprintf(v_stride, sizeof v_stride, "/%lld", (long long)args->v_stride);
    snprintf(shape, sizeof shape, " %dx%d heads %d/%d of %d ld %lld,%lld%s,%lld,", (int)args->batch, (int)args->tokens,
             (int)args->heads, (int)args->kv_heads, (int)args->head_size, (long long)args->q_stride,
             (long long)args->k_stride, v_stride, (long long)args->out_stride);
    if (strstr(text, shape) == NULL) {
        if (strcmp(kind, "cudnn") != 0)
            ck_fail("this device has no choice of kernels for the shape");
        return false;
    }
    const bool taken = set_choice(text, sizeof text, kind, shape);
    if (!taken)
        (void)set_choice(text, sizeof text, "warps", shape);
    return taken;
}

bool ck_device_choose_conv2d(const dsc_conv2d_args *args)
{
    dsc_gemm_measured found;
    dsc_error err = DSC_ERROR_INIT;
    if (dsc_conv2d_prepare(gpu.device, args, &err) == DSC_OK &&
        dsc_gemm_measure(gpu.stream, DSC_GEMM_FIRST, 0, &found, &err) == DSC_OK)
        return dsc_conv2d_is_whole(gpu.stream, args);
    ck_fail("choosing a kernel: %s", err.message);
    return false;
}

bool ck_device_fuse(uint32_t fused)
{
    if (gpu.device != NULL)
        dsc_gemm_fuse(gpu.device, fused);
    return gpu.device != NULL;
}

/* ---- times ---- */

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The timed work: rounds of a fill of the L2 cache with other data and, with `kernel`, the kernel. */
typedef struct timed {
    dsc_kernel kernel;
    const void *args;
    int64_t args_bytes;
    dsc_buf flush;
} timed;

static dsc_status rounds_ns(const timed *t, bool with_kernel, int32_t rounds, double *ns, dsc_error *err)
{
    DSC_TRY(dsc_stream_sync(gpu.stream, err));
    const double start = ck_now_ns();
    for (int32_t i = 0; i < rounds; i++) {
        DSC_TRY(dsc_fill_zero(gpu.stream, t->flush.ptr, t->flush.bytes, err));
        if (with_kernel)
            DSC_TRY(dsc_launch(gpu.stream, t->kernel, t->args, t->args_bytes, err));
    }
    DSC_TRY(dsc_stream_sync(gpu.stream, err));
    *ns = (ck_now_ns() - start) / rounds;
    return DSC_OK;
}

/* Median of BENCH_RUNS differences between rounds with and without the kernel, each long enough for the clock. */
static dsc_status median_ns(const timed *t, double *out, dsc_error *err)
{
    double with = 0, without = 0, sample[BENCH_RUNS];
    DSC_TRY(rounds_ns(t, true, 2, &with, err));
    const int32_t rounds = with > 2e7 ? 1 : (int32_t)(2e7 / with) + 1;
    for (int32_t i = 0; i < BENCH_RUNS; i++) {
        DSC_TRY(rounds_ns(t, false, rounds, &without, err));
        DSC_TRY(rounds_ns(t, true, rounds, &with, err));
        sample[i] = with - without;
    }
    qsort(sample, BENCH_RUNS, sizeof sample[0], by_value);
    *out = sample[BENCH_RUNS / 2];
    return DSC_OK;
}

/* Read and written bytes of the fastest copy inside device memory. */
static double peak_bytes_per_ns(void)
{
    dsc_error err = DSC_ERROR_INIT;
    dsc_buf a = { 0 }, b = { 0 };
    if (gpu.peak_bytes_per_ns > 0)
        return gpu.peak_bytes_per_ns;
    dsc_status status = dsc_mem_open(gpu.device, DSC_TAG_SCRATCH, DSC_TIER_DEVICE, PEAK_BYTES, &a, &err);
    if (status == DSC_OK)
        status = dsc_mem_open(gpu.device, DSC_TAG_SCRATCH, DSC_TIER_DEVICE, PEAK_BYTES, &b, &err);
    double best = INFINITY;
    for (int32_t i = 0; status == DSC_OK && i < BENCH_RUNS; i++) {
        const double start = ck_now_ns();
        for (int32_t k = 0; status == DSC_OK && k < 4; k++)
            status = dsc_copy(gpu.stream, a.ptr, b.ptr, PEAK_BYTES, &err);
        if (status == DSC_OK)
            status = dsc_stream_sync(gpu.stream, &err);
        best = fmin(best, (ck_now_ns() - start) / 4);
    }
    dsc_mem_close(gpu.device, &a);
    dsc_mem_close(gpu.device, &b);
    gpu.peak_bytes_per_ns = status == DSC_OK ? 2.0 * PEAK_BYTES / best : INFINITY;
    return gpu.peak_bytes_per_ns;
}

static dsc_status bench(dsc_kernel kernel, const void *args, int64_t args_bytes, double *ns, dsc_error *err)
{
    ck_span span[CK_BUFS_MAX];
    device_args on_device;
    const int32_t count = ck_spans(span);
    timed t = { .kernel = kernel, .args = on_device.bytes, .args_bytes = args_bytes };
    DSC_TRY(open_mirrors(span, count, err));
    translate_args(&on_device, kernel, args, args_bytes, span, count);
    DSC_TRY(dsc_mem_open(gpu.device, DSC_TAG_SCRATCH, DSC_TIER_DEVICE, FLUSH_BYTES, &t.flush, err));
    const dsc_status status = median_ns(&t, ns, err);
    dsc_mem_close(gpu.device, &t.flush);
    return status;
}

void ck_device_bench(dsc_kernel kernel, const void *args, int64_t args_bytes, int64_t bytes, int64_t flops, bool f32)
{
    double ns = 0;
    dsc_error err = DSC_ERROR_INIT;
    if (gpu.schedule != NULL)
        return; /* a simulator's times say nothing */
    const dsc_status status = bench(kernel, args, args_bytes, &ns, &err);
    close_mirrors();
    if (status != DSC_OK) {
        ck_fail("it failed while it was timed: %s", err.message);
        return;
    }
    printf("# %-44s cuda %12.0f ns", ck_case_name(), ns);
    if (bytes > 0)
        printf("  %8.1f GB/s %3.0f %% of copy", (double)bytes / ns, 100 * (double)bytes / ns / peak_bytes_per_ns());
    if (bytes > 0 && gpu.props.peak_bytes > 0)
        printf(" %3.0f %% of %.0f", 100 * (double)bytes / ns * 1e9 / gpu.props.peak_bytes, gpu.props.peak_bytes / 1e9);
    if (flops > 0)
        printf("  %8.2f TFLOP/s", (double)flops / ns / 1000);
    if (flops > 0 && gpu.props.peak_flops > 0 && !f32)
        printf(" %3.0f %% of %.0f", 100 * (double)flops / ns * 1e9 / gpu.props.peak_flops,
               gpu.props.peak_flops / 1e12);
    printf("\n");
    fflush(stdout);
}
