/* test_sim.cc - the simulator itself: kernels on fibers, streams, collectives, memory, and that planted faults show.
 *
 * Every test runs in a process of its own, since a violation ends it. SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/simtest.h"

namespace {

/* ---- kernels ---- */

__device__ float warp_sum(float v)
{
    for (int o = 16; o > 0; o >>= 1)
        v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}

__device__ float block_sum(float v)
{
    __shared__ float part[32];
    const unsigned lane = threadIdx.x % 32, w = threadIdx.x / 32, warps = (blockDim.x + 31) / 32;
    v = warp_sum(v);
    if (lane == 0)
        part[w] = v;
    __syncthreads();
    v = warp_sum(threadIdx.x % 32 < warps ? part[lane] : 0.0f);
    __syncthreads();
    return v;
}

__global__ void row_sums(const float *x, float *y, int n)
{
    float s = 0;
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x)
        s += x[(size_t)blockIdx.x * n + i];
    s = block_sum(s);
    if (threadIdx.x == 0)
        y[blockIdx.x] = s;
}

/* Threads from `count` on leave before the barrier; the rest go on. */
__global__ void early_exit(int *y, int count)
{
    CUSIM_SHARED(int, smem);
    if ((int)threadIdx.x >= count)
        return;
    smem[threadIdx.x] = (int)threadIdx.x;
    __syncthreads();
    y[threadIdx.x] = smem[count - 1 - (int)threadIdx.x];
}

__global__ void half_warps(int *y)
{
    const int lane = (int)threadIdx.x % 32;
    if (lane < 16)
        y[threadIdx.x] = __shfl_sync(0x0000ffffu, lane, 3);
    else
        y[threadIdx.x] = __shfl_down_sync(0xffff0000u, lane, 1, 16) + (int)__ballot_sync(0xffff0000u, lane > 29);
    __syncwarp();
}

__global__ void votes(int *y)
{
    const int n = __syncthreads_count(threadIdx.x % 3 == 0);
    const int any = __syncthreads_or(threadIdx.x == 70), all = __syncthreads_and(threadIdx.x < 70);
    y[threadIdx.x] = n * 100 + any * 10 + all;
}

__global__ void diverge(int *y)
{
    if (threadIdx.x < 32)
        __syncthreads();
    else {
        y[0] = 1;
        __syncthreads();
    }
}

__global__ void lane_leaves(int *y)
{
    if (threadIdx.x == 5)
        return;
    y[threadIdx.x] = __shfl_xor_sync(0xffffffffu, (int)threadIdx.x, 1);
}

template <bool SYNC> __global__ void turn_around(const int *x, int *y)
{
    __shared__ int kept[128];
    kept[threadIdx.x] = x[threadIdx.x];
    if (SYNC)
        __syncthreads();
    y[threadIdx.x] = kept[127 - threadIdx.x];
}

__global__ void read_shared(float *y)
{
    CUSIM_SHARED(float, smem);
    y[threadIdx.x] = smem[threadIdx.x];
}
__global__ void traps(int *y)
{
    if (blockIdx.x == 1 && threadIdx.x == 7)
        __trap();
    __syncthreads();
    y[0] = 1;
}
__global__ void log_step(int *log, int what) { log[1 + log[0]++] = what; }

/* ---- kernels on fibers ---- */

void sums()
{
    cudaStream_t s = new_stream();
    for (const unsigned threads : { 32u, 96u, 128u, 992u, 1024u }) {
        const int rows = 5, n = 777;
        std::vector<float> x((size_t)(rows * n));
        for (size_t i = 0; i < x.size(); i++)
            x[i] = (float)(i % 13);
        float *dx = new_device<float>(x.size()), *dy = new_device<float>(rows);
        give(dx, x, s);
        CUSIM_LAUNCH(row_sums, dim3(rows), dim3(threads), 0, s, dx, dy, n);
        const std::vector<float> y = fetch(dy, rows, s);
        for (int r = 0; r < rows; r++) {
            float want = 0;
            for (int i = 0; i < n; i++)
                want += x[(size_t)(r * n + i)];
            CHECK(y[(size_t)r] == want); /* small integers: exact in any order */
        }
    }
}

