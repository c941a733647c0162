/* The directory of the cold tier: who may use it, its lock, its object files.
 *
 *   <dir>/lock          one byte range of flock(2); holds the process number of who writes
 *   <dir>/manifest.db   SQLite
 *   <dir>/objects/ab/   objects whose key starts with ab
 *
 * Everything is opened relative to a descriptor of the directory and without following symbolic
 * links, so that nobody can redirect a write who cannot write into the directory. */
#include "session/cold_int.h"

#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <xxhash.h>

#define DIR_FLAGS (O_RDONLY | O_DIRECTORY | O_CLOEXEC)

mtplx_status mx_cold_dir_default(char *out, size_t cap, mtplx_error *err)
{
    char *path = mx_cache_path("mtplx/sessions");
    int n = path ? snprintf(out, cap, "%s", path) : -1;
    free(path);
    if (n < 0 || (size_t)n >= cap)
        return mx_error(err, MTPLX_ERR_ARGUMENT,
                        "no directory for the session cache: neither XDG_CACHE_HOME nor HOME is a "
                        "usable absolute path; name one with --ssd-session-cache-dir");
    return MTPLX_OK;
}

/* ---- Names -------------------------------------------------------------------------------- */

uint64_t mx_cold_identity_tag(const struct mx_cold_identity *id)
{
    return XXH3_64bits(id, sizeof *id);
}

static void hex(char *out, const uint8_t *b, size_t n)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = digits[b[i] >> 4];
        out[2 * i + 1] = digits[b[i] & 15];
    }
    out[2 * n] = '\0';
}

void mx_cold_name(char *out, enum mx_cold_kind kind, struct mx_cold_key key,
                  const struct mx_cold_identity *id)
{
    char k[33];
    hex(k, key.b, sizeof key.b);
    snprintf(out, MX_COLD_NAME, "%.2s/%s.%016llx.%c", k, k,
             (unsigned long long)mx_cold_identity_tag(id), kind == MX_COLD_BLOCK ? 'b' : 's');
}

