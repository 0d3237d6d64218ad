/* flight_log.c - see flight_log.h. Every 64-bit word of a record is atomic: rank and reader share nothing else.
 *
 * A call is written in three steps: its version becomes odd, its words change, its version becomes even. A reader
 * accepts a call whose version is even and equal before and after. A word that is read from a newer call brings the odd
 * version with it, by release and acquire of each word. Fences would do, but ThreadSanitizer does not know them.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/flight_log.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC UINT64_C(0x3354485054435344) /* "DSCTPHT3" */
enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW };

/* A call as it lies in the record: whole 64-bit words. */
typedef struct packed_call {
    int64_t number;
    uint64_t history;
    dsc_call_record call;
    int64_t step, begun_ns, ended_ns;
    int32_t peer, reserved, module, state;
    char op[DSC_FLIGHT_NAME_BYTES];
} packed_call;
enum { CALL_WORDS = sizeof(packed_call) / sizeof(uint64_t) };
_Static_assert(sizeof(packed_call) == CALL_WORDS * sizeof(uint64_t), "whole words");

typedef struct call_slot {
    _Atomic uint64_t version;
    _Atomic uint64_t word[CALL_WORDS];
} call_slot;

struct dsc_flight_track {
    _Alignas(64) _Atomic uint64_t id; /* 0: the track is free */
    _Atomic int32_t pid, channel, rank, size;
    _Atomic uint64_t call_count; /* begun */
    _Atomic int64_t looked_ns;   /* last look of the rank at its GPU; 0: no GPU */
    dsc_flight_ticket newest;    /* the writer's */
    call_slot call[DSC_FLIGHT_CALLS];
    call_slot asked; /* the newest call that the GPU was asked for */
};

struct dsc_flight_record {
    _Alignas(64) _Atomic uint64_t magic;
    _Atomic int32_t pid;
    _Atomic int64_t timeout_ns;
    _Atomic uint64_t module[DSC_FLIGHT_MODULES][DSC_FLIGHT_NAME_BYTES / sizeof(uint64_t)];
    dsc_flight_track track[DSC_FLIGHT_CHANNELS];
};

static void store_words(_Atomic uint64_t *to, const void *from, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t word;
        memcpy(&word, (const char *)from + i * sizeof word, sizeof word);
        atomic_store_explicit(&to[i], word, memory_order_release);
    }
}

static void load_words(void *to, _Atomic uint64_t *from, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const uint64_t word = atomic_load_explicit(&from[i], memory_order_acquire);
        memcpy((char *)to + i * sizeof word, &word, sizeof word);
    }
}

/* ---- the rank ---------------------------------------------------------------------------------------------------- */

static bool is_gone(int32_t pid) { return pid <= 0 || (kill(pid, 0) != 0 && errno == ESRCH); }

