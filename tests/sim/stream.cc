/* stream.cc - streams, events, copies, launches and what the runtime tells about devices.
 * SPDX-License-Identifier: Apache-2.0 */
#include <cstring>

#include "tests/sim/runtime.h"

using namespace cusim;

namespace {

thread_local cudaError_t last_error = cudaSuccess;

cudaError_t say(cudaError_t error)
{
    if (error != cudaSuccess && error != cudaErrorNotReady)
        last_error = error;
    return error;
}

void check_stream(cudaStream_t stream, const char *call)
{
    if (stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread)
        fail("%s on the legacy default stream: it waits for every other stream; use one of your own", call);
    for (cudaStream_t s : sim().devices[stream->device->index].streams)
        if (s == stream)
            return;
    fail("%s on a stream that was destroyed", call);
}

void check_waitable(cudaStream_t stream, const char *call)
{
    check_stream(stream, call);
    if (stream->recording != nullptr)
        fail("%s while stream %d of device %d is recorded", call, stream->number, stream->device->index);
}

/* The host has seen the end of all that is on the stream. */
cudaError_t waited_for(cudaStream_t stream)
{
    stream->device->host_waits_for = nullptr;
    host_knows(*stream->device, stream->seen);
    return say(stream->device->broken);
}

/* A wait of the host that is planted to be none. `what` is not done; asking again for the same is the same wait. */
bool host_wait_dropped(device_state &d, const void *what)
{
    if (d.host_waits_for == what)
        return false;
    d.host_waits_for = what;
    if (!goes_wrong(d, CUSIM_DROP_HOST_WAIT))
        return false;
    d.host_waits_for = nullptr;
    return true;
}

bool at_work(cudaStream_t stream) { return !stream->queue.empty() || stream->device->running; }

} // namespace

/* ---- devices ---- */

extern "C" const char *cudaGetErrorName(cudaError_t error)
{
    switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
    case cudaErrorInsufficientDriver: return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorNotReady: return "cudaErrorNotReady";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
    case cudaErrorPeerAccessAlreadyEnabled: return "cudaErrorPeerAccessAlreadyEnabled";
    default: return "cudaErrorUnknown";
    }
}

extern "C" const char *cudaGetErrorString(cudaError_t error)
{
    switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorInsufficientDriver: return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorNotReady: return "device not ready";
    case cudaErrorLaunchFailure: return "unspecified launch failure";
    default: return "unknown error";
    }
}

extern "C" cudaError_t cudaGetLastError(void)
{
    const cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

extern "C" cudaError_t cudaPeekAtLastError(void) { return last_error; }
extern "C" cudaError_t cudaSetDeviceFlags(unsigned) { return cudaSuccess; }
extern "C" cudaError_t cudaDeviceReset(void) { return cudaSuccess; }

extern "C" cudaError_t cudaDriverGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

extern "C" cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

namespace {

/* Bytes of shared memory that a block may have (CUDA C++ Programming Guide, compute capabilities). */
int shared_of(int arch)
{
    if (arch == 80 || arch == 87)
        return 163 << 10;
    return arch == 86 || arch == 89 || arch / 10 == 12 ? 99 << 10 : SHARED_MAX;
}

} // namespace

extern "C" cudaError_t cudaGetDeviceProperties(cudaDeviceProp *prop, int device)
{
    if (device < 0 || device >= sim().device_count)
        return say(cudaErrorInvalidDevice);
    memset(prop, 0, sizeof *prop);
    snprintf(prop->name, sizeof prop->name, "%s", sim().name.c_str());
    prop->uuid.bytes[0] = static_cast<char>(device);
    prop->totalGlobalMem = sim().device_bytes;
    prop->sharedMemPerBlock = 48 << 10;
    prop->sharedMemPerBlockOptin = static_cast<size_t>(shared_of(sim().devices[device].arch));
    prop->sharedMemPerMultiprocessor = 228 << 10;
    prop->regsPerBlock = 65536;
    prop->warpSize = cusim::WARP;
    prop->maxThreadsPerBlock = THREADS_MAX;
    prop->maxThreadsDim[0] = prop->maxThreadsDim[1] = 1024;
    prop->maxThreadsDim[2] = 64;
    prop->maxGridSize[0] = 2147483647;
    prop->maxGridSize[1] = prop->maxGridSize[2] = 65535;
    prop->major = sim().devices[device].arch / 10;
    prop->minor = sim().devices[device].arch % 10;
    prop->multiProcessorCount = sim().multiprocessors;
    prop->maxThreadsPerMultiProcessor = 2048;
    prop->l2CacheSize = 1 << 20;
    prop->pciBusID = device + 1;
    prop->asyncEngineCount = 3;
    prop->unifiedAddressing = 1;
    return cudaSuccess;
}

extern "C" cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device)
{
    cudaDeviceProp prop;
    const cudaError_t error = cudaGetDeviceProperties(&prop, device);
    if (error != cudaSuccess)
        return error;
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = prop.maxThreadsPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = static_cast<int>(prop.sharedMemPerBlock); break;
    case cudaDevAttrMultiProcessorCount: *value = prop.multiProcessorCount; break;
    case cudaDevAttrL2CacheSize: *value = prop.l2CacheSize; break;
    case cudaDevAttrComputeCapabilityMajor: *value = prop.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = prop.minor; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = static_cast<int>(prop.sharedMemPerBlockOptin); break;
    default: *value = 0; break;
    }
    return cudaSuccess;
}

