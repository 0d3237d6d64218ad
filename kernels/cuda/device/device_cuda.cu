/* device_cuda.cu - one GPU as a device: finding it, opening it, what it is, and how its failures read.
 *
 * CUDA's current device belongs to a thread, and an engine may be driven by any, so every call of this backend sets it
 * first. A failure of the GPU is the whole context's: the first one is kept and comes out of every later call.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/device/device_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/attention/attention_plan.h"
#include "kernels/cuda/conv2d/conv2d_plan.h"
#include "kernels/cuda/grouped_gemm_sm90.h"
#include "kernels/cuda/gemm/gemm_cublaslt.h"
#include "kernels/cuda_plugin.h"

#define ARCH_LEAST 80 /* bf16 products and cp.async; cuda.mk says for which cards machine code is built */

/* ---- failures ---- */

static bool leaves_device_usable(cudaError_t error)
{
    return error == cudaErrorMemoryAllocation || error == cudaErrorInvalidValue;
}

dsc_status dsc_cuda_refused(const cuda_device *device, cudaError_t error, const char *what, dsc_error *err)
{
    (void)cudaGetLastError();
    if (error == cudaErrorMemoryAllocation)
        return DSC_FAIL(err, DSC_ERR_NOMEM, "memory", "GPU %d (%s) is out of memory: %s", device->index, device->name,
                        what);
    if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "dsc.device",
                        "GPU %d (%s) is sm_%d and this build has no kernels that it can run (%s): %s", device->index,
                        device->name, device->arch, cudaGetErrorString(error), what);
    return DSC_FAIL(err, DSC_ERR_DEVICE, "dsc.device", "GPU %d (%s) failed: %s: %s", device->index, device->name, what,
                    cudaGetErrorString(error));
}

void dsc_cuda_note_failure(cuda_device *device, const dsc_error *why)
{
    pthread_mutex_lock(&device->lock);
    if (!device->failed)
        device->error = *why;
    device->failed = true;
    pthread_mutex_unlock(&device->lock);
}

dsc_status dsc_cuda_check(cuda_device *device, cudaError_t error, const char *what, dsc_error *err)
{
    if (error == cudaSuccess)
        return DSC_OK;
    dsc_error why = DSC_ERROR_INIT;
    const dsc_status status = dsc_cuda_refused(device, error, what, &why);
    if (!leaves_device_usable(error))
        dsc_cuda_note_failure(device, &why);
    if (err != NULL)
        *err = why;
    return status;
}

dsc_status dsc_cuda_enter(cuda_device *device, dsc_error *err)
{
    pthread_mutex_lock(&device->lock);
    const bool failed = device->failed;
    if (failed && err != NULL)
        *err = device->error;
    const dsc_status status = failed ? device->error.status : DSC_OK;
    pthread_mutex_unlock(&device->lock);
    return failed ? status : dsc_cuda_check(device, cudaSetDevice(device->index), "cudaSetDevice", err);
}

/* ---- finding ---- */

/* Number of cards, from the first on, that this build has code for. CUDA gives the fastest cards the first numbers,
 * and an old one for the screen a late one. */
static dsc_status usable(int32_t found, int32_t *count, dsc_error *err)
{
    cudaDeviceProp prop;
    char name[96] = "GPU";
    int major = 0, minor = 0;
    for (*count = 0; *count < found; ++*count) {
        const cudaError_t error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, *count);
        if (error != cudaSuccess ||
            cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, *count) != cudaSuccess) {
            (void)cudaGetLastError();
            return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "dsc.device", "\"cuda\": GPU %d does not say what it is: %s",
                            *count, cudaGetErrorString(error));
        }
        if (major * 10 + minor < ARCH_LEAST)
            break;
    }
    if (*count > 0)
        return DSC_OK;
    if (cudaGetDeviceProperties(&prop, 0) == cudaSuccess)
        snprintf(name, sizeof name, "%.90s", prop.name);
    (void)cudaGetLastError();
    dsc_text_printable(name);
    return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "dsc.device",
                    "\"cuda\": GPU 0 (%s) is sm_%d; sm_%d or newer is needed (A100, H100, RTX 30 and later)", name,
                    major * 10 + minor, ARCH_LEAST);
}

