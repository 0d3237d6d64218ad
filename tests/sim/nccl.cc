/* nccl.cc - the simulator's NCCL: calls of communicators (nccl_comm.cc) whose ranks are host threads (or one thread).
 *
 * The k-th call of each rank on a communicator belongs together and must agree in operation, count, type and root. From
 * the arrival of a rank until the end its outputs are poison and its inputs must not change: a buffer touched in
 * flight shows. Sums are taken in an order of the seed's. SPDX-License-Identifier: Apache-2.0 */
#include <cstring>
#include <cuda_bf16.h>

#include "tests/sim/nccl_state.h"

namespace cusim {

enum call_kind { ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, BROADCAST, PEER_TO_PEER, ALL_TO_ALL };

/* One rank's side of a call. */
struct part {
    bool here = false;
    const char *send = nullptr;
    char *recv = nullptr;
    size_t send_bytes = 0, recv_bytes = 0;
    device_state *device = nullptr;
    uint64_t hash = 0;
};

struct nccl_call {
    call_kind kind;
    size_t count;
    ncclDataType_t type;
    int op, root;      /* peer to peer: source and destination */
    int first = -1;    /* the rank that called first */
    std::vector<part> parts;
    int came = 0, needed;
    bool done = false;
    uint64_t place = 0; /* of the received bytes in the ranks' windows; 0: not known yet */
};

} // namespace cusim