extern "C" cudaError_t cudaDeviceGetPCIBusId(char *id, int bytes, int device)
{
    snprintf(id, static_cast<size_t>(bytes), "0000:%02x:00.0", device + 1);
    return cudaSuccess;
}

extern "C" cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    *can = device != peer;
    return cudaSuccess;
}

extern "C" cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }

/* ---- streams ---- */

extern "C" cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned, int)
{
    guard held(sim().lock);
    device_state &d = my_device(held);
    if (goes_wrong(d, CUSIM_FAIL_CREATE))
        return say(cudaErrorMemoryAllocation);
    if (~d.slots_used == 0)
        fail("device %d has more than %d streams", d.index, STREAMS_MAX);
    const uint32_t slot = static_cast<uint32_t>(__builtin_ctz(~d.slots_used));
    d.slots_used |= 1u << slot;
    d.stream_number[slot] = d.streams_made;
    *stream = new CUstream_st{ &d, d.streams_made++, slot, *d.host_seen, {} };
    d.streams.push_back(*stream);
    return cudaSuccess;
}

extern "C" cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

extern "C" cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }

extern "C" cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

extern "C" cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    guard held(sim().lock);
    check_waitable(stream, "cudaStreamDestroy");
    device_state &d = *stream->device;
    wait_until(held, d, [&] { return stream->queue.empty(); }, "cudaStreamDestroy");
    for (size_t i = 0; i < d.streams.size(); i++)
        if (d.streams[i] == stream) {
            d.streams.erase(d.streams.begin() + static_cast<long>(i));
            break;
        }
    d.slots_used &= ~(1u << stream->slot);
    waited_for(stream);
    delete stream;
    return cudaSuccess;
}

extern "C" cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    guard held(sim().lock);
    check_waitable(stream, "cudaStreamSynchronize");
    device_state &d = *stream->device;
    if (at_work(stream) && host_wait_dropped(d, stream))
        return say(d.broken);
    wait_until(held, d, [&] { return !at_work(stream); }, "cudaStreamSynchronize");
    memory_check(d);
    return waited_for(stream);
}

extern "C" cudaError_t cudaDeviceSynchronize(void)
{
    guard held(sim().lock);
    device_state &d = my_device(held);
    wait_until(held, d, [&] { return device_idle(d); }, "cudaDeviceSynchronize");
    memory_check(d);
    for (cudaStream_t s : d.streams)
        host_knows(d, s->seen);
    return say(d.broken);
}

