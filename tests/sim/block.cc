/* block.cc - see block.h. The switch is ten instructions: swapcontext would make a system call for each.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/block.h"

#include <cstring>
#include <sys/mman.h>

#include "tests/sim/report.h"

#if defined(__SANITIZE_ADDRESS__)
#define SIM_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SIM_ASAN 1
#endif
#endif
#ifdef SIM_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

/* save[0] <- the stack pointer of the caller, which goes on when somebody switches to it again. */
extern "C" void cusim_switch(void **save, void *to);
#if defined(__x86_64__)
__asm__(R"(.text
.globl cusim_switch
.type cusim_switch,@function
cusim_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    popq %rdx
    jmpq *%rdx
.size cusim_switch,.-cusim_switch
)");
#else
#error "the simulator's switch is written for x86-64 only; build without the sim suite"
#endif

namespace cusim {

thread_local block *current = nullptr;

namespace {

alignas(1024) thread_local char shared_memory[SHARED_MAX];
const uint64_t CANARY = 0xc0a1e5ced5eed5ull;

uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

bool same(site a, site b) { return a.line == b.line && (a.file == b.file || strcmp(a.file, b.file) == 0); }

char *stack_bottom(void *stack) { return static_cast<char *>(stack); }

void to_main(block *b)
{
    void *dead;
#ifdef SIM_ASAN
    __sanitizer_start_switch_fiber(nullptr, b->main_stack, b->main_bytes);
#endif
    cusim_switch(&dead, b->main_pointer);
    __builtin_unreachable();
}

void thread_main();

/* A stack that, when switched to, begins in thread_main. Tops are coloured by cache line: equal offsets share one set.
 */
void *begin_stack(block *b, thread *t)
{
    if (b->free_count == 0)
        fail("no stack left in %s", b->kernel);
    char *stack = static_cast<char *>(b->free_stacks[--b->free_count]);
#ifdef SIM_ASAN
    __asan_unpoison_memory_region(stack, STACK_BYTES); /* frames that never returned */
#endif
    memcpy(stack, &CANARY, sizeof CANARY);
    t->stack = stack;
    const size_t number = static_cast<size_t>(stack - b->stacks) / STACK_BYTES;
    char *top = stack + STACK_BYTES - number * 37 % 32 * 64;
    void **at = reinterpret_cast<void **>(top);
    *--at = nullptr; /* entry sees the stack as after a call: 8 off 16 */
    *--at = reinterpret_cast<void *>(thread_main);
    for (int i = 0; i < 6; i++)
        *--at = nullptr;
    return at;
}

/* A lane that can run: of this warp, else of the next warp in the seed's order. NULL: none. */
thread *find_runnable(block *b, unsigned from)
{
    if (b->warps[from].runnable == 0) {
        unsigned position = 0, i = 1;
        while (b->warp_order[position] != from)
            position++;
        for (; i < b->warp_count; i++) {
            position = position + 1 == b->warp_count ? 0 : position + 1;
            if (b->warps[b->warp_order[position]].runnable != 0)
                break;
        }
        if (i >= b->warp_count)
            return nullptr;
        from = b->warp_order[position];
    }
    const unsigned turn = b->lane_turn & 31, runnable = b->warps[from].runnable;
    const unsigned turned = turn == 0 ? runnable : runnable >> turn | runnable << (32 - turn);
    const unsigned lane = (static_cast<unsigned>(__builtin_ctz(turned)) + turn) & 31;
    return &b->threads[from * WARP + lane];
}

void wake(block *b)
{
    size_t kept = 0;
    for (const waiter &w : b->waiters)
        if (w.is_over(w.what))
            b->warps[w.who->warp].runnable |= 1u << w.who->lane;
        else
            b->waiters[kept++] = w;
    b->waiters.resize(kept);
}

/* One of them, as the seed says. */
template <class T> T take_any(block *b, std::vector<T> *from)
{
    b->async_random = mix(b->async_random);
    const size_t which = b->async_random % from->size();
    T taken = std::move((*from)[which]);
    from->erase(from->begin() + static_cast<std::ptrdiff_t>(which));
    return taken;
}

void finish_one(block *b)
{
    const std::function<void()> work = take_any(b, &b->under_way);
    work();
}

/* The next lane to run. NULL: all wait, and no asynchronous work is under way. */
thread *pick(block *b, unsigned from)
{
    for (;;) {
        thread *next = find_runnable(b, from);
        if (next != nullptr)
            return next;
        if (!b->waiters.empty()) {
            wake(b);
            next = find_runnable(b, from);
        }
        if (next != nullptr)
            return next;
        if (!b->aside.empty() && (b->under_way.empty() || coin())) {
            next = take_any(b, &b->aside);
            b->warps[next->warp].runnable |= 1u << next->lane;
            return next;
        }
        if (b->under_way.empty())
            return nullptr;
        finish_one(b);
    }
}

[[noreturn]] void everybody_waits(block *b)
{
    char text[1024];
    size_t used = 0;
    int named = 0;
    for (unsigned i = 0; i < b->count && named < 4; i++) {
        const thread &t = b->threads[i];
        if ((b->warps[t.warp].live >> t.lane & 1) == 0)
            continue;
        used += static_cast<size_t>(snprintf(text + used, sizeof text - used, "%s thread %u at %s:%d",
                                             named == 0 ? "" : ",", i, t.waits_at.file, t.waits_at.line));
        named++;
    }
    fail("deadlock inside %s, block (%u,%u,%u): %u of %u threads wait and none can go on:%s%s", b->kernel,
         b->index.x, b->index.y, b->index.z, b->live, b->count, text, b->live > 4 ? ", ..." : "");
}

/* `me` waits: somebody else, of warp `from` if possible, runs until `me` is runnable and chosen. */
void wait(block *b, thread *me, unsigned from)
{
    thread *next = pick(b, from);
    if (next == nullptr)
        everybody_waits(b);
    if (next == me)
        return;
    b->now = next;
    b->switches++;
    void *to = next->stack == nullptr ? begin_stack(b, next) : next->stack_pointer;
#ifdef SIM_ASAN
    __sanitizer_start_switch_fiber(&me->asan_stack, stack_bottom(next->stack), STACK_BYTES);
#endif
    cusim_switch(&me->stack_pointer, to);
#ifdef SIM_ASAN
    __sanitizer_finish_switch_fiber(me->asan_stack, nullptr, nullptr);
#endif
}

void open_barrier(block *b)
{
    b->barrier_result = b->barrier_sum;
    b->barrier_all = b->barrier_sum == static_cast<int>(b->live);
    b->barrier_sum = 0;
    b->waiting = 0;
    for (unsigned i = 0; i < b->warp_count; i++) {
        b->warps[i].runnable |= b->warps[i].at_barrier;
        b->warps[i].at_barrier = 0;
    }
}

/* An ended thread counts as arrived at the barrier; a warp operation that waits for it never ends, as on a GPU. */
void end_thread(block *b, thread *me)
{
    warp &w = b->warps[me->warp];
    const unsigned bit = 1u << me->lane;
    w.live &= ~bit;
    w.runnable &= ~bit;
    b->live--;
    if (b->live > 0 && b->waiting == b->live)
        open_barrier(b);
}

/* Runs threads on this stack until one has to go on elsewhere. */
void thread_main()
{
    block *b = current;
#ifdef SIM_ASAN
    {
        const void *bottom;
        size_t bytes;
        __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
        if (b->main_stack == nullptr) {
            b->main_stack = bottom;
            b->main_bytes = bytes;
        }
    }
#endif
    for (;;) {
        thread *me = b->now;
        void *stack = me->stack;
        b->body(b->arg);
        me = b->now;
        if (memcmp(stack, &CANARY, sizeof CANARY) != 0)
            fail("a thread of %s used more than %d bytes of stack", b->kernel, STACK_BYTES);
        me->stack = nullptr;
        end_thread(b, me);
        if (b->live == 0) {
            b->free_stacks[b->free_count++] = stack;
            to_main(b);
        }
        thread *next = pick(b, me->warp);
        if (next == nullptr)
            everybody_waits(b);
        b->now = next;
        if (next->stack == nullptr) {
            next->stack = stack; /* no switch at all */
            continue;
        }
        b->free_stacks[b->free_count++] = stack;
        b->switches++;
        void *dead;
#ifdef SIM_ASAN
        __sanitizer_start_switch_fiber(nullptr, stack_bottom(next->stack), STACK_BYTES);
#endif
        cusim_switch(&dead, next->stack_pointer);
        __builtin_unreachable();
    }
}

constexpr size_t STACKS_BYTES = static_cast<size_t>(STACK_BYTES) * THREADS_MAX;

/* A host thread's own, given back when it ends: tests start many ranks. */
struct block_owner {
    block *mine = nullptr;
    ~block_owner()
    {
        if (mine == nullptr)
            return;
#ifdef SIM_ASAN
        __asan_unpoison_memory_region(mine->stacks, STACKS_BYTES); /* the addresses may become somebody else's */
#endif
        munmap(mine->stacks, STACKS_BYTES);
        delete mine;
    }
};

block *open_block()
{
    static thread_local block_owner owner;
    if (owner.mine != nullptr)
        return owner.mine;
    void *memory = mmap(nullptr, STACKS_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                        -1, 0);
    if (memory == MAP_FAILED)
        fail("no memory for stacks");
    owner.mine = new block();
    owner.mine->stacks = static_cast<char *>(memory);
    return owner.mine;
}

void begin_block(block *b, uint64_t seed)
{
    b->live = b->count;
    b->waiting = 0;
    b->barrier_sum = 0;
    b->trapped = false;
    b->number++;
    b->waiters.clear();
    b->aside.clear();
    b->under_way.clear();
    b->async_random = seed;
    b->lane_turn = static_cast<unsigned>(seed >> 32);
    for (unsigned i = 0; i < b->warp_count; i++) {
        warp &w = b->warps[i];
        const unsigned rest = b->count - i * WARP;
        w.all = w.live = w.runnable = rest >= WARP ? ~0u : (1u << rest) - 1;
        w.at_barrier = 0;
        w.meeting_count = 0;
        b->warp_order[i] = i;
    }
    for (unsigned i = b->warp_count - 1; i > 0; i--) {
        seed = mix(seed);
        const unsigned j = static_cast<unsigned>(seed % (i + 1)), kept = b->warp_order[i];
        b->warp_order[i] = b->warp_order[j];
        b->warp_order[j] = kept;
    }
    b->free_count = 0;
    for (unsigned i = b->count; i > 0; i--)
        b->free_stacks[b->free_count++] = b->stacks + static_cast<size_t>(i - 1) * STACK_BYTES;
    for (unsigned i = 0; i < b->count; i++)
        b->threads[i].stack = nullptr;
    memset(shared_memory, 0xff, b->shared_bytes); /* NaN in fp32 and bf16 */
}

void run_block(block *b, uint64_t seed)
{
    begin_block(b, seed);
    thread *first = &b->threads[b->warp_order[0] * WARP];
    first = pick(b, first->warp);
    b->now = first;
    void *to = begin_stack(b, first);
#ifdef SIM_ASAN
    void *kept;
    __sanitizer_start_switch_fiber(&kept, stack_bottom(first->stack), STACK_BYTES);
#endif
    cusim_switch(&b->main_pointer, to);
#ifdef SIM_ASAN
    __sanitizer_finish_switch_fiber(kept, nullptr, nullptr);
#endif
    if (!b->trapped && !b->under_way.empty())
        fail("block (%u,%u,%u) of %s ends, and %zu of the copies that it started are under way", b->index.x,
             b->index.y, b->index.z, b->kernel, b->under_way.size());
}

} // namespace

bool run_grid(const char *kernel, dim grid, dim size, size_t shared_bytes, uint64_t seed, void (*body)(void *),
              void *arg)
{
    block *b = open_block();
    current = b;
    b->kernel = kernel;
    b->grid = grid;
    b->size = size;
    b->count = size.x * size.y * size.z;
    b->warp_count = (b->count + WARP - 1) / WARP;
    b->shared_bytes = shared_bytes;
    b->body = body;
    b->arg = arg;
    for (unsigned i = 0; i < b->count; i++) {
        thread &t = b->threads[i];
        t.linear = i;
        t.lane = i % WARP;
        t.warp = i / WARP;
        t.index = { i % size.x, i / size.x % size.y, i / (size.x * size.y) };
    }
    /* Blocks in an order of the seed's: a step that is coprime with the number of them visits all. */
    const uint64_t blocks = static_cast<uint64_t>(grid.x) * grid.y * grid.z;
    uint64_t step = mix(seed) % blocks | 1, at = mix(seed + 1) % blocks;
    for (uint64_t a = step, r = blocks;;) {
        while (r != 0) {
            const uint64_t t = a % r;
            a = r;
            r = t;
        }
        if (a == 1)
            break;
        step += 2;
        a = step;
        r = blocks;
    }
    bool fine = true;
    for (uint64_t i = 0; i < blocks && fine; i++, at = (at + step) % blocks) {
        b->index = { static_cast<unsigned>(at % grid.x), static_cast<unsigned>(at / grid.x % grid.y),
                     static_cast<unsigned>(at / (static_cast<uint64_t>(grid.x) * grid.y)) };
        run_block(b, mix(seed ^ (at * 0x9e3779b97f4a7c15ull)));
        fine = !b->trapped;
    }
    current = nullptr;
    return fine;
}

int barrier(site at, int value, reduction what)
{
    block *b = current;
    thread *me = b->now;
    if (b->waiting > 0 && !same(b->barrier_at, at))
        fail("divergent barrier in %s, block (%u,%u,%u): thread %u is at %s:%d while others wait at %s:%d", b->kernel,
             b->index.x, b->index.y, b->index.z, me->linear, at.file, at.line, b->barrier_at.file, b->barrier_at.line);
    b->barrier_at = at;
    me->waits_at = at;
    b->barrier_sum += value != 0;
    const unsigned came = ++b->waiting;
    if (came == b->live) {
        open_barrier(b);
    } else {
        warp &w = b->warps[me->warp];
        w.at_barrier |= 1u << me->lane;
        w.runnable &= ~(1u << me->lane);
        wait(b, me, me->warp);
    }
    return what == COUNT ? b->barrier_result : what == OR ? b->barrier_result > 0 : b->barrier_all;
}

void synchronize(site at, unsigned mask, void *given, void (*last)(warp &w, unsigned mask))
{
    block *b = current;
    thread *me = b->now;
    warp &w = b->warps[me->warp];
    const unsigned bit = 1u << me->lane;
    mask &= w.all;
    if ((mask & bit) == 0)
        fail("%s:%d: lane %u of %s calls a warp operation whose mask 0x%08x leaves it out", at.file, at.line, me->lane,
             b->kernel, mask);
    int found = -1;
    for (int i = 0; i < w.meeting_count && found < 0; i++)
        if (w.meetings[i].mask == mask)
            found = i;
    if (found < 0) {
        found = w.meeting_count++;
        w.meetings[found] = { mask, 0, at };
    }
    meeting &m = w.meetings[found];
    if (!same(m.at, at))
        fail("divergent warp operation in %s: lane %u is at %s:%d while others wait at %s:%d", b->kernel, me->lane,
             at.file, at.line, m.at.file, m.at.line);
    m.arrived |= bit;
    w.given[me->lane] = given;
    me->waits_at = at;
    if (m.arrived == mask) {
        w.meetings[found] = w.meetings[--w.meeting_count];
        if (last != nullptr)
            last(w, mask);
        w.runnable |= mask;
        return;
    }
    w.runnable &= ~bit;
    wait(b, me, me->warp);
}

void wait_until(site at, bool (*is_over)(const void *what), const void *what)
{
    block *b = current;
    thread *me = b->now;
    if (is_over(what))
        return;
    me->waits_at = at;
    b->waiters.push_back({ me, is_over, what });
    b->warps[me->warp].runnable &= ~(1u << me->lane);
    wait(b, me, me->warp);
}

bool coin()
{
    current->async_random = mix(current->async_random);
    return (current->async_random & 1) != 0;
}

void step_aside()
{
    block *b = current;
    thread *me = b->now;
    if (coin())
        return;
    me->waits_at = { __FILE__, __LINE__ };
    b->aside.push_back(me);
    b->warps[me->warp].runnable &= ~(1u << me->lane);
    wake(b);
    wait(b, me, static_cast<unsigned>((b->async_random >> 1) % b->warp_count));
}

void start_async(std::function<void()> work)
{
    current->under_way.push_back(std::move(work));
    if (coin())
        finish_one(current);
}

void trap()
{
    current->trapped = true;
    to_main(current);
    __builtin_unreachable();
}

void broken(const char *what)
{
    const block *b = current;
    fail("%s, block (%u,%u,%u), thread %u: %s", b->kernel, b->index.x, b->index.y, b->index.z, b->now->linear, what);
}

char *dynamic_shared() { return shared_memory; }

dim thread_index() { return current->now->index; }
dim block_index() { return current->index; }
dim block_size() { return current->size; }
dim grid_size() { return current->grid; }

} // namespace cusim
