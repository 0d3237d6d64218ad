/* skeleton.c - a transport that moves nothing: copy this file to write a new one. It is compiled and tested, so it
 * cannot fall behind comm.h.
 *
 * Steps: (1) Copy to <name>.c and rename skeleton_ to <name>_. (2) Declare `dsc_comm_<name>` in comm.h and add it to
 * the registry in front/comm.c. (3) Replace the bodies. (4) Add the name to the matrix of tests/dist/test_comm.c, which
 * compares every operation with the other transports, bit for bit.
 *
 * Rules: A hook blocks until it is done: the front has put it on the stream's own thread. A transport that `enqueues`
 * gets the stream instead, see comm.h. There is one call at a time per channel and several channels at once, so the
 * state that a call changes belongs to its channel. Never wait without a limit: respect options->timeout_ns, and notice
 * a peer that is gone. Every failure names the rank, the operation and the sizes; agreement.h has the texts.
 * SPDX-License-Identifier: Apache-2.0 */
#include "comm/comm_internal.h"

/* Starts with the base, so that the front can pass it on as a dsc_transport. */
typedef struct skeleton_transport {
    dsc_transport base;
    dsc_alloc *alloc; /* borrowed from the options until close */
    int32_t rank, size;
} skeleton_transport;

/* Collective. Finds the other ranks (options->rank_info says who this is), agrees on sizes and versions, maps what is
 * shared. Takes memory under DSC_TAG_COMM from a list of needs, which the hook list_needs gives to dsc_comm_plan_bytes.
 * On failure nothing stays behind and *out is untouched. */
static dsc_status skeleton_open(dsc_transport **out, const dsc_comm_options *options, dsc_error *err)
{
    skeleton_transport *skeleton = NULL;
    DSC_TRY(dsc_alloc_zeroed(options->alloc, DSC_TAG_CONTROL, 1, sizeof *skeleton, &skeleton, err));
    skeleton->base.ops = &dsc_comm_skeleton;
    skeleton->alloc = options->alloc;
    skeleton->rank = options->rank_info.rank;
    skeleton->size = options->rank_info.size;
    *out = &skeleton->base;
    return DSC_OK;
}

/* After any failure, in any state, without waiting for peers: they may be gone. Tell those who still wait. */
static void skeleton_close(dsc_transport *transport)
{
    skeleton_transport *skeleton = (skeleton_transport *)transport;
    dsc_alloc_free(skeleton->alloc, skeleton);
}

static dsc_status not_built(dsc_comm_op op, dsc_error *err)
{
    return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "dsc.comm", "the skeleton transport has no %s", dsc_comm_op_text(op));
}

/* recv[r * bytes] <- rank r's send[bytes]. `send` may be recv + rank * bytes already: then the own piece stays. */
static dsc_status skeleton_all_gather(dsc_transport *transport, int32_t channel, void *recv, const void *send,
                                      int64_t bytes, dsc_stream *stream, dsc_error *err)
{
    return not_built(DSC_COMM_ALL_GATHER, err);
}

/* recv[r * bytes] <- rank r's send[my rank * bytes]. Buffers do not overlap. */
static dsc_status skeleton_all_to_all(dsc_transport *transport, int32_t channel, void *recv, const void *send,
                                      int64_t bytes, dsc_stream *stream, dsc_error *err)
{
    return not_built(DSC_COMM_ALL_TO_ALL, err);
}

/* buf[bytes] of every rank <- root's. */
static dsc_status skeleton_broadcast(dsc_transport *transport, int32_t channel, void *buf, int64_t bytes, int32_t root,
                                     dsc_stream *stream, dsc_error *err)
{
    return not_built(DSC_COMM_BROADCAST, err);
}

/* Returns when every rank has come. */
static dsc_status skeleton_barrier(dsc_transport *transport, int32_t channel, dsc_stream *stream, dsc_error *err)
{
    return not_built(DSC_COMM_BARRIER, err);
}

/* Returns when the receiver has it: there is no buffering, so two ranks that both send first wait for each other. */
static dsc_status skeleton_send(dsc_transport *transport, int32_t channel, const void *buf, int64_t bytes, int32_t to,
                                dsc_stream *stream, dsc_error *err)
{
    return not_built(DSC_COMM_SEND, err);
}

static dsc_status skeleton_recv(dsc_transport *transport, int32_t channel, void *buf, int64_t bytes, int32_t from,
                                dsc_stream *stream, dsc_error *err)
{
    return not_built(DSC_COMM_RECV, err);
}

/* From any thread, at any time, also twice: ends this rank's waits and, as far as possible, those of its peers. */
static void skeleton_abort(dsc_transport *transport, const char *reason)
{
}

/* reduce_scatter and mem_open are left out: the front then casts, calls all_to_all and folds, and hands out plain
 * memory. A transport that can read peers' memory in place offers both. Without health nobody can vanish. */
const dsc_comm_ops dsc_comm_skeleton = {
    .name = "skeleton",
    .version = DSC_COMM_OPS_VERSION,
    .open = skeleton_open,
    .close = skeleton_close,
    .all_gather = skeleton_all_gather,
    .all_to_all = skeleton_all_to_all,
    .broadcast = skeleton_broadcast,
    .barrier = skeleton_barrier,
    .send = skeleton_send,
    .recv = skeleton_recv,
    .abort = skeleton_abort,
};
