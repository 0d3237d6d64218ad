/* memory.cc - device memory: an address range per device, guard pages, red zones, poison, and no access for the host.
 *
 * A device's range is inaccessible but for its allocations while one of its operations runs. An allocation ends as
 * close to its last page's end as 256-byte alignment lets it, what is left around it is a red zone. Addresses are never
 * given out twice, so a use after free always shows.
 * SPDX-License-Identifier: Apache-2.0 */
#include <csignal>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/sim/runtime.h"

namespace cusim {

namespace {

const size_t PAGE = 4096, ALIGN = 256;
const unsigned char RED = 0xc5;
/* Opening and closing an allocation for every operation costs per page, so all but small ones get large pages. */
const size_t HUGE = static_cast<size_t>(2) << 20;

size_t round_up(size_t x, size_t unit) { return (x + unit - 1) / unit * unit; }

void protect(const allocation &a, int how)
{
    if (mprotect(a.pages, a.page_bytes, how) != 0)
        fail("mprotect failed");
}

char *first_byte(const allocation &a) { return a.pages + (a.page_bytes - round_up(a.bytes, ALIGN)); }

void open_range(device_state &d)
{
    void *at = reinterpret_cast<void *>(ARENA_FIRST + static_cast<uintptr_t>(d.index) * ARENA_BYTES);
    const int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    void *got = mmap(at, ARENA_BYTES, PROT_NONE, how, -1, 0);
    if (got != at)
        fail("the address range of device %d is taken", d.index);
    d.arena = static_cast<char *>(got);
    d.arena_next = d.arena + PAGE;
    track_open(d);
}

const allocation *inside(const std::map<char *, allocation> &all, const void *p, char **begin)
{
    char *at = static_cast<char *>(const_cast<void *>(p));
    auto next = all.upper_bound(at);
    if (next == all.begin())
        return nullptr;
    --next;
    *begin = next->first;
    return at < next->second.pages + next->second.page_bytes ? &next->second : nullptr;
}

void on_fault(int number, siginfo_t *info, void *)
{
    const uintptr_t at = reinterpret_cast<uintptr_t>(info->si_addr);
    const uintptr_t offset = at - ARENA_FIRST;
    if (offset >= DEVICES_MAX * ARENA_BYTES) {
        signal(number, SIG_DFL);
        raise(number);
        return;
    }
    /* Reading the tables without the lock: the process ends here. */
    const device_state &d = sim().devices[offset / ARENA_BYTES];
    const char *what = memory_place(d, info->si_addr);
    if (running_now.name == nullptr)
        fail("the host touches %s of device %d at %p", what, d.index, info->si_addr);
    fail("%s on device %d touches %s of device %d at %p", running_now.name, running_now.device->index, what, d.index,
         info->si_addr);
}

} // namespace

void memory_watch_faults()
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSEGV, &action, nullptr);
    sigaction(SIGBUS, &action, nullptr);
}

void memory_open(device_state &d)
{
    if (d.opened++ == 0)
        for (auto &a : d.live)
            protect(a.second, PROT_READ | PROT_WRITE);
}

void memory_close(device_state &d)
{
    if (--d.opened == 0)
        for (auto &a : d.live)
            protect(a.second, PROT_NONE);
}

void memory_check(device_state &d)
{
    memory_open(d);
    for (auto &a : d.live) {
        const char *begin = a.first, *end = begin + a.second.bytes;
        const char *pages = a.second.pages, *pages_end = pages + a.second.page_bytes;
        for (const char *p = begin - pages > 256 ? begin - 256 : pages; p < begin; p++)
            if (static_cast<unsigned char>(*p) != RED)
                fail("device %d: %ld bytes before an allocation of %zu bytes were written", d.index, begin - p,
                     a.second.bytes);
        for (const char *p = end; p < pages_end; p++)
            if (static_cast<unsigned char>(*p) != RED)
                fail("device %d: byte %ld behind an allocation of %zu bytes was written", d.index, p - end,
                     a.second.bytes);
    }
    memory_close(d);
}

device_state *memory_owner(const void *p)
{
    const uintptr_t at = reinterpret_cast<uintptr_t>(p);
    if (at - ARENA_FIRST >= DEVICES_MAX * ARENA_BYTES)
        return nullptr;
    return &sim().devices[(at - ARENA_FIRST) / ARENA_BYTES];
}

