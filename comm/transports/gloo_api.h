/* gloo_api.h - contract of lib/dsc/libdsc_gloo.so: gloo's collectives over a transport of the caller.
 *
 * This is the only interface to C++: no exception and no type of gloo passes it. gloo decides which bytes go to which
 * rank and when. The caller moves them (wire.h), so gloo opens no port and trusts no connection.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_COMM_TRANSPORTS_GLOO_API_H
#define DSC_COMM_TRANSPORTS_GLOO_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DSC_GLOO_API_VERSION 1u
#define DSC_GLOO_SYMBOL "dsc_gloo_api_get"
#define DSC_GLOO_TEXT 256

/* The way to the peers: one message to and one from each at a time. */
typedef struct dsc_gloo_way {
    void *user;
    int rank, size;
    void (*send)(void *user, int to, const void *bytes, int64_t count); /* begins */
    void (*recv)(void *user, int from, void *bytes, int64_t count);
    bool (*sending)(void *user, int to); /* not done yet */
    bool (*receiving)(void *user, int from);
    int (*turn)(void *user); /* moves what can move, else waits; not 0: it is over */
} dsc_gloo_way;

typedef struct dsc_gloo_context dsc_gloo_context;

/* Functions of type int return 0, or 1 and the reason in text[DSC_GLOO_TEXT]. Calls of one context come one at a
 * time. */
typedef struct dsc_gloo_api {
    uint32_t version, table_bytes;
    char build[32];
    int (*open)(const dsc_gloo_way *way, dsc_gloo_context **out, char *text);
    void (*close)(dsc_gloo_context *context); /* NULL is fine */
    /* recv[size * bytes]; this rank's piece is in place. */
    int (*all_gather)(dsc_gloo_context *context, void *recv, int64_t bytes, char *text);
    int (*all_to_all)(dsc_gloo_context *context, void *recv, const void *send, int64_t bytes, char *text);
    int (*broadcast)(dsc_gloo_context *context, void *buf, int64_t bytes, int root, char *text);
} dsc_gloo_api;

#ifdef __cplusplus
}
#endif
#endif
