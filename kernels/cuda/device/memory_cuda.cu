/* memory_cuda.cu - the arena of a GPU, buffers of their own, pinned host memory.
 *
 * The plan's device memory is allocated at once, before the first buffer, and parts are cut from its front. So nothing
 * can fragment, and a lack of memory is known before the run. While ranks work there is no cudaMalloc or cudaFree,
 * which wait for the whole GPU.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/device/device_cuda.h"

#include <stdio.h>
#include <string.h>

#define PART_ALIGN 256
/* Parts are aligned and small ones are not in the plan when the arena is taken. */
#define ARENA_SLACK (INT64_C(1) << 20)

/* New memory is zero. The setup stream zeroes it, and the host waits for that: speed does not matter here. */
static dsc_status clear(cuda_device *d, void *ptr, int64_t bytes, dsc_error *err)
{
    DSC_TRY(dsc_cuda_check(d, cudaMemsetAsync(ptr, 0, (size_t)bytes, d->setup), "zeroing new memory", err));
    return dsc_cuda_check(d, cudaStreamSynchronize(d->setup), "zeroing new memory", err);
}

static dsc_status take(cuda_device *d, int64_t bytes, void **out, dsc_error *err)
{
    char what[160];
    size_t free_bytes = 0, total_bytes = 0;
    const cudaError_t error = cudaMalloc(out, (size_t)bytes);
    if (error == cudaSuccess)
        return DSC_OK;
    (void)cudaGetLastError();
    if (cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess)
        (void)cudaGetLastError();
    snprintf(what, sizeof what, "%.1f MiB are needed, %.1f MiB of %.1f MiB are free", (double)bytes / 1048576.0,
             (double)free_bytes / 1048576.0, (double)total_bytes / 1048576.0);
    return dsc_cuda_check(d, error, what, err);
}

dsc_status dsc_cuda_reserve(dsc_device *device, int64_t bytes, dsc_error *err)
{
    cuda_device *d = (cuda_device *)device;
    void *base = NULL;
    DSC_ASSERT(d->arena.base == NULL);
    DSC_TRY(dsc_cuda_enter(d, err));
    const int64_t wanted = dsc_align_up(bytes + ARENA_SLACK, INT64_C(2) << 20);
    DSC_TRY(take(d, wanted, &base, err));
    DSC_CUDA_FORBID(base, wanted);
    d->arena.base = (char *)base;
    d->arena.bytes = wanted;
    d->arena.used = d->arena.part_count = 0;
    return DSC_OK;
}

void dsc_cuda_arena_close(cuda_device *d)
{
    DSC_ASSERT(d->arena.part_count == 0);
    if (d->arena.base != NULL && !d->hangs)
        (void)cudaFree(d->arena.base);
    d->arena.base = NULL;
    d->arena.bytes = d->arena.used = 0;
}

/* NULL: it does not fit any more. */
static void *cut(cuda_device *d, int64_t bytes)
{
    void *part = NULL;
    const int64_t wanted = dsc_align_up(bytes, PART_ALIGN);
    pthread_mutex_lock(&d->lock);
    if (d->arena.base != NULL && wanted <= d->arena.bytes - d->arena.used) {
        part = d->arena.base + d->arena.used;
        d->arena.used += wanted;
        d->arena.part_count++;
    }
    pthread_mutex_unlock(&d->lock);
    if (part != NULL)
        DSC_CUDA_ALLOW(part, bytes);
    return part;
}

static bool in_arena(const cuda_device *d, const void *ptr)
{
    const char *at = (const char *)ptr;
    return d->arena.base != NULL && at >= d->arena.base && at < d->arena.base + d->arena.bytes;
}

static void give_back(cuda_device *d, const dsc_buf *buf)
{
    if (!in_arena(d, buf->ptr)) {
        if (!d->hangs)
            (void)cudaFree(buf->ptr);
    } else {
        DSC_CUDA_FORBID(buf->ptr, dsc_align_up(buf->bytes, PART_ALIGN));
        pthread_mutex_lock(&d->lock);
        if (--d->arena.part_count == 0)
            d->arena.used = 0;
        pthread_mutex_unlock(&d->lock);
    }
}

