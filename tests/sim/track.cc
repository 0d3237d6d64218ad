/* track.cc - see track.h. SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/track.h"

#include <sys/mman.h>

#include "tests/sim/runtime.h"

namespace cusim {

thread_local accessor running_now = {};

struct cell {
    uint32_t write, read[2]; /* slot << EPOCH_SEQ_BITS | seq; 0: none */
    uint32_t allowed;        /* number of allowed bytes, from the first one: 0..16 */
};

namespace {

const size_t GRAIN = 16;

uint32_t slot_of(uint32_t e) { return e >> EPOCH_SEQ_BITS; }
uint32_t seq_of(uint32_t e) { return e & ((1u << EPOCH_SEQ_BITS) - 1); }
bool is_before(const accessor &who, uint32_t e)
{
    return slot_of(e) == slot_of(who.epoch) || seq_of(e) <= who.seen->seq[slot_of(e)];
}

size_t offset_of(const device_state &d, const void *p)
{
    return static_cast<size_t>(static_cast<const char *>(p) - d.arena);
}

[[noreturn]] void report_bounds(const accessor &who, const device_state &d, const void *p, bool write)
{
    const char *what = memory_place(d, p);
    fail("%s on device %d %s %s of device %d at %p", who.name, who.device->index, write ? "writes" : "reads", what,
         d.index, p);
}

[[noreturn]] void report_race(const accessor &who, const void *p, uint32_t other, bool write, bool other_wrote)
{
    const device_state &d = *who.device;
    fail("race: %s on stream %d of device %d %s %p and does not wait for %s on stream %d, which %s it", who.name,
         d.stream_number[slot_of(who.epoch)], d.index, write ? "writes" : "reads", p,
         name_of_operation(d, slot_of(other), seq_of(other)).c_str(), d.stream_number[slot_of(other)],
         other_wrote ? "writes" : "reads");
}

/* A third stream that reads what two others still may be reading is forgotten: of them one is enough to catch a writer
 * that waits for none. */
inline void add_read(cell &c, const accessor &who)
{
    for (uint32_t &r : c.read)
        if (r == 0 || is_before(who, r)) {
            r = who.epoch;
            return;
        }
}

/* Bytes [.., end) of the cell's 16. */
inline void access(cell &c, const accessor &who, const device_state &d, size_t offset, size_t end, bool write)
{
    if (end > c.allowed)
        report_bounds(who, d, d.arena + offset + c.allowed, write);
    if (who.seen == nullptr || who.device != &d)
        return;
    if (c.write == who.epoch ? (c.read[0] | c.read[1]) == 0
                             : !write && (c.read[0] == who.epoch || c.read[1] == who.epoch))
        return; /* no news */
    if (c.write != 0 && !is_before(who, c.write))
        report_race(who, d.arena + offset, c.write, write, true);
    if (!write) {
        add_read(c, who);
        return;
    }
    for (uint32_t &r : c.read) {
        if (r != 0 && !is_before(who, r))
            report_race(who, d.arena + offset, r, true, false);
        r = 0;
    }
    c.write = who.epoch;
}

} // namespace

void track_open(device_state &d)
{
    const size_t bytes = static_cast<size_t>(ARENA_BYTES) / GRAIN * sizeof(cell);
    void *cells = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (cells == MAP_FAILED)
        fail("no address range for the cells of device %d", d.index);
    madvise(cells, bytes, MADV_HUGEPAGE);
    d.cells = static_cast<cell *>(cells);
}

/* Memory that is never given out again needs no history: its pages of cells are released, and new pages forbid. */
void track_forget(device_state &d, const void *p, size_t bytes)
{
    track_forbid(d, p, bytes);
    const uintptr_t page = 4096, first = reinterpret_cast<uintptr_t>(d.cells + offset_of(d, p) / GRAIN);
    const uintptr_t from = (first + page - 1) / page * page, to = (first + bytes / GRAIN * sizeof(cell)) / page * page;
    if (to > from)
        madvise(reinterpret_cast<void *>(from), to - from, MADV_DONTNEED);
}

void track_forbid(device_state &d, const void *p, size_t bytes)
{
    const size_t first = offset_of(d, p) / GRAIN, end = (offset_of(d, p) + bytes + GRAIN - 1) / GRAIN;
    for (size_t i = first; i < end; i++)
        d.cells[i].allowed = 0;
}