extern "C" cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    guard held(sim().lock);
    check_waitable(stream, "cudaStreamQuery");
    device_state &d = *stream->device;
    my_device(held);
    if (at_work(stream) && host_wait_dropped(d, stream))
        return say(d.broken);
    for (int i = 0; i < 2 && !stream->queue.empty(); i++)
        if (!poll(held, d))
            break;
    if (d.broken != cudaSuccess)
        return say(d.broken);
    return at_work(stream) ? cudaErrorNotReady : waited_for(stream);
}

/* ---- events ---- */

/* Blocking events take the times of waits. A run without them is the same run, so that they are not among the things
 * whose lack it has to report. */
extern "C" cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    guard held(sim().lock);
    if (flags != cudaEventBlockingSync && goes_wrong(my_device(held), CUSIM_FAIL_CREATE))
        return say(cudaErrorMemoryAllocation);
    *event = new CUevent_st{ nullptr };
    things++;
    return cudaSuccess;
}

extern "C" cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }

extern "C" cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    delete event;
    things--;
    return cudaSuccess;
}

extern "C" cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    guard held(sim().lock);
    check_stream(stream, "cudaEventRecord");
    operation op;
    op.name = "cudaEventRecord";
    op.record = event->latest = std::make_shared<event_record>();
    enqueue(held, stream, std::move(op));
    return cudaSuccess;
}

/* Captures the record that is the latest now; an event that was never recorded does not wait. */
extern "C" cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    guard held(sim().lock);
    check_stream(stream, "cudaStreamWaitEvent");
    if (event->latest == nullptr || goes_wrong(*stream->device, CUSIM_DROP_WAIT))
        return cudaSuccess;
    operation op;
    op.name = "cudaStreamWaitEvent";
    op.record = event->latest;
    op.is_wait = true;
    enqueue(held, stream, std::move(op));
    return cudaSuccess;
}

extern "C" cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    guard held(sim().lock);
    device_state &d = my_device(held);
    const std::shared_ptr<event_record> wanted = event->latest;
    if (wanted == nullptr || (!wanted->done && host_wait_dropped(d, wanted.get())))
        return say(d.broken);
    wait_until(held, d, [&] { return wanted->done; }, "cudaEventSynchronize");
    d.host_waits_for = nullptr;
    host_knows(*wanted->device, wanted->seen);
    return say(d.broken);
}

extern "C" cudaError_t cudaEventQuery(cudaEvent_t event)
{
    guard held(sim().lock);
    device_state &d = my_device(held);
    const std::shared_ptr<event_record> wanted = event->latest;
    if (wanted == nullptr || (!wanted->done && host_wait_dropped(d, wanted.get())))
        return say(d.broken);
    for (int i = 0; i < 2 && !wanted->done; i++)
        if (!poll(held, d))
            break;
    if (d.broken != cudaSuccess)
        return say(d.broken);
    if (!wanted->done)
        return cudaErrorNotReady;
    d.host_waits_for = nullptr;
    host_knows(*wanted->device, wanted->seen);
    return cudaSuccess;
}

/* There is no time here: a microsecond per operation that ran between them. */
extern "C" cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    guard held(sim().lock);
    if (start->latest == nullptr || end->latest == nullptr)
        return say(cudaErrorInvalidResourceHandle);
    sim().times_taken++;
    *ms = static_cast<float>(end->latest->at - start->latest->at) * 1e-3f;
    return cudaSuccess;
}

/* ---- graphs: a stream's operations, kept ---- */

extern "C" cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode)
{
    guard held(sim().lock);
    check_stream(stream, "cudaStreamBeginCapture");
    if (stream->recording != nullptr)
        fail("cudaStreamBeginCapture on stream %d of device %d, which is recorded", stream->number,
             stream->device->index);
    stream->recording = new CUgraph_st();
    things++;
    return cudaSuccess;
}

extern "C" cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    guard held(sim().lock);
    check_stream(stream, "cudaStreamEndCapture");
    if (stream->recording == nullptr)
        return say(cudaErrorInvalidValue);
    *graph = stream->recording;
    stream->recording = nullptr;
    return cudaSuccess;
}

extern "C" cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long)
{
    guard held(sim().lock);
    if (goes_wrong(my_device(held), CUSIM_FAIL_CREATE))
        return say(cudaErrorMemoryAllocation);
    *exec = new CUgraphExec_st{ *graph };
    things++;
    return cudaSuccess;
}

