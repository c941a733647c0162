/* Files through POSIX: maps, whole reads, atomic writes, paths.
 *
 * Only regular files are opened: a FIFO or device in a checkpoint directory would block or never
 * end. They are opened non-blocking so that the check itself cannot hang. */
#include "base/file.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static mtplx_status io_error(mtplx_error *err, const char *path, const char *what)
{
    return mx_error(err, MTPLX_ERR_IO, "%s: cannot %s: %s", path, what, strerror(errno));
}

/* Opens a regular file for reading; returns the descriptor, or -1 with the error written. */
static int open_regular(const char *path, uint64_t *size, mtplx_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        io_error(err, path, "open");
        return -1;
    }
    struct stat sb;
    if (fstat(fd, &sb) != 0) {
        io_error(err, path, "stat");
        close(fd);
        return -1;
    }
    if (!S_ISREG(sb.st_mode)) {
        mx_error(err, MTPLX_ERR_IO, "%s: not a regular file", path);
        close(fd);
        return -1;
    }
    *size = sb.st_size > 0 ? (uint64_t)sb.st_size : 0;
    return fd;
}

mtplx_status mx_map_open(struct mx_map *m, const char *path, mtplx_error *err)
{
    *m = (struct mx_map){0};
    uint64_t size;
    int fd = open_regular(path, &size, err);
    if (fd < 0)
        return MTPLX_ERR_IO;
    mtplx_status status = MTPLX_OK;
    if (size > SIZE_MAX / 2) {
        status = mx_error(err, MTPLX_ERR_IO, "%s: too large to map", path);
    } else if (size > 0) { /* mmap refuses length 0; an empty map is a valid empty file */
        void *p = mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED)
            status = io_error(err, path, "map");
        else
            *m = (struct mx_map){.data = p, .size = (size_t)size};
    }
    close(fd);
    return status;
}

void mx_map_close(struct mx_map *m)
{
    if (m->data)
        munmap((void *)(uintptr_t)m->data, m->size);
    *m = (struct mx_map){0};
}

/* Reads until `want` bytes or the end of the file; returns the count or -1. */
static ssize_t read_all(int fd, char *buf, size_t want)
{
    size_t got = 0;
    while (got < want) {
        size_t step = want - got < (1u << 30) ? want - got : (1u << 30);
        ssize_t n = read(fd, buf + got, step);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        if (n == 0)
            break;
        got += (size_t)n;
    }
    return (ssize_t)got;
}

char *mx_file_read(const char *path, size_t max, size_t *len, mtplx_error *err)
{
    if (len)
        *len = 0;
    uint64_t size;
    int fd = open_regular(path, &size, err);
    if (fd < 0)
        return NULL;
    char *buf = NULL;
    if (size > max || size > SIZE_MAX / 2) {
        mx_error(err, MTPLX_ERR_LIMIT, "%s: is %llu bytes, the limit for this file is %zu", path,
                 (unsigned long long)size, max);
    } else if (!(buf = malloc((size_t)size + 1))) {
        mx_error_nomem(err, path, (size_t)size + 1);
    } else {
        ssize_t got = read_all(fd, buf, (size_t)size); /* a file that shrank just reads short */
        if (got < 0) {
            io_error(err, path, "read");
            free(buf);
            buf = NULL;
        } else {
            buf[got] = '\0';
            if (len)
                *len = (size_t)got;
        }
    }
    close(fd);
    return buf;
}

static bool write_all(int fd, const void *data, size_t len)
{
    const char *p = data;
    while (len > 0) {
        size_t step = len < (1u << 30) ? len : (1u << 30);
        ssize_t n = write(fd, p, step);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return false;
        p += n;
        len -= (size_t)n;
    }
    return true;
}

/* A new file beside `path`, on the same file system so that rename is atomic. Created with the
 * caller's umask (mkstemp would make it private); takes over the mode of a file it replaces. */