bool memory_is_pinned(const void *p, size_t bytes)
{
    char *at = static_cast<char *>(const_cast<void *>(p));
    auto next = sim().pinned.upper_bound(at);
    if (next == sim().pinned.begin())
        return false;
    --next;
    return at + bytes <= next->first + next->second;
}

const char *memory_place(const device_state &d, const void *p)
{
    char *begin = nullptr;
    if (inside(d.freed, p, &begin) != nullptr)
        return "freed memory";
    const allocation *a = inside(d.live, p, &begin);
    if (a == nullptr || static_cast<const char *>(p) < begin || static_cast<const char *>(p) >= begin + a->bytes)
        return "memory outside every allocation";
    return d.cells != nullptr && !track_allowed(d, p, 1) ? "memory that nobody was given" : "memory";
}

const char *memory_complaint(device_state &d, const void *p, size_t bytes, bool pinned_is_fine)
{
    device_state *owner = memory_owner(p);
    if (owner == nullptr)
        return pinned_is_fine && memory_is_pinned(p, bytes) ? nullptr : "host memory";
    if (owner != &d)
        return "another device's memory";
    char *begin = nullptr;
    if (inside(d.freed, p, &begin) != nullptr)
        return "freed memory";
    const allocation *a = inside(d.live, p, &begin);
    if (a == nullptr || static_cast<const char *>(p) + bytes > begin + a->bytes)
        return "memory outside every allocation";
    return track_allowed(d, p, bytes) ? nullptr : "memory that nobody was given";
}

} // namespace cusim

using namespace cusim;

extern "C" cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    guard held(sim().lock);
    device_state &d = my_device(held);
    if (d.broken != cudaSuccess)
        return d.broken;
    *memory = nullptr;
    if (bytes == 0)
        return cudaSuccess;
    if (goes_wrong(d, CUSIM_FAIL_MALLOC) || bytes > sim().device_bytes ||
        d.bytes_now + round_up(bytes, ALIGN) > sim().device_bytes)
        return cudaErrorMemoryAllocation;
    if (d.arena == nullptr)
        open_range(d);
    allocation a;
    a.bytes = bytes;
    a.page_bytes = round_up(round_up(bytes, ALIGN) + ALIGN, PAGE);
    a.pages = d.arena_next;
    if (a.page_bytes >= HUGE / 4) {
        a.page_bytes = round_up(a.page_bytes, HUGE);
        a.pages = reinterpret_cast<char *>(round_up(reinterpret_cast<uintptr_t>(a.pages), HUGE));
        madvise(a.pages, a.page_bytes, MADV_HUGEPAGE);
    }
    d.arena_next = a.pages + a.page_bytes + PAGE;
    if (d.arena_next > d.arena + ARENA_BYTES)
        fail("device %d: the address range is used up", d.index);
    protect(a, PROT_READ | PROT_WRITE);
    char *begin = first_byte(a);
    memset(a.pages, RED, static_cast<size_t>(begin - a.pages));
    memset(begin, 0xff, bytes);
    memset(begin + bytes, RED, static_cast<size_t>(a.pages + a.page_bytes - begin) - bytes);
    if (d.opened == 0)
        protect(a, PROT_NONE);
    d.live[begin] = a;
    track_allow(d, begin, bytes);
    d.bytes_now += round_up(bytes, ALIGN);
    d.bytes_peak = d.bytes_now > d.bytes_peak ? d.bytes_now : d.bytes_peak;
    *memory = begin;
    return cudaSuccess;
}

extern "C" cudaError_t cudaFree(void *memory)
{
    if (memory == nullptr)
        return cudaSuccess;
    guard held(sim().lock);
    my_device(held);
    device_state *d = memory_owner(memory);
    if (d == nullptr || d->live.count(static_cast<char *>(memory)) == 0)
        fail("cudaFree(%p): %s", memory, d == nullptr ? "host memory" : "no live allocation begins there");
    wait_until(held, *d, [&] { return device_idle(*d); }, "cudaFree");
    for (cudaStream_t s : d->streams)
        host_knows(*d, s->seen);
    memory_check(*d);
    auto found = d->live.find(static_cast<char *>(memory));
    const allocation a = found->second;
    d->live.erase(found);
    track_forget(*d, memory, a.bytes);
    d->freed[static_cast<char *>(memory)] = a;
    d->bytes_now -= round_up(a.bytes, ALIGN);
    protect(a, PROT_NONE);
    madvise(a.pages, a.page_bytes, MADV_DONTNEED);
    return cudaSuccess;
}