void exits_and_masks()
{
    cudaStream_t s = new_stream();
    int *y = new_device<int>(128);
    CUSIM_LAUNCH(early_exit, dim3(1), dim3(128), 512, s, y, 77);
    std::vector<int> got = fetch(y, 77, s);
    for (int i = 0; i < 77; i++)
        CHECK(got[(size_t)i] == 76 - i);
    CUSIM_LAUNCH(half_warps, dim3(1), dim3(64), 0, s, y);
    got = fetch(y, 64, s);
    for (int i = 0; i < 64; i++) {
        const int lane = i % 32;
        CHECK(got[(size_t)i] == (lane < 16 ? 3 : (lane == 31 ? 31 : lane + 1) + (int)0xc0000000));
    }
    CUSIM_LAUNCH(votes, dim3(1), dim3(70), 0, s, y);
    got = fetch(y, 70, s);
    for (int i = 0; i < 70; i++)
        CHECK(got[(size_t)i] == 2401);
}

void divergent_barrier()
{
    cudaStream_t s = new_stream();
    CUSIM_LAUNCH(diverge, dim3(1), dim3(64), 0, s, new_device<int>(1));
    cudaStreamSynchronize(s);
}

/* A lane that does not exist is in no mask. */
void shuffle_from_nowhere()
{
    cudaStream_t s = new_stream();
    CUSIM_LAUNCH(row_sums, dim3(1), dim3(33), 0, s, new_device<float>(1), new_device<float>(1), 1);
    cudaStreamSynchronize(s);
}

void lane_that_left()
{
    cudaStream_t s = new_stream();
    CUSIM_LAUNCH(lane_leaves, dim3(1), dim3(32), 0, s, new_device<int>(32));
    cudaStreamSynchronize(s);
}

void shared_is_poison()
{
    cudaStream_t s = new_stream();
    float *y = new_device<float>(32);
    CUSIM_LAUNCH(fill, dim3(1), dim3(32), 0, s, y, 0.0f, 32);
    CUSIM_LAUNCH(read_shared, dim3(1), dim3(32), 128, s, y);
    for (const float v : fetch(y, 32, s))
        CHECK(v != v);
}

/* How many of 40 seeds give a wrong answer. */
template <bool SYNC> int wrong_turns()
{
    int wrong = 0;
    cudaStream_t s = new_stream();
    int *x = new_device<int>(128), *y = new_device<int>(128);
    std::vector<int> host(128);
    for (int seed = 1; seed <= 40; seed++) {
        cusim_set_schedule((uint64_t)seed, CUSIM_RANDOM);
        for (int i = 0; i < 128; i++)
            host[(size_t)i] = seed * 1000 + i;
        give(x, host, s);
        CUSIM_LAUNCH(turn_around<SYNC>, dim3(1), dim3(128), 0, s, x, y);
        const std::vector<int> got = fetch(y, 128, s);
        for (int i = 0; i < 128; i++)
            if (got[(size_t)i] != host[(size_t)(127 - i)]) {
                wrong++;
                break;
            }
    }
    return wrong;
}

void missing_syncthreads()
{
    CHECK(wrong_turns<true>() == 0);
    CHECK(wrong_turns<false>() == 40);
}

/* ---- memory ---- */

void host_access()
{
    float *x = new_device<float>(4);
    x[0] = 1;
}

void write_behind()
{
    cudaStream_t s = new_stream();
    float *x = new_device<float>(64);
    CUSIM_LAUNCH(write_at, dim3(1), dim3(1), 0, s, x, 64L);
    cudaStreamSynchronize(s);
}

void write_in_red_zone()
{
    cudaStream_t s = new_stream();
    float *x = new_device<float>(63);
    CUSIM_LAUNCH(write_at, dim3(1), dim3(1), 0, s, x, 63L);
    cudaStreamSynchronize(s);
}

void write_before()
{
    cudaStream_t s = new_stream();
    float *x = new_device<float>(64);
    CUSIM_LAUNCH(write_at, dim3(1), dim3(1), 0, s, x, -2L);
    cudaStreamSynchronize(s);
}

void use_after_free()
{
    cudaStream_t s = new_stream();
    float *x = new_device<float>(64);
    OK(cudaFree(x));
    CUSIM_LAUNCH(fill, dim3(1), dim3(64), 0, s, x, 1.0f, 64);
}

