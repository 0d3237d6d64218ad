/* runtime.h - the simulator's state: devices, memory, streams, events and what runs next.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TESTS_SIM_RUNTIME_H
#define DSC_TESTS_SIM_RUNTIME_H

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <cuda_runtime.h>

#include "tests/sim/cusim.h"
#include "tests/sim/report.h"

namespace cusim {

enum { DEVICES_MAX = 16 };

struct allocation {
    char *pages;       /* guard pages are before and behind these */
    size_t page_bytes;
    size_t bytes;      /* asked for */
};

/* Generations: `recorded` counts records when they are enqueued, `done` when they run. */
struct event_state { uint64_t recorded = 0, done = 0, at = 0; };

/* What several ranks do together. All hooks run under the lock. */
struct joint_work {
    bool arrived = false;
    virtual ~joint_work() {}
    virtual void arrive() = 0;             /* this rank has come: nothing of it may be touched from here on */
    virtual bool done() const = 0;
    virtual void leave() = 0;              /* this rank goes on */
    virtual std::string waits_for() const = 0;
};

enum work_class { COMPUTE, COPY, COMM, CONTROL };

struct operation {
    work_class kind = CONTROL;
    std::string name;
    uint64_t number = 0; /* order of enqueueing on the device */
    std::function<void()> run;                      /* or */
    uint64_t ticks = 0;                             /* that it takes beyond the one of any operation */
    std::shared_ptr<event_state> event;             /* record, or wait for `generation` */
    bool is_wait = false;
    uint64_t generation = 0;                        /* or */
    std::shared_ptr<joint_work> joint;
};

struct device_state;
} // namespace cusim

struct CUstream_st {
    cusim::device_state *device;
    int number;
    std::deque<cusim::operation> queue;
};
struct CUevent_st { std::shared_ptr<cusim::event_state> state; };

namespace cusim {

struct device_state {
    int index = 0;
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
};

struct simulator {
    std::mutex lock;
    std::condition_variable changed;
    device_state devices[DEVICES_MAX];
    int device_count = 8, arch = 90, driver = CUDART_VERSION;
    long fail_malloc = 0; /* the call, counted down to 0, that finds the memory taken by somebody else */
    size_t device_bytes = static_cast<size_t>(1) << 30;
    uint64_t seed = 1, clock = 0;
    cusim_policy policy = CUSIM_RANDOM;
    uint64_t product_ticks[4] = { 0, 0, 0, 0 };
    std::map<char *, size_t> pinned;
    std::map<const void *, int> kernel_shared; /* opted in above 48 KiB */
    int known_threads = 0, blocked_threads = 0;
    uint64_t progress = 0;
};

simulator &sim();
typedef std::unique_lock<std::mutex> guard;

/* The calling thread's device, registering the thread with it. The lock is held. */
device_state &my_device(guard &held);
uint64_t random_of(device_state &d);

/* ---- memory.cc ---- */
void memory_open(device_state &d);  /* host and kernels may touch it until the matching close; the lock is held */
void memory_close(device_state &d);
void memory_check(device_state &d); /* red zones; the lock is held */
/* NULL, or what is wrong with bytes [p, p + bytes) as memory of device d. The lock is held. */
const char *memory_complaint(device_state &d, const void *p, size_t bytes, bool pinned_is_fine);
device_state *memory_owner(const void *p); /* NULL: host memory */
bool memory_is_pinned(const void *p, size_t bytes);
void memory_watch_faults();

/* What this thread runs now, for reports. */
struct running_work { const char *name; int device; };
extern thread_local running_work running_now;

/* ---- schedule.cc ---- */
void enqueue(guard &held, cudaStream_t stream, operation op);
/* Runs this thread's devices' work until `pred`; the lock is released while operations run. */
void wait_until(guard &held, device_state &d, const std::function<bool()> &pred, const char *what);
bool poll(guard &held, device_state &d); /* false: nothing could run */
bool device_idle(const device_state &d);

} // namespace cusim

#endif
