/* fdatasync and fsync of the message log, counted, held up and failed on demand (LD_PRELOAD).
 *
 * SYNC_SHIM_CONTROL names a file of five 64-bit numbers that is shared with the test:
 *     0  how many syncs of files below messages/log were asked for
 *     1  how many of them were done
 *     2  the number of the one that fails with EIO, once, after having waited for 3
 *     3  not zero: syncs wait
 *     4  the number of the one that waits, 0 for none
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
    _Atomic uint64_t asked, done, fails, held, waits;
};

static struct control *control;

__attribute__((constructor)) static void map_control(void)
{
    const char *path = getenv("SYNC_SHIM_CONTROL");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        abort();
    control = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (control == MAP_FAILED)
        abort();
    close(fd);
}

static int is_of_the_log(int fd)
{
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0)
        return 0;
    path[size] = 0;
    return strstr(path, "/messages/log/") != NULL;
}

static int sync_with(const char *name, int fd)
{
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    if (!is_of_the_log(fd))
        return real(fd);
    uint64_t number = atomic_fetch_add(&control->asked, 1) + 1;
    while (atomic_load(&control->held)) {
        atomic_store(&control->waits, number);
        usleep(500);
    }
    atomic_store(&control->waits, 0);
    if (number == atomic_load(&control->fails)) {
        errno = EIO;
        return -1;
    }
    int result = real(fd);
    atomic_fetch_add(&control->done, 1);
    return result;
}

int fdatasync(int fd) { return sync_with("fdatasync", fd); }
int fsync(int fd) { return sync_with("fsync", fd); }