extern "C" cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    things--;
    return cudaSuccess;
}

extern "C" cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    delete exec;
    things--;
    return cudaSuccess;
}

/* The same kernels with the arguments that they were recorded with, one after the other. */
extern "C" cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    guard held(sim().lock);
    check_stream(stream, "cudaGraphLaunch");
    for (const operation &op : exec->operations)
        enqueue(held, stream, op);
    sim().graphs_launched++;
    return say(stream->device->broken);
}

/* ---- copies ---- */

namespace {

cudaError_t check_range(device_state &d, const void *p, size_t bytes, const char *call, bool *pageable)
{
    *pageable = false;
    if (memory_owner(p) == nullptr) {
        *pageable = !memory_is_pinned(p, bytes);
        return cudaSuccess;
    }
    /* Peer copies are allowed: the other device's memory is opened with ours. */
    device_state &owner = *memory_owner(p);
    const char *wrong = memory_complaint(owner, p, bytes, false);
    if (wrong != nullptr)
        fail("%s of %zu bytes at %p on device %d: %s", call, bytes, p, d.index, wrong);
    return cudaSuccess;
}

void with_peer(const void *to, const void *from, device_state &d, bool open)
{
    for (const void *p : { to, from }) {
        device_state *owner = memory_owner(p);
        if (owner == nullptr || owner == &d)
            continue;
        guard held(sim().lock);
        if (open)
            memory_open(*owner);
        else
            memory_close(*owner);
    }
}

} // namespace

/* A source in pinned memory is read when the copy runs; pageable memory is staged at the call or waited for, as CUDA
 * does. */
extern "C" cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind, cudaStream_t stream)
{
    guard held(sim().lock);
    check_stream(stream, "cudaMemcpyAsync");
    device_state &d = *stream->device;
    if (bytes == 0)
        return cudaSuccess;
    bool to_pageable, from_pageable;
    check_range(d, to, bytes, "a copy to memory", &to_pageable);
    check_range(d, from, bytes, "a copy from memory", &from_pageable);
    if (to_pageable || from_pageable)
        check_waitable(stream, "a copy with pageable memory");
    operation op;
    op.kind = COPY;
    op.name = "cudaMemcpyAsync of " + std::to_string(bytes) + " bytes";
    if (from_pageable && memory_owner(to) != nullptr) {
        auto staged = std::make_shared<std::vector<char>>(static_cast<const char *>(from),
                                                          static_cast<const char *>(from) + bytes);
        op.run = [=, &d] {
            with_peer(to, nullptr, d, true);
            track_range(running_now, to, bytes, true);
            memcpy(to, staged->data(), bytes);
            with_peer(to, nullptr, d, false);
        };
    } else {
        op.run = [=, &d] {
            with_peer(to, from, d, true);
            track_range(running_now, from, bytes, false);
            track_range(running_now, to, bytes, true);
            memmove(to, from, bytes);
            with_peer(to, from, d, false);
        };
    }
    enqueue(held, stream, std::move(op));
    if (!to_pageable)
        return say(d.broken);
    wait_until(held, d, [&] { return stream->queue.empty() && !d.running; }, "a copy to pageable memory");
    return waited_for(stream);
}

extern "C" cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    guard held(sim().lock);
    check_stream(stream, "cudaMemsetAsync");
    device_state &d = *stream->device;
    if (bytes == 0)
        return cudaSuccess;
    if (const char *wrong = memory_complaint(d, to, bytes, true))
        fail("cudaMemsetAsync of %zu bytes at %p on device %d: %s", bytes, to, d.index, wrong);
    operation op;
    op.kind = COPY;
    op.name = "cudaMemsetAsync of " + std::to_string(bytes) + " bytes";
    op.run = [=] {
        track_range(running_now, to, bytes, true);
        memset(to, value, bytes);
    };
    enqueue(held, stream, std::move(op));
    return cudaSuccess;
}

extern "C" cudaError_t cudaMemcpy(void *, const void *, size_t, cudaMemcpyKind)
{
    fail("cudaMemcpy uses the legacy default stream; use cudaMemcpyAsync and a wait");
}

