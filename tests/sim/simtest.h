/* simtest.h - helpers of the simulator's own tests, and a runner that gives each test its own process, because a
 * violation ends the process. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TESTS_SIM_SIMTEST_H
#define DSC_TESTS_SIM_SIMTEST_H

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <nccl.h>

#include "tests/sim/cusim.h"

namespace {

#define CHECK(x) \
    do { \
        if (!(x)) { \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #x); \
            exit(1); \
        } \
    } while (0)
#define OK(call) CHECK((call) == cudaSuccess)
#define NOK(call) CHECK((call) == ncclSuccess)

/* ---- helpers ---- */

cudaStream_t new_stream()
{
    cudaStream_t s;
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    return s;
}

cudaEvent_t new_event()
{
    cudaEvent_t e;
    OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    return e;
}

template <class T> T *new_device(size_t count)
{
    T *p;
    OK(cudaMalloc(&p, count * sizeof(T)));
    return p;
}

template <class T> T *new_pinned(size_t count)
{
    T *p;
    OK(cudaHostAlloc(&p, count * sizeof(T), cudaHostAllocDefault));
    return p;
}

template <class T> std::vector<T> fetch(const T *device, size_t count, cudaStream_t stream)
{
    std::vector<T> host(count);
    OK(cudaMemcpyAsync(host.data(), device, count * sizeof(T), cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    return host;
}

template <class T> void give(T *device, const std::vector<T> &host, cudaStream_t stream)
{
    OK(cudaMemcpyAsync(device, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice, stream));
}

/* ---- kernels that several use ---- */

__global__ void write_at(float *x, long at) { x[at] = 1.0f; }
__global__ void scale(float *x, float by, int n)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n)
        x[i] *= by;
}
__global__ void fill(float *x, float v, int n)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n)
        x[i] = v;
}

/* `n` ranks as threads, one device each, on a communicator of their own. */
void run_ranks(int n, void (*body)(int rank, int n, ncclComm_t comm, cudaStream_t s))
{
    ncclUniqueId id;
    NOK(ncclGetUniqueId(&id));
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < n; rank++)
        ranks.emplace_back([=] {
            OK(cudaSetDevice(rank));
            ncclComm_t comm;
            NOK(ncclCommInitRank(&comm, n, id, rank));
            cudaStream_t s = new_stream();
            body(rank, n, comm, s);
            OK(cudaStreamSynchronize(s));
            OK(cudaStreamDestroy(s));
            NOK(ncclCommDestroy(comm));
        });
    for (std::thread &t : ranks)
        t.join();
}

/* ---- the runner ---- */

/* `caught`: what the violation says; NULL: it ends well. `untracked`: the same where kernels' accesses are not looked
 * at; NULL: no other words, "": skipped there. */
struct test { const char *name; void (*body)(); const char *caught = nullptr, *untracked = nullptr; };

bool run_test(const test &t, const char *caught, std::string &said)
{
    int ends[2];
    if (pipe(ends) != 0)
        return false;
    fflush(nullptr);
    const pid_t pid = fork();
    if (pid == 0) {
        dup2(ends[1], 2);
        close(ends[0]);
        close(ends[1]);
        alarm(60);
        t.body();
        fflush(nullptr);
        _exit(0);
    }
    close(ends[1]);
    char buffer[4096];
    for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;)
        said.append(buffer, (size_t)n);
    close(ends[0]);
    int status;
    waitpid(pid, &status, 0);
    if (caught == nullptr)
        return WIFEXITED(status) && WEXITSTATUS(status) == 0;
    return WIFEXITED(status) && WEXITSTATUS(status) == 98 && said.find(caught) != std::string::npos;
}

template <size_t N> int run_tests(const test (&tests)[N])
{
    int number = 0, failed = 0;
    for (const test &t : tests) {
        std::string said;
        const bool other = !cusim_tracks_kernels() && t.untracked != nullptr;
        const char *caught = other ? t.untracked : t.caught;
        if (other && t.untracked[0] == 0) {
            printf("ok %d - %s # SKIP AddressSanitizer's build does not look at kernels' accesses\n", ++number, t.name);
            continue;
        }
        const bool good = run_test(t, caught, said);
        printf("%s %d - %s\n", good ? "ok" : "not ok", ++number, t.name);
        if (!good)
            printf("# %s\n", said.c_str());
        failed += !good;
    }
    printf("1..%d\n", number);
    return failed != 0;
}

} // namespace

#endif
