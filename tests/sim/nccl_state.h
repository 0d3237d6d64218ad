/* nccl_state.h - communicators of the simulator's NCCL, and their windows. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_SIM_NCCL_STATE_H
#define DSC_SIM_NCCL_STATE_H

#include <nccl.h>
#include <set>

#include "tests/sim/runtime.h"

namespace cusim {

struct nccl_call;

/* A window of one rank. All ranks open their k-th one together. */
struct nccl_window {
    const char *begin;
    size_t bytes;
    uint64_t number; /* k */
    int flags;
};

struct nccl_clique {
    uint64_t id;
    int size, joined = 0;
    bool lost = false; /* a rank aborted: what comes after never ends, as for peers of a rank that died */
    std::map<uint64_t, std::shared_ptr<nccl_call>> calls; /* by position in the order of calls */
    std::map<std::pair<int, uint64_t>, std::shared_ptr<nccl_call>> transfers; /* by pair of ranks and position */
    struct split_round { int came = 0; std::vector<std::pair<int, int>> wishes; std::map<int, uint64_t> ids; };
    std::map<uint64_t, split_round> splits;
    struct window_round { int came = 0; size_t bytes; int flags; };
    std::map<uint64_t, window_round> windows;
};

} // namespace cusim

struct ncclComm {
    std::shared_ptr<cusim::nccl_clique> all;
    int rank;
    cusim::device_state *device;
    bool blocking = true, aborted = false;
    int policy = 0;
    uint64_t call_count = 0, split_count = 0, window_count = 0;
    std::map<int, uint64_t> pair_count;
    std::map<uint64_t, std::pair<const char *, size_t>> registered;
    std::map<uint64_t, cusim::nccl_window> windows; /* by number */
    /* Calls that wait for other ranks, and where they write their result. */
    struct { ncclComm **out = nullptr; int color, key; uint64_t number; bool blocking; int policy; } split;
    struct { ncclWindow_t *out = nullptr; uint64_t number; } window;
};

namespace cusim {

/* The window that holds these bytes; NULL: none. */
const nccl_window *nccl_find_window(const ncclComm *comm, const void *p, size_t bytes);
/* Fails if a collective by symmetric windows is not symmetric. `recv` is written. Counts those by copy engines. */
void nccl_check_windows(ncclComm *comm, const char *what, const void *send, size_t send_bytes, const void *recv,
                        size_t recv_bytes, uint64_t *first_place);
/* Goes on with a pending window; true: it is open, or none was pending. */
bool nccl_poll_window(ncclComm *comm);
void nccl_forget_windows(ncclComm *comm);
/* Returns when all ranks have joined, or the communicator is aborted. */
void nccl_wait_open(guard &held, ncclComm *comm);
/* Within a group its end waits for the communicator; false: there is no group. */
bool nccl_opens_in_group(ncclComm *comm);
int nccl_version();
const std::set<ncclComm *> &nccl_communicators(); /* those that are open */

} // namespace cusim

#endif