static int open_temporary(const char *path, char **name, mtplx_error *err)
{
    size_t room = strlen(path) + 64;
    *name = malloc(room);
    if (!*name) {
        mx_error_nomem(err, path, room);
        return -1;
    }
    int fd = -1;
    for (int attempt = 0; attempt < 100 && fd < 0; attempt++) {
        snprintf(*name, room, "%s.%ld-%llx.tmp", path, (long)getpid(),
                 (unsigned long long)mx_now_ns());
        fd = open(*name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd < 0 && errno != EEXIST)
            break;
    }
    struct stat sb;
    if (fd < 0) {
        io_error(err, path, "create a temporary file beside it");
        free(*name);
        *name = NULL;
    } else if (stat(path, &sb) == 0 && S_ISREG(sb.st_mode)) {
        (void)!fchmod(fd, sb.st_mode & 0777); /* a courtesy: the write matters more than the mode */
    }
    return fd;
}

/* Makes the rename itself durable. Best effort: some file systems refuse to sync a directory. */
static void sync_directory(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *dir = !slash          ? strdup(".")
                : slash == path ? strdup("/")
                                : strndup(path, (size_t)(slash - path));
    if (!dir)
        return;
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    free(dir);
    if (fd < 0)
        return;
    (void)fsync(fd);
    close(fd);
}

mtplx_status mx_file_write_parts(const char *path, const struct mx_part *parts, size_t n,
                                 mtplx_error *err)
{
    char *name = NULL;
    int fd = open_temporary(path, &name, err);
    if (fd < 0)
        return err ? err->status : MTPLX_ERR_IO;
    mtplx_status status = MTPLX_OK;
    for (size_t i = 0; i < n && status == MTPLX_OK; i++)
        if (!write_all(fd, parts[i].data, parts[i].len))
            status = io_error(err, path, "write");
    if (status == MTPLX_OK && fsync(fd) != 0)
        status = io_error(err, path, "sync");
    if (close(fd) != 0 && status == MTPLX_OK)
        status = io_error(err, path, "close");
    if (status == MTPLX_OK && rename(name, path) != 0)
        status = io_error(err, path, "replace");
    if (status == MTPLX_OK)
        sync_directory(path);
    else
        unlink(name);
    free(name);
    return status;
}

mtplx_status mx_file_write(const char *path, const void *data, size_t len, mtplx_error *err)
{
    const struct mx_part part = {data, len};
    return mx_file_write_parts(path, &part, 1, err);
}

bool mx_file_exists(const char *path)
{
    struct stat sb;
    return lstat(path, &sb) == 0;
}

bool mx_dir_exists(const char *path)
{
    struct stat sb;
    return stat(path, &sb) == 0 && S_ISDIR(sb.st_mode);
}

char *mx_path_join(const char *dir, const char *name)
{
    size_t d = strlen(dir), n = strlen(name);
    bool slash = d > 0 && dir[d - 1] != '/'; /* "" + name is name, "/" needs no second slash */
    if (n > SIZE_MAX - 2 - d)
        return NULL;
    char *p = malloc(d + n + 2);
    if (!p)
        return NULL;
    memcpy(p, dir, d);
    if (slash)
        p[d++] = '/';
    memcpy(p + d, name, n + 1);
    return p;
}

char *mx_cache_path(const char *rest)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (cache && *cache == '/')
        return mx_path_join(cache, rest);
    char *base = home && *home == '/' ? mx_path_join(home, ".cache") : NULL;
    char *path = base ? mx_path_join(base, rest) : NULL;
    free(base);
    return path;
}

char *mx_exe_dir(void)
{
    char buf[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", buf, sizeof buf - 1);
    if (n <= 0 || (size_t)n >= sizeof buf - 1)
        return NULL;
    buf[n] = '\0';
    char *slash = strrchr(buf, '/');
    if (!slash)
        return NULL;
    if (slash == buf)
        return strdup("/");
    return strndup(buf, (size_t)(slash - buf));
}
