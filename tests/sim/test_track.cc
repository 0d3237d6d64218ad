/* test_track.cc - order of accesses to device memory (track.h): races are caught in every schedule, also with right
 * numbers, and ordered accesses are never reported. SPDX-License-Identifier: Apache-2.0 */
#include <cublasLt.h>

#include "tests/sim/simtest.h"

namespace {

enum { N = 256 };

__global__ void add_up(const float *x, float *sum, int n)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n)
        atomicAdd(sum, x[i]);
}

__global__ void copy_out(const float *x, float *y, int n)
{
    const int i = (int)threadIdx.x;
    if (i < n)
        y[i] = x[i];
}

/* Two streams and what they share. */
struct pair {
    cudaStream_t a = new_stream(), b = new_stream();
    cudaEvent_t event = new_event();
    float *x = new_device<float>(N), *y = new_device<float>(N);
    /* Operations on a until now precede later ones on b. */
    void order(bool really)
    {
        OK(cudaEventRecord(event, a));
        if (really)
            OK(cudaStreamWaitEvent(b, event, 0));
    }
    void set(cudaStream_t s, float *p, float value) { CUSIM_LAUNCH(fill, dim3(2), dim3(128), 0, s, p, value, (int)N); }
    void end()
    {
        OK(cudaStreamSynchronize(b));
        OK(cudaStreamSynchronize(a));
    }
};

/* ---- one wait left out, in each schedule ---- */

void write_then_read(bool ordered)
{
    pair p;
    p.set(p.a, p.x, 1.0f);
    p.order(ordered);
    CUSIM_LAUNCH(copy_out, dim3(1), dim3(N), 0, p.b, p.x, p.y, (int)N);
    p.end();
}

/* The second writer comes too early: a buffer is used again before its reader is done. */
void read_then_write(bool ordered)
{
    pair p;
    p.set(p.a, p.x, 1.0f);
    OK(cudaStreamSynchronize(p.a));
    CUSIM_LAUNCH(copy_out, dim3(1), dim3(N), 0, p.a, p.x, p.y, (int)N);
    p.order(ordered);
    p.set(p.b, p.x, 2.0f);
    p.end();
}

void write_then_write(bool ordered)
{
    pair p;
    p.set(p.a, p.x, 1.0f);
    p.order(ordered);
    OK(cudaMemsetAsync(p.x, 0, N * 4, p.b));
    p.end();
}

void atomic_then_copy(bool ordered)
{
    pair p;
    float *host = new_pinned<float>(1);
    p.set(p.a, p.x, 1.0f);
    OK(cudaMemsetAsync(p.y, 0, 4, p.a));
    CUSIM_LAUNCH(add_up, dim3(2), dim3(128), 0, p.a, p.x, p.y, (int)N);
    p.order(ordered);
    OK(cudaMemcpyAsync(host, p.y, 4, cudaMemcpyDeviceToHost, p.b));
    p.end();
    CHECK(host[0] == (float)N);
}

/* D (N/16 x 16) = A * A^T of the same x; its input comes from the other stream. */
void write_then_multiply(bool ordered)
{
    pair p;
    cublasLtHandle_t lt;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t l;
    const int32_t transposed = CUBLAS_OP_T;
    const float one = 1, zero = 0;
    CHECK(cublasLtCreate(&lt) == 0 && cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) == 0);
    CHECK(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSB, &transposed, 4) == 0);
    CHECK(cublasLtMatrixLayoutCreate(&l, CUDA_R_32F, 16, 16, 16) == 0);
    p.set(p.a, p.x, 1.0f);
    p.order(ordered);
    CHECK(cublasLtMatmul(lt, desc, &one, p.x, l, p.x, l, &zero, p.y, l, p.y, l, nullptr, nullptr, 0, p.b) == 0);
    p.end();
}

/* Before a collective and after it: its streams' neighbours have to wait in both places. */
void around_collective(bool first_ordered, bool second_ordered)
{
    ncclUniqueId id;
    NOK(ncclGetUniqueId(&id));
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 2; rank++)
        ranks.emplace_back([=] {
            OK(cudaSetDevice(rank));
            ncclComm_t comm;
            NOK(ncclCommInitRank(&comm, 2, id, rank));
            pair p;
            cudaEvent_t done = new_event();
            p.set(p.a, p.x, 1.0f);
            p.order(first_ordered || rank == 0);
            NOK(ncclAllGather(p.x, p.y, N / 2, ncclFloat32, comm, p.b));
            OK(cudaEventRecord(done, p.b));
            if (second_ordered || rank == 1)
                OK(cudaStreamWaitEvent(p.a, done, 0));
            CUSIM_LAUNCH(scale, dim3(2), dim3(128), 0, p.a, p.y, 2.0f, (int)N);
            p.end();
            NOK(ncclCommDestroy(comm));
        });
    for (std::thread &t : ranks)
        t.join();
}