static int nibble(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool mx_cold_name_parse(const char *name, enum mx_cold_kind *kind, struct mx_cold_key *key,
                        uint64_t *identity)
{
    if (strnlen(name, 52) != 51 || name[32] != '.' || name[49] != '.' ||
        (name[50] != 'b' && name[50] != 's'))
        return false;
    for (int i = 0; i < 49; i++)
        if (i != 32 && nibble(name[i]) < 0)
            return false;
    for (int i = 0; i < 16; i++)
        key->b[i] = (uint8_t)(nibble(name[2 * i]) << 4 | nibble(name[2 * i + 1]));
    *identity = 0;
    for (int i = 33; i < 49; i++)
        *identity = *identity << 4 | (uint64_t)nibble(name[i]);
    *kind = name[50] == 'b' ? MX_COLD_BLOCK : MX_COLD_SNAPSHOT;
    return true;
}

/* ---- Opening ------------------------------------------------------------------------------ */

static mtplx_status make_parents(char *path, mtplx_error *err)
{
    for (char *p = path + 1; *p; p++) {
        if (*p != '/')
            continue;
        *p = '\0';
        bool bad = mkdir(path, 0700) != 0 && errno != EEXIST && errno != EROFS;
        if (bad)
            mx_error(err, MTPLX_ERR_IO,
                     "cannot make directory %s: %s: name another with "
                     "--ssd-session-cache-dir",
                     path, strerror(errno));
        *p = '/';
        if (bad)
            return MTPLX_ERR_IO;
    }
    return MTPLX_OK;
}

static bool there(int at, const char *name, mode_t type)
{
    struct stat st;
    return fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && (st.st_mode & S_IFMT) == type;
}

/* Whether a directory has nothing in it that is not the tier's. */
static bool only_ours(int fd)
{
    static const char *const names[] = {".",
                                        "..",
                                        "lost+found",
                                        "lock",
                                        "objects",
                                        "manifest.db",
                                        "manifest.db-wal",
                                        "manifest.db-shm",
                                        "manifest.db.bad"};
    int again = openat(fd, ".", DIR_FLAGS);
    DIR *d = again >= 0 ? fdopendir(again) : NULL;
    bool ours = d != NULL;
    for (struct dirent *e; ours && (e = readdir(d));) {
        size_t i = 0;
        while (i < sizeof names / sizeof *names && strcmp(e->d_name, names[i]) != 0)
            i++;
        ours = i < sizeof names / sizeof *names;
    }
    if (d)
        closedir(d);
    else if (again >= 0)
        close(again);
    return ours;
}

bool mx_cold_dir_is_cache(int fd)
{
    return there(fd, "objects", S_IFDIR) &&
           (there(fd, "lock", S_IFREG) || there(fd, "manifest.db", S_IFREG) || only_ours(fd));
}

/* Directories of somebody else are refused; ours are closed to others, but only those that are
 * there for nothing else: what others use, such as /tmp, is not ours to close. */
static mtplx_status claim(int fd, const char *path, bool cache, mtplx_error *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return mx_error(err, MTPLX_ERR_IO, "cannot look at %s: %s", path, strerror(errno));
    if (st.st_uid != geteuid())
        return mx_error(err, MTPLX_ERR_IO,
                        "%s belongs to another user, who could read the conversations: name "
                        "another directory with --ssd-session-cache-dir",
                        path);
    if ((st.st_mode & 07777) == 0700)
        return MTPLX_OK;
    if (st.st_mode & 077 && ((st.st_mode & S_ISVTX) || (!cache && !only_ours(fd))))
        return mx_error(err, MTPLX_ERR_IO,
                        "%s is open to other users and used for other things: name a new or empty "
                        "directory with --ssd-session-cache-dir",
                        path);
    if (fchmod(fd, 0700) != 0 && errno != EROFS)
        return mx_error(err, MTPLX_ERR_IO, "cannot close %s to other users: %s", path,
                        strerror(errno));
    return MTPLX_OK;
}

static int open_folder(int at, const char *name, bool make)
{
    int fd = openat(at, name, DIR_FLAGS | O_NOFOLLOW);
    if (fd >= 0 || errno != ENOENT || !make)
        return fd;
    if (mkdirat(at, name, 0700) != 0 && errno != EEXIST)
        return -1;
    (void)fsync(at); /* what is synced in it is nowhere while its own name is not */
    return openat(at, name, DIR_FLAGS | O_NOFOLLOW);
}

static void take_lock(struct mx_cold_dir *d)
{
    d->lock = openat(d->fd, "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (d->lock < 0) {
        d->readonly = true;
        return;
    }
    char pid[24] = "";
    if (flock(d->lock, LOCK_EX | LOCK_NB) != 0) {
        ssize_t n = pread(d->lock, pid, sizeof pid - 1, 0);
        d->other = n > 0 ? strtol(pid, NULL, 10) : 0;
        return;
    }
    d->locked = true;
    int n = snprintf(pid, sizeof pid, "%ld\n", (long)getpid());
    /* For the eye only: without it the sentence says less. */
    if (ftruncate(d->lock, 0) != 0 || pwrite(d->lock, pid, (size_t)n, 0) != n)
        d->other = 0;
}

static mtplx_status open_all(struct mx_cold_dir *d, char *path, mtplx_error *err)
{
    mtplx_status s = make_parents(path, err);
    if (s)
        return s;
    if (mkdir(path, 0700) != 0 && errno != EEXIST && errno != EROFS)
        return mx_error(err, MTPLX_ERR_IO,
                        "cannot make directory %s: %s: name another with --ssd-session-cache-dir",
                        path, strerror(errno));
    d->fd = open(path, DIR_FLAGS);
    if (d->fd < 0)
        return mx_error(err, MTPLX_ERR_IO,
                        "cannot open directory %s: %s: name another with --ssd-session-cache-dir",
                        path, strerror(errno));
    s = claim(d->fd, path, mx_cold_dir_is_cache(d->fd), err);
    if (s)
        return s;
    char *real = realpath(path, NULL);
    bool fits = real && strlen(real) < sizeof d->path;
    if (fits)
        snprintf(d->path, sizeof d->path, "%s", real);
    free(real);
    if (!fits)
        return mx_error(err, MTPLX_ERR_ARGUMENT,
                        "the path of %s is too long: name another directory "
                        "with --ssd-session-cache-dir",
                        path);
    take_lock(d);
    d->objects = open_folder(d->fd, "objects", d->locked);
    if (d->objects < 0)
        return mx_error(err, MTPLX_ERR_IO, "cannot open %s/objects: %s", d->path, strerror(errno));
    return claim(d->objects, "objects", true, err);
}

mtplx_status mx_cold_dir_open(struct mx_cold_dir *d, const char *path, mtplx_error *err)
{
    char own[256] = "";
    *d = (struct mx_cold_dir){.fd = -1, .objects = -1, .lock = -1};
    if (!path || !*path) {
        mtplx_status s = mx_cold_dir_default(own, sizeof own, err);
        if (s)
            return s;
    } else if (strlen(path) >= sizeof own) {
        return mx_error(err, MTPLX_ERR_ARGUMENT,
                        "the path of the session cache is too long: name a "
                        "directory of fewer than %zu characters with --ssd-session-cache-dir",
                        sizeof own);
    } else if (path[0] == '~' && (path[1] == '/' || !path[1])) {
        return mx_error(err, MTPLX_ERR_ARGUMENT,
                        "%s: nobody has put your home directory for the ~: name the directory with "
                        "its full path in --ssd-session-cache-dir",
                        path);
    } else {
        snprintf(own, sizeof own, "%s", path);
    }
    mtplx_status s = open_all(d, own, err);
    if (s)
        mx_cold_dir_close(d);
    return s;
}

void mx_cold_dir_close(struct mx_cold_dir *d)
{
    int all[] = {d->objects, d->lock, d->fd};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i] >= 0)
            close(all[i]);
    d->objects = d->lock = d->fd = -1;
    d->locked = false;
}