static dsc_status cuda_count(int32_t *count, dsc_error *err)
{
    int found = 0;
    const cudaError_t error = cudaGetDeviceCount(&found);
    (void)cudaGetLastError();
    if (error == cudaErrorInsufficientDriver)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "dsc.device",
                        "\"cuda\": the GPU driver is older than this build's CUDA runtime; install a newer driver");
    if (error != cudaSuccess && error != cudaErrorNoDevice)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "dsc.device", "\"cuda\": %s", cudaGetErrorString(error));
    if (found < 1)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "dsc.device",
                        "\"cuda\": no GPU here, or CUDA_VISIBLE_DEVICES hides them");
    DSC_TRY(usable(found, count, err));
    return dsc_cuda_gemm_library(NULL, 0, err);
}

/* A slice of a card that MIG divides has the card's name and then its own: "NVIDIA H100 80GB HBM3 MIG 1g.10gb". */
static bool is_slice(const char *name) { return strstr(name, " MIG ") != NULL; }

/* Dense bf16 products a second of the data sheets, for MFU. The longest name that fits counts. A slice has the share of
 * its multiprocessors; 0 for those whose whole card has an unknown number. */
static double peak_of(const char *name, int multiprocessors)
{
    static const struct { const char *part; double flops; int multiprocessors; } cards[] = {
        { "H100 PCIe", 756e12, 114 }, { "H100 NVL", 835e12, 132 }, { "H100", 989e12, 132 }, { "H200", 989e12, 132 },
        { "GH200", 989e12, 132 },     { "H800", 989e12, 132 },     { "H20", 148e12, 78 },   { "B200", 2250e12, 148 },
        { "A100", 312e12, 108 },      { "A800", 312e12, 108 },     { "A40", 150e12, 0 },    { "A30", 165e12, 56 },
        { "L40S", 362e12, 0 },        { "L4", 121e12, 0 },         { "RTX 4090", 165e12, 0 },
    };
    double flops = 0;
    size_t longest = 0;
    for (size_t i = 0; i < DSC_COUNT(cards); i++) {
        if (strstr(name, cards[i].part) == NULL || strlen(cards[i].part) <= longest)
            continue;
        longest = strlen(cards[i].part);
        flops = cards[i].flops;
        if (is_slice(name))
            flops *= cards[i].multiprocessors > 0 ? (double)multiprocessors / cards[i].multiprocessors : 0;
    }
    return flops;
}