void track_allow(device_state &d, const void *p, size_t bytes)
{
    cell *c = d.cells + offset_of(d, p) / GRAIN;
    for (size_t at = 0; at < bytes; at += GRAIN, c++)
        c->allowed = static_cast<uint32_t>(bytes - at < GRAIN ? bytes - at : GRAIN);
}

void track_release(device_state &d, const void *p, size_t bytes)
{
    const done_until &known = *d.host_seen;
    const size_t first = offset_of(d, p) / GRAIN, end = (offset_of(d, p) + bytes + GRAIN - 1) / GRAIN;
    for (size_t i = first; i < end; i++)
        for (const uint32_t e : { d.cells[i].write, d.cells[i].read[0], d.cells[i].read[1] })
            if (seq_of(e) > known.seq[slot_of(e)])
                fail("%p on device %d is given back, and nobody has waited for %s on stream %d, which uses it",
                     static_cast<void *>(d.arena + i * GRAIN), d.index,
                     name_of_operation(d, slot_of(e), seq_of(e)).c_str(), d.stream_number[slot_of(e)]);
}

bool track_allowed(const device_state &d, const void *p, size_t bytes)
{
    const size_t at = offset_of(d, p);
    for (size_t i = at / GRAIN; i * GRAIN < at + bytes; i++)
        if (d.cells[i].allowed < GRAIN && i * GRAIN + d.cells[i].allowed < at + bytes)
            return false;
    return true;
}

void track_range(const accessor &who, const void *p, size_t bytes, bool write)
{
    const device_state *d = memory_owner(p);
    if (d == nullptr || bytes == 0)
        return;
    if (d->cells == nullptr)
        report_bounds(who, *d, p, write);
    const size_t at = offset_of(*d, p), end = at + bytes;
    for (size_t i = at / GRAIN; i * GRAIN < end; i++)
        access(d->cells[i], who, *d, i * GRAIN, end - i * GRAIN < GRAIN ? end - i * GRAIN : GRAIN, write);
}

namespace {

/* One access of a kernel, nearly always of an aligned element of its own device. */
inline void touch(const void *p, size_t bytes, bool write)
{
    const uintptr_t at = reinterpret_cast<uintptr_t>(p);
    if (at - ARENA_FIRST >= DEVICES_MAX * ARENA_BYTES)
        return;
    const accessor &who = running_now;
    if (who.name == nullptr)
        return; /* the host's: it faults */
    const size_t offset = at - ARENA_FIRST - static_cast<size_t>(who.device->index) * ARENA_BYTES;
    const size_t end = offset % GRAIN + bytes;
    if (offset < ARENA_BYTES && end <= GRAIN && who.device->cells != nullptr)
        access(who.device->cells[offset / GRAIN], who, *who.device, offset / GRAIN * GRAIN, end, write);
    else
        track_range(who, p, bytes, write);
}

bool instrumented = false;

} // namespace

void touch_atomic(const void *p, size_t bytes) { touch(p, bytes, true); }

} // namespace cusim

bool cusim_tracks_kernels(void) { return cusim::instrumented; }

/* ---- what the compiler calls: with the types that gcc declares them by itself in sanitized builds ---- */

extern "C" {

void __tsan_init(void) { cusim::instrumented = true; }
void __tsan_func_entry(void *) {}
void __tsan_func_exit(void *) {}
void __tsan_vptr_update(void *, void *) {}
void __tsan_vptr_read(void *) {}
void __tsan_read_range(void *p, long bytes) { cusim::touch(p, static_cast<size_t>(bytes), false); }
void __tsan_write_range(void *p, long bytes) { cusim::touch(p, static_cast<size_t>(bytes), true); }
#define ACCESSES(bytes)                                                             \
    void __tsan_read##bytes(void *p) { cusim::touch(p, bytes, false); }             \
    void __tsan_write##bytes(void *p) { cusim::touch(p, bytes, true); }             \
    void __tsan_unaligned_read##bytes(void *p) { cusim::touch(p, bytes, false); }   \
    void __tsan_unaligned_write##bytes(void *p) { cusim::touch(p, bytes, true); }   \
    void __tsan_volatile_read##bytes(void *p) { cusim::touch(p, bytes, false); }    \
    void __tsan_volatile_write##bytes(void *p) { cusim::touch(p, bytes, true); }
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)

} // extern "C"
