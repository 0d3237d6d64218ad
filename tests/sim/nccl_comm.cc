/* nccl_comm.cc - communicators of the simulator's NCCL: their start, splits, configs, registered memory and end.
 * SPDX-License-Identifier: Apache-2.0 */
#include <cstring>

#include "tests/sim/nccl_state.h"

namespace {

using namespace cusim;
using clique = cusim::nccl_clique;

uint64_t next_id = 1;
std::map<uint64_t, std::shared_ptr<clique>> cliques;

std::set<ncclComm *> open_now;
std::vector<std::unique_ptr<ncclComm>> closed; /* work of them may still be on a stream */

ncclComm *join(guard &held, std::shared_ptr<clique> all, int rank, bool blocking, int policy)
{
    ncclComm *comm = new ncclComm();
    open_now.insert(comm);
    things++;
    comm->all = all;
    comm->rank = rank;
    comm->device = &my_device(held);
    comm->blocking = blocking;
    comm->policy = policy;
    all->joined++;
    sim().progress++;
    sim().changed.notify_all();
    return comm;
}

uint64_t splits = 0;
cusim_nccl_config last_config;

/* Bytes of ncclConfig_t in a version. */
size_t config_bytes(int version) { return version < 22700 ? 48 : version < 22800 ? 72 : sizeof(ncclConfig_t); }

bool is_count(int value) { return value == NCCL_CONFIG_UNDEF_INT || value > 0; }

/* The CTA policy; a config that this version would not understand is a fault of the caller. */
int read_config(const ncclConfig_t *config, bool *blocking)
{
    *blocking = config == nullptr || config->blocking != 0;
    if (config == nullptr)
        return 0;
    const int version = nccl_version();
    if (config->magic != 0xcafebeef || config->size > config_bytes(version) || config->size < 48 ||
        config->version > static_cast<unsigned>(version) ||
        config->size != config_bytes(static_cast<int>(config->version)))
        fail("a config of %zu bytes and version %u for NCCL %d, whose config has %zu", config->size, config->version,
             version, config_bytes(version));
    const int policy = config->size > 48 && config->CTAPolicy != NCCL_CONFIG_UNDEF_INT ? config->CTAPolicy : 0;
    if (!is_count(config->minCTAs) || !is_count(config->maxCTAs) || policy < 0 || policy > NCCL_CTA_POLICY_ZERO)
        fail("a config with CTAs %d to %d and policy %d", config->minCTAs, config->maxCTAs, policy);
    last_config = { config->minCTAs, config->maxCTAs, policy, config->blocking, "" };
    snprintf(last_config.network, sizeof last_config.network, "%s", config->netName != nullptr ? config->netName : "");
    return policy;
}

std::shared_ptr<clique> find_clique(uint64_t id, int size)
{
    std::shared_ptr<clique> &all = cliques[id];
    if (all == nullptr) {
        all = std::make_shared<clique>();
        all->id = id;
        all->size = size;
    }
    return all;
}

/* Goes on with a pending split; true: it has ended, or none was pending. */
bool poll_split(guard &held, ncclComm *comm)
{
    if (comm->split.out == nullptr)
        return true;
    clique &all = *comm->all;
    clique::split_round &round = all.splits[comm->split.number];
    if (round.came < all.size)
        return false;
    ncclComm **out = comm->split.out;
    comm->split.out = nullptr;
    if (comm->split.color == NCCL_SPLIT_NOCOLOR)
        return true;
    int rank = 0, size = 0;
    for (int r = 0; r < all.size; r++) {
        const std::pair<int, int> &w = round.wishes[static_cast<size_t>(r)];
        if (w.first != comm->split.color)
            continue;
        size++;
        rank += w.second < comm->split.key || (w.second == comm->split.key && r < comm->rank);
    }
    if (round.ids.count(comm->split.color) == 0)
        round.ids[comm->split.color] = next_id++;
    *out = join(held, find_clique(round.ids[comm->split.color], size), rank, comm->split.blocking, comm->split.policy);
    return true;
}

} // namespace

const std::set<ncclComm *> &cusim::nccl_communicators() { return open_now; }

void cusim::nccl_wait_open(guard &held, ncclComm *comm)
{
    wait_until(held, *comm->device, [&] { return comm->all->joined == comm->all->size || comm->aborted; },
               "ncclCommInitRank");
}