void dsc_flight_open(dsc_flight *flight, const char *text)
{
    long long pid = 0;
    int fd_there = -1, index = -1, used = 0;
    char path[64];
    struct stat info;
    *flight = (dsc_flight){ .record = NULL };
    if (text == NULL || sscanf(text, "%lld:%d:%d%n", &pid, &fd_there, &index, &used) != 3 || text[used] != 0 ||
        pid <= 0 || fd_there < 0 || index < 0)
        return;
    snprintf(path, sizeof path, "/proc/%lld/fd/%d", pid, fd_there);
    const int fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return;
    const int seals = fcntl(fd, F_GET_SEALS); /* a file that may shrink would kill us */
    const size_t wanted = ((size_t)index + 1) * sizeof(dsc_flight_record);
    if (seals >= 0 && (seals & SEALS) == SEALS && fstat(fd, &info) == 0 && (size_t)info.st_size >= wanted) {
        void *memory = mmap(NULL, wanted, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        dsc_flight_record *record = memory == MAP_FAILED ? NULL : (dsc_flight_record *)memory + index;
        if (record != NULL && atomic_load(&record->magic) == MAGIC)
            *flight = (dsc_flight){ record, memory, wanted };
        else if (record != NULL)
            munmap(memory, wanted);
    }
    close(fd);
    if (flight->record == NULL)
        return;
    /* Entries of an earlier process do not describe this one. */
    for (int32_t i = 0; i < DSC_FLIGHT_CHANNELS; i++)
        if (is_gone(atomic_load(&flight->record->track[i].pid))) {
            atomic_store(&flight->record->track[i].id, 0);
            atomic_store(&flight->record->track[i].pid, 0);
        }
    atomic_store(&flight->record->pid, (int32_t)getpid());
}

void dsc_flight_close(dsc_flight *flight)
{
    if (flight->record != NULL)
        munmap(flight->memory, flight->bytes);
    *flight = (dsc_flight){ .record = NULL };
}

void dsc_flight_set_timeout(dsc_flight *flight, int64_t timeout_ns)
{
    if (flight->record != NULL)
        atomic_store(&flight->record->timeout_ns, timeout_ns);
}

void dsc_flight_name_module(dsc_flight *flight, int32_t module, const char *name)
{
    char text[DSC_FLIGHT_NAME_BYTES] = "";
    if (flight->record == NULL || module < 0 || module >= DSC_FLIGHT_MODULES)
        return;
    snprintf(text, sizeof text, "%s", name);
    store_words(flight->record->module[module], text, sizeof text / sizeof(uint64_t));
}

dsc_flight_track *dsc_flight_track_open(dsc_flight *flight, uint64_t id, int32_t channel, int32_t rank, int32_t size)
{
    DSC_ASSERT(id != 0);
    for (int32_t i = 0; flight->record != NULL && i < DSC_FLIGHT_CHANNELS; i++) {
        dsc_flight_track *track = &flight->record->track[i];
        int32_t none = 0;
        if (!atomic_compare_exchange_strong(&track->pid, &none, (int32_t)getpid()))
            continue;
        track->newest = (dsc_flight_ticket){ 0 };
        atomic_store(&track->call_count, 0);
        atomic_store(&track->looked_ns, 0);
        atomic_store(&track->asked.version, 0);
        atomic_store(&track->channel, channel);
        atomic_store(&track->rank, rank);
        atomic_store(&track->size, size);
        atomic_store(&track->id, id);
        return track;
    }
    return NULL;
}

static call_slot *newest(dsc_flight_track *track)
{
    const uint64_t count = atomic_load_explicit(&track->call_count, memory_order_relaxed);
    return count == 0 ? NULL : &track->call[(count - 1) % DSC_FLIGHT_CALLS];
}

static bool has_failed(call_slot *slot)
{
    packed_call call = { .state = DSC_FLIGHT_DONE };
    if (slot != NULL && atomic_load_explicit(&slot->version, memory_order_relaxed) != 0)
        load_words(&call, slot->word, CALL_WORDS);
    return call.state == DSC_FLIGHT_FAILED;
}

void dsc_flight_track_close(dsc_flight_track *track)
{
    if (track == NULL)
        return;
    /* A failure is read when its rank has ended; whoever opens next may have the place. */
    if (!has_failed(newest(track)) && !has_failed(&track->asked))
        atomic_store(&track->id, 0);
    atomic_store(&track->pid, 0);
}

/* One round of a multiplicative hash over what ranks must agree in. */
static uint64_t mix(uint64_t history, uint64_t word)
{
    const uint64_t z = (history ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    return z ^ z >> 29;
}

static dsc_flight_ticket next_ticket(dsc_flight_track *track, const dsc_flight_entry *entry)
{
    uint64_t op[DSC_FLIGHT_NAME_BYTES / sizeof(uint64_t)] = { 0 };
    dsc_flight_ticket *t = &track->newest;
    if (entry->peer >= 0)
        return *t;
    memccpy(op, entry->op, 0, sizeof op - 1);
    t->number++;
    t->history = mix(mix(mix(t->history, op[0]), op[1]), (uint64_t)entry->call.bytes);
    t->history = mix(t->history, (uint32_t)entry->call.detail);
    return *t;
}

static void write_call(call_slot *slot, const dsc_flight_entry *entry, dsc_flight_ticket ticket, int64_t now_ns)
{
    packed_call call = { .number = ticket.number,
                         .history = ticket.history,
                         .call = entry->call,
                         .step = entry->step,
                         .begun_ns = now_ns,
                         .peer = entry->peer,
                         .module = entry->module,
                         .state = DSC_FLIGHT_WAITS };
    memccpy(call.op, entry->op, 0, sizeof call.op - 1);
    const uint64_t version = atomic_load_explicit(&slot->version, memory_order_relaxed);
    atomic_store_explicit(&slot->version, version | 1, memory_order_relaxed);
    store_words(slot->word, &call, CALL_WORDS);
    atomic_store_explicit(&slot->version, (version | 1) + 1, memory_order_release);
}

void dsc_flight_come(dsc_flight_track *track, const dsc_flight_entry *entry, dsc_flight_ticket ticket, int64_t now_ns)
{
    if (track == NULL)
        return;
    const uint64_t count = atomic_load_explicit(&track->call_count, memory_order_relaxed);
    write_call(&track->call[count % DSC_FLIGHT_CALLS], entry, ticket, now_ns);
    atomic_store_explicit(&track->call_count, count + 1, memory_order_release);
}

void dsc_flight_begin(dsc_flight_track *track, const dsc_flight_entry *entry, int64_t now_ns)
{
    if (track != NULL)
        dsc_flight_come(track, entry, next_ticket(track, entry), now_ns);
}

dsc_flight_ticket dsc_flight_ask(dsc_flight_track *track, const dsc_flight_entry *entry, int64_t now_ns)
{
    if (track == NULL)
        return (dsc_flight_ticket){ 0 };
    const dsc_flight_ticket ticket = next_ticket(track, entry);
    write_call(&track->asked, entry, ticket, now_ns);
    return ticket;
}

static void set_word(call_slot *slot, size_t offset, uint64_t word)
{
    atomic_store_explicit(&slot->word[offset / sizeof word], word, memory_order_relaxed);
}

static void end_call(call_slot *slot, dsc_flight_state state, int64_t now_ns)
{
    packed_call call;
    load_words(&call, slot->word, CALL_WORDS);
    call.state = state;
    uint64_t word; /* module and state share one */
    memcpy(&word, (const char *)&call + offsetof(packed_call, module), sizeof word);
    set_word(slot, offsetof(packed_call, ended_ns), (uint64_t)now_ns);
    set_word(slot, offsetof(packed_call, module), word);
}

void dsc_flight_end(dsc_flight_track *track, dsc_flight_state state, int64_t now_ns)
{
    if (track != NULL)
        end_call(newest(track), state, now_ns);
}

void dsc_flight_asked(dsc_flight_track *track, dsc_flight_state state, int64_t now_ns)
{
    if (track != NULL)
        end_call(&track->asked, state, now_ns);
}

void dsc_flight_looked(dsc_flight_track *track, int64_t now_ns)
{
    if (track != NULL)
        atomic_store_explicit(&track->looked_ns, now_ns, memory_order_release);
}

/* ---- the reader -------------------------------------------------------------------------------------------------- */

dsc_status dsc_flight_log_open(dsc_flight_log *log, int32_t count, dsc_error *err)
{
    DSC_ASSERT(count > 0);
    const size_t bytes = (size_t)count * sizeof(dsc_flight_record);
    *log = (dsc_flight_log){ .fd = memfd_create("dsc-flight", MFD_CLOEXEC | MFD_ALLOW_SEALING), .count = count };
    void *memory = MAP_FAILED;
    if (log->fd >= 0 && ftruncate(log->fd, (off_t)bytes) == 0 && fcntl(log->fd, F_ADD_SEALS, SEALS) == 0)
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, log->fd, 0);
    if (memory == MAP_FAILED) {
        const dsc_status status = DSC_FAIL(err, DSC_ERR_IO, "dsc-launch", "no memory to watch the ranks by: %s",
                                           strerror(errno));
        dsc_flight_log_close(log);
        return status;
    }
    log->memory = memory;
    log->bytes = bytes;
    for (int32_t i = 0; i < count; i++)
        atomic_store(&((dsc_flight_record *)memory)[i].magic, MAGIC);
    return DSC_OK;
}

void dsc_flight_log_close(dsc_flight_log *log)
{
    if (log->memory != NULL)
        munmap(log->memory, log->bytes);
    if (log->fd >= 0)
        close(log->fd);
    *log = (dsc_flight_log){ .fd = -1 };
}

const char *dsc_flight_log_text(const dsc_flight_log *log, int32_t index, char text[DSC_FLIGHT_TEXT_BYTES])
{
    snprintf(text, DSC_FLIGHT_TEXT_BYTES, "%lld:%d:%d", (long long)getpid(), log->fd, index);
    return text;
}

/* The letter after the name in /proc/PID/stat; the name may hold anything. */
static char process_state(int32_t pid)
{
    char path[32], text[512] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0)
        close(fd);
    const char *end = n > 0 ? strrchr(text, ')') : NULL;
    return end != NULL && end[1] == ' ' && end[2] != 0 && end[2] != 'Z' && end[2] != 'X' ? end[2] : '?';
}

