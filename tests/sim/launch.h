/* launch.h - from a launch in a .cu file to the runtime. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TESTS_SIM_LAUNCH_H
#define DSC_TESTS_SIM_LAUNCH_H

#include "tests/sim/block.h"

typedef struct CUstream_st *cudaStream_t;

namespace cusim {

struct launch_info {
    const char *name;
    const void *kernel;
    dim grid, size;
    size_t shared_bytes;
    cudaStream_t stream;
};

/* A pointer argument must be NULL or inside a live allocation of the stream's device (pinned host memory counts). */
void check_pointer(const launch_info &info, int number, const void *pointer);
template <class T> inline void check_argument(const launch_info &, int, const T &) {}
template <class T> inline void check_argument(const launch_info &info, int number, T *const &pointer)
{
    check_pointer(info, number, const_cast<const void *>(static_cast<const volatile void *>(pointer)));
}

int quirk_now(); /* a cusim_quirk */
void touch_atomic(const void *p, size_t bytes);

/* Owns `kept` and frees it by `drop` when the kernel has run. A bad configuration is what cudaGetLastError says next.
 */
void enqueue_launch(const launch_info &info, void *kept, void (*body)(void *), void (*drop)(void *));

} // namespace cusim

#endif
