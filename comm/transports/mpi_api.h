/* mpi_api.h - contract of lib/dsc/libdsc_mpi.so: messages of the MPI library that the ranks were started with.
 *
 * The plugin is built against one MPI (Open MPI); its types stay inside. One thread of the process calls MPI from the
 * first open to the end, so MPI_THREAD_FUNNELED is requested. A program that has entered MPI itself needs
 * MPI_THREAD_SERIALIZED, and MPI_THREAD_MULTIPLE if it calls MPI meanwhile.
 *
 * By default the library starts that thread. The calls below hand over to it from any thread, one at a time for each
 * channel. No caller waits inside MPI, so a wait for a peer that is gone ends at its timeout. If the first open passes
 * one_thread, the opening thread calls MPI, and calls of other threads fail. Functions of type int return 0, or 1 and
 * the reason in text[DSC_MPI_TEXT].
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_COMM_TRANSPORTS_MPI_API_H
#define DSC_COMM_TRANSPORTS_MPI_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DSC_MPI_API_VERSION 3u
#define DSC_MPI_SYMBOL "dsc_mpi_api_get"
#define DSC_MPI_TEXT 256

typedef struct dsc_mpi_link dsc_mpi_link;

/* One message: `out` is sent to the peer, or `in` is received from it; the other is NULL. */
typedef struct dsc_mpi_part {
    const void *out;
    void *in;
    int64_t count; /* bytes, any number */
    int peer;
} dsc_mpi_part;

typedef struct dsc_mpi_progress {
    int64_t left;   /* messages, or pieces of long ones, that are not done */
    int first_left; /* `left` of the parts that are counted apart */
} dsc_mpi_progress;

#define DSC_MPI_LATE 2
#define DSC_MPI_OTHER_RANK 3

typedef struct dsc_mpi_api {
    uint32_t version, table_bytes;
    char build[32];
    /* Collective over all processes of the MPI job, which must be `rank` of `size`. Each channel is a world of
     * its own. DSC_MPI_LATE: some process had not come after `timeout_ns`. DSC_MPI_OTHER_RANK: MPI gives this process
     * another rank or size. 1: another failure. */
    int (*open)(int rank, int size, int channel_count, bool one_thread, int64_t timeout_ns, dsc_mpi_link **out,
                char *text);
    /* Local. Messages under way are abandoned. After a failure the process leaves MPI without waiting for others. */
    void (*close)(dsc_mpi_link *link, bool failed);
    /* Begins all parts; array and buffers are borrowed until wait says 0 left, or give_up. Received in the order in
     * which they were sent. The first `first` parts are counted apart. */
    int (*begin)(dsc_mpi_link *link, int channel, const dsc_mpi_part *part, int count, int first, char *text);
    /* Until all is done or something failed, `ns` at most. Says 1 (and why) as long as a part has failed. */
    int (*wait)(dsc_mpi_link *link, int channel, int64_t ns, dsc_mpi_progress *out, char *text);
    void (*open_with)(dsc_mpi_link *link, int channel, bool *open); /* [size]: with whom something is not done */
    void (*give_up)(dsc_mpi_link *link, int channel);               /* abandons the messages of the channel */
    /* One short message to everybody, without waiting for them, and the next one that came: *from, or -1. */
    int (*tell)(dsc_mpi_link *link, const void *word, int bytes);
    int (*listen)(dsc_mpi_link *link, void *word, int bytes, int *from);
} dsc_mpi_api;

#ifdef __cplusplus
}
#endif
#endif
