/* A disk and a clock that a lab changes while a node runs (LD_PRELOAD).
 *
 * LAB_SHIM_CONTROL names a file of 64-bit numbers that is shared with the lab:
 *     0  how many milliseconds each sync of a file below messages/ takes longer
 *     1  not zero: writes and allocations below messages/ fail with ENOSPC
 *     2  not zero: syncs of files below messages/log/ fail with EIO
 *     3  how many seconds the wall clock is ahead; signed
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
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct control {
    _Atomic int64_t sync_ms, full, fails, ahead_s;
};

static struct control nothing;
static struct control *control = &nothing;

__attribute__((constructor)) static void map_control(void)
{
    const char *path = getenv("LAB_SHIM_CONTROL");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *found = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (found != MAP_FAILED)
        control = found;
    close(fd);
}

static int is_below(int fd, const char *part)
{
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0)
        return 0;
    path[size] = 0;
    return strstr(path, part) != NULL;
}

static int sync_with(const char *name, int fd)
{
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    int64_t sync_ms = atomic_load(&control->sync_ms);
    if (sync_ms && is_below(fd, "/messages/"))
        usleep(1000 * sync_ms);
    if (atomic_load(&control->fails) && is_below(fd, "/messages/log/")) {
        errno = EIO;
        return -1;
    }
    return real(fd);
}

int fsync(int fd)
{
    return sync_with("fsync", fd);
}

int fdatasync(int fd)
{
    return sync_with("fdatasync", fd);
}

static int is_full(int fd)
{
    return atomic_load(&control->full) && is_below(fd, "/messages/");
}

#define PWRITEV(name) \
    ssize_t name(int fd, const struct iovec *parts, int count, off_t offset) \
    { \
        ssize_t (*real)(int, const struct iovec *, int, off_t) = \
            (ssize_t(*)(int, const struct iovec *, int, off_t))dlsym(RTLD_NEXT, #name); \
        if (is_full(fd)) { \
            errno = ENOSPC; \
            return -1; \
        } \
        return real(fd, parts, count, offset); \
    }
PWRITEV(pwritev)
PWRITEV(pwritev64)

#define PWRITEV2(name) \
    ssize_t name(int fd, const struct iovec *parts, int count, off_t offset, int flags) \
    { \
        ssize_t (*real)(int, const struct iovec *, int, off_t, int) = \
            (ssize_t(*)(int, const struct iovec *, int, off_t, int))dlsym(RTLD_NEXT, #name); \
        if (is_full(fd)) { \
            errno = ENOSPC; \
            return -1; \
        } \
        return real(fd, parts, count, offset, flags); \
    }
PWRITEV2(pwritev2)
PWRITEV2(pwritev64v2)

#define ALLOCATE(name) \
    int name(int fd, off_t offset, off_t length) \
    { \
        int (*real)(int, off_t, off_t) = (int (*)(int, off_t, off_t))dlsym(RTLD_NEXT, #name); \
        return is_full(fd) ? ENOSPC : real(fd, offset, length); \
    }
ALLOCATE(posix_fallocate)
ALLOCATE(posix_fallocate64)

int clock_gettime(clockid_t id, struct timespec *found)
{
    int (*real)(clockid_t, struct timespec *) =
        (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int answer = real(id, found);
    if (answer == 0 && id == CLOCK_REALTIME)
        found->tv_sec += atomic_load(&control->ahead_s);
    return answer;
}
