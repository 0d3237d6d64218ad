/* net.c - see net.h. SPDX-License-Identifier: Apache-2.0 */
#include "base/net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

typedef union any_address {
    struct sockaddr head;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
} any_address;

static socklen_t to_system(const dsc_net_address *address, any_address *out)
{
    memset(out, 0, sizeof *out);
    if (address->family == 4) {
        out->v4.sin_family = AF_INET;
        out->v4.sin_port = htons(address->port);
        memcpy(&out->v4.sin_addr, address->ip, 4);
        return sizeof out->v4;
    }
    out->v6.sin6_family = AF_INET6;
    out->v6.sin6_port = htons(address->port);
    out->v6.sin6_scope_id = address->scope;
    memcpy(&out->v6.sin6_addr, address->ip, 16);
    return sizeof out->v6;
}

static bool from_system(const any_address *from, dsc_net_address *out)
{
    memset(out, 0, sizeof *out);
    if (from->head.sa_family == AF_INET) {
        out->family = 4;
        out->port = ntohs(from->v4.sin_port);
        memcpy(out->ip, &from->v4.sin_addr, 4);
        return true;
    }
    if (from->head.sa_family != AF_INET6)
        return false;
    out->port = ntohs(from->v6.sin6_port);
    if (IN6_IS_ADDR_V4MAPPED(&from->v6.sin6_addr)) {
        out->family = 4;
        memcpy(out->ip, from->v6.sin6_addr.s6_addr + 12, 4);
        return true;
    }
    out->family = 6;
    out->scope = from->v6.sin6_scope_id;
    memcpy(out->ip, &from->v6.sin6_addr, 16);
    return true;
}

const char *dsc_net_text(const dsc_net_address *address, char text[DSC_NET_TEXT])
{
    char ip[INET6_ADDRSTRLEN] = "?";
    if (address->family == 4) {
        inet_ntop(AF_INET, address->ip, ip, sizeof ip);
        snprintf(text, DSC_NET_TEXT, "%s:%u", ip, address->port);
    } else {
        inet_ntop(AF_INET6, address->ip, ip, sizeof ip);
        snprintf(text, DSC_NET_TEXT, "[%s]:%u", ip, address->port);
    }
    return text;
}

void dsc_net_host_text(const dsc_net_address *address, char text[DSC_NET_TEXT])
{
    char interface[IF_NAMESIZE] = "";
    text[0] = 0;
    inet_ntop(address->family == 4 ? AF_INET : AF_INET6, address->ip, text, INET6_ADDRSTRLEN);
    if (address->scope != 0 && if_indextoname(address->scope, interface) != NULL)
        snprintf(text + strlen(text), DSC_NET_TEXT - strlen(text), "%%%s", interface);
}

/* A listener on this address listens everywhere; a connection to it reaches no particular host. */
static bool is_everybody(const dsc_net_address *address)
{
    static const uint8_t zero[16];
    if (address->family == 4) /* 224 and up: groups, and the broadcast address */
        return memcmp(address->ip, zero, 4) == 0 || address->ip[0] >= 224;
    return memcmp(address->ip, zero, 16) == 0 || address->ip[0] == 0xff;
}

dsc_status dsc_net_resolve(const char *host, int32_t port, dsc_net_address *out, int32_t most, int32_t *count,
                           dsc_error *err)
{
    const struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM };
    struct addrinfo *list = NULL;
    *count = 0;
    const int failed = getaddrinfo(host, NULL, &hints, &list);
    if (failed != 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, "MASTER_ADDR", "unknown host \"%.200s\": %s", host,
                        failed == EAI_SYSTEM ? strerror(errno) : gai_strerror(failed));
    bool refused = false;
    for (const struct addrinfo *at = list; at != NULL && *count < most; at = at->ai_next) {
        any_address system;
        if (at->ai_addrlen > sizeof system)
            continue;
        memset(&system, 0, sizeof system);
        memcpy(&system, at->ai_addr, at->ai_addrlen);
        if (!from_system(&system, &out[*count]))
            continue;
        if (is_everybody(&out[*count])) {
            refused = true;
            continue;
        }
        out[(*count)++].port = (uint16_t)port;
    }
    freeaddrinfo(list);
    if (*count > 0)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_INPUT, "MASTER_ADDR", "\"%.200s\" %s; expected the address of rank 0's host", host,
                    refused ? "is the address of everybody, not of one host" : "has no address");
}

int dsc_net_listen(const dsc_net_address *at, dsc_net_address *bound)
{
    any_address system;
    DSC_ASSERT(at->family == 4 || at->family == 6);
    DSC_ASSERT(!is_everybody(at));
    const socklen_t bytes = to_system(at, &system);
    const int fd = socket(system.head.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    const int on = 1;
    /* The last epoch's connections may still linger on the port. */
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, &system.head, bytes) == 0 && listen(fd, SOMAXCONN) == 0 && dsc_net_local(fd, bound))
        return fd;
    const int why = errno;
    close(fd);
    errno = why;
    return -1;
}

int dsc_net_connect(const dsc_net_address *to)
{
    any_address system;
    const socklen_t bytes = to_system(to, &system);
    const int fd = socket(system.head.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    if (connect(fd, &system.head, bytes) == 0 || errno == EINPROGRESS)
        return fd;
    const int why = errno;
    close(fd);
    errno = why;
    return -1;
}

int dsc_net_connected(int fd)
{
    int why = 0;
    socklen_t bytes = sizeof why;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &bytes) != 0)
        return errno;
    dsc_net_address mine, theirs;
    any_address system;
    socklen_t length = sizeof system;
    if (why == 0 && getpeername(fd, &system.head, &length) != 0)
        why = errno;
    /* A connection to a free port of this host can meet itself, when the system gives its own end that port. */
    if (why == 0 && from_system(&system, &theirs) && dsc_net_local(fd, &mine) && mine.port == theirs.port &&
        memcmp(mine.ip, theirs.ip, 16) == 0)
        why = ECONNREFUSED;
    return why;
}

bool dsc_net_local(int fd, dsc_net_address *out)
{
    any_address system;
    socklen_t bytes = sizeof system;
    memset(&system, 0, sizeof system);
    return getsockname(fd, &system.head, &bytes) == 0 && from_system(&system, out);
}

void dsc_net_tune(int fd, bool watch)
{
    /* A host that answers none of three probes, one a second after two quiet seconds, is gone: 5 s. The user timeout
     * covers bytes that were sent and never acknowledged. It suits only connections with little traffic, because it
     * also ends a connection whose receiver is merely stopped. */
    static const int on = 1, idle_s = 2, every_s = 1, probes = 3, unanswered_ms = 5000;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (!watch)
        return;
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every_s, sizeof every_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unanswered_ms, sizeof unanswered_ms);
}