/* Memory of ours that the driver pins, in 2 MiB pages where the system gives them: cudaHostAlloc takes pages of 4 KiB
 * one by one, 7 times as long (bench/results/2026-11-26-NVIDIA-H200.md). */
static dsc_status pin(cuda_device *d, dsc_tag tag, int64_t bytes, dsc_buf *out, dsc_error *err)
{
    char what[96];
    dsc_buf buf;
    DSC_TRY(dsc_buf_open(d->alloc, tag, DSC_TIER_PINNED, bytes, &buf, err));
    snprintf(what, sizeof what, "pinning %.1f MiB of host memory", (double)bytes / 1048576.0);
    const cudaError_t error = dsc_buf_populate(&buf)
                                  ? cudaHostRegister(buf.ptr, (size_t)bytes, cudaHostRegisterPortable)
                                  : cudaErrorMemoryAllocation;
    if (error == cudaSuccess) {
        *out = buf;
        return DSC_OK;
    }
    dsc_buf_close(&buf);
    (void)cudaGetLastError();
    if (error == cudaErrorMemoryAllocation)
        return DSC_FAIL(err, DSC_ERR_NOMEM, "memory", "the host is out of memory: %s", what);
    return dsc_cuda_check(d, error, what, err);
}

static dsc_status get(cuda_device *d, dsc_tag tag, int64_t bytes, dsc_buf *out, dsc_error *err)
{
    const int64_t counted = dsc_buf_counted(bytes);
    DSC_TRY(dsc_alloc_note(d->alloc, tag, DSC_TIER_DEVICE, counted, err));
    dsc_buf buf;
    memset(&buf, 0, sizeof buf);
    buf.bytes = bytes;
    buf.tag = tag;
    buf.tier = DSC_TIER_DEVICE;
    buf.alloc = d->alloc;
    buf.ptr = cut(d, bytes);
    dsc_status status = buf.ptr != NULL ? DSC_OK : take(d, bytes, &buf.ptr, err);
    if (status == DSC_OK) {
        status = clear(d, buf.ptr, bytes, err);
        if (status != DSC_OK)
            give_back(d, &buf);
    }
    if (status != DSC_OK) {
        dsc_alloc_unnote(d->alloc, tag, DSC_TIER_DEVICE, counted);
        return status;
    }
    *out = buf;
    return DSC_OK;
}

dsc_status dsc_cuda_mem_open(dsc_device *device, dsc_tag tag, dsc_tier tier, int64_t bytes, dsc_buf *out,
                             dsc_error *err)
{
    cuda_device *d = (cuda_device *)device;
    memset(out, 0, sizeof *out);
    if (bytes == 0)
        return DSC_OK;
    DSC_TRY(dsc_cuda_enter(d, err));
    DSC_TRY(tier == DSC_TIER_PINNED ? pin(d, tag, bytes, out, err) : get(d, tag, bytes, out, err));
    pthread_mutex_lock(&d->lock);
    d->buffer_count++;
    pthread_mutex_unlock(&d->lock);
    return DSC_OK;
}

void dsc_cuda_mem_close(dsc_device *device, dsc_buf *buf)
{
    cuda_device *d = (cuda_device *)device;
    if (buf->ptr == NULL)
        return;
    (void)cudaSetDevice(d->index);
    if (buf->tier == DSC_TIER_PINNED) {
        if (!d->hangs)
            (void)cudaHostUnregister(buf->ptr);
        dsc_buf_close(buf);
    } else {
        give_back(d, buf);
        dsc_alloc_unnote(d->alloc, buf->tag, buf->tier, dsc_buf_counted(buf->bytes));
        memset(buf, 0, sizeof *buf);
    }
    (void)cudaGetLastError();
    pthread_mutex_lock(&d->lock);
    d->buffer_count--;
    pthread_mutex_unlock(&d->lock);
}
