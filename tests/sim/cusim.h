/* cusim.h - several CUDA devices in one process on the CPU, for tests: settings and queries of tests.
 *
 * The backend's own sources run on it (include/ holds the headers that they see). Nothing runs when it is enqueued.
 * Work runs when the host must wait, one operation of a device at a time. A seeded policy chooses among the operations
 * that could run, so a missing event wait shows as a wrong number. With one host thread per device (or one for all),
 * the order of a device's operations is a function of seed and policy. Only a send to one rank ends whenever that rank
 * has come. Device memory has an address range per device, is poisoned with NaN, has guard pages, and is unreadable for
 * the host. A violation ends the process with exit code 98 and one line "cusim: ..." that names kernel, stream or call,
 * and the seed.
 *
 * Environment, read at first use.
 *
 *     CUSIM_SEED (1), CUSIM_POLICY (random, oldest, newest, comm, compute), CUSIM_DEVICES (8)
 *     CUSIM_MEM (bytes of a device, suffix K M G; 1G), CUSIM_ARCH (90), CUSIM_DRIVER (its CUDA version, 13000)
 *     CUSIM_CUDNN (0; a cusim_cudnn)
 *     CUSIM_FAIL_KERNEL (as cusim_fail_kernel, of device 0), CUSIM_FAIL_MALLOC (n: as cusim_plant of number n - 1)
 *     CUSIM_NAME (of the devices)
 *     CUSIM_ENDLESS_KERNEL (part of a name: such kernels never end), CUSIM_REGISTERS (of a thread at its start, 168)
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TESTS_SIM_CUSIM_H
#define DSC_TESTS_SIM_CUSIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum cusim_policy {
    CUSIM_RANDOM,
    CUSIM_OLDEST,
    CUSIM_NEWEST,
    CUSIM_COMM_FIRST,
    CUSIM_COMPUTE_FIRST
} cusim_policy;

/* False in a program of the same tests that runs on real GPUs, where the others do nothing (tests/gpu/real.c). */
bool cusim_present(void);
/* For the next work; devices must be idle. */
void cusim_set_schedule(uint64_t seed, cusim_policy policy);
/* Both before the first allocation on the devices. `devices` 0..16; 0: as on a machine without a GPU. */
void cusim_set_devices(int devices, size_t bytes_each);
/* Architecture of the devices from `first` on; 90: sm_90, the default. It limits the shared memory of a block, and not
 * the code that can run. */
void cusim_set_arch(int first, int arch);
/* Bytes that cudaMalloc of the device has given out now, and at most since cusim_reset_peak. */
size_t cusim_bytes_now(int device);
size_t cusim_bytes_peak(int device);
void cusim_reset_peak(int device);
uint64_t cusim_operations(int device); /* run so far */
/* Durations of cuBLASLt's algorithms, in the ticks of cudaEventElapsedTime. 1 and 2 sum in order of k, 3 adds up halves
 * of k (other bits), and 4 is not repeatable and must not be chosen. */
void cusim_set_product_ticks(const unsigned ticks[4]);
/* How long kernels take whose name, as it is launched, contains `name` (its first 63 letters); NULL: all take none. */
void cusim_set_kernel_ticks(const char *name, unsigned ticks);
/* GPUs that are not what the bodies of kernels/cuda/ptx.h say: for those who look before they trust. */
typedef enum cusim_quirk {
    CUSIM_AS_DOCUMENTED,
    CUSIM_STRAIGHT_COPIES, /* copies of tiles do not swap the parts of rows */
    CUSIM_OTHER_ORDER,     /* products of warpgroups add up from the last term on */
    CUSIM_EARLY_ROUNDING,  /* cuBLASLt's algorithm 2 rounds a sum to the result's type before it adds to it */
    CUSIM_UNSTEADY_SUMS,   /* its gradients of biases are off by one rounding every second time */
    CUSIM_FEW_EPILOGUES,   /* it has neither gradients of biases nor a GELU that stores its input */
    CUSIM_NO_WIDE_PRODUCTS /* it has no product of 4096 columns or more */
} cusim_quirk;
void cusim_set_quirk(cusim_quirk quirk);
/* The machine's cuDNN, as far as attention and convolutions go. */
typedef enum cusim_cudnn {
    CUSIM_CUDNN_NONE,     /* not installed, as at first */
    CUSIM_CUDNN_WORKS,    /* 9.19.0 */
    CUSIM_CUDNN_LATER,    /* 9.25.0 */
    CUSIM_CUDNN_OLD,      /* too old */
    CUSIM_CUDNN_REFUSES,  /* it has no gradients of attention, and none of weights */
    CUSIM_CUDNN_LARGE,    /* its work space is larger than the card's memory */
    CUSIM_CUDNN_WRONG,    /* one number of each result is wrong */
    CUSIM_CUDNN_UNSTEADY, /* a bit of each result is another each time */
    /* It has heads of at most 128 and 8 tokens or more, and convolutions between multiples of 8 channels. */
    CUSIM_CUDNN_NARROW,
    CUSIM_CUDNN_BARE /* its convolutions need no work space */
} cusim_cudnn;
void cusim_set_cudnn(cusim_cudnn is);
int64_t cusim_cudnn_calls(void); /* since the last call */
/* On all devices since the last call of each: times that cudaEventElapsedTime was asked for, graphs launched, products
 * that cublasLtMatmul took. */
