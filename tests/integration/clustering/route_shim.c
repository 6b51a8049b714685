/* Connections to some ports of this machine go to others instead (LD_PRELOAD).
 *
 * ROUTE_SHIM is a list of ports, "from:to,from:to": a test puts itself between two processes by it, each of which
 * is told the other's own address.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static unsigned route(unsigned port)
{
    const char *at = getenv("ROUTE_SHIM");
    unsigned from, to;
    while (at && sscanf(at, "%u:%u", &from, &to) == 2) {
        if (from == port)
            return to;
        at = strchr(at, ',');
        at = at ? at + 1 : NULL;
    }
    return port;
}

int connect(int fd, const struct sockaddr *address, socklen_t length)
{
    int (*real)(int, const struct sockaddr *, socklen_t) = (int (*)(int, const struct sockaddr *, socklen_t))dlsym(RTLD_NEXT, "connect");
    if (address && address->sa_family == AF_INET && length >= sizeof(struct sockaddr_in)) {
        struct sockaddr_in other;
        memcpy(&other, address, sizeof other);
        other.sin_port = htons(route(ntohs(other.sin_port)));
        return real(fd, (struct sockaddr *)&other, sizeof other);
    }
    return real(fd, address, length);
}