static bool read_call(dsc_flight_record *record, call_slot *slot, int64_t since_ns, int64_t now_ns,
                      dsc_flight_call *out)
{
    packed_call call;
    const uint64_t before = atomic_load_explicit(&slot->version, memory_order_acquire);
    load_words(&call, slot->word, CALL_WORDS);
    if (before == 0 || before % 2 == 1 || atomic_load_explicit(&slot->version, memory_order_relaxed) != before)
        return false;
    if (call.state < DSC_FLIGHT_WAITS || call.state > DSC_FLIGHT_QUEUED || call.number < 0 || call.call.bytes < 0)
        return false;
    *out = (dsc_flight_call){ .number = call.number,
                               .history = call.history,
                               .bytes = call.call.bytes,
                               .step = call.step,
                               .detail = call.call.detail,
                               .peer = call.peer,
                               .state = (dsc_flight_state)call.state };
    out->age_ns = now_ns - dsc_max_i64(since_ns, dsc_min_i64(call.begun_ns, now_ns));
    if (out->state != DSC_FLIGHT_WAITS)
        out->ended_ns = dsc_max_i64(0, now_ns - dsc_max_i64(since_ns, call.ended_ns));
    memcpy(out->op, call.op, sizeof out->op - 1);
    if (call.module >= 0 && call.module < DSC_FLIGHT_MODULES)
        load_words(out->module, record->module[call.module], sizeof out->module / sizeof(uint64_t));
    else if (call.module >= 0)
        snprintf(out->module, sizeof out->module, "%d", call.module);
    out->module[sizeof out->module - 1] = 0;
    dsc_text_printable(out->op);
    dsc_text_printable(out->module);
    return true;
}

