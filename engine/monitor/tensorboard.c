/* tensorboard.c - TensorBoard event files: TFRecords (tensorflow/core/lib/io/record_writer.h) of Event messages
 * (tensorflow/core/util/event.proto).
 *
 * Each start of a run writes a file of its own, as TensorBoard expects. Its first numbers come with a START of the
 * session, so that TensorBoard forgets what an earlier start wrote of the same and later samples.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "engine/monitor/monitor.h"
#include "engine/monitor/protobuf.h"

/* Field numbers and wire types of protocol buffers: number << 3 | type. */
enum {
    EVENT_WALL_TIME = 1 << 3 | 1,    /* double */
    EVENT_STEP = 2 << 3 | 0,         /* int64 */
    EVENT_FILE_VERSION = 3 << 3 | 2, /* string */
    EVENT_SUMMARY = 5 << 3 | 2,      /* message */
    EVENT_SESSION_LOG = 7 << 3 | 2,  /* message */
    SUMMARY_VALUE = 1 << 3 | 2,      /* message */
    VALUE_TAG = 1 << 3 | 2,          /* string */
    VALUE_SIMPLE = 2 << 3 | 5,       /* float */
    SESSION_STATUS = 1 << 3 | 0      /* enum */
};
enum { SESSION_START = 1 };

typedef struct tensorboard {
    dsc_monitor monitor;
    dsc_file file;
    int64_t bytes;
} tensorboard;

static void put_head(dsc_message *event, int64_t step)
{
    const double seconds = (double)dsc_clock_wall_ns() * 1e-9;
    dsc_message_number(event, EVENT_WALL_TIME);
    dsc_message_bytes(event, &seconds, sizeof seconds);
    dsc_message_number(event, EVENT_STEP);
    dsc_message_number(event, (uint64_t)step);
}

/* Length and bytes, each followed by its CRC, rotated and shifted so that a CRC of CRCs stays useful. */
static uint32_t masked_crc(const void *data, size_t bytes)
{
    const uint32_t crc = dsc_crc32c(0, data, bytes);
    return (crc >> 15 | crc << 17) + UINT32_C(0xa282ead8);
}

static dsc_status write_record(tensorboard *t, const dsc_message *event, dsc_error *err)
{
    uint8_t record[DSC_MESSAGE_BYTES + 16];
    const uint64_t length = event->count;
    const uint32_t of_length = masked_crc(&length, sizeof length), of_bytes = masked_crc(event->bytes, event->count);
    memcpy(record, &length, 8);
    memcpy(record + 8, &of_length, 4);
    memcpy(record + 12, event->bytes, event->count);
    memcpy(record + 12 + event->count, &of_bytes, 4);
    const int64_t bytes = 16 + (int64_t)event->count;
    DSC_TRY(dsc_io_write(t->monitor.io, &t->file, record, bytes, t->bytes, err));
    t->bytes += bytes;
    return DSC_OK;
}

/* events.out.tfevents.SECONDS.HOST.PID.0, the form by which TensorBoard finds files and sorts them. */
static dsc_status open_file(tensorboard *t, int64_t first_step, dsc_error *err)
{
    static const char version[] = "brain.Event:2";
    char host[65] = "host", name[160], path[4096];
    (void)gethostname(host, sizeof host - 1);
    for (char *slash = host; (slash = strchr(slash, '/')) != NULL;)
        *slash = '_';
    snprintf(name, sizeof name, "events.out.tfevents.%010lld.%s.%ld.0",
             (long long)(dsc_clock_wall_ns() / 1000000000), host, (long)getpid());
    DSC_TRY(dsc_path_join(path, sizeof path, t->monitor.folder, name, err));
    DSC_TRY(dsc_io_open(t->monitor.io, path, DSC_IO_CREATE, &t->file, err));
    dsc_message head = { .count = 0 }, start = { .count = 0 }, session = { .count = 0 };
    put_head(&head, 0);
    dsc_message_part(&head, EVENT_FILE_VERSION, version, sizeof version - 1);
    DSC_TRY(write_record(t, &head, err));
    dsc_message_number(&session, SESSION_STATUS);
    dsc_message_number(&session, SESSION_START);
    put_head(&start, first_step);
    dsc_message_part(&start, EVENT_SESSION_LOG, session.bytes, session.count);
    return write_record(t, &start, err);
}

static dsc_status write_event(dsc_monitor *monitor, int64_t samples, const dsc_scalar *scalars, int count,
                              dsc_error *err)
{
    tensorboard *t = (tensorboard *)monitor;
    dsc_message event = { .count = 0 }, summary = { .count = 0 };
    if (t->file.fd < 0)
        DSC_TRY(open_file(t, samples, err));
    for (int i = 0; i < count; i++) {
        dsc_message value = { .count = 0 };
        const float number = (float)scalars[i].value;
        dsc_message_part(&value, VALUE_TAG, scalars[i].tag, strlen(scalars[i].tag));
        dsc_message_number(&value, VALUE_SIMPLE);
        dsc_message_bytes(&value, &number, sizeof number);
        dsc_message_part(&summary, SUMMARY_VALUE, value.bytes, value.count);
    }
    put_head(&event, samples);
    dsc_message_part(&event, EVENT_SUMMARY, summary.bytes, summary.count);
    return write_record(t, &event, err);
}

static void close_file(dsc_monitor *monitor)
{
    (void)dsc_io_close(monitor->io, &((tensorboard *)monitor)->file, NULL);
    dsc_alloc_free(monitor->alloc, monitor);
}

dsc_status dsc_monitor_tensorboard(dsc_alloc *alloc, dsc_monitor **out, dsc_error *err)
{
    static const dsc_monitor_ops ops = { .name = "tensorboard", .write = write_event, .close = close_file };
    tensorboard *t = NULL;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, 1, sizeof *t, &t, err));
    t->monitor.ops = &ops;
    t->file = (dsc_file)DSC_FILE_INIT;
    *out = &t->monitor;
    return DSC_OK;
}
