/* nccl_windows.cc - memory and symmetric windows of the simulator's NCCL.
 *
 * A symmetric window lies in memory of ncclMemAlloc, begins at a page, and overlaps no other window of its
 * communicator. All ranks open their windows in the same order, size and kind. A collective whose received bytes are
 * in a window on one rank has them at the same offset on every rank. SPDX-License-Identifier: Apache-2.0 */
#include <cstdlib>

#include "tests/sim/nccl_state.h"

namespace cusim {

namespace {

const size_t GRANULARITY = 4096; /* 2 MiB on a GPU; the tests' devices are small */
std::map<char *, size_t> memory; /* of ncclMemAlloc */
uint64_t opened = 0, copied = 0;
int version = 0;

void check_window(const ncclComm *comm, const char *begin, size_t bytes, int flags)
{
    if (flags != NCCL_WIN_COLL_SYMMETRIC)
        fail("ncclCommWindowRegister: flags 0x%x, and the transport opens symmetric windows alone", flags);
    auto found = memory.upper_bound(const_cast<char *>(begin));
    if (found == memory.begin() || begin + bytes > std::prev(found)->first + std::prev(found)->second)
        fail("ncclCommWindowRegister(%p, %zu): not inside memory of ncclMemAlloc", static_cast<const void *>(begin),
             bytes);
    if (memory_owner(begin) != comm->device)
        fail("ncclCommWindowRegister(%p): memory of another device than the communicator's",
             static_cast<const void *>(begin));
    if (reinterpret_cast<uintptr_t>(begin) % NCCL_WIN_REQUIRED_ALIGNMENT != 0 || bytes == 0)
        fail("ncclCommWindowRegister(%p, %zu): a window begins at a multiple of %d and is not empty",
             static_cast<const void *>(begin), bytes, NCCL_WIN_REQUIRED_ALIGNMENT);
    for (const auto &w : comm->windows)
        if (begin < w.second.begin + w.second.bytes && w.second.begin < begin + bytes)
            fail("ncclCommWindowRegister(%p, %zu): it overlaps window %llu", static_cast<const void *>(begin), bytes,
                 static_cast<unsigned long long>(w.first));
}

/* Number of the window and offset in it; 0: in none. */
uint64_t place_of(const ncclComm *comm, const void *p, size_t bytes)
{
    const nccl_window *w = nccl_find_window(comm, p, bytes);
    return w == nullptr ? 0 : (w->number + 1) << 40 | static_cast<uint64_t>(static_cast<const char *>(p) - w->begin);
}

} // namespace

int nccl_version()
{
    if (version == 0) {
        const char *text = getenv("CUSIM_NCCL");
        version = text != nullptr ? atoi(text) : NCCL_VERSION_CODE;
    }
    return version;
}

const nccl_window *nccl_find_window(const ncclComm *comm, const void *p, size_t bytes)
{
    const char *at = static_cast<const char *>(p);
    for (const auto &w : comm->windows)
        if (at >= w.second.begin && at + bytes <= w.second.begin + w.second.bytes)
            return &w.second;
    return nullptr;
}

void nccl_check_windows(ncclComm *comm, const char *what, const void *send, size_t send_bytes, const void *recv,
                        size_t recv_bytes, uint64_t *first_place)
{
    const uint64_t none = ~0ull, place = place_of(comm, recv, recv_bytes);
    const uint64_t seen = place != 0 ? place : none;
    if (*first_place != 0 && *first_place != seen)
        fail("%s of rank %d: what it receives is at another place of the windows than on other ranks", what,
             comm->rank);
    *first_place = seen;
    if (comm->policy == NCCL_CTA_POLICY_ZERO && place != 0 && place_of(comm, send, send_bytes) != 0)
        copied++;
}

bool nccl_poll_window(ncclComm *comm)
{
    if (comm->window.out == nullptr)
        return true;
    if (comm->all->windows[comm->window.number].came < comm->all->size)
        return false;
    *comm->window.out = reinterpret_cast<ncclWindow_t>(comm->window.number + 1);
    comm->window.out = nullptr;
    return true;
}

void nccl_forget_windows(ncclComm *comm)
{
    things -= static_cast<int64_t>(comm->windows.size());
    comm->windows.clear();
    comm->window.out = nullptr;
}

} // namespace cusim

using namespace cusim;

extern "C" {

void cusim_set_nccl(int number)
{
    guard held(sim().lock);
    version = number;
}

uint64_t cusim_nccl_windows(void)
{
    guard held(sim().lock);
    return opened;
}

uint64_t cusim_nccl_copied(void)
{
    guard held(sim().lock);
    return copied;
}

ncclResult_t ncclMemAlloc(void **out, size_t bytes)
{
    const size_t rounded = (bytes + GRANULARITY - 1) / GRANULARITY * GRANULARITY;
    if (cudaMalloc(out, rounded) != cudaSuccess)
        return ncclUnhandledCudaError;
    guard held(sim().lock);
    memory[static_cast<char *>(*out)] = rounded;
    return ncclSuccess;
}

ncclResult_t ncclMemFree(void *p)
{
    {
        guard held(sim().lock);
        if (memory.erase(static_cast<char *>(p)) == 0)
            fail("ncclMemFree(%p): not from ncclMemAlloc", p);
        for (const ncclComm *comm : nccl_communicators())
            if (nccl_find_window(comm, p, 1) != nullptr)
                fail("ncclMemFree(%p): rank %d still has a window there", p, comm->rank);
    }
    return cudaFree(p) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *window, int flags)
{
    guard held(sim().lock);
    check_window(comm, static_cast<const char *>(buff), size, flags);
    if (comm->window.out != nullptr)
        fail("ncclCommWindowRegister of rank %d: its last window is not open yet", comm->rank);
    const uint64_t number = comm->window_count++;
    nccl_clique::window_round &round = comm->all->windows[number];
    if (round.came++ == 0) {
        round.bytes = size;
        round.flags = flags;
    } else if (round.bytes != size || round.flags != flags) {
        fail("ranks disagree on window %llu: rank %d has %zu bytes, another one %zu",
             static_cast<unsigned long long>(number), comm->rank, size, round.bytes);
    }
    comm->windows[number] = { static_cast<const char *>(buff), size, number, flags };
    comm->window.out = window;
    comm->window.number = number;
    *window = nullptr;
    opened++;
    things++;
    sim().progress++;
    sim().changed.notify_all();
    if (!comm->blocking)
        return ncclInProgress;
    wait_until(held, *comm->device, [&] { return nccl_poll_window(comm) || comm->aborted; }, "ncclCommWindowRegister");
    return ncclSuccess;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window)
{
    guard held(sim().lock);
    if (comm->windows.erase(reinterpret_cast<uint64_t>(window) - 1) == 0)
        fail("ncclCommWindowDeregister(%p): not a window of this communicator", static_cast<void *>(window));
    things--;
    return ncclSuccess;
}

} // extern "C"