/* The pointer hides behind an offset of another allocation, so that only the access itself shows. */
void use_after_free_inside()
{
    cudaStream_t s = new_stream();
    float *x = new_device<float>(64), *y = new_device<float>(64);
    OK(cudaFree(x));
    CUSIM_LAUNCH(write_at, dim3(1), dim3(1), 0, s, y, (long)(x - y));
    cudaStreamSynchronize(s);
}

void other_devices_memory()
{
    float *x = new_device<float>(64);
    OK(cudaSetDevice(1));
    cudaStream_t s = new_stream();
    CUSIM_LAUNCH(fill, dim3(1), dim3(64), 0, s, x, 1.0f, 64);
}

void host_pointer()
{
    static float x[64];
    cudaStream_t s = new_stream();
    CUSIM_LAUNCH(fill, dim3(1), dim3(64), 0, s, x, 1.0f, 64);
}

void limit()
{
    cusim_set_devices(2, 1 << 20);
    void *a, *b;
    OK(cudaMalloc(&a, 600 << 10));
    CHECK(cudaMalloc(&b, 600 << 10) == cudaErrorMemoryAllocation && b == nullptr);
    OK(cudaSetDevice(1));
    OK(cudaMalloc(&b, 600 << 10));
    CHECK(cusim_bytes_now(0) == 600 << 10);
    OK(cudaFree(a));
    CHECK(cusim_bytes_now(0) == 0 && cusim_bytes_peak(0) == 600 << 10);
    size_t free_bytes, total;
    OK(cudaMemGetInfo(&free_bytes, &total));
    CHECK(free_bytes == (424 << 10) && total == 1 << 20);
    int count;
    cusim_set_devices(0, 1 << 20);
    CHECK(cudaGetDeviceCount(&count) == cudaErrorNoDevice && count == 0);
}

/* Device and pinned memory are counted together, each device by itself. */
void planted_malloc()
{
    void *a, *b, *c;
    cusim_plant(CUSIM_FAIL_MALLOC, 0, 1);
    OK(cudaMalloc(&a, 16));
    OK(cudaSetDevice(1));
    OK(cudaMalloc(&b, 16));
    OK(cudaSetDevice(0));
    CHECK(cudaHostAlloc(&c, 16, cudaHostAllocDefault) == cudaErrorMemoryAllocation);
    OK(cudaHostAlloc(&c, 16, cudaHostAllocDefault));
    cusim_plant(CUSIM_FAIL_MALLOC, 0, 0);
    CHECK(cudaMalloc(&a, 16) == cudaErrorMemoryAllocation && a == nullptr);
    CHECK(cusim_plant(CUSIM_FAIL_MALLOC, 0, -1) == 1);
}

/* ---- streams ---- */

void default_stream()
{
    float *x = new_device<float>(64);
    CUSIM_LAUNCH(fill, dim3(1), dim3(64), 0, nullptr, x, 1.0f, 64);
}

/* A copy brings x to the device on one stream while another scales it; with and without the event between them. */
bool copy_and_scale(bool with_wait)
{
    enum { N = 256 };
    cudaStream_t copy = new_stream(), compute = new_stream();
    cudaEvent_t there = new_event();
    float *x = new_device<float>(N), *host = new_pinned<float>(N), *back = new_pinned<float>(N);
    for (int i = 0; i < N; i++)
        host[i] = (float)i;
    OK(cudaMemcpyAsync(x, host, N * 4, cudaMemcpyHostToDevice, copy));
    OK(cudaEventRecord(there, copy));
    if (with_wait)
        OK(cudaStreamWaitEvent(compute, there, 0));
    CUSIM_LAUNCH(scale, dim3(2), dim3(128), 0, compute, x, 2.0f, (int)N);
    OK(cudaMemcpyAsync(back, x, N * 4, cudaMemcpyDeviceToHost, compute));
    OK(cudaStreamSynchronize(compute));
    OK(cudaStreamSynchronize(copy));
    OK(cudaStreamDestroy(copy));
    OK(cudaStreamDestroy(compute));
    for (int i = 0; i < N; i++)
        if (back[i] != 2.0f * (float)i)
            return false;
    return true;
}

