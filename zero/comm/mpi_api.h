/* mpi_api.h - what lib/dsc/libdsc_mpi.so gives: messages of the MPI library that the ranks were started with.
 *
 * Built against one MPI (Open MPI); its types stay inside. Calls come from any thread, one at a time for each lane.
 * Into MPI one goes at a time in the whole process, so MPI_THREAD_SERIALIZED is asked for and needed (a program that
 * has entered MPI itself and calls it meanwhile needs MPI_THREAD_MULTIPLE). What returns an int gives 0, or 1 and the
 * reason in text[DSC_MPI_TEXT]. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_COMM_MPI_API_H
#define DSC_ZERO_COMM_MPI_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DSC_MPI_API_VERSION 2u
#define DSC_MPI_SYMBOL "dsc_mpi_api_get"
#define DSC_MPI_TEXT 256

typedef struct dsc_mpi_link dsc_mpi_link;

typedef struct dsc_mpi_api {
    uint32_t version, table_bytes;
    char build[32];
    /* Collective over all processes of the MPI job, which must be `rank` of `size`. Each lane is a world of its own. */
    int (*open)(int rank, int size, int lane_count, dsc_mpi_link **out, char *text);
    /* Local. What is under way is given up. After a failure the process leaves MPI without waiting for others. */
    void (*close)(dsc_mpi_link *link, bool failed);
    /* Begin; `count` of any size, which may go in several parts. Received in the order in which they were sent. */
    int (*send)(dsc_mpi_link *link, int lane, int to, const void *bytes, int64_t count, char *text);
    int (*recv)(dsc_mpi_link *link, int lane, int from, void *bytes, int64_t count, char *text);
    /* Without waiting: how many parts of what was begun on the lane are not done; open[size], or NULL: with whom. */
    int (*test)(dsc_mpi_link *link, int lane, int *left, bool *open, char *text);
    void (*give_up)(dsc_mpi_link *link, int lane); /* of what is under way on the lane */
    /* One short message to everybody, without waiting, and the next one that came: *from, or -1. From any thread. */
    void (*tell)(dsc_mpi_link *link, const void *word, int bytes);
    int (*listen)(dsc_mpi_link *link, void *word, int bytes, int *from);
} dsc_mpi_api;
typedef const dsc_mpi_api *(*dsc_mpi_api_fn)(void);

#ifdef __cplusplus
}
#endif
#endif
