/* nccl_api.h - the part of NCCL that is used, declared here so that a build needs none of its headers.
 *
 * NCCL's C interface is stable: the config struct starts with its size and version, and NCCL fills the members that an
 * older caller does not know. Values and layouts are those of NCCL 2.28, whose beginning is that of 2.18.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_COMM_TRANSPORTS_NCCL_API_H
#define DSC_COMM_TRANSPORTS_NCCL_API_H

#include <limits.h>

#include "comm/comm_internal.h"

#define DSC_NCCL_VERSION_LEAST 21800 /* 2.18: configs, abort of a communicator that is being made, split */

typedef struct dsc_nccl_comm dsc_nccl_comm; /* *ncclComm_t */
typedef struct dsc_nccl_id { char bytes[128]; } dsc_nccl_id;

typedef enum dsc_nccl_result { /* ncclResult_t */
    DSC_NCCL_SUCCESS = 0,
    DSC_NCCL_REMOTE_ERROR = 6,
    DSC_NCCL_IN_PROGRESS = 7
} dsc_nccl_result;

typedef enum dsc_nccl_type {
    DSC_NCCL_UINT8 = 1, DSC_NCCL_FLOAT16 = 6, DSC_NCCL_FLOAT32 = 7, DSC_NCCL_BFLOAT16 = 9
} dsc_nccl_type;
enum { DSC_NCCL_SUM = 0, DSC_NCCL_NO_COLOR = -1 };

/* ncclConfig_t as of 2.28. Members were only ever added at the end. A library reads as many bytes as `size` says. */
typedef struct dsc_nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking, cga_cluster_size, min_ctas, max_ctas;
    const char *net_name;
    int split_share;   /* the last of 2.18 */
    int traffic_class; /* 2.26, in what was padding */
    const char *comm_name;
    int collnet_enable, cta_policy, shrink_share; /* 2.27 */
    int nvls_ctas, channels_per_net_peer, nvlink_centric_sched;
} dsc_nccl_config;
#define DSC_NCCL_VERSION_POLICY 22700 /* CTA policies, windows, memory of the library for them */
#define DSC_NCCL_VERSION_COPY 22800   /* collectives by copy engines, ncclAlltoAll */
enum { DSC_NCCL_WINDOW_SYMMETRIC = 1, DSC_NCCL_WINDOW_ALIGN = 4096 };
typedef struct dsc_nccl_window dsc_nccl_window; /* *ncclWindow_t */

/* X(member, symbol, arguments): every function returns dsc_nccl_result but the two texts. */
#define DSC_NCCL_FUNCTIONS(X)                                                                                          \
    X(get_version, ncclGetVersion, (int *))                                                                            \
    X(get_id, ncclGetUniqueId, (dsc_nccl_id *))                                                                        \
    X(init, ncclCommInitRankConfig, (dsc_nccl_comm **, int, dsc_nccl_id, int, dsc_nccl_config *))                      \
    X(split, ncclCommSplit, (dsc_nccl_comm *, int, int, dsc_nccl_comm **, dsc_nccl_config *))                          \
    X(finalize, ncclCommFinalize, (dsc_nccl_comm *))                                                                   \
    X(destroy, ncclCommDestroy, (dsc_nccl_comm *))                                                                     \
    X(abort, ncclCommAbort, (dsc_nccl_comm *))                                                                         \
    X(async_error, ncclCommGetAsyncError, (dsc_nccl_comm *, dsc_nccl_result *))                                        \
    X(group_start, ncclGroupStart, (void))                                                                             \
    X(group_end, ncclGroupEnd, (void))                                                                                 \
    X(all_gather, ncclAllGather, (const void *, void *, size_t, dsc_nccl_type, dsc_nccl_comm *, void *))               \
    X(reduce_scatter, ncclReduceScatter, (const void *, void *, size_t, dsc_nccl_type, int, dsc_nccl_comm *, void *))  \
    X(broadcast, ncclBroadcast, (const void *, void *, size_t, dsc_nccl_type, int, dsc_nccl_comm *, void *))           \
    X(send, ncclSend, (const void *, size_t, dsc_nccl_type, int, dsc_nccl_comm *, void *))                             \
    X(recv, ncclRecv, (void *, size_t, dsc_nccl_type, int, dsc_nccl_comm *, void *))
/* Not in every version that we take: NULL before `least`. X(member, symbol, arguments, least) */
#define DSC_NCCL_NEWER_FUNCTIONS(X)                                                                                    \
    X(enroll, ncclCommRegister, (dsc_nccl_comm *, void *, size_t, void **), 21900)                                     \
    X(strike, ncclCommDeregister, (dsc_nccl_comm *, void *), 21900)                                                    \
    X(mem_alloc, ncclMemAlloc, (void **, size_t), DSC_NCCL_VERSION_POLICY)                                             \
    X(mem_free, ncclMemFree, (void *), DSC_NCCL_VERSION_POLICY)                                                        \
    X(window_open, ncclCommWindowRegister, (dsc_nccl_comm *, void *, size_t, dsc_nccl_window **, int),                 \
      DSC_NCCL_VERSION_POLICY)                                                                                         \
    X(window_close, ncclCommWindowDeregister, (dsc_nccl_comm *, dsc_nccl_window *), DSC_NCCL_VERSION_POLICY)           \
    X(all_to_all, ncclAlltoAll, (const void *, void *, size_t, dsc_nccl_type, dsc_nccl_comm *, void *),                \
      DSC_NCCL_VERSION_COPY)

typedef struct dsc_nccl_api {
#define DSC_NCCL_MEMBER(member, symbol, arguments) dsc_nccl_result(*member) arguments;
    DSC_NCCL_FUNCTIONS(DSC_NCCL_MEMBER)
#define DSC_NCCL_NEWER_MEMBER(member, symbol, arguments, least) dsc_nccl_result(*member) arguments;
    DSC_NCCL_NEWER_FUNCTIONS(DSC_NCCL_NEWER_MEMBER)
#undef DSC_NCCL_MEMBER
#undef DSC_NCCL_NEWER_MEMBER
    const char *(*error_text)(dsc_nccl_result);
    const char *(*last_error)(dsc_nccl_comm *);
    int version; /* 22304 */
} dsc_nccl_api;

/* From the program itself when it has the functions (a simulator), else from libnccl.so.2. It stays loaded.
 * DSC_ERR_UNSUPPORTED: missing or too old, and what was looked for. */
DSC_MUST_USE dsc_status dsc_nccl_load(dsc_nccl_api *out, dsc_error *err);

#endif