/* Races that only some schedules show; tests/sim/test_track.cc catches them in every schedule. */
void missing_event_wait()
{
    int wrong = 0;
    cusim_check_races(false);
    for (uint64_t seed = 1; seed <= 20; seed++) {
        cusim_set_schedule(seed, CUSIM_RANDOM);
        CHECK(copy_and_scale(true));
        wrong += !copy_and_scale(false);
    }
    CHECK(wrong > 3 && wrong < 20);
    for (const cusim_policy policy : { CUSIM_OLDEST, CUSIM_NEWEST, CUSIM_COMM_FIRST, CUSIM_COMPUTE_FIRST }) {
        cusim_set_schedule(1, policy);
        CHECK(copy_and_scale(true));
        CHECK(copy_and_scale(false) == (policy == CUSIM_OLDEST || policy == CUSIM_COMM_FIRST));
    }
}

/* The host writes into the pinned buffer while the copy from it is still to run. */
void pinned_overwritten()
{
    cudaStream_t s = new_stream();
    float *x = new_device<float>(4), *host = new_pinned<float>(4);
    host[0] = 1;
    OK(cudaMemcpyAsync(x, host, 16, cudaMemcpyHostToDevice, s));
    host[0] = 2; /* too early */
    CHECK(fetch(x, 1, s)[0] == 2.0f);
    float pageable[4] = { 3 };
    OK(cudaMemcpyAsync(x, pageable, 16, cudaMemcpyHostToDevice, s));
    pageable[0] = 4; /* fine: pageable memory is staged */
    CHECK(fetch(x, 1, s)[0] == 3.0f);
}

/* An event that is recorded again while a stream waits: the wait is for the record before. */
void event_generations()
{
    cudaStream_t a = new_stream(), b = new_stream();
    cudaEvent_t e = new_event();
    OK(cudaStreamWaitEvent(b, e, 0)); /* never recorded: no wait */
    OK(cudaStreamSynchronize(b));
    float *x = new_device<float>(1);
    cusim_set_schedule(1, CUSIM_NEWEST);
    CUSIM_LAUNCH(fill, dim3(1), dim3(1), 0, a, x, 1.0f, 1);
    OK(cudaEventRecord(e, a));
    OK(cudaStreamWaitEvent(b, e, 0));
    CUSIM_LAUNCH(scale, dim3(1), dim3(1), 0, b, x, 3.0f, 1);
    CHECK(fetch(x, 1, b)[0] == 3.0f);
    CHECK(cudaEventQuery(e) == cudaSuccess);
}

/* The order of a device's operations is a function of the seed, for any speed of the other rank. */
std::vector<int> order_of_run(uint64_t seed, unsigned delay_us)
{
    cusim_set_schedule(seed, CUSIM_RANDOM);
    cusim_check_races(false); /* the log is a race, and shows its outcome */
    ncclUniqueId id;
    NOK(ncclGetUniqueId(&id));
    std::vector<int> result;
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 2; rank++)
        ranks.emplace_back([=, &result] {
            OK(cudaSetDevice(rank));
            ncclComm_t comm;
            NOK(ncclCommInitRank(&comm, 2, id, rank));
            cudaStream_t streams[3] = { new_stream(), new_stream(), new_stream() };
            int *log = new_device<int>(100);
            float *x = new_device<float>(8);
            OK(cudaMemsetAsync(log, 0, 400, streams[0]));
            OK(cudaStreamSynchronize(streams[0]));
            for (int i = 0; i < 30; i++) {
                if (rank == 1 && delay_us > 0)
                    usleep(delay_us);
                CUSIM_LAUNCH(log_step, dim3(1), dim3(1), 0, streams[i % 3], log, i);
                if (i % 10 == 5)
                    NOK(ncclAllReduce(x, x, 8, ncclFloat32, ncclSum, comm, streams[1]));
            }
            for (cudaStream_t s : streams)
                OK(cudaStreamSynchronize(s));
            if (rank == 0)
                result = fetch(log, 31, streams[0]);
            NOK(ncclCommDestroy(comm));
        });
    for (std::thread &t : ranks)
        t.join();
    return result;
}

void repeats_from_seed()
{
    const std::vector<int> a = order_of_run(5, 0), b = order_of_run(5, 300), c = order_of_run(6, 0);
    CHECK(a[0] == 30 && a == b && a != c);
}

