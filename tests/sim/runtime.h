/* runtime.h - the simulator's state: devices, memory, streams, events and what runs next.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TESTS_SIM_RUNTIME_H
#define DSC_TESTS_SIM_RUNTIME_H

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <cuda_runtime.h>

#include "tests/sim/cusim.h"
#include "tests/sim/report.h"
#include "tests/sim/track.h"

namespace cusim {

struct device_state;
enum { DEVICES_MAX = 16 };
/* Device d owns ARENA_BYTES of addresses from ARENA_FIRST + d * ARENA_BYTES. */
const uintptr_t ARENA_FIRST = 0x300000000000ull, ARENA_BYTES = static_cast<uintptr_t>(64) << 30;

struct allocation {
    char *pages;       /* guard pages are before and behind these */
    size_t page_bytes;
    size_t bytes;      /* asked for */
};

/* One cudaEventRecord. */
struct event_record {
    bool done = false;
    uint64_t at = 0;
    device_state *device = nullptr;
    done_until seen; /* operations known to be done, of the stream itself too */
};

/* A collective of several ranks. All hooks run under the lock. */
struct joint_work {
    bool arrived = false;
    virtual ~joint_work() {}
    virtual void arrive(const accessor &) = 0; /* this rank has come: nothing of it may be touched from here on */
    virtual bool done() const = 0;
    virtual void leave() = 0;              /* this rank goes on */
    virtual bool only_sends() const { return false; } /* to single ranks: nothing of it is written here */
    virtual std::string waits_for() const = 0;
};

enum work_class { COMPUTE, COPY, COMM, CONTROL };

struct operation {
    work_class kind = CONTROL;
    std::string name;
    uint64_t number = 0; /* order of enqueueing on the device */
    std::function<void()> run;                      /* or */
    uint64_t ticks = 0;                             /* that it takes beyond the one of any operation */
    std::shared_ptr<event_record> record;           /* or wait for it */
    bool is_wait = false;                           /* or */
    std::shared_ptr<joint_work> joint;
    std::shared_ptr<const done_until> host_seen;    /* operations that the host had waited for */
};

/* Objects that cusim_left counts: made by the program and not released. */
extern std::atomic<int64_t> things;
} // namespace cusim

struct CUgraph_st { std::vector<cusim::operation> operations; };
struct CUgraphExec_st : CUgraph_st {};

struct CUstream_st {
    cusim::device_state *device;
    int number;
    uint32_t slot;
    cusim::done_until seen;
    std::deque<cusim::operation> queue;
    CUgraph_st *recording = nullptr; /* enqueued operations are recorded there */
};
struct CUevent_st { std::shared_ptr<cusim::event_record> latest; /* NULL: never recorded */ };

namespace cusim {

struct cell;
struct device_state {
    int index = 0, arch = 90;
    char *arena = nullptr, *arena_next = nullptr;
    std::map<char *, allocation> live; /* by first byte */
    std::map<char *, allocation> freed;
    size_t bytes_now = 0, bytes_peak = 0;
    int opened = 0; /* how many use the memory now */
    std::vector<cudaStream_t> streams;
    int streams_made = 0;
    bool running = false;
    uint64_t rng = 0, enqueued = 0, ran = 0;
    std::vector<cudaStream_t> outstanding; /* streams whose head has arrived at a joint work, in that order */
    cudaError_t broken = cudaSuccess;      /* sticky, as a failed kernel leaves it */
    std::string fail_name;
    struct planted { int64_t count = 0, at = -1; } faults[CUSIM_FAULTS]; /* cusim_plant */
    const void *host_waits_for = nullptr;  /* the last thing it asked for in vain, so that a poll counts once */
    /* track.h: cells of the address range; streams by slot, names of their latest operations, what the host knows. */
    cell *cells = nullptr;
    uint32_t slots_used = 0, slot_seq[STREAMS_MAX] = {};
    int stream_number[STREAMS_MAX] = {};
    std::deque<std::string> names[STREAMS_MAX];
    std::shared_ptr<const done_until> host_seen = std::make_shared<done_until>();
};

struct simulator {
    std::mutex lock;
    std::condition_variable changed;
    device_state devices[DEVICES_MAX];
    int device_count = 8, driver = CUDART_VERSION;
    size_t device_bytes = static_cast<size_t>(1) << 30;
    uint64_t seed = 1, clock = 0;
    cusim_policy policy = CUSIM_RANDOM;
    uint64_t product_ticks[4] = { 0, 0, 0, 0 };
    std::string slow_kernel; /* part of its name; empty: none */
    uint64_t slow_ticks = 0;
    std::atomic<int> quirk { 0 }, cudnn { CUSIM_CUDNN_NONE };
    int64_t cudnn_calls = 0;
    int64_t times_taken = 0, graphs_launched = 0, products_taken = 0;
    bool check_races = true;
    std::map<char *, size_t> pinned;
    std::map<const void *, int> kernel_shared; /* opted in above 48 KiB */
    std::string endless_kernel;                /* part of its name; empty: none */
    std::set<const void *> loaded;             /* kernels that the program has asked for by cudaFuncGetAttributes */
    std::string name = "simulated GPU";
    int multiprocessors = 4;
    int registers = 168;                       /* that each thread of a kernel starts with */
    int known_threads = 0, blocked_threads = 0;
    uint64_t progress = 0;
};

simulator &sim();
typedef std::unique_lock<std::mutex> guard;

/* The calling thread's device, registering the thread with it. The lock is held. */
device_state &my_device(guard &held);
uint64_t random_of(device_state &d);
bool goes_wrong(device_state &d, cusim_fault fault); /* counts */
/* Whether this call on the calling thread's device is the one that cusim_fail_kernel means. The lock is held. */
bool is_refused(guard &held, const char *call);

/* ---- memory.cc ---- */
void memory_open(device_state &d);  /* host and kernels may touch it until the matching close; the lock is held */
void memory_close(device_state &d);
void memory_check(device_state &d); /* red zones; the lock is held */
/* Description of the memory at an address. */
const char *memory_place(const device_state &d, const void *p);
/* NULL, or what is wrong with bytes [p, p + bytes) as memory of device d. The lock is held. */
const char *memory_complaint(device_state &d, const void *p, size_t bytes, bool pinned_is_fine);
device_state *memory_owner(const void *p); /* NULL: host memory */
bool memory_is_pinned(const void *p, size_t bytes);
void memory_watch_faults();

/* ---- schedule.cc ---- */
void enqueue(guard &held, cudaStream_t stream, operation op);
void host_knows(device_state &d, const done_until &seen); /* the host has waited for this */
std::string name_of_operation(const device_state &d, uint32_t slot, uint32_t seq);
/* Runs this thread's devices' work until `pred`; the lock is released while operations run. */
void wait_until(guard &held, device_state &d, const std::function<bool()> &pred, const char *what);
bool poll(guard &held, device_state &d); /* false: nothing could run */
bool device_idle(const device_state &d);

} // namespace cusim

#endif