const cusim_policy policies[] = { CUSIM_OLDEST, CUSIM_NEWEST, CUSIM_COMM_FIRST, CUSIM_COMPUTE_FIRST, CUSIM_RANDOM,
                                  CUSIM_RANDOM };
enum { POLICIES = sizeof policies / sizeof policies[0] };

void in_schedule(int i) { cusim_set_schedule((uint64_t)i + 1, policies[i]); }

/* In a child for each schedule: the planted one ends with "race: ", the other one well. */
void caught_in_every_schedule(void (*body)(bool ordered))
{
    for (int i = 0; i < POLICIES; i++)
        for (const bool ordered : { false, true }) {
            std::string said;
            static int now;
            static bool is_ordered;
            static void (*what)(bool);
            now = i;
            is_ordered = ordered;
            what = body;
            const test t = { "", [] { in_schedule(now); what(is_ordered); } };
            if (!run_test(t, ordered ? nullptr : "race: ", said)) {
                fprintf(stderr, "schedule %d, %s: %s\n", i, ordered ? "right" : "planted", said.c_str());
                exit(1);
            }
        }
}

void missing_waits()
{
    caught_in_every_schedule(write_then_read);
    caught_in_every_schedule(read_then_write);
    caught_in_every_schedule(write_then_write);
    caught_in_every_schedule(atomic_then_copy);
}
void missing_wait_before_product() { caught_in_every_schedule(write_then_multiply); }
void missing_wait_before_collective()
{
    caught_in_every_schedule([](bool ordered) { around_collective(ordered, true); });
}
void missing_wait_after_collective()
{
    caught_in_every_schedule([](bool ordered) { around_collective(true, ordered); });
}

/* The report names both. */
void words()
{
    write_then_read(false);
}

/* ---- what is ordered ---- */

/* By the host, by a chain over a third stream, by an event that is recorded again, by a query that said done. */
void orders()
{
    for (int i = 0; i < POLICIES; i++) {
        in_schedule(i);
        pair p;
        cudaStream_t c = new_stream();
        cudaEvent_t e = new_event();
        p.set(p.a, p.x, 1.0f);
        p.order(true);
        OK(cudaEventRecord(e, p.b));
        OK(cudaStreamWaitEvent(c, e, 0));
        p.set(c, p.x, 2.0f);
        OK(cudaEventRecord(e, c));
        OK(cudaEventSynchronize(e));
        p.set(p.a, p.x, 3.0f);
        OK(cudaEventRecord(e, p.a));
        while (cudaEventQuery(e) == cudaErrorNotReady)
            ;
        p.set(p.b, p.x, 4.0f);
        while (cudaStreamQuery(p.b) == cudaErrorNotReady)
            ;
        p.set(c, p.x, 5.0f);
        CHECK(fetch(p.x, 1, c)[0] == 5.0f);
        p.set(p.a, p.x, 6.0f);
        OK(cudaDeviceSynchronize());
        p.set(p.b, p.x, 7.0f);
        CHECK(fetch(p.x, 1, p.b)[0] == 7.0f);
        OK(cudaStreamDestroy(c));
    }
}

/* Readers do not exclude each other, nor writers of other bytes. */
void no_conflict()
{
    pair p;
    float *host = new_pinned<float>(3);
    p.set(p.a, p.x, 1.0f);
    OK(cudaStreamSynchronize(p.a));
    cudaStream_t c = new_stream();
    OK(cudaMemcpyAsync(host, p.x, 4, cudaMemcpyDeviceToHost, p.a));
    OK(cudaMemcpyAsync(host + 1, p.x, 4, cudaMemcpyDeviceToHost, p.b));
    OK(cudaMemcpyAsync(host + 2, p.x, 4, cudaMemcpyDeviceToHost, c));
    CUSIM_LAUNCH(fill, dim3(1), dim3(128), 0, p.a, p.y, 1.0f, 128);
    CUSIM_LAUNCH(fill, dim3(1), dim3(128), 0, p.b, p.y + 128, 1.0f, 128);
    OK(cudaDeviceSynchronize());
}