extern "C" {

ncclResult_t ncclGetVersion(int *version)
{
    *version = nccl_version();
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    guard held(sim().lock);
    memset(id, 0, sizeof *id);
    const uint64_t number = next_id++;
    memcpy(id->internal, "cusim id", 8);
    memcpy(id->internal + 8, &number, sizeof number);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    if (comm == nullptr || ranks < 1 || rank < 0 || rank >= ranks || memcmp(id.internal, "cusim id", 8) != 0)
        return ncclInvalidArgument;
    uint64_t number;
    memcpy(&number, id.internal + 8, sizeof number);
    guard held(sim().lock);
    std::shared_ptr<clique> all = find_clique(number, ranks);
    if (all->size != ranks || all->joined >= ranks)
        return ncclInvalidUsage;
    bool blocking;
    const int policy = read_config(config, &blocking);
    *comm = join(held, all, rank, blocking, policy);
    if (!nccl_opens_in_group(*comm) && blocking)
        nccl_wait_open(held, *comm);
    return blocking ? ncclSuccess : ncclInProgress;
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank)
{
    return ncclCommInitRankConfig(comm, ranks, id, rank, nullptr);
}

/* The new communicator of one that does not block is there when the parent's state says so. */
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *out, ncclConfig_t *config)
{
    guard held(sim().lock);
    clique &all = *comm->all;
    if (comm->split.out != nullptr)
        fail("ncclCommSplit of rank %d: its last split has not ended", comm->rank);
    *out = nullptr;
    comm->split.out = out;
    comm->split.color = color;
    comm->split.key = key;
    comm->split.number = comm->split_count++;
    comm->split.policy = read_config(config, &comm->split.blocking);
    clique::split_round &round = all.splits[comm->split.number];
    round.wishes.resize(static_cast<size_t>(all.size), { NCCL_SPLIT_NOCOLOR, 0 });
    round.wishes[static_cast<size_t>(comm->rank)] = { color, key };
    round.came++;
    splits++;
    sim().progress++;
    sim().changed.notify_all();
    if (!comm->blocking)
        return ncclInProgress;
    wait_until(held, *comm->device, [&] { return poll_split(held, comm) || comm->aborted; }, "ncclCommSplit");
    if (*out != nullptr)
        nccl_wait_open(held, *out);
    return ncclSuccess;
}

uint64_t cusim_nccl_splits(void)
{
    guard held(sim().lock);
    return splits;
}

void cusim_nccl_last_config(cusim_nccl_config *out)
{
    guard held(sim().lock);
    *out = last_config;
}

ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }

static uint64_t next_handle = 1, registrations = 0;

uint64_t cusim_nccl_registrations(void)
{
    guard held(sim().lock);
    return registrations;
}

ncclResult_t ncclCommRegister(ncclComm_t comm, void *buff, size_t size, void **handle)
{
    guard held(sim().lock);
    if (memory_owner(buff) != comm->device || memory_owner(static_cast<char *>(buff) + size - 1) != comm->device)
        fail("ncclCommRegister(%p, %zu): not memory of the communicator's device", buff, size);
    comm->registered[next_handle] = { static_cast<const char *>(buff), size };
    *handle = reinterpret_cast<void *>(next_handle++);
    registrations++;
    things++;
    return ncclSuccess;
}

ncclResult_t ncclCommDeregister(ncclComm_t comm, void *handle)
{
    guard held(sim().lock);
    if (comm->registered.erase(reinterpret_cast<uint64_t>(handle)) == 0)
        fail("ncclCommDeregister(%p): not registered with this communicator", handle);
    things--;
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    guard held(sim().lock);
    comm->aborted = true;
    things -= static_cast<int64_t>(comm->registered.size());
    comm->registered.clear();
    nccl_forget_windows(comm);
    comm->split.out = nullptr;
    open_now.erase(comm);
    closed.emplace_back(comm);
    things--;
    comm->all->lost = true;
    sim().progress++;
    sim().changed.notify_all();
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    guard held(sim().lock);
    if (!comm->registered.empty() || !comm->windows.empty())
        fail("ncclCommDestroy: %zu buffers and %zu windows are still registered", comm->registered.size(),
             comm->windows.size());
    comm->aborted = true;
    open_now.erase(comm);
    closed.emplace_back(comm);
    things--;
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    guard held(sim().lock);
    const bool waits = !comm->aborted && (comm->all->joined < comm->all->size || !poll_split(held, comm) ||
                                          !nccl_poll_window(comm));
    *error = comm->aborted ? ncclInvalidUsage : waits ? ncclInProgress : ncclSuccess;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    switch (result) {
    case ncclSuccess: return "no error";
    case ncclSystemError: return "unhandled system error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
    default: return "unknown result code";
    }
}

const char *ncclGetLastError(ncclComm_t) { return ""; }

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
    *count = comm->all->size;
    return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device)
{
    *device = comm->device->index;
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
    *rank = comm->rank;
    return ncclSuccess;
}

} // extern "C"