namespace {

using namespace cusim;

const char *const call_names[] = { "ncclAllGather", "ncclReduceScatter", "ncclAllReduce", "ncclBroadcast",
                                   "ncclSend/ncclRecv", "ncclAlltoAll" };

const size_t bytes_of_types[] = { 1, 1, 4, 4, 8, 8, 2, 4, 8, 2 };
bool is_type(ncclDataType_t type) { return static_cast<unsigned>(type) < sizeof bytes_of_types / sizeof(size_t); }
size_t type_bytes(ncclDataType_t type) { return is_type(type) ? bytes_of_types[type] : 0; }

uint64_t hash_of(const void *p, size_t bytes)
{
    uint64_t h = 1469598103934665603ull;
    for (size_t i = 0; i < bytes; i++)
        h = (h ^ static_cast<const unsigned char *>(p)[i]) * 1099511628211ull;
    return h;
}

using call = cusim::nccl_call;

std::string describe(const call &c)
{
    return std::string(call_names[c.kind]) + " of " + std::to_string(c.count) + " elements of type " +
           std::to_string(c.type) +
           (c.kind == BROADCAST ? " from root " + std::to_string(c.root)
            : c.kind == PEER_TO_PEER ? " from rank " + std::to_string(c.op) + " to rank " + std::to_string(c.root)
                                     : "");
}

struct entry { std::shared_ptr<call> shared; call mine; int rank; part side; };

void reduce(std::vector<char> &sum, const std::vector<char> &x, ncclDataType_t type, ncclRedOp_t op, size_t count,
            std::vector<float> &wide, bool first)
{
    if (op != ncclSum && op != ncclAvg)
        fail("the simulator's NCCL only sums");
    if (type == ncclBfloat16) {
        if (first)
            wide.assign(count, 0.0f);
        for (size_t i = 0; i < count; i++)
            wide[i] += __bfloat162float(reinterpret_cast<const __nv_bfloat16 *>(x.data())[i]);
    } else if (type == ncclFloat32) {
        float *s = reinterpret_cast<float *>(sum.data());
        const float *v = reinterpret_cast<const float *>(x.data());
        for (size_t i = 0; i < count; i++)
            s[i] = first ? v[i] : s[i] + v[i];
    } else if (type == ncclInt64 || type == ncclUint64) {
        uint64_t *s = reinterpret_cast<uint64_t *>(sum.data());
        const uint64_t *v = reinterpret_cast<const uint64_t *>(x.data());
        for (size_t i = 0; i < count; i++)
            s[i] = first ? v[i] : s[i] + v[i];
    } else {
        fail("the simulator's NCCL sums bf16, fp32 and 64-bit integers only");
    }
}

/* Everybody has come: the bytes move. */
void perform(call &c)
{
    const size_t n = c.parts.size(), unit = type_bytes(c.type) * c.count;
    std::vector<std::vector<char>> in(n);
    for (size_t r = 0; r < n; r++)
        if (c.parts[r].here)
            memory_open(*c.parts[r].device);
    for (size_t r = 0; r < n; r++) {
        part &p = c.parts[r];
        if (p.send_bytes == 0)
            continue;
        if (hash_of(p.send, p.send_bytes) != p.hash)
            fail("%s: the input of rank %zu changed while the operation was in flight", describe(c).c_str(), r);
        in[r].assign(p.send, p.send + p.send_bytes);
    }
    std::vector<float> wide;
    std::vector<char> sum;
    if (c.kind == REDUCE_SCATTER || c.kind == ALL_REDUCE) {
        const size_t count = c.kind == ALL_REDUCE ? c.count : c.count * n;
        sum.resize(count * type_bytes(c.type));
        const size_t start = sim().seed % n;
        for (size_t i = 0; i < n; i++)
            reduce(sum, in[(start + i) % n], c.type, static_cast<ncclRedOp_t>(c.op), count, wide, i == 0);
        const float by = c.op == ncclAvg ? static_cast<float>(n) : 1.0f;
        if (c.type == ncclBfloat16)
            for (size_t i = 0; i < count; i++)
                reinterpret_cast<__nv_bfloat16 *>(sum.data())[i] = __float2bfloat16_rn(wide[i] / by);
        if (c.op == ncclAvg && c.type == ncclFloat32)
            for (size_t i = 0; i < count; i++)
                reinterpret_cast<float *>(sum.data())[i] /= by;
    }
    for (size_t r = 0; r < n; r++) {
        part &p = c.parts[r];
        if (!p.here || p.recv_bytes == 0)
            continue;
        switch (c.kind) {
        case ALL_GATHER:
            for (size_t q = 0; q < n; q++)
                memcpy(p.recv + q * unit, in[q].data(), unit);
            break;
        case REDUCE_SCATTER: memcpy(p.recv, sum.data() + r * unit, unit); break;
        case ALL_REDUCE: memcpy(p.recv, sum.data(), unit); break;
        case BROADCAST: memcpy(p.recv, in[static_cast<size_t>(c.root)].data(), unit); break;
        case PEER_TO_PEER: memcpy(p.recv, in[static_cast<size_t>(c.op)].data(), unit); break;
        case ALL_TO_ALL:
            for (size_t q = 0; q < n; q++)
                memcpy(p.recv + q * unit, in[q].data() + r * unit, unit);
            break;
        }
    }
    for (size_t r = 0; r < n; r++)
        if (c.parts[r].here)
            memory_close(*c.parts[r].device);
    c.done = true;
}

void check_buffer(device_state &d, const void *p, size_t bytes, const call &c)
{
    if (bytes == 0)
        return;
    if (const char *wrong = memory_complaint(d, p, bytes, false))
        fail("%s on device %d: buffer %p of %zu bytes is %s", describe(c).c_str(), d.index, p, bytes, wrong);
}

void come(entry &e, const accessor &who)
{
    call &c = *e.shared;
    part &p = e.side;
    check_buffer(*p.device, p.send, p.send_bytes, c);
    check_buffer(*p.device, p.recv, p.recv_bytes, c);
    memory_open(*p.device);
    track_range(who, p.send, p.send_bytes, false);
    if (c.kind == ALL_GATHER && p.send >= p.recv && p.send < p.recv + p.recv_bytes) {
        track_range(who, p.recv, static_cast<size_t>(p.send - p.recv), true); /* in place: its own part stays */
        track_range(who, p.send + p.send_bytes, static_cast<size_t>(p.recv + p.recv_bytes - p.send) - p.send_bytes,
                    true);
    } else {
        track_range(who, p.recv, p.recv_bytes, true);
    }
    if (p.send_bytes > 0)
        p.hash = hash_of(p.send, p.send_bytes);
    for (size_t i = 0; i < p.recv_bytes; i++)
        if (p.recv + i < p.send || p.recv + i >= p.send + p.send_bytes)
            p.recv[i] = static_cast<char>(0xff);
    memory_close(*p.device);
    p.here = true;
    part &mine = c.parts[static_cast<size_t>(e.rank)];
    if (mine.here) { /* to oneself: the other half is there */
        p.send = p.send != nullptr ? p.send : mine.send;
        p.hash = p.send_bytes > 0 ? p.hash : mine.hash;
        p.send_bytes += mine.send_bytes;
        p.recv = p.recv != nullptr ? p.recv : mine.recv;
        p.recv_bytes += mine.recv_bytes;
    }
    mine = p;
    if (++c.came == c.needed) {
        perform(c);
        c.parts.clear();
    }
}

/* The calls of one ncclGroup on one stream. */
struct group_work : joint_work {
    ncclComm *comm;
    std::vector<entry> entries;
    void arrive(const accessor &who) override
    {
        for (entry &e : entries)
            if (!comm->all->lost)
                come(e, who);
        sim().changed.notify_all();
    }
    bool done() const override
    {
        if (comm->aborted)
            return true;
        for (const entry &e : entries)
            if (!e.shared->done)
                return false;
        return true;
    }
    void leave() override {}
    bool only_sends() const override
    {
        for (const entry &e : entries)
            if (e.mine.kind != PEER_TO_PEER || e.side.recv != nullptr)
                return false;
        return true;
    }
    std::string waits_for() const override
    {
        for (const entry &e : entries)
            if (!e.shared->done) {
                std::string text = "rank";
                for (size_t r = 0; r < e.shared->parts.size(); r++)
                    if (!e.shared->parts[r].here && (e.mine.kind != PEER_TO_PEER ||
                                                     static_cast<int>(r) == e.mine.op ||
                                                     static_cast<int>(r) == e.mine.root))
                        text += " " + std::to_string(r);
                return text;
            }
        return "nobody";
    }
};

struct pending { ncclComm *comm; cudaStream_t stream; entry e; };
thread_local int group_depth = 0;
thread_local bool group_counted = false, group_skipped = false;
thread_local std::vector<pending> group_calls;
thread_local std::vector<ncclComm *> group_opens;

void submit(guard &held, std::vector<pending> &calls)
{
    std::vector<std::pair<cudaStream_t, std::shared_ptr<group_work>>> works;
    for (pending &p : calls) {
        std::shared_ptr<group_work> work;
        for (auto &w : works)
            if (w.first == p.stream && w.second->comm == p.comm)
                work = w.second;
        if (work == nullptr) {
            work = std::make_shared<group_work>();
            work->comm = p.comm;
            works.emplace_back(p.stream, work);
        }
        work->entries.push_back(std::move(p.e));
    }
    for (auto &w : works) {
        operation op;
        op.kind = COMM;
        op.name = describe(w.second->entries[0].mine);
        if (w.second->entries.size() > 1)
            op.name += " and " + std::to_string(w.second->entries.size() - 1) + " more";
        op.joint = w.second;
        enqueue(held, w.first, std::move(op));
    }
    calls.clear();
}

/* Sent and received bytes are apart, or the call works in place, which each kind does in its own way. */
bool overlaps_badly(const ncclComm *comm, call_kind kind, const part &p)
{
    if (p.send == nullptr || p.recv == nullptr || p.send >= p.recv + p.recv_bytes || p.recv >= p.send + p.send_bytes)
        return false;
    const size_t rank = static_cast<size_t>(comm->rank);
    return kind == ALL_GATHER ? p.send != p.recv + rank * p.send_bytes
           : kind == ALL_TO_ALL ? true
                              : p.recv != p.send + (kind == REDUCE_SCATTER ? rank * p.recv_bytes : 0);
}

/* One of those that the planted fault counts: a group's transfers are one. */
bool is_skipped(device_state &d)
{
    if (group_depth == 0)
        return goes_wrong(d, CUSIM_SKIP_COLLECTIVE);
    if (!group_counted) {
        group_counted = true;
        group_skipped = goes_wrong(d, CUSIM_SKIP_COLLECTIVE);
    }
    return group_skipped;
}

ncclResult_t add(ncclComm_t comm, cudaStream_t stream, call_kind kind, const void *send, size_t send_bytes, void *recv,
                 size_t recv_bytes, size_t count, ncclDataType_t type, int op, int root, int pair)
{
    if (comm == nullptr || !is_type(type) || op < 0 || root < 0)
        return ncclInvalidArgument;
    if (comm->aborted || comm->all->joined < comm->all->size)
        return ncclInvalidUsage;
    const bool is_root_or_peer = kind == BROADCAST || kind == PEER_TO_PEER;
    if ((is_root_or_peer && root >= comm->all->size) || (kind == PEER_TO_PEER ? op >= comm->all->size : op > ncclAvg))
        return ncclInvalidArgument;
    if ((send_bytes > 0 && send == nullptr) || (recv_bytes > 0 && recv == nullptr))
        return ncclInvalidArgument;
    if (stream == nullptr)
        fail("%s on the legacy default stream", call_names[kind]);
    guard held(sim().lock);
    my_device(held);
    if (!comm->device->fail_name.empty() && strstr(call_names[kind], comm->device->fail_name.c_str()) != nullptr) {
        comm->device->fail_name.clear();
        return ncclSystemError;
    }
    if (stream->device != comm->device)
        fail("%s: the communicator is device %d's, the stream device %d's", call_names[kind], comm->device->index,
             stream->device->index);
    if (is_skipped(*comm->device))
        return ncclSuccess;
    entry e;
    e.rank = comm->rank;
    e.mine.kind = kind;
    e.mine.count = count;
    e.mine.type = type;
    e.mine.op = op;
    e.mine.root = root;
    e.mine.needed = kind == PEER_TO_PEER ? 2 : comm->all->size;
    std::shared_ptr<call> &slot = kind == PEER_TO_PEER
                                      ? comm->all->transfers[{ op * comm->all->size + root, comm->pair_count[pair]++ }]
                                      : comm->all->calls[comm->call_count++];
    if (slot == nullptr) {
        slot = std::make_shared<call>(e.mine);
        slot->parts.resize(static_cast<size_t>(comm->all->size));
        slot->first = comm->rank;
    }
    const call &c = *slot;
    if (c.kind != kind || c.count != count || c.type != type || c.op != op || c.root != root)
        fail("ranks disagree on a communicator: rank %d calls %s, rank %d calls %s", c.first, describe(c).c_str(),
             comm->rank, describe(e.mine).c_str());
    if (kind == ALL_GATHER || kind == ALL_TO_ALL)
        nccl_check_windows(comm, call_names[kind], send, send_bytes, recv, recv_bytes, &slot->place);
    e.shared = slot;
    e.side.device = comm->device;
    e.side.send = static_cast<const char *>(send);
    e.side.send_bytes = send_bytes;
    e.side.recv = static_cast<char *>(recv);
    e.side.recv_bytes = recv_bytes;
    if (overlaps_badly(comm, kind, e.side))
        fail("%s of rank %d: what it sends and what it receives overlap, and not in place", describe(e.mine).c_str(),
             comm->rank);
    group_calls.push_back({ comm, stream, std::move(e) });
    if (group_depth == 0)
        submit(held, group_calls);
    return ncclSuccess;
}

} // namespace