void failing_kernel()
{
    cudaStream_t s = new_stream();
    int *y = new_device<int>(1);
    CUSIM_LAUNCH(traps, dim3(1), dim3(32), 0, s, y);
    OK(cudaStreamSynchronize(s));
    CUSIM_LAUNCH(traps, dim3(2), dim3(32), 0, s, y);
    CHECK(cudaStreamSynchronize(s) == cudaErrorLaunchFailure);
    void *p;
    CHECK(cudaMalloc(&p, 16) == cudaErrorLaunchFailure); /* sticky */
    OK(cudaSetDevice(1));
    cudaStream_t other = new_stream();
    float *x = new_device<float>(1);
    cusim_fail_kernel(1, "fill");
    CUSIM_LAUNCH(fill, dim3(1), dim3(1), 0, other, x, 1.0f, 1);
    CHECK(cudaStreamSynchronize(other) == cudaErrorLaunchFailure);
}

void bad_launches()
{
    cudaStream_t s = new_stream();
    float *x = new_device<float>(1);
    CUSIM_LAUNCH(fill, dim3(1), dim3(1025), 0, s, x, 1.0f, 1);
    CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration && cudaGetLastError() == cudaSuccess);
    CUSIM_LAUNCH(fill, dim3(1, 65536), dim3(1), 0, s, x, 1.0f, 1);
    CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration);
    CUSIM_LAUNCH(read_shared, dim3(1), dim3(1), 100 << 10, s, x);
    CHECK(cudaGetLastError() == cudaErrorInvalidValue);
    OK(cudaFuncSetAttribute(read_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, 100 << 10));
    CUSIM_LAUNCH(read_shared, dim3(1), dim3(1), 100 << 10, s, x);
    CHECK(cudaGetLastError() == cudaSuccess);
    OK(cudaStreamSynchronize(s));
    cusim_set_arch(0, 89); /* 99 KiB of a block */
    CHECK(cudaFuncSetAttribute(read_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, 100 << 10) ==
          cudaErrorInvalidValue);
    CUSIM_LAUNCH(read_shared, dim3(1), dim3(1), 100 << 10, s, x);
    CHECK(cudaGetLastError() == cudaErrorInvalidValue);
}

const test tests[] = {
    { "sums by shuffles and shared memory, any block size", sums },
    { "early exit, partial warp, half-warp masks, votes", exits_and_masks },
    { "shared memory is poison at first", shared_is_poison },
    { "a divergent barrier is caught", divergent_barrier, "divergent barrier in diverge" },
    { "a shuffle from a lane that is not there is caught", shuffle_from_nowhere, "leaves out" },
    { "a warp operation that waits for an ended lane is caught", lane_that_left, "deadlock inside lane_leaves" },
    { "planted: missing __syncthreads gives wrong numbers", missing_syncthreads },
    { "the host may not touch device memory", host_access, "the host touches memory of device 0" },
    { "planted: a write behind an allocation", write_behind, "write_at on device 0 writes memory outside",
      "write_at on device 0 touches memory outside" },
    { "a write of less than 256 bytes behind it", write_in_red_zone, "write_at on device 0 writes memory outside",
      "behind an allocation of 252 bytes" },
    { "a write before it", write_before, "write_at on device 0 writes memory outside", "8 bytes before an allocation" },
    { "planted: a kernel gets freed memory", use_after_free, "argument 0 of fill on device 0" },
    { "a kernel reaches freed memory", use_after_free_inside, "write_at on device 0 writes freed memory",
      "touches freed memory of device 0" },
    { "another device's memory", other_devices_memory, "another device's memory" },
    { "host memory as an argument", host_pointer, "host memory" },
    { "memory limit, peak, no device", limit },
    { "a memory call that fails", planted_malloc },
    { "the default stream is refused", default_stream, "legacy default stream" },
    { "planted: missing event wait gives wrong numbers", missing_event_wait },
    { "planted: pinned memory overwritten early shows", pinned_overwritten },
    { "events have generations", event_generations },
    { "a run repeats from its seed", repeats_from_seed },
    { "a failing kernel breaks its device for good", failing_kernel },
    { "launches beyond the limits", bad_launches },
};

} // namespace

int main() { return run_tests(tests); }
