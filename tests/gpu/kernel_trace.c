/* kernel_trace.c - every kernel, copy and fill of a CUDA program as lines of csv, in the columns that
 * bench/kernel_sums.py reads. It needs no right to read counters, which ncu needs.
 *
 *     CUDA_INJECTION64_PATH=kernel_trace.so KERNEL_TRACE_FILE=out.csv PROGRAM...
 *
 * CUDA loads the library when the program first calls it. CUPTI's records are written when a buffer is full and at
 * the end of the program; the order of the file is that of the buffers. `make gpu-pack` builds it where cupti.h is.
 * SPDX-License-Identifier: Apache-2.0 */
#include <cupti.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUFFER_BYTES ((size_t)8 << 20)
#define NAME_BYTES 200

/* One process has one trace; CUPTI's callbacks carry no pointer of ours. */
static FILE *trace_file;

/* Commas and brackets are inside quotes; a quote in a name would end them. */
static void put_line(const char *name, unsigned x, unsigned y, unsigned z, unsigned stream, uint64_t start,
                     uint64_t end)
{
    char text[NAME_BYTES];
    snprintf(text, sizeof text, "%s", name != NULL ? name : "?");
    for (char *c = text; *c != 0; c++)
        if (*c == '"' || *c == '\n')
            *c = ' ';
    fprintf(trace_file, "\"%s\",\"%u\",\"(%u, %u, %u)\",\"%llu\",", text, stream, x, y, z,
            (unsigned long long)start);
    fprintf(trace_file, "\"gpu__time_duration.sum\",\"ns\",\"%llu\"\n", (unsigned long long)(end - start));
}

static void put_record(const CUpti_Activity *record)
{
    char name[64];
    switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
        const CUpti_ActivityKernel10 *k = (const CUpti_ActivityKernel10 *)(const void *)record;
        put_line(k->name, (unsigned)k->gridX, (unsigned)k->gridY, (unsigned)k->gridZ, k->streamId, k->start, k->end);
        break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
        const CUpti_ActivityMemcpy6 *c = (const CUpti_ActivityMemcpy6 *)(const void *)record;
        snprintf(name, sizeof name, "[copy of kind %d, %llu bytes]", c->copyKind, (unsigned long long)c->bytes);
        put_line(name, 1, 1, 1, c->streamId, c->start, c->end);
        break;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
        const CUpti_ActivityMemset4 *m = (const CUpti_ActivityMemset4 *)(const void *)record;
        snprintf(name, sizeof name, "[fill, %llu bytes]", (unsigned long long)m->bytes);
        put_line(name, 1, 1, 1, m->streamId, m->start, m->end);
        break;
    }
    default: break;
    }
}

static void CUPTIAPI buffer_wanted(uint8_t **buffer, size_t *bytes, size_t *records_max)
{
    *buffer = aligned_alloc(64, BUFFER_BYTES);
    *bytes = *buffer != NULL ? BUFFER_BYTES : 0;
    *records_max = 0;
}

static void CUPTIAPI buffer_full(CUcontext context, uint32_t stream, uint8_t *buffer, size_t bytes, size_t valid_bytes)
{
    (void)context, (void)stream, (void)bytes;
    CUpti_Activity *record = NULL;
    while (cuptiActivityGetNextRecord(buffer, valid_bytes, &record) == CUPTI_SUCCESS)
        put_record(record);
    free(buffer);
}

static void finish(void)
{
    (void)cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    fclose(trace_file);
}

static int enable(CUpti_ActivityKind kind, const char *what)
{
    const CUptiResult result = cuptiActivityEnable(kind);
    const char *text = "?";
    if (result == CUPTI_SUCCESS)
        return 1;
    (void)cuptiGetResultString(result, &text);
    fprintf(stderr, "kernel_trace: ERROR: CUPTI records no %s: %s\n", what, text);
    return 0;
}

/* CUDA's entry of an injected library; 1: it goes on. */
int InitializeInjection(void);
__attribute__((visibility("default"))) int InitializeInjection(void)
{
    const char *path = getenv("KERNEL_TRACE_FILE");
    trace_file = path != NULL ? fopen(path, "w") : NULL;
    if (trace_file == NULL) {
        fprintf(stderr, "kernel_trace: ERROR: KERNEL_TRACE_FILE must name a file that can be written\n");
        return 1;
    }
    fprintf(trace_file,
            "\"Kernel Name\",\"Stream\",\"Grid Size\",\"Start\",\"Metric Name\",\"Metric Unit\",\"Metric Value\"\n");
    if (cuptiActivityRegisterCallbacks(buffer_wanted, buffer_full) != CUPTI_SUCCESS) {
        fprintf(stderr, "kernel_trace: ERROR: CUPTI takes no callbacks\n");
        return 1;
    }
    if (enable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, "kernels") && enable(CUPTI_ACTIVITY_KIND_MEMCPY, "copies") &&
        enable(CUPTI_ACTIVITY_KIND_MEMSET, "fills"))
        atexit(finish);
    return 1;
}