extern "C" cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned)
{
    guard held(sim().lock);
    if (goes_wrong(my_device(held), CUSIM_FAIL_MALLOC))
        return cudaErrorMemoryAllocation;
    void *got = mmap(nullptr, round_up(bytes, PAGE) + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (got == MAP_FAILED)
        return cudaErrorMemoryAllocation;
    memset(got, 0xff, bytes);
    sim().pinned[static_cast<char *>(got)] = bytes;
    *memory = got;
    return cudaSuccess;
}

extern "C" cudaError_t cudaMallocHost(void **memory, size_t bytes) { return cudaHostAlloc(memory, bytes, 0); }

extern "C" cudaError_t cudaFreeHost(void *memory)
{
    if (memory == nullptr)
        return cudaSuccess;
    guard held(sim().lock);
    device_state &d = my_device(held);
    auto found = sim().pinned.find(static_cast<char *>(memory));
    if (found == sim().pinned.end())
        fail("cudaFreeHost(%p): not from cudaHostAlloc", memory);
    wait_until(held, d, [&] { return device_idle(d); }, "cudaFreeHost");
    const size_t bytes = found->second;
    sim().pinned.erase(found);
    munmap(memory, round_up(bytes, PAGE) + PAGE);
    return cudaSuccess;
}

extern "C" cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned)
{
    guard held(sim().lock);
    if (goes_wrong(my_device(held), CUSIM_FAIL_MALLOC))
        return cudaErrorMemoryAllocation;
    if (!sim().pinned.emplace(static_cast<char *>(memory), bytes).second)
        return cudaErrorHostMemoryAlreadyRegistered;
    return cudaSuccess;
}

extern "C" cudaError_t cudaHostUnregister(void *memory)
{
    guard held(sim().lock);
    device_state &d = my_device(held);
    wait_until(held, d, [&] { return device_idle(d); }, "cudaHostUnregister");
    return sim().pinned.erase(static_cast<char *>(memory)) == 1 ? cudaSuccess : cudaErrorInvalidValue;
}

extern "C" cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *memory)
{
    guard held(sim().lock);
    device_state *d = memory_owner(memory);
    const bool pinned = d == nullptr && memory_is_pinned(memory, 1);
    attributes->type = d != nullptr ? cudaMemoryTypeDevice : pinned ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
    attributes->device = d != nullptr ? d->index : pinned ? 0 : -2;
    attributes->devicePointer = d != nullptr || pinned ? const_cast<void *>(memory) : nullptr;
    attributes->hostPointer = d == nullptr ? const_cast<void *>(memory) : nullptr;
    return cudaSuccess;
}

extern "C" cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    guard held(sim().lock);
    device_state &d = my_device(held);
    *total_bytes = sim().device_bytes;
    *free_bytes = sim().device_bytes - d.bytes_now;
    return cudaSuccess;
}

namespace {

device_state &owner_of_part(const void *p, size_t bytes, const char *call)
{
    char *begin = nullptr;
    device_state *d = memory_owner(p);
    const allocation *a = d != nullptr ? inside(d->live, p, &begin) : nullptr;
    if (a == nullptr || static_cast<const char *>(p) < begin ||
        static_cast<const char *>(p) + bytes > begin + round_up(a->bytes, ALIGN))
        fail("%s(%p, %zu): not inside a live allocation", call, p, bytes);
    return *d;
}

} // namespace

void cusim_forbid(const void *p, size_t bytes)
{
    guard held(sim().lock);
    device_state &d = owner_of_part(p, bytes, "cusim_forbid");
    if (sim().check_races && d.broken == cudaSuccess)
        track_release(d, p, bytes);
    track_forbid(d, p, bytes);
    memory_open(d);
    memset(const_cast<void *>(p), 0xff, bytes);
    memory_close(d);
}

void cusim_allow(const void *p, size_t bytes)
{
    guard held(sim().lock);
    track_allow(owner_of_part(p, bytes, "cusim_allow"), p, bytes);
}

size_t cusim_bytes_now(int device) { return sim().devices[device].bytes_now; }
size_t cusim_bytes_peak(int device) { return sim().devices[device].bytes_peak; }
void cusim_reset_peak(int device) { sim().devices[device].bytes_peak = sim().devices[device].bytes_now; }