extern "C" cudaError_t cudaMemset(void *, int, size_t)
{
    fail("cudaMemset uses the legacy default stream; use cudaMemsetAsync and a wait");
}

extern "C" cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *user)
{
    guard held(sim().lock);
    check_waitable(stream, "cudaLaunchHostFunc");
    operation op;
    op.name = "cudaLaunchHostFunc";
    op.run = [=] { fn(user); };
    enqueue(held, stream, std::move(op));
    return cudaSuccess;
}

/* ---- launches ---- */

extern "C" cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute attribute, int value)
{
    guard held(sim().lock);
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize)
        return cudaSuccess;
    if (value < 0 || value > shared_of(my_device(held).arch))
        return say(cudaErrorInvalidValue);
    sim().kernel_shared[kernel] = value;
    return cudaSuccess;
}

extern "C" cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *kernel)
{
    guard held(sim().lock);
    sim().loaded.insert(kernel);
    *attributes = { sim().registers, THREADS_MAX };
    return cudaSuccess;
}

namespace {

/* The work of a kernel that never ends. */
struct endless_work : joint_work {
    void arrive(const accessor &) override {}
    bool done() const override { return false; }
    void leave() override {}
    std::string waits_for() const override { return "its end"; }
};

} // namespace

void cusim::check_pointer(const launch_info &info, int number, const void *pointer)
{
    guard held(sim().lock);
    check_stream(info.stream, info.name);
    if (pointer == nullptr)
        return;
    device_state &d = *info.stream->device;
    if (const char *wrong = memory_complaint(d, pointer, 1, true))
        fail("argument %d of %s on device %d is %p: %s", number, info.name, d.index, pointer, wrong);
}

void cusim::enqueue_launch(const launch_info &info, void *kept, void (*body)(void *), void (*drop)(void *))
{
    guard held(sim().lock);
    check_stream(info.stream, info.name);
    device_state &d = *info.stream->device;
    if (!sim().loaded.empty() && sim().loaded.count(info.kernel) == 0)
        fail("%s is launched and was not loaded, as other kernels were", info.name);
    const dim size = info.size, grid = info.grid;
    const uint64_t threads = static_cast<uint64_t>(size.x) * size.y * size.z;
    auto opted = sim().kernel_shared.find(info.kernel);
    const size_t shared_limit =
        opted != sim().kernel_shared.end() ? static_cast<size_t>(min(opted->second, shared_of(d.arch))) : 48 << 10;
    const bool bad = threads == 0 || threads > THREADS_MAX || size.z > 64 || grid.x == 0 || grid.y == 0 ||
                     grid.z == 0 || grid.x > 2147483647u || grid.y > 65535 || grid.z > 65535;
    if (bad || info.shared_bytes > shared_limit) {
        drop(kept);
        say(bad ? cudaErrorInvalidConfiguration : cudaErrorInvalidValue);
        return;
    }
    bool breaks = false;
    if (!d.fail_name.empty() && strstr(info.name, d.fail_name.c_str()) != nullptr) {
        breaks = true;
        d.fail_name.clear();
    }
    operation op;
    op.kind = COMPUTE;
    op.name = info.name;
    if (!sim().slow_kernel.empty() && strstr(info.name, sim().slow_kernel.c_str()) != nullptr)
        op.ticks = sim().slow_ticks;
    const uint64_t seed = random_of(d);
    const std::shared_ptr<void> args(kept, drop);
    const std::string name = info.name;
    const size_t shared_bytes = info.shared_bytes;
    op.run = [=, &d] {
        if (breaks || !run_grid(name.c_str(), grid, size, shared_bytes, seed, body, args.get())) {
            guard inner(sim().lock);
            d.broken = cudaErrorLaunchFailure;
        }
    };
    if (!sim().endless_kernel.empty() && strstr(info.name, sim().endless_kernel.c_str()) != nullptr) {
        op.run = nullptr;
        op.joint = std::make_shared<endless_work>();
    }
    enqueue(held, info.stream, std::move(op));
}