bool cusim::nccl_opens_in_group(ncclComm *comm)
{
    if (group_depth > 0)
        group_opens.push_back(comm);
    return group_depth > 0;
}

extern "C" {

ncclResult_t ncclGroupStart(void)
{
    group_depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    if (group_depth == 0)
        return ncclInvalidUsage;
    if (--group_depth > 0)
        return ncclSuccess;
    group_counted = group_skipped = false;
    guard held(sim().lock);
    ncclResult_t result = ncclSuccess;
    for (ncclComm *comm : group_opens) {
        if (comm->blocking)
            nccl_wait_open(held, comm);
        else
            result = ncclInProgress;
    }
    group_opens.clear();
    submit(held, group_calls);
    return result;
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    if (comm == nullptr)
        return ncclInvalidArgument;
    return add(comm, stream, PEER_TO_PEER, send, count * type_bytes(type), nullptr, 0, count, type, comm->rank, peer,
               peer * 2);
}

ncclResult_t ncclRecv(void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
    if (comm == nullptr)
        return ncclInvalidArgument;
    return add(comm, stream, PEER_TO_PEER, nullptr, 0, recv, count * type_bytes(type), count, type, peer, comm->rank,
               peer * 2 + 1);
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream)
{
    const size_t bytes = count * type_bytes(type);
    if (comm == nullptr)
        return ncclInvalidArgument;
    return add(comm, stream, ALL_GATHER, send, bytes, recv, bytes * static_cast<size_t>(comm->all->size), count, type,
               0, 0, 0);
}

ncclResult_t ncclAlltoAll(const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                          cudaStream_t stream)
{
    if (comm == nullptr)
        return ncclInvalidArgument;
    const size_t bytes = count * type_bytes(type) * static_cast<size_t>(comm->all->size);
    return add(comm, stream, ALL_TO_ALL, send, bytes, recv, bytes, count, type, 0, 0, 0);
}

ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream)
{
    const size_t bytes = count * type_bytes(type);
    if (comm == nullptr)
        return ncclInvalidArgument;
    return add(comm, stream, REDUCE_SCATTER, send, bytes * static_cast<size_t>(comm->all->size), recv, bytes, count,
               type, op, 0, 0);
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream)
{
    const size_t bytes = count * type_bytes(type);
    return add(comm, stream, ALL_REDUCE, send, bytes, recv, bytes, count, type, op, 0, 0);
}

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream)
{
    const size_t bytes = count * type_bytes(type);
    if (comm == nullptr)
        return ncclInvalidArgument;
    return add(comm, stream, BROADCAST, comm->rank == root ? send : nullptr, comm->rank == root ? bytes : 0, recv,
               bytes, count, type, 0, root, 0);
}

} // extern "C"
