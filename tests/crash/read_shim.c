/* pread of the message store, counted and failed with EIO on demand (LD_PRELOAD).
 *
 * READ_SHIM_CONTROL names a file of five 64-bit numbers that is shared with the test:
 *     0  which reads fail: 0 none, 1 of files below messages/log, 2 of those below messages/streams, 3 both,
 *         4 of the metadata store and its journal
 *     1  one of so many fails, taken in turn; 0 or 1: all
 *     2  the byte from which on reads fail, and
 *     3  the byte before which they do; 0: no limit
 *     4  how many have failed
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct control {
    _Atomic uint64_t which, one_of, from, to, failed;
};

static struct control *control;
static _Atomic uint64_t turn;

__attribute__((constructor)) static void map_control(void)
{
    const char *path = getenv("READ_SHIM_CONTROL");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        abort();
    control = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (control == MAP_FAILED)
        abort();
    close(fd);
}

static int fails(int fd, size_t size, off_t offset)
{
    uint64_t which = atomic_load(&control->which);
    if (!which)
        return 0;
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    if (!((which & 1 && strstr(path, "/messages/log/")) || (which & 2 && strstr(path, "/messages/streams/")) ||
          (which & 4 && strstr(path, "/catalogue.db"))))
        return 0;
    uint64_t to = atomic_load(&control->to);
    if ((uint64_t)offset + size <= atomic_load(&control->from) || (to && (uint64_t)offset >= to))
        return 0;
    uint64_t one_of = atomic_load(&control->one_of);
    if (one_of > 1 && atomic_fetch_add(&turn, 1) % one_of)
        return 0;
    atomic_fetch_add(&control->failed, 1);
    errno = EIO;
    return 1;
}

#define PREAD(name)                                                                                                    \
    ssize_t name(int fd, void *buffer, size_t size, off_t offset)                                                      \
    {                                                                                                                  \
        if (fails(fd, size, offset))                                                                                   \
            return -1;                                                                                                 \
        ssize_t (*real)(int, void *, size_t, off_t) = (ssize_t (*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, #name); \
        return real(fd, buffer, size, offset);                                                                         \
    }

PREAD(pread)
PREAD(pread64)
