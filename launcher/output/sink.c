/* sink.c - a queue in front of a descriptor that may be slow. SPDX-License-Identifier: Apache-2.0 */
#include "launcher/output/sink.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

bool dsc_same_file(int a, int b)
{
    struct stat sa, sb;
    return fstat(a, &sa) == 0 && fstat(b, &sb) == 0 && sa.st_dev == sb.st_dev && sa.st_ino == sb.st_ino;
}

dsc_status dsc_sink_open(dsc_alloc *alloc, int fd, dsc_sink *out, dsc_error *err)
{
    struct stat st;
    char path[48];
    memset(out, 0, sizeof *out);
    out->alloc = alloc;
    out->fd = fd;
    out->kind = DSC_SINK_PLAIN;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, DSC_SINK_QUEUE_BYTES, 1, &out->queue, err));
    if (fstat(fd, &st) != 0) {
        out->broken = true;
        out->reason = errno;
        return DSC_OK;
    }
    out->tty = isatty(fd) == 1;
    if (S_ISSOCK(st.st_mode)) {
        out->kind = DSC_SINK_SOCKET;
    } else if (S_ISFIFO(st.st_mode) || out->tty) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        const int own = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
        if (own >= 0) {
            out->fd = own;
            out->own_fd = true;
            out->kind = DSC_SINK_NONBLOCKING;
        }
    }
    return DSC_OK;
}

void dsc_sink_close(dsc_sink *sink)
{
    if (sink->own_fd)
        close(sink->fd);
    if (sink->alloc != NULL)
        dsc_alloc_free(sink->alloc, sink->queue);
    memset(sink, 0, sizeof *sink);
    sink->fd = -1;
}

void dsc_sink_put(dsc_sink *sink, const char *text, size_t bytes)
{
    if (sink->broken)
        return;
    if (sink->tail + bytes > DSC_SINK_QUEUE_BYTES && sink->head > 0) {
        memmove(sink->queue, sink->queue + sink->head, dsc_sink_queued(sink));
        sink->tail -= sink->head;
        sink->head = 0;
    }
    /* Readers stop at DSC_SINK_FULL_BYTES, and one read adds less than the rest. */
    DSC_ASSERT(sink->tail + bytes <= DSC_SINK_QUEUE_BYTES);
    memcpy(sink->queue + sink->tail, text, bytes);
    sink->tail += bytes;
}

static ssize_t write_some(dsc_sink *sink)
{
    const char *from = sink->queue + sink->head;
    const size_t bytes = dsc_sink_queued(sink);
    if (sink->kind == DSC_SINK_SOCKET)
        return send(sink->fd, from, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    return write(sink->fd, from, bytes);
}

void dsc_sink_flush(dsc_sink *sink)
{
    sink->waiting = false;
    while (dsc_sink_queued(sink) > 0) {
        const ssize_t n = write_some(sink);
        if (n >= 0) {
            sink->head += (size_t)n;
            continue;
        }
        if (errno == EINTR)
            continue;
        if (errno == EAGAIN || errno == EWOULDBLOCK) {
            sink->waiting = true;
            return;
        }
        sink->reason = errno;
        sink->broken = true;
        break;
    }
    sink->head = 0;
    sink->tail = 0;
}
