/* track.h - bounds and order of every access to device memory.
 *
 * Each 16 bytes of device memory have a cell that keeps the last write and up to two reads after it, as (stream, number
 * of the operation on it). Each stream has, per other stream of its device, the last operation known to be done. Its
 * own waits and the host's waits before an enqueue add to that. An access that conflicts with an operation not known
 * to be done is a race, for any order of execution.
 *
 * Kernels are compiled with the compiler's thread-sanitizer instrumentation, whose hooks are ours (track.cc): each
 * access of a kernel is looked at. Copies, collectives and products name their ranges. Not in builds with SAN=address.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TESTS_SIM_TRACK_H
#define DSC_TESTS_SIM_TRACK_H

#include <cstddef>
#include <cstdint>

namespace cusim {

struct device_state;

enum { STREAMS_MAX = 32, EPOCH_SEQ_BITS = 27 };

/* The last operation known to be done, of each stream of a device, by slot. */
struct done_until {
    uint32_t seq[STREAMS_MAX] = {};
    void join(const done_until &other)
    {
        for (int i = 0; i < STREAMS_MAX; i++)
            seq[i] = seq[i] > other.seq[i] ? seq[i] : other.seq[i];
    }
};

/* The operation that a host thread runs now. */
struct accessor {
    device_state *device;
    const char *name;       /* NULL: none */
    const done_until *seen; /* NULL: bounds only */
    uint32_t epoch;         /* slot << EPOCH_SEQ_BITS | number */
};
extern thread_local accessor running_now;

void track_open(device_state &d); /* the cells of its address range */
/* Forbids bytes (freed memory, or memory not yet given out) or allows them. Earlier users stay known: the next user
 * must have waited for them. */
void track_forbid(device_state &d, const void *p, size_t bytes);
void track_allow(device_state &d, const void *p, size_t bytes);
void track_forget(device_state &d, const void *p, size_t bytes); /* forbidden for good */
/* The host gives the bytes back: it must have waited for all that used them. */
void track_release(device_state &d, const void *p, size_t bytes);
bool track_allowed(const device_state &d, const void *p, size_t bytes);
/* An access of `who`; host memory is not looked at. Violations do not return. */
void track_range(const accessor &who, const void *p, size_t bytes, bool write);

} // namespace cusim

#endif