/* A stream that the host waited for long ago says nothing about what came on it since. */
void an_old_wait_is_not_enough()
{
    pair p;
    p.set(p.a, p.x, 1.0f);
    p.order(true);
    p.set(p.b, p.x, 2.0f);
    OK(cudaStreamSynchronize(p.b));
    p.set(p.a, p.x, 3.0f);
    p.set(p.b, p.x, 4.0f);
    p.end();
}

/* ---- a wait that the simulator leaves out ---- */

void dropped_wait()
{
    pair p;
    CHECK(cusim_plant(CUSIM_DROP_WAIT, 0, 1) == 0);
    p.set(p.a, p.x, 1.0f);
    p.order(true);
    p.set(p.b, p.x, 2.0f);
    p.order(true); /* this one */
    CHECK(cusim_plant(CUSIM_DROP_WAIT, 0, -1) == 2);
    p.set(p.a, p.y, 3.0f);
    p.order(true);
    p.end();
    CHECK(cusim_plant(CUSIM_DROP_WAIT, 0, 0) == 1);
    p.set(p.a, p.x, 5.0f);
    p.order(true); /* and this one, which is needed */
    p.set(p.b, p.x, 6.0f);
    p.end();
}

/* ---- parts that the program gives out of one allocation ---- */

void parts()
{
    pair p;
    float *arena = new_device<float>(4 * N);
    cusim_forbid(arena, 4 * N * 4);
    cusim_allow(arena + N, (N - 1) * 4);
    CUSIM_LAUNCH(fill, dim3(2), dim3(128), 0, p.a, arena + N, 1.0f, N - 1);
    OK(cudaStreamSynchronize(p.a));
    cusim_forbid(arena + N, N * 4);
    cusim_allow(arena + N, N * 4);
    for (const float v : fetch(arena + N, N, p.a))
        CHECK(v != v); /* poison */
}

float *one_part(pair &p, float **other)
{
    float *arena = new_device<float>(4 * N);
    cusim_forbid(arena, 4 * N * 4);
    cusim_allow(arena + N, (N - 1) * 4);
    cusim_allow(arena + 2 * N, N * 4);
    *other = arena + 2 * N;
    p.set(p.b, *other, 1.0f);
    return arena + N;
}

/* By one element only, into what its rounding wastes. */
void behind_a_part()
{
    pair p;
    float *other, *part = one_part(p, &other);
    p.set(p.a, part, 1.0f);
    p.end();
}

void queued_work_of_a_part()
{
    pair p;
    float *other, *part = one_part(p, &other);
    CUSIM_LAUNCH(fill, dim3(1), dim3(1), 0, p.a, part, 1.0f, 1);
    cusim_forbid(part, N * 4);
    p.end();
}

void part_given_back_in_use()
{
    pair p;
    float *other, *part = one_part(p, &other);
    cusim_set_schedule(1, CUSIM_OLDEST);
    CUSIM_LAUNCH(fill, dim3(1), dim3(1), 0, p.a, part, 1.0f, 1);
    OK(cudaStreamSynchronize(p.b));
    while (cudaStreamQuery(p.b) == cudaErrorNotReady)
        ;
    p.set(p.b, other, 2.0f);
    p.set(p.b, other, 2.0f);
    OK(cudaStreamSynchronize(p.b)); /* the oldest went first: a's is done, and nobody asked */
    cusim_forbid(part, N * 4);
}

const test tests[] = {
    { "planted: a missing event wait is caught in every schedule", missing_waits, nullptr, "" },
    { "planted: a product that does not wait for its input", missing_wait_before_product, nullptr, "" },
    { "planted: a collective that does not wait for its input", missing_wait_before_collective, nullptr, "" },
    { "planted: a kernel that does not wait for a collective", missing_wait_after_collective, nullptr, "" },
    { "a race's report names both", words,
      "and does not wait for fill on stream 0, which writes it", "" },
    { "what is ordered is no race", orders },
    { "readers and other bytes are no race", no_conflict },
    { "a wait for earlier work orders that work only", an_old_wait_is_not_enough, "race: fill on stream", "" },
    { "a wait that is left out", dropped_wait, "race: fill on stream", "" },
    { "parts of an allocation, given out and back", parts },
    { "planted: a write behind a part", behind_a_part, "fill on device 0 writes memory that nobody was given", "" },
    { "planted: queued work of a part that was given back", queued_work_of_a_part,
      "fill on device 0 writes memory that nobody was given", "" },
    { "planted: a part given back in use", part_given_back_in_use, "is given back, and nobody has waited for fill",
      "" },
};

} // namespace

int main() { return run_tests(tests); }
