/* block.h - runs one block of a CUDA kernel on the CPU: a fiber per thread, one block at a time per host thread.
 *
 * A thread that waits at a warp operation switches to another lane of its warp. At a barrier it switches to another
 * warp when no lane of its own can run. The last thread to arrive goes on without a switch. Threads that never wait
 * never switch: one stack serves them all, one after the other. The order of blocks, warps and lanes comes from a seed,
 * so that code that relies on an order fails. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TESTS_SIM_BLOCK_H
#define DSC_TESTS_SIM_BLOCK_H

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace cusim {

enum { WARP = 32, THREADS_MAX = 1024, WARPS_MAX = THREADS_MAX / WARP, SHARED_MAX = 227 * 1024, STACK_BYTES = 64 << 10 };

struct dim { unsigned x, y, z; };

/* A source line, to tell barriers and warp operations apart and to name them. */
struct site { const char *file; int line; };

struct thread {
    void *stack_pointer;
    void *stack;      /* the one it waits on; NULL: not begun, or done */
    void *asan_stack; /* AddressSanitizer's shadow of it */
    dim index;
    unsigned linear, lane, warp;
    site waits_at;
};

/* Lanes of one warp that take part in one operation; several disjoint groups may be under way. */
struct meeting { unsigned mask, arrived; site at; };

struct warp {
    unsigned all, live, runnable, at_barrier; /* lane masks */
    meeting meetings[WARP];
    int meeting_count;
    void *given[WARP]; /* argument of each waiting lane */
};

/* A thread that waits for something that neither a lane nor a barrier brings. */
struct waiter { thread *who; bool (*is_over)(const void *what); const void *what; };

struct block {
    thread threads[THREADS_MAX];
    warp warps[WARPS_MAX];
    unsigned warp_order[WARPS_MAX], warp_count;
    unsigned count, live, waiting; /* threads; of them not ended; of them at the barrier */
    unsigned lane_turn;            /* start of the search for the next lane, from the seed */
    site barrier_at;
    int barrier_sum, barrier_result; /* threads whose value is not 0: so far; when it opened */
    bool barrier_all;
    thread *now;
    dim grid, size, index;
    void (*body)(void *);
    void *arg;
    const char *kernel;
    bool trapped;
    void *main_pointer;
    const void *main_stack; /* for AddressSanitizer */
    size_t main_bytes;
    char *stacks;
    void *free_stacks[THREADS_MAX];
    unsigned free_count;
    size_t shared_bytes;
    uint64_t switches;
    uint64_t number; /* index among all blocks that ran on this host thread */
    std::vector<waiter> waiters;
    std::vector<thread *> aside; /* step_aside */
    std::vector<std::function<void()>> under_way; /* start_async */
    uint64_t async_random;
};

extern thread_local block *current;

/* Values of a kernel's built-in variables, the same as long as a thread runs. A kernel's code is instrumented: one call
 * replaces the reports of three loads. */
__attribute__((const)) dim thread_index();
__attribute__((const)) dim block_index();
__attribute__((const)) dim block_size();
__attribute__((const)) dim grid_size();

/* Runs the grid to its end on this host thread. False: a thread called __trap() (or assert). Violations do not return.
 */
bool run_grid(const char *kernel, dim grid, dim size, size_t shared_bytes, uint64_t seed, void (*body)(void *),
              void *arg);

enum reduction { OR, AND, COUNT };
int barrier(site at, int value, reduction what);
/* All lanes of `mask` come; `last` runs once, on the last to come, with every lane's `given`. */
void synchronize(site at, unsigned mask, void *given, void (*last)(warp &w, unsigned mask));
[[noreturn]] void trap();
[[noreturn]] void broken(const char *what); /* an operation of the running thread that a GPU would refuse */
/* The calling thread goes on when `is_over` says so, which is asked when nobody else can go on. */
void wait_until(site at, bool (*is_over)(const void *what), const void *what);
bool coin(); /* as the seed says */
/* As the seed says, the calling thread goes on at once or when nobody else can. */
void step_aside();
/* Asynchronous work that a thread starts: done at once, or at the latest when all threads wait, as the seed decides. A
 * block must not end before it. */
void start_async(std::function<void()> work);
__attribute__((const)) char *dynamic_shared(); /* memory of the running block, 1024-byte aligned */

} // namespace cusim

#endif