/* The newest call that a GPU was asked for. It comes first while its rank is still asking, or was refused. */
static void read_asked(dsc_flight_record *record, dsc_flight_track *track, int64_t since_ns, int64_t now_ns,
                       dsc_flight_channel *out)
{
    dsc_flight_call call;
    bool read = false;
    for (int tries = 0; tries < 3 && !read; tries++)
        read = read_call(record, &track->asked, since_ns, now_ns, &call);
    out->asked = read ? call.number : out->call_count > 0 ? out->call[0].number : 1;
    if (!read || !dsc_flight_call_waits(&call))
        return;
    out->call_count -= out->call_count == DSC_FLIGHT_CALLS;
    memmove(&out->call[1], &out->call[0], (size_t)out->call_count * sizeof out->call[0]);
    out->call[0] = call;
    out->call_count++;
}

/* A GPU may be further than its rank has seen: nothing waits longer than until then. */
static void read_channel(dsc_flight_record *record, dsc_flight_track *track, int64_t since_ns, int64_t now_ns,
                         dsc_flight_channel *out)
{
    const int64_t looked_ns = atomic_load_explicit(&track->looked_ns, memory_order_acquire);
    const int64_t unseen_ns = looked_ns > 0 ? now_ns - dsc_max_i64(since_ns, dsc_min_i64(looked_ns, now_ns)) : 0;
    const uint64_t count = atomic_load_explicit(&track->call_count, memory_order_acquire);
    for (uint64_t i = 0; i < DSC_FLIGHT_CALLS && i < count; i++) {
        call_slot *slot = &track->call[(count - 1 - i) % DSC_FLIGHT_CALLS];
        dsc_flight_call *call = &out->call[out->call_count];
        if (!read_call(record, slot, since_ns, now_ns, call))
            continue;
        if (call->state == DSC_FLIGHT_WAITS)
            call->age_ns = dsc_max_i64(0, call->age_ns - unseen_ns);
        out->call_count++;
    }
    if (looked_ns > 0)
        read_asked(record, track, since_ns, now_ns, out);
}

void dsc_flight_log_read(const dsc_flight_log *log, int32_t index, int64_t since_ns, int64_t now_ns,
                         dsc_flight_view *out)
{
    DSC_ASSERT(index >= 0 && index < log->count);
    dsc_flight_record *record = (dsc_flight_record *)log->memory + index;
    memset(out, 0, sizeof *out);
    out->known = true;
    out->pid = (int32_t)dsc_max_i64(0, atomic_load(&record->pid));
    out->process = out->pid > 0 ? process_state(out->pid) : '?';
    out->timeout_ns = dsc_max_i64(0, atomic_load(&record->timeout_ns));
    for (int32_t i = 0; i < DSC_FLIGHT_CHANNELS; i++) {
        dsc_flight_track *track = &record->track[i];
        dsc_flight_channel *channel = &out->channel[out->channel_count];
        channel->id = atomic_load(&track->id);
        if (channel->id == 0)
            continue;
        channel->channel = atomic_load(&track->channel);
        channel->rank = atomic_load(&track->rank);
        channel->size = atomic_load(&track->size);
        read_channel(record, track, since_ns, now_ns, channel);
        out->channel_count++;
    }
}