/* ---- Objects ------------------------------------------------------------------------------ */

/* The folder of an object; a symbolic link in its place is not followed. */
static int object_folder(const struct mx_cold_dir *d, const char *name, bool make)
{
    char folder[3] = {name[0], name[1], '\0'};
    return open_folder(d->objects, folder, make);
}

/* close(2) without changing errno. */
static void close_quietly(int fd)
{
    int cause = errno;
    if (fd >= 0)
        close(fd);
    errno = cause;
}

int mx_cold_dir_create(struct mx_cold_dir *d, const char *name, char *temp)
{
    snprintf(temp, MX_COLD_NAME, "%s~", name);
    int folder = object_folder(d, name, true);
    if (folder < 0)
        return -1;
    unlinkat(folder, temp + 3, 0);
    int fd = openat(folder, temp + 3, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    close_quietly(folder);
    return fd;
}

int mx_cold_dir_open_object(struct mx_cold_dir *d, const char *name)
{
    int folder = object_folder(d, name, false);
    if (folder < 0)
        return -1;
    int fd = openat(folder, name + 3, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    close_quietly(folder);
    struct stat st;
    if (fd >= 0 && (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))) {
        close(fd);
        errno = ENOENT;
        return -1;
    }
    return fd;
}

bool mx_cold_dir_sync(struct mx_cold_dir *d, const char *name)
{
    int fd = object_folder(d, name, false);
    bool ok = fd >= 0 && fsync(fd) == 0;
    close_quietly(fd);
    return ok;
}

bool mx_cold_dir_space(struct mx_cold_dir *d, uint64_t *free_bytes, uint64_t *all_bytes)
{
    struct statvfs v;
    if (fstatvfs(d->fd, &v) != 0)
        return false;
    *free_bytes = (uint64_t)v.f_bavail * v.f_frsize;
    *all_bytes = (uint64_t)v.f_blocks * v.f_frsize;
    return true;
}
