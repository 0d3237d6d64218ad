/* channel.c - frames over two descriptors that do not block (message.h). SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "launcher/protocol/message.h"

enum { READ_BYTES = 64 * 1024 };

static void do_not_block(int fd)
{
    const int flags = fcntl(fd, F_GETFL);
    fcntl(fd, F_SETFL, flags | O_NONBLOCK);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
}

void dsc_channel_open(dsc_channel *channel, dsc_alloc *alloc, int in_fd, int out_fd, size_t frame_max)
{
    *channel = (dsc_channel){ .alloc = alloc, .in_fd = in_fd, .out_fd = out_fd, .queue = { .alloc = alloc },
                              .frame_max = frame_max };
    do_not_block(in_fd);
    do_not_block(out_fd);
}

void dsc_channel_close(dsc_channel *channel)
{
    if (channel->alloc == NULL)
        return;
    if (channel->in_fd >= 0)
        close(channel->in_fd);
    if (channel->out_fd >= 0 && channel->out_fd != channel->in_fd)
        close(channel->out_fd);
    dsc_message_out_close(&channel->queue);
    dsc_alloc_free(channel->alloc, channel->in);
    *channel = (dsc_channel){ .in_fd = -1, .out_fd = -1, .eof = true };
}

void dsc_channel_flush(dsc_channel *channel)
{
    dsc_message_out *queue = &channel->queue;
    channel->broken = channel->broken || queue->failed;
    while (channel->sent < queue->count && !channel->broken && channel->out_fd >= 0) {
        const ssize_t n = write(channel->out_fd, queue->bytes + channel->sent, queue->count - channel->sent);
        if (n > 0) {
            channel->sent += (size_t)n;
        } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            dsc_message_out_drop(queue, &channel->sent);
            return;
        } else if (n < 0 && errno != EINTR) {
            channel->broken = true;
        }
    }
    channel->sent = queue->count = 0;
}

/* Room for `count` bytes in all behind what is taken. */
static bool make_room(dsc_channel *channel, size_t count)
{
    uint8_t *grown = NULL;
    size_t capacity = channel->capacity > 0 ? channel->capacity : READ_BYTES;
    if (channel->taken > 0) {
        memmove(channel->in, channel->in + channel->taken, channel->filled - channel->taken);
        channel->filled -= channel->taken;
        channel->taken = 0;
    }
    while (capacity < count)
        capacity *= 2;
    if (capacity == channel->capacity)
        return true;
    if (dsc_alloc_zeroed(channel->alloc, DSC_TAG_CONTROL, (int64_t)capacity, 1, &grown, NULL) != DSC_OK)
        return false;
    if (channel->filled > 0)
        memcpy(grown, channel->in, channel->filled);
    dsc_alloc_free(channel->alloc, channel->in);
    channel->in = grown;
    channel->capacity = capacity;
    return true;
}

void dsc_channel_read(dsc_channel *channel)
{
    if (channel->eof || channel->broken)
        return;
    if (!make_room(channel, channel->filled - channel->taken + READ_BYTES / 2)) {
        channel->broken = true;
        return;
    }
    const ssize_t n = read(channel->in_fd, channel->in + channel->filled, channel->capacity - channel->filled);
    if (n > 0)
        channel->filled += (size_t)n;
    else if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
        channel->eof = true;
}

bool dsc_channel_next(dsc_channel *channel, dsc_frame *frame)
{
    const size_t have = channel->filled - channel->taken;
    const uint8_t *at = channel->in + channel->taken;
    size_t count = 0;
    if (channel->broken || have < DSC_MESSAGE_HEADER_BYTES)
        return false;
    for (size_t i = 0; i < 4; i++)
        count |= (size_t)at[i] << 8 * i;
    if (count < 1 || count - 1 > channel->frame_max) {
        channel->broken = true;
        return false;
    }
    if (have < count + 4)
        return false; /* the buffer grows with the bytes that come, not with what they promise */
    *frame = (dsc_frame){ at[4], at + DSC_MESSAGE_HEADER_BYTES, count - 1 };
    channel->taken += count + 4;
    return true;
}

bool dsc_channel_find_magic(dsc_channel *channel)
{
    const size_t have = channel->filled - channel->taken;
    const uint8_t *at = have >= DSC_MESSAGE_MAGIC_BYTES
                            ? memmem(channel->in + channel->taken, have, DSC_MESSAGE_MAGIC, DSC_MESSAGE_MAGIC_BYTES)
                            : NULL;
    if (at != NULL) {
        channel->taken = (size_t)(at - channel->in) + DSC_MESSAGE_MAGIC_BYTES;
        return true;
    }
    if (have > DSC_MESSAGE_MAGIC_BYTES)
        channel->taken = channel->filled - DSC_MESSAGE_MAGIC_BYTES + 1;
    return false;
}
