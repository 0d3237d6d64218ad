/* schedule.cc - the choice of the next operation. A device's work is run by the host threads that use the device, only
 * when they have to wait, one operation at a time.
 *
 * A collective at the head of a stream is "arrived" when it is chosen; other streams of the device go on. The other
 * ranks' arrival is checked only when nothing else of this thread's devices can run, first for the collective that
 * arrived first. So the order on a device does not depend on the speed of other ranks.
 * SPDX-License-Identifier: Apache-2.0 */
#include <chrono>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <unistd.h>
#include <utility>

#include "tests/sim/runtime.h"

namespace cusim {

namespace {

const size_t NAMES_KEPT = 4096; /* names of a stream's operations, for reports */
const char *const policy_names[] = { "random", "oldest", "newest", "comm", "compute" };

/* One per host thread that has called anything: counted, so that a deadlock of all is seen at once. */
struct thread_record {
    int device = 0;
    unsigned uses = 0; /* bit per device */
    bool known = false;
    ~thread_record()
    {
        if (!known)
            return;
        guard held(sim().lock);
        sim().known_threads--;
        sim().changed.notify_all();
    }
};
thread_local thread_record me;

size_t bytes_of(const char *text)
{
    char *end;
    const double value = strtod(text, &end);
    const double unit = *end == 'K' ? 1024.0 : *end == 'M' ? 1048576.0 : *end == 'G' ? 1073741824.0 : 1.0;
    return static_cast<size_t>(value * unit);
}

void seed_devices(simulator &s)
{
    for (int i = 0; i < DEVICES_MAX; i++)
        s.devices[i].rng = s.seed * 0x9e3779b97f4a7c15ull + static_cast<uint64_t>(i) * 0xbf58476d1ce4e5b9ull;
}

simulator *open_simulator()
{
    simulator *s = new simulator();
    for (int i = 0; i < DEVICES_MAX; i++)
        s->devices[i].index = i;
    if (const char *text = getenv("CUSIM_SEED"))
        s->seed = strtoull(text, nullptr, 10);
    if (const char *text = getenv("CUSIM_DEVICES"))
        s->device_count = atoi(text);
    if (const char *text = getenv("CUSIM_ARCH"))
        for (device_state &d : s->devices)
            d.arch = atoi(text);
    if (const char *text = getenv("CUSIM_CUDNN"))
        s->cudnn = atoi(text);
    if (const char *text = getenv("CUSIM_DRIVER"))
        s->driver = atoi(text);
    if (const char *text = getenv("CUSIM_FAIL_MALLOC"))
        s->devices[0].faults[CUSIM_FAIL_MALLOC].at = atol(text) - 1;
    if (const char *text = getenv("CUSIM_FAIL_KERNEL"))
        s->devices[0].fail_name = text;
    if (const char *text = getenv("CUSIM_ENDLESS_KERNEL"))
        s->endless_kernel = text;
    if (const char *text = getenv("CUSIM_NAME"))
        s->name = text;
    if (const char *text = getenv("CUSIM_REGISTERS"))
        s->registers = atoi(text);
    if (const char *text = getenv("CUSIM_MEM"))
        s->device_bytes = bytes_of(text);
    if (const char *text = getenv("CUSIM_POLICY"))
        for (int i = 0; i < 5; i++)
            if (strcmp(text, policy_names[i]) == 0)
                s->policy = static_cast<cusim_policy>(i);
    if (s->device_count < 0 || s->device_count > DEVICES_MAX)
        fail("CUSIM_DEVICES is 0 to %d", DEVICES_MAX);
    seed_devices(*s);
    memory_watch_faults();
    return s;
}

bool is_ready(const operation &op)
{
    if (op.is_wait)
        return op.record->done;
    return op.joint == nullptr || !op.joint->arrived;
}

/* Lower is sooner. */
uint64_t rank_of(const operation &op, cusim_policy policy)
{
    const uint64_t late = 1ull << 62;
    switch (policy) {
    case CUSIM_OLDEST: return op.number;
    case CUSIM_NEWEST: return late - op.number;
    case CUSIM_COMM_FIRST: return (op.kind == COMM ? 0 : late) + op.number;
    case CUSIM_COMPUTE_FIRST: return (op.kind == COMPUTE ? 0 : late) + op.number;
    default: return 0;
    }
}

cudaStream_t choose(device_state &d)
{
    std::vector<cudaStream_t> ready;
    for (cudaStream_t s : d.streams)
        if (!s->queue.empty() && is_ready(s->queue.front()))
            ready.push_back(s);
    if (ready.empty())
        return nullptr;
    if (sim().policy == CUSIM_RANDOM)
        return ready[random_of(d) % ready.size()];
    cudaStream_t best = ready[0];
    for (cudaStream_t s : ready)
        if (rank_of(s->queue.front(), sim().policy) < rank_of(best->queue.front(), sim().policy))
            best = s;
    return best;
}

void ended(device_state &d)
{
    d.ran++;
    sim().progress++;
    sim().clock++;
    sim().changed.notify_all();
}

/* The next operation of the stream begins: its number, its name, and what it knows. */
accessor begin_operation(cudaStream_t stream, const operation &op)
{
    device_state &d = *stream->device;
    stream->seen.join(*op.host_seen);
    if (op.is_wait && op.record->device == &d)
        stream->seen.join(op.record->seen);
    const uint32_t seq = ++d.slot_seq[stream->slot];
    if (seq >> EPOCH_SEQ_BITS != 0)
        fail("stream %d of device %d ran too many operations for the checks", stream->number, d.index);
    stream->seen.seq[stream->slot] = seq;
    d.names[stream->slot].push_back(op.name);
    if (d.names[stream->slot].size() > NAMES_KEPT)
        d.names[stream->slot].pop_front();
    return { &d, op.name.c_str(), sim().check_races ? &stream->seen : nullptr, stream->slot << EPOCH_SEQ_BITS | seq };
}

/* Runs the head of the stream. */
void run_head(guard &held, cudaStream_t stream)
{
    device_state &d = *stream->device;
    operation &head = stream->queue.front();
    const accessor who = begin_operation(stream, head);
    if (head.joint != nullptr) {
        head.joint->arrived = true;
        head.joint->arrive(who);
        d.outstanding.push_back(stream);
        ended(d);
        return;
    }
    operation op = std::move(head);
    if (op.record != nullptr && !op.is_wait) {
        op.record->done = true;
        op.record->at = sim().clock;
        op.record->device = &d;
        op.record->seen = stream->seen;
    } else if (op.run && d.broken == cudaSuccess) {
        d.running = true;
        memory_open(d);
        held.unlock();
        running_now = who;
        running_now.name = op.name.c_str();
        op.run();
        running_now = {};
        held.lock();
        memory_close(d);
        d.running = false;
    }
    stream->queue.pop_front();
    sim().clock += op.ticks;
    ended(d);
}

/* The joint work that arrived first has ended: its stream goes on. Sends end whenever their receivers come: they do not
 * wait for work that arrived before, and no other work waits for them. */
bool release_joint(device_state &d)
{
    bool waits = false;
    for (size_t i = 0; i < d.outstanding.size(); i++) {
        cudaStream_t s = d.outstanding[i];
        std::shared_ptr<joint_work> work = s->queue.front().joint;
        waits = waits || (!work->done() && !work->only_sends());
        if (!work->done() || (waits && !work->only_sends()))
            continue;
        work->leave();
        d.outstanding.erase(d.outstanding.begin() + static_cast<std::ptrdiff_t>(i));
        s->queue.pop_front();
        ended(d);
        return true;
    }
    return false;
}

enum step_result { RAN, BUSY, STARVED };

step_result step(guard &held, device_state &d)
{
    if (d.running)
        return BUSY;
    if (cudaStream_t s = choose(d)) {
        run_head(held, s);
        return RAN;
    }
    return release_joint(d) ? RAN : STARVED;
}

void report_deadlock(const char *what)
{
    std::string text;
    for (int i = 0; i < sim().device_count; i++)
        for (cudaStream_t s : sim().devices[i].streams) {
            if (s->queue.empty() || text.size() > 3000)
                continue;
            const operation &op = s->queue.front();
            text += "; device " + std::to_string(i) + " stream " + std::to_string(s->number) + " waits at " + op.name;
            if (op.joint != nullptr && op.joint->arrived)
                text += " for " + op.joint->waits_for();
        }
    fail("deadlock: %s can never end%s", what, text.empty() ? "; every stream is empty" : text.c_str());
}

} // namespace

simulator &sim()
{
    static simulator *only = open_simulator();
    return *only;
}

uint64_t random_of(device_state &d)
{
    d.rng += 0x9e3779b97f4a7c15ull;
    uint64_t x = d.rng;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

bool goes_wrong(device_state &d, cusim_fault fault)
{
    device_state::planted &p = d.faults[fault];
    return p.count++ == p.at;
}

bool is_refused(guard &held, const char *call)
{
    std::string &name = my_device(held).fail_name;
    if (name != call)
        return false;
    name.clear();
    return true;
}

std::atomic<int64_t> things{ 0 };

device_state &my_device(guard &)
{
    if (!me.known) {
        me.known = true;
        sim().known_threads++;
    }
    me.uses |= 1u << me.device;
    return sim().devices[me.device];
}

bool device_idle(const device_state &d)
{
    for (cudaStream_t s : d.streams)
        if (!s->queue.empty())
            return false;
    return !d.running;
}

void enqueue(guard &, cudaStream_t stream, operation op)
{
    if (stream->recording != nullptr) {
        if (op.joint != nullptr || op.record != nullptr)
            fail("%s while stream %d of device %d is recorded", op.name.c_str(), stream->number, stream->device->index);
        stream->recording->operations.push_back(std::move(op));
        return;
    }
    op.number = ++stream->device->enqueued;
    op.host_seen = stream->device->host_seen;
    stream->queue.push_back(std::move(op));
    sim().progress++;
    sim().changed.notify_all();
}

void host_knows(device_state &d, const done_until &seen)
{
    auto more = std::make_shared<done_until>(*d.host_seen);
    more->join(seen);
    d.host_seen = more;
}

std::string name_of_operation(const device_state &d, uint32_t slot, uint32_t seq)
{
    const uint32_t first = d.slot_seq[slot] + 1 - static_cast<uint32_t>(d.names[slot].size());
    return seq >= first ? d.names[slot][seq - first] : "an earlier operation";
}

bool poll(guard &held, device_state &d) { return step(held, d) == RAN; }

void wait_until(guard &held, device_state &d, const std::function<bool()> &pred, const char *what)
{
    my_device(held);
    using clock = std::chrono::steady_clock;
    uint64_t seen = sim().progress;
    clock::time_point since = clock::now();
    while (!pred()) {
        step_result result = step(held, d);
        for (int i = 0; i < sim().device_count && result == STARVED; i++)
            if (i != d.index && (me.uses >> i & 1) != 0)
                result = step(held, sim().devices[i]);
        if (result == RAN)
            continue;
        if (pred())
            return;
        if (seen != sim().progress) {
            seen = sim().progress;
            since = clock::now();
        }
        sim().blocked_threads++;
        const bool all = sim().blocked_threads >= sim().known_threads;
        sim().changed.wait_for(held, std::chrono::milliseconds(all ? 100 : 1000));
        sim().blocked_threads--;
        const double quiet = std::chrono::duration<double>(clock::now() - since).count();
        if (seen == sim().progress && (all ? quiet > 0.3 : quiet > 60))
            report_deadlock(what);
    }
}

void fail(const char *format, ...)
{
    char text[4096];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    const simulator &s = sim();
    fprintf(stderr, "cusim: %s [CUSIM_SEED=%llu CUSIM_POLICY=%s]\n", text, static_cast<unsigned long long>(s.seed),
            policy_names[s.policy]);
    fflush(nullptr);
    _exit(EXIT_VIOLATION);
}

void bad_shuffle(int from, unsigned mask)
{
    fail("%s: a shuffle reads lane %d, which its mask 0x%08x leaves out", current->kernel, from, mask);
}

} // namespace cusim

using namespace cusim;

extern "C" cudaError_t cudaGetDeviceCount(int *count)
{
    *count = sim().device_count;
    if (sim().driver < CUDART_VERSION / 1000 * 1000)
        return cudaErrorInsufficientDriver;
    return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}

extern "C" cudaError_t cudaSetDevice(int device)
{
    if (device < 0 || device >= sim().device_count)
        return sim().device_count == 0 ? cudaErrorNoDevice : cudaErrorInvalidDevice;
    guard held(sim().lock);
    me.device = device;
    my_device(held);
    return cudaSuccess;
}

extern "C" cudaError_t cudaGetDevice(int *device)
{
    *device = me.device;
    return cudaSuccess;
}

void cusim_set_schedule(uint64_t seed, cusim_policy policy)
{
    guard held(sim().lock);
    sim().seed = seed;
    sim().policy = policy;
    seed_devices(sim());
}

void cusim_set_devices(int devices, size_t bytes_each)
{
    guard held(sim().lock);
    sim().device_count = devices;
    sim().device_bytes = bytes_each;
}

bool cusim_present(void) { return true; }

void cusim_set_arch(int first, int arch)
{
    guard held(sim().lock);
    for (int i = first; i < DEVICES_MAX; i++)
        sim().devices[i].arch = arch;
}

void cusim_set_product_ticks(const unsigned ticks[4])
{
    guard held(sim().lock);
    std::copy(ticks, ticks + 4, sim().product_ticks);
}

void cusim_set_kernel_ticks(const char *name, unsigned ticks)
{
    guard held(sim().lock);
    sim().slow_kernel = name == nullptr ? "" : std::string(name).substr(0, 63);
    sim().slow_ticks = ticks;
}

void cusim_set_quirk(cusim_quirk quirk) { sim().quirk = quirk; }

void cusim_set_name(const char *name)
{
    guard held(sim().lock);
    sim().name = name;
}

void cusim_set_endless(const char *name)
{
    guard held(sim().lock);
    sim().endless_kernel = name != nullptr ? name : "";
}

int64_t cusim_kernels_loaded(void)
{
    guard held(sim().lock);
    return static_cast<int64_t>(sim().loaded.size());
}

int cusim::quirk_now() { return sim().quirk; }

namespace {

int64_t taken_and_cleared(int64_t simulator::*count)
{
    guard held(sim().lock);
    return std::exchange(sim().*count, 0);
}

} // namespace

int64_t cusim_times_taken(void) { return taken_and_cleared(&simulator::times_taken); }
int64_t cusim_graphs_launched(void) { return taken_and_cleared(&simulator::graphs_launched); }
int64_t cusim_products_taken(void) { return taken_and_cleared(&simulator::products_taken); }

int64_t cusim_left(void)
{
    guard held(sim().lock);
    int64_t left = things + static_cast<int64_t>(sim().pinned.size());
    for (const device_state &d : sim().devices)
        left += static_cast<int64_t>(d.live.size() + d.streams.size());
    return left;
}

void cusim_check_races(bool on)
{
    guard held(sim().lock);
    sim().check_races = on;
}

uint64_t cusim_operations(int device) { return sim().devices[device].ran; }

void cusim_fail_kernel(int device, const char *name)
{
    guard held(sim().lock);
    sim().devices[device].fail_name = name;
}

int64_t cusim_plant(cusim_fault fault, int device, int64_t number)
{
    guard held(sim().lock);
    device_state::planted &p = sim().devices[device].faults[fault];
    const int64_t count = p.count;
    p.count = 0;
    p.at = number;
    return count;
}