int64_t cusim_times_taken(void);
int64_t cusim_graphs_launched(void);
int64_t cusim_products_taken(void);
/* Number of objects that the program has made and not released: allocations, streams, events, graphs, communicators
 * and cuBLASLt's and cuDNN's objects. */
int64_t cusim_left(void);
/* Buffers that were registered with NCCL's communicators so far. */
uint64_t cusim_nccl_registrations(void);
/* The installed NCCL's version, as 22304; before the first communicator. CUSIM_NCCL sets it too. */
void cusim_set_nccl(int number);
/* So far: windows that were opened, collectives that copy engines could take, communicators split off by a rank. */
uint64_t cusim_nccl_windows(void);
uint64_t cusim_nccl_copied(void);
uint64_t cusim_nccl_splits(void);
typedef struct cusim_nccl_config { int min_ctas, max_ctas, policy, blocking; char network[32]; } cusim_nccl_config;
void cusim_nccl_last_config(cusim_nccl_config *out);
/* Parts of an allocation that the program itself gives out. Forbidden bytes may not be accessed (they become poison),
 * allowed ones may. The caller must have waited for earlier uses of bytes that it forbids. */
void cusim_forbid(const void *p, size_t bytes);
void cusim_allow(const void *p, size_t bytes);
/* As a slice of a card has them. */
void cusim_set_name(const char *name);
/* Kernels that the program has loaded so far by cudaFuncGetAttributes. Once there is one, the launch of another is a
 * violation: CUDA would load it while others wait. */
int64_t cusim_kernels_loaded(void);
/* Kernels of this name never end from now on; NULL: all do. */
void cusim_set_endless(const char *name);
/* Whether accesses that nothing orders are errors, as they are before; false: only the schedule shows them. */
void cusim_check_races(bool on);
/* Whether each access of a kernel is looked at; false in builds with SAN=address, where only copies, collectives and
 * products are. */
bool cusim_tracks_kernels(void);
/* Faults that can be planted. The one asked for happens once; -1: none. */
typedef enum cusim_fault {
    CUSIM_DROP_WAIT,       /* a stream does not wait for an event */
    CUSIM_DROP_HOST_WAIT,  /* the host goes on at once, from a synchronize or a first query of what is not done */
    CUSIM_SKIP_COLLECTIVE, /* a rank leaves out a collective, or all that it sends and receives in a group */
    CUSIM_FAIL_MALLOC,     /* cudaMalloc or cudaHostAlloc finds no memory */
    CUSIM_FAIL_CREATE,     /* a stream, event or graph finds none */
    CUSIM_FAULTS
} cusim_fault;
/* Request number `number` (from 0) to the device from now on fails. Returns the number of requests since the last call
 * for this fault. */
int64_t cusim_plant(cusim_fault fault, int device, int64_t number);
/* The next kernel launched on the device whose name contains `name` fails as a GPU's would (cudaErrorLaunchFailure).
 * With a name of NCCL ("ncclAllGather") the next such call is refused (ncclSystemError). A name of cuBLASLt refuses
 * with CUBLAS_STATUS_INTERNAL_ERROR. */
void cusim_fail_kernel(int device, const char *name);

#ifdef __cplusplus
}
#endif
#endif