/* Bytes a second between device memory and the chip: two transfers a clock. 0 where the driver does not tell. */
static double memory_peak_of(int index)
{
    int clock_khz = 0, bus_bits = 0;
    if (cudaDeviceGetAttribute(&clock_khz, cudaDevAttrMemoryClockRate, index) != cudaSuccess ||
        cudaDeviceGetAttribute(&bus_bits, cudaDevAttrGlobalMemoryBusWidth, index) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    return 2e3 * clock_khz * bus_bits / 8;
}

/* ---- opening ---- */

static dsc_status attribute(cuda_device *d, cudaDeviceAttr which, int *out, dsc_error *err)
{
    return dsc_cuda_check(d, cudaDeviceGetAttribute(out, which, d->index), "reading its attributes", err);
}

static dsc_status describe(cuda_device *d, dsc_error *err)
{
    cudaDeviceProp prop;
    int major = 0, minor = 0;
    DSC_TRY(dsc_cuda_check(d, cudaGetDeviceProperties(&prop, d->index), "reading its properties", err));
    snprintf(d->name, sizeof d->name, "%.90s", prop.name);
    dsc_text_printable(d->name);
    DSC_TRY(dsc_cuda_check(d, cudaDeviceGetPCIBusId(d->pci, sizeof d->pci, d->index), "reading its place", err));
    DSC_TRY(attribute(d, cudaDevAttrComputeCapabilityMajor, &major, err));
    DSC_TRY(attribute(d, cudaDevAttrComputeCapabilityMinor, &minor, err));
    DSC_TRY(attribute(d, cudaDevAttrMultiProcessorCount, &d->multiprocessors, err));
    DSC_TRY(attribute(d, cudaDevAttrMaxSharedMemoryPerBlockOptin, &d->shared_bytes, err));
    DSC_TRY(attribute(d, cudaDevAttrL2CacheSize, &d->l2_bytes, err));
    d->arch = major * 10 + minor;
    d->peak_flops = peak_of(d->name, d->multiprocessors);
    if (is_slice(d->name)) {
        d->pci[0] = 0; /* the card's sensors and bus width tell nothing of one slice */
        return DSC_OK;
    }
    d->peak_bytes = memory_peak_of(d->index);
    return DSC_OK;
}

/* Set when the plugin is loaded, since CUDA reads it at its first call. An engine has some ten streams; by default
 * they share 8 hardware queues, and a queue runs its work in order. */
__attribute__((constructor)) static void take_more_queues(void)
{
    (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

static const dsc_cuda_listed *kernels_first; /* filled while the plugin is loaded */

dsc_cuda_listed::dsc_cuda_listed(const void *which) : kernel(which), next(kernels_first) { kernels_first = this; }

/* By default CUDA loads a kernel at its first launch. That may wait for all work of the card, also for a collective
 * whose other rank waits for this one, and takes memory that no plan knows. Sources for one architecture have no code
 * for other cards, so only a card without any loaded kernel is an error. */
static dsc_status load_kernels(const cuda_device *d, dsc_error *err)
{
    cudaFuncAttributes attributes;
    cudaError_t refused = cudaErrorNoKernelImageForDevice;
    int64_t loaded = 0;
    for (const dsc_cuda_listed *k = kernels_first; k != NULL; k = k->next) {
        const cudaError_t error = cudaFuncGetAttributes(&attributes, k->kernel);
        if (error == cudaErrorMemoryAllocation)
            return dsc_cuda_refused(d, error, "loading its kernels", err);
        loaded += error == cudaSuccess;
        refused = error == cudaSuccess ? refused : error;
        (void)cudaGetLastError();
    }
    return loaded > 0 ? DSC_OK : dsc_cuda_refused(d, refused, "loading its kernels", err);
}

static dsc_status begin(cuda_device *d, const dsc_device_options *options, dsc_error *err)
{
    DSC_TRY(dsc_cuda_enter(d, err));
    DSC_TRY(describe(d, err));
    DSC_TRY(load_kernels(d, err));
    DSC_TRY(dsc_cuda_check(d, cudaStreamCreateWithFlags(&d->setup, cudaStreamNonBlocking), "opening a stream", err));
    char card[160];
    snprintf(card, sizeof card, "%s, sm_%d, %d multiprocessors", d->name, d->arch, d->multiprocessors);
    DSC_TRY(dsc_cuda_gemm_open(d->alloc, card, &d->gemm, err));
    d->grouped = d->arch == 90 && options->plans != DSC_GEMM_FIRST ? dsc_cuda_grouped_sm90_find() : NULL;
    DSC_TRY(dsc_cuda_conv2d_open(options, d->arch, &d->conv2d, err));
    return dsc_cuda_attention_open(options, d->arch, &d->attention, err);
}

static void cuda_close(dsc_device *device)
{
    cuda_device *d = (cuda_device *)device;
    DSC_ASSERT(d->stream_count == 0);
    DSC_ASSERT(d->event_count == 0);
    dsc_cuda_mem_close(&d->base, &d->cudnn_workspace);
    DSC_ASSERT(d->buffer_count == 0);
    (void)cudaSetDevice(d->index);
    dsc_cuda_attention_close(&d->attention);
    dsc_cuda_conv2d_close(&d->conv2d);
    dsc_cuda_gemm_close(&d->gemm);
    dsc_cuda_arena_close(d);
    if (d->setup != NULL && !d->hangs)
        (void)cudaStreamDestroy(d->setup);
    (void)cudaGetLastError();
    pthread_mutex_destroy(&d->lock);
    dsc_alloc_free(d->alloc, d);
}

static dsc_status cuda_open(dsc_device **out, const dsc_device_options *options, dsc_error *err)
{
    int32_t count = 0;
    cuda_device *d = NULL;
    DSC_TRY(cuda_count(&count, err));
    if (options->index < 0 || options->index >= count)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "dsc.device", "\"cuda\": GPU %d is asked for, and there are %d",
                        (int)options->index, (int)count);
    DSC_TRY(dsc_alloc_zeroed(options->alloc, DSC_TAG_CONTROL, 1, sizeof *d, &d, err));
    d->base.ops = &dsc_device_cuda;
    d->alloc = options->alloc;
    d->index = options->index;
    snprintf(d->name, sizeof d->name, "GPU");
    pthread_mutex_init(&d->lock, NULL); /* cannot fail with default attributes on Linux */
    const dsc_status status = begin(d, options, err);
    if (status != DSC_OK) {
        cuda_close(&d->base);
        return status;
    }
    *out = &d->base;
    return DSC_OK;
}

static void cuda_props(dsc_device *device, dsc_device_props *out)
{
    cuda_device *d = (cuda_device *)device;
    size_t free_bytes = 0, total_bytes = 0;
    int driver = 0;
    char library[64] = "";
    (void)cudaSetDevice(d->index);
    if (cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess)
        (void)cudaGetLastError();
    if (cudaDriverGetVersion(&driver) != cudaSuccess)
        (void)cudaGetLastError();
    (void)dsc_cuda_gemm_library(library, sizeof library, NULL);
    snprintf(out->name, sizeof out->name, "%s", d->name);
    out->index = d->index;
    out->arch = d->arch;
    out->multiprocessors = d->multiprocessors;
    out->free_bytes = (int64_t)free_bytes + (d->arena.bytes - d->arena.used);
    out->total_bytes = (int64_t)total_bytes;
    out->peak_flops = d->peak_flops;
    out->peak_bytes = d->peak_bytes;
    snprintf(out->pci, sizeof out->pci, "%s", d->pci);
    snprintf(out->versions, sizeof out->versions, "CUDA %d.%d, driver for %d.%d, %s", CUDART_VERSION / 1000,
             CUDART_VERSION % 1000 / 10, driver / 1000, driver % 1000 / 10, library);
}

static void cuda_watch(dsc_device *device, dsc_watch_fn fn, void *user)
{
    cuda_device *d = (cuda_device *)device;
    if (fn != NULL) {
        DSC_ASSERT(d->watch_count < DSC_CUDA_WATCHES);
        d->watch[d->watch_count].fn = fn;
        d->watch[d->watch_count++].user = user;
        return;
    }
    for (int i = 0; i < d->watch_count; i++)
        if (user == NULL || d->watch[i].user == user)
            d->watch[i--] = d->watch[--d->watch_count];
}

static void *cuda_native(dsc_stream *stream) { return ((cuda_stream *)stream)->handle; }

static dsc_status cuda_bind(dsc_device *device, dsc_error *err) { return dsc_cuda_enter((cuda_device *)device, err); }

static dsc_status cuda_gemm_prepare(dsc_device *device, const dsc_gemm_args *shape, dsc_error *err)
{
    cuda_device *d = (cuda_device *)device;
    DSC_TRY(dsc_cuda_enter(d, err));
    return dsc_cuda_gemm_prepare(d->gemm, shape, err);
}

/* Instead of the one so far. 0 bytes: none. */
static dsc_status open_cudnn_workspace(cuda_device *d, int64_t bytes, dsc_error *err)
{
    dsc_cuda_mem_close(&d->base, &d->cudnn_workspace);
    return bytes > 0 ? dsc_cuda_mem_open(&d->base, DSC_TAG_LIBRARY, DSC_TIER_DEVICE, bytes, &d->cudnn_workspace, err)
                     : DSC_OK;
}

/* Before `reserve`, so the buffer is an allocation of its own, which the plan finds among the libraries'. Without
 * memory for a larger one, plans that fit into the one so far stay. */
static dsc_status size_cudnn_workspace(cuda_device *d, dsc_error *err)
{
    const int64_t bytes = dsc_max_i64(dsc_cuda_attention_workspace_bytes(d->attention),
                                      dsc_cuda_conv2d_workspace_bytes(d->conv2d)),
                  before = d->cudnn_workspace.bytes;
    dsc_status status = bytes > before ? open_cudnn_workspace(d, bytes, err) : DSC_OK;
    if (status == DSC_ERR_NOMEM)
        status = open_cudnn_workspace(d, before, err);
    dsc_cuda_attention_set_workspace(d->attention, d->cudnn_workspace.ptr, d->cudnn_workspace.bytes);
    dsc_cuda_conv2d_set_workspace(d->conv2d, d->cudnn_workspace.ptr, d->cudnn_workspace.bytes);
    return status == DSC_ERR_NOMEM ? DSC_OK : status;
}

static dsc_status cuda_attention_prepare(dsc_device *device, const dsc_attention_fwd_args *shape, dsc_error *err)
{
    cuda_device *d = (cuda_device *)device;
    DSC_TRY(dsc_cuda_enter(d, err));
    dsc_cuda_attention_prepare(d->attention, shape);
    return size_cudnn_workspace(d, err);
}

static dsc_status cuda_conv2d_prepare(dsc_device *device, const dsc_conv2d_args *shape, dsc_error *err)
{
    cuda_device *d = (cuda_device *)device;
    DSC_TRY(dsc_cuda_enter(d, err));
    dsc_cuda_conv2d_prepare(d->conv2d, shape);
    return size_cudnn_workspace(d, err);
}

static dsc_status cuda_gemm_plans_get(dsc_device *device, char *text, int64_t capacity, int64_t *bytes, dsc_error *err)
{
    cuda_device *d = (cuda_device *)device;
    DSC_TRY(dsc_cuda_gemm_plans_get(d->gemm, text, capacity, bytes, err));
    dsc_cuda_attention_plans_get(d->attention, text, capacity, bytes);
    dsc_cuda_conv2d_plans_get(d->conv2d, text, capacity, bytes);
    return DSC_OK;
}

static dsc_status cuda_gemm_plans_set(dsc_device *device, const char *text, int64_t *others, dsc_error *err)
{
    cuda_device *d = (cuda_device *)device;
    DSC_TRY(dsc_cuda_enter(d, err));
    d->plans_chosen++;
    DSC_TRY(dsc_cuda_gemm_plans_set(d->gemm, text, others, err));
    const char *const mine = dsc_cuda_gemm_plans_are_mine(d->gemm, text) ? text : NULL;
    dsc_cuda_attention_plans_set(d->attention, mine, others);
    dsc_cuda_conv2d_plans_set(d->conv2d, mine, others);
    return DSC_OK;
}

static void cuda_gemm_fuse(dsc_device *device, uint32_t fused)
{
    dsc_cuda_gemm_fuse(((cuda_device *)device)->gemm, fused);
}

static bool cuda_gemm_slow(dsc_device *device, int64_t index, char *text, int64_t capacity)
{
    return dsc_cuda_gemm_slow(((cuda_device *)device)->gemm, index, text, capacity);
}

const dsc_device_ops dsc_device_cuda = {
    "cuda",
    DSC_DEVICE_OPS_VERSION,
    false, /* host_visible */
    cuda_count,
    cuda_open,
    cuda_close,
    dsc_cuda_stream_open,
    dsc_cuda_stream_close,
    dsc_cuda_stream_sync,
    dsc_cuda_event_open,
    dsc_cuda_event_close,
    dsc_cuda_event_record,
    dsc_cuda_stream_wait,
    dsc_cuda_event_sync,
    dsc_cuda_event_passed,
    dsc_cuda_copy,
    dsc_cuda_zero,
    dsc_cuda_do_launch,
    dsc_cuda_host_call,
    dsc_cuda_mem_open,
    dsc_cuda_mem_close,
    cuda_gemm_prepare,
    cuda_props,
    dsc_cuda_reserve,
    dsc_cuda_measure,
    cuda_gemm_plans_get,
    cuda_gemm_plans_set,
    cuda_gemm_fuse,
    cuda_gemm_slow,
    cuda_attention_prepare,
    cuda_watch,
    cuda_native,
    cuda_bind,
    dsc_cuda_sections_open,
    dsc_cuda_section_begin,
    dsc_cuda_section_end,
    NULL, /* open_host: the host is the cpu device */
    dsc_cuda_wait_begin,
    dsc_cuda_wait_end,
    dsc_cuda_waited_ns,
    cuda_conv2d_prepare,
    dsc_cuda_stream_conv2d_is_whole,
};

/* ---- as a plugin ---- */

static const dsc_cuda_plugin plugin = { (uint32_t)sizeof(dsc_cuda_plugin), DSC_CUDA_PLUGIN_LAYOUT, DSC_VERSION_TEXT,
                                        &dsc_device_cuda };

const dsc_cuda_plugin *dsc_cuda_plugin_get(void) { return &plugin; }
