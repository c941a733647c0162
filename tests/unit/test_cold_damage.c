/* The cold tier over a directory that something went wrong with: files damaged, swapped, missing or
 * too many, a manifest that is none, another process, a writer that was killed. Whatever comes back
 * is right, what is wrong is dropped with a line, and nothing is left over. */
#include "cold_rig.h"

#include "base/clock.h"
#include "session/cold_admin.h"

#include <errno.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>

/* ---- Damaged files ------------------------------------------------------------------------ */

static long size_of(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? (long)st.st_size : -1;
}

/* Two conversations of 4 blocks that share two: 6 blocks, 2 snapshots. */
static void two_talks(struct talk t[2])
{
    t[0] = talk(1, 64 * 4 + 10);
    t[1] = t[0];
    t[1].own = 2;
    t[1].shared = 64 * 2;
}

/* Every talk is whole or gone, at least one is gone, and all can be written again. */
static void assert_survives(struct rig *r, struct mx_cold *c, struct talk t[2])
{
    int lines = log_lines(r);
    int results[2];
    for (int i = 0; i < 2; i++)
        results[i] = check_talk(c, &t[i]);
    for (int i = 0; i < 2; i++) {
        assert_int_not_equal(results[i], 2);
        assert_int_equal(has(c, &t[i]), results[i] == 0);
    }
    assert_true(results[0] || results[1]);
    assert_true(log_lines(r) > lines || lines > 0);
    assert_no_orphans(r, c);
    for (int i = 0; i < 2; i++) {
        if (results[i])
            put_ok(c, &t[i]);
        assert_int_equal(check_talk(c, &t[i]), 0);
    }
    assert_no_orphans(r, c);
}

static void test_flipped_bits(void **state)
{
    struct rig *r = *state;
    struct talk t[2];
    struct nth n;
    two_talks(t);
    struct mx_cold *c = open_rig(r);
    put_ok(c, &t[0]);
    put_ok(c, &t[1]);
    assert_int_equal(each_file(r->dir, NULL, NULL), 8);
    /* Everywhere in the fixed header, in the tokens, in each part. */
    static const long places[] = {0,   8,   12,  16,  17,  18,  24,  32,  60,
                                  85,  100, 115, 130, 140, 146, 155, 163, 170,
                                  300, 450, 505, 511, 515, 700, 800, -1,  -700};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const char *path = file_at(r->dir, (int)i % 8, &n);
        flip(path, places[i] >= 0 ? places[i] : size_of(path) + places[i]);
        if (i % 3 == 0)
            c = reopen(r, c);
        assert_survives(r, c, t);
    }
    mx_cold_close(c, 0);
}

static void test_truncated(void **state)
{
    struct rig *r = *state;
    struct talk t[2];
    struct nth n;
    two_talks(t);
    struct mx_cold *c = open_rig(r);
    put_ok(c, &t[0]);
    put_ok(c, &t[1]);
    for (int i = 0; i < 16; i++) {
        const char *path = file_at(r->dir, i % 8, &n);
        long size = size_of(path);
        long to = i % 4 == 0 ? 0 : i % 4 == 1 ? 300 : i % 4 == 2 ? size - 1 : size + 1;
        assert_int_equal(truncate(path, to), 0);
        if (i >= 8)
            c = reopen(r, c);
        assert_survives(r, c, t);
    }
    mx_cold_close(c, 0);
}

static void test_swapped(void **state)
{
    struct rig *r = *state;
    struct talk t[2];
    two_talks(t);
    struct mx_cold *c = open_rig(r);
    put_ok(c, &t[0]);
    put_ok(c, &t[1]);
    for (int i = 0; i < 7; i++) {
        struct nth a;
        struct nth b;
        char third[700];
        file_at(r->dir, i, &a);
        file_at(r->dir, i + 1, &b);
        snprintf(third, sizeof third, "%s/third", r->dir);
        assert_int_equal(rename(a.path, third) | rename(b.path, a.path) | rename(third, b.path), 0);
        if (i & 1)
            c = reopen(r, c);
        assert_survives(r, c, t);
    }
    mx_cold_close(c, 0);
}

static void test_removed(void **state)
{
    struct rig *r = *state;
    struct talk t[2];
    struct nth n;
    two_talks(t);
    struct mx_cold *c = open_rig(r);
    put_ok(c, &t[0]);
    put_ok(c, &t[1]);
    for (int i = 0; i < 16; i++) {
        assert_int_equal(unlink(file_at(r->dir, i % 8, &n)), 0);
        if (i & 1)
            assert_int_equal(mkdir(n.path, 0700) | rmdir(n.path), 0);
        if (i >= 8)
            c = reopen(r, c);
        assert_survives(r, c, t);
    }
    mx_cold_close(c, 0);
}

static void write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

/* Files that nothing knows go, whatever they hold; names that are not ours stay. */
static void test_strays(void **state)
{
    struct rig *r = *state;
    char path[256];
    char folder[200];
    struct mx_cold *c = open_rig(r);
    struct talk t = talk(1, 300);
    put_ok(c, &t);
    mx_cold_close(c, SECOND);
    int before = each_file(r->dir, NULL, NULL);
    for (int i = 0; i < 40; i++) {
        snprintf(folder, sizeof folder, "%s/objects/%02x", r->dir, (unsigned)i * 5);
        mkdir(folder, 0700);
        snprintf(path, sizeof path, "%s/%02x%030d.%016d.%c%s", folder, (unsigned)i * 5, i, i,
                 i & 1 ? 'b' : 's', i % 4 == 3 ? "~" : "");
        write_file(path, "x");
    }
    snprintf(path, sizeof path, "%s/objects/00/notes", r->dir);
    write_file(path, "mine");
    c = open_rig(r);
    assert_int_equal(each_file(r->dir, NULL, NULL), before + 1);
    assert_int_equal(stats_of(c).orphans, 40);
    assert_int_equal(log_lines(r), 1);
    assert_int_equal(check_talk(c, &t), 0);
    mx_cold_close(c, 0);
    assert_int_equal(unlink(path), 0);
}

/* ---- Manifest ----------------------------------------------------------------------------- */

static void manifest_path(struct rig *r, char *out, size_t cap, const char *suffix)
{
    snprintf(out, cap, "%s/manifest.db%s", r->dir, suffix);
}

static void test_manifest(void **state)
{
    struct rig *r = *state;
    struct talk t[2];
    char path[128];
    two_talks(t);
    for (int i = 0; i < 5; i++) {
        struct mx_cold *c = open_rig(r);
        if (i == 0) {
            put_ok(c, &t[0]);
            put_ok(c, &t[1]);
        }
        mx_cold_close(c, SECOND);
        manifest_path(r, path, sizeof path, "");
        if (i == 0)
            write_file(path, "this is no database, and longer than the magic of one");
        else if (i == 1)
            assert_int_equal(truncate(path, 5000), 0);
        else if (i == 2)
            assert_int_equal(unlink(path), 0);
        else if (i == 3)
            for (long at = 100; at < size_of(path); at += 61)
                flip(path, at);
        int lines = log_lines(r);
        c = open_rig(r);
        assert_int_equal(log_lines(r), lines + (i == 2 || i == 4 ? 0 : 1));
        assert_int_equal(check_talk(c, &t[0]) | check_talk(c, &t[1]), 0);
        assert_no_orphans(r, c);
        assert_int_equal(stats_of(c).snapshots, 2);
        mx_cold_close(c, SECOND);
    }
}

/* Rebuilt entries know their sessions; objects whose ancestors are missing are not rebuilt. */
static void test_rebuild(void **state)
{
    struct rig *r = *state;
    struct talk t[2];
    struct nth n;
    char path[128];
    two_talks(t);
    t[0].session = "first";
    t[1].session = "second";
    struct mx_cold *c = open_rig(r);
    put_ok(c, &t[0]);
    put_ok(c, &t[1]);
    mx_cold_close(c, SECOND);
    manifest_path(r, path, sizeof path, "");
    unlink(path);
    c = open_rig(r);
    assert_int_equal(mx_cold_drop(c, "first"), 1);
    assert_int_equal(check_talk(c, &t[1]), 0);
    assert_no_orphans(r, c);
    mx_cold_close(c, SECOND);
    for (int i = 0; i < 5; i++) {
        unlink(path);
        unlink(file_at(r->dir, i % each_file(r->dir, NULL, NULL), &n));
        c = open_rig(r);
        assert_int_equal(has(c, &t[1]), 0);
        assert_no_orphans(r, c);
        assert_int_equal(each_file(r->dir, NULL, NULL), 0);
        put_ok(c, &t[1]);
        mx_cold_close(c, SECOND);
    }
}

static void test_versions(void **state)
{
    struct rig *r = *state;
    struct talk t = talk(1, 300);
    char path[128];
    struct mx_cold *c = open_rig(r);
    put_ok(c, &t);
    mx_cold_close(c, SECOND);
    manifest_path(r, path, sizeof path, "");
    int fd = open(path, O_RDWR);
    static const uint8_t newer[4] = {0, 0, 0, 9}; /* user_version stands at 60 */
    static const uint8_t ours[4] = {0, 0, 0, MX_COLD_MANIFEST_VERSION};
    assert_int_equal(pwrite(fd, newer, 4, 60), 4);
    mtplx_error err;
    assert_null(mx_cold_open(&r->o, &err));
    assert_int_equal(err.status, MTPLX_ERR_FORMAT);
    assert_non_null(strstr(err.message, "newer"));
    assert_int_equal(pwrite(fd, ours, 4, 60), 4);
    close(fd);
    c = open_rig(r);
    assert_int_equal(check_talk(c, &t), 0);
    mx_cold_close(c, SECOND);
    fd = open(path, O_RDWR);
    static const uint8_t older[4] = {0, 0, 0, 0};
    assert_int_equal(pwrite(fd, older, 4, 60), 4);
    close(fd);
    int lines = log_lines(r);
    c = open_rig(r);
    assert_int_equal(log_lines(r), lines + 1);
    mx_cold_close(c, SECOND);
}

/* ---- Who may ------------------------------------------------------------------------------ */

static int mode_of(const char *path)
{
    struct stat st;
    assert_int_equal(lstat(path, &st), 0);
    return st.st_mode & 07777;
}

static void assert_private(const char *path, void *arg)
{
    (void)arg;
    assert_int_equal(mode_of(path), 0600);
}

static void test_permissions(void **state)
{
    struct rig *r = *state;
    char path[128];
    static const char *const files[] = {"lock", "manifest.db", "manifest.db-wal",
                                        "manifest.db-shm"};
    umask(0);
    assert_int_equal(chmod(r->dir, 0755), 0);
    struct mx_cold *c = open_rig(r);
    struct talk t = talk(1, 300);
    put_ok(c, &t);
    assert_int_equal(mode_of(r->dir), 0700);
    snprintf(path, sizeof path, "%s/objects", r->dir);
    assert_int_equal(mode_of(path), 0700);
    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s/%s", r->dir, files[i]);
        assert_private(path, NULL);
    }
    assert_true(each_file(r->dir, assert_private, NULL) > 0);
    mx_cold_close(c, SECOND);
    umask(022);
    if (geteuid() == 0) {
        mtplx_error err;
        assert_int_equal(chown(r->dir, 12345, 12345), 0);
        assert_null(mx_cold_open(&r->o, &err));
        assert_non_null(strstr(err.message, "belongs to another user"));
        assert_int_equal(chown(r->dir, 0, 0), 0);
    }
}

static void make_file(const char *dir, const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, O_WRONLY | O_CREAT, 0644);
    assert_true(fd >= 0);
    close(fd);
}

/* Directories that serve something else stay as they are, and looking for a cache makes none. */
static void test_not_ours(void **state)
{
    struct rig *r = *state;
    mtplx_error err;
    char path[128];
    make_file(r->dir, "index.html");
    assert_int_equal(chmod(r->dir, 0755), 0);
    assert_null(mx_cold_open(&r->o, &err));
    assert_non_null(strstr(err.message, "used for other things"));
    assert_int_equal(mode_of(r->dir), 0755);
    assert_null(mx_cold_admin_open(r->dir, 0, NULL, NULL, &err));
    assert_non_null(strstr(err.message, "there is no session cache"));
    assert_int_equal(mode_of(r->dir), 0755);
    snprintf(path, sizeof path, "%s/objects", r->dir);
    assert_int_equal(access(path, F_OK), -1);
    snprintf(path, sizeof path, "%s/index.html", r->dir);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(chmod(r->dir, 01777), 0); /* empty, but shared */
    assert_null(mx_cold_open(&r->o, &err));
    assert_int_equal(mode_of(r->dir), 01777);
    assert_int_equal(chmod(r->dir, 0755), 0);
    struct mx_cold *c = open_rig(r);
    mx_cold_close(c, SECOND);
    make_file(r->dir, "index.html");
    assert_int_equal(chmod(r->dir, 0755), 0); /* a cache is closed, whatever else is there */
    c = open_rig(r);
    assert_int_equal(mode_of(r->dir), 0700);
    mx_cold_close(c, SECOND);
    unlink(path);
    r->o.dir = "~/x";
    assert_null(mx_cold_open(&r->o, &err));
    assert_non_null(strstr(err.message, "full path"));
}

/* A link in the place of a file or folder is not followed. */
static void test_links(void **state)
{
    struct rig *r = *state;
    struct talk t = talk(1, 300);
    struct nth n;
    char target[128];
    struct mx_cold *c = open_rig(r);
    put_ok(c, &t);
    snprintf(target, sizeof target, "%s/target", r->dir);
    assert_int_equal(rename(file_at(r->dir, 0, &n), target), 0);
    assert_int_equal(symlink(target, n.path), 0);
    assert_int_equal(check_talk(c, &t), 1);
    mx_cold_close(c, SECOND);
    assert_true(size_of(target) > 0);
    c = open_rig(r);
    assert_no_orphans(r, c);
    mx_cold_close(c, SECOND);
    unlink(target);
}

/* The second one reads what was there when it came, writes nothing, and hurts nothing. */
static void test_second_process(void **state)
{
    struct rig *r = *state;
    struct mx_cold *c = open_rig(r);
    struct talk t = talk(1, 300);
    struct talk u = talk(2, 300);
    put_ok(c, &t);
    struct mx_cold *second = open_rig(r);
    assert_int_equal(log_lines(r), 1);
    assert_false(stats_of(second).writable);
    assert_int_equal(check_talk(second, &t), 0);
    assert_false(put_talk(second, &u));
    put_ok(c, &u);
    assert_false(has(second, &u));
    mx_cold_drop(c, NULL);
    mx_cold_flush(c, SECOND);
    assert_int_equal(check_talk(second, &t), 1);
    mtplx_error err;
    struct mx_cold_report report;
    struct mx_cold *admin = mx_cold_admin_open(r->dir, 0, NULL, NULL, &err);
    assert_non_null(admin);
    assert_int_equal(mx_cold_clear(admin, NULL, &report, &err), MTPLX_ERR_IO);
    assert_non_null(strstr(err.message, "in use"));
    mx_cold_close(admin, 0);
    mx_cold_close(second, 0);
    put_ok(c, &t);
    assert_int_equal(check_talk(c, &t), 0);
    mx_cold_close(c, 0);
}

/* ---- Disks -------------------------------------------------------------------------------- */

/* A file system of its own of `size`; false: this process may not. */
static bool mount_tmpfs(const char *dir, const char *size)
{
    char options[64];
    snprintf(options, sizeof options, "size=%s,mode=755", size);
    return geteuid() == 0 && mount("tmpfs", dir, "tmpfs", 0, options) == 0;
}

static void fill_disk(const char *path)
{
    static const char page[4096];
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    while (write(fd, page, sizeof page) > 0)
        ;
    close(fd);
}

static void test_full_disk(void **state)
{
    struct rig *r = *state;
    if (!mount_tmpfs(r->dir, "600k"))
        skip();
    set_u64(r, &r->free_bytes, 1ull << 40); /* nothing says that the end is near */
    struct mx_cold *c = open_rig(r);
    for (int i = 0; i < 20; i++) {
        struct talk t = talk(i + 1, 64 * 10);
        put_talk(c, &t);
        mx_cold_flush(c, 20 * SECOND);
        assert_int_not_equal(check_talk(c, &t), 2);
    }
    struct mx_cold_stats s = stats_of(c);
    assert_false(s.writable);
    assert_true(s.snapshots > 0);
    assert_int_equal(log_lines(r), 1);
    assert_no_orphans(r, c);
    struct talk first = talk(1, 64 * 10);
    assert_int_equal(check_talk(c, &first), 0);
    /* What is dropped makes room, also when no row can be deleted. */
    assert_true(mx_cold_drop(c, NULL) > 0);
    mx_cold_flush(c, 20 * SECOND);
    assert_int_equal(each_file(r->dir, NULL, NULL), 0);
    set_u64(r, &r->now_ms, r->now_ms + 61000);
    put_ok(c, &first);
    assert_int_equal(check_talk(c, &first), 0);
    c = reopen(r, c);
    assert_int_equal(check_talk(c, &first), 0);
    assert_no_orphans(r, c);
    mx_cold_close(c, SECOND);
    /* Where not even SQLite finds a page: what is there is read, and can be removed. */
    char path[128];
    snprintf(path, sizeof path, "%s/filling", r->dir);
    fill_disk(path);
    c = open_rig(r);
    assert_int_equal(check_talk(c, &first), 0);
    assert_int_equal(mx_cold_drop(c, NULL), 1);
    mx_cold_flush(c, 20 * SECOND);
    assert_int_equal(each_file(r->dir, NULL, NULL), 0);
    mx_cold_close(c, SECOND);
    unlink(path);
    remove_tree(r->dir);
    assert_int_equal(umount(r->dir), 0);
}

static void test_readonly_disk(void **state)
{
    struct rig *r = *state;
    if (!mount_tmpfs(r->dir, "4m"))
        skip();
    struct mx_cold *c = open_rig(r);
    struct talk t = talk(1, 300);
    put_ok(c, &t);
    mx_cold_close(c, SECOND);
    assert_int_equal(mount("tmpfs", r->dir, "tmpfs", MS_REMOUNT | MS_RDONLY, NULL), 0);
    c = open_rig(r);
    assert_int_equal(log_lines(r), 1);
    assert_false(stats_of(c).writable);
    assert_int_equal(check_talk(c, &t), 0);
    struct talk u = talk(2, 300);
    assert_false(put_talk(c, &u));
    mx_cold_close(c, SECOND);
    assert_int_equal(log_lines(r), 1);
    assert_int_equal(umount(r->dir), 0);
}

/* ---- Killed writers ----------------------------------------------------------------------- */

static struct talk talk_of(int i, int round)
{
    struct talk t = talk(i % 7, 64 * (size_t)(1 + (i + round) % 12) + (size_t)i % 64);
    t.own = i;
    t.shared = 64 * ((size_t)i % 5);
    return t;
}

enum { TALKS = 60 };

/* Writes conversations that share a lot, drops some, until it is killed. */
static void write_forever(struct rig *r, int round)
{
    r->o.log = NULL;
    r->o.max_bytes = 2000 * 1024;
    struct mx_cold *c = open_rig(r);
    for (int i = 0;; i++) {
        struct talk t = talk_of(i % TALKS, round);
        t.session = i & 1 ? "odd" : "even";
        put_talk(c, &t);
        if (i % 16 != 15)
            continue;
        mx_cold_flush(c, SECOND / 20); /* else a slow disk has written nothing of what is dropped */
        mx_cold_drop(c, i & 16 ? "odd" : "even");
    }
}

static void test_killed(void **state)
{
    struct rig *r = *state;
    const char *more = getenv("MTPLX_COLD_KILLS");
    int rounds = more ? (int)strtol(more, NULL, 10) : 20;
    uint64_t whole = 0;
    useconds_t patience = 1;
    for (int round = 0; round < rounds; round++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            write_forever(r, round);
            _exit(0);
        }
        usleep((20000 + (useconds_t)(round * 7919 % 120000)) * patience);
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, NULL, 0), child);
        struct mx_cold *c = open_rig(r);
        assert_no_orphans(r, c);
        assert_int_equal(stats_of(c).dropped_bad, 0); /* never a row without its file */
        for (int i = 0; i < TALKS; i++) {
            struct talk t = talk_of(i, round);
            bool there = has(c, &t);
            int result = check_talk(c, &t);
            assert_int_not_equal(result, 2);
            if (there)
                assert_int_equal(result, 0);
            whole += there;
        }
        mx_cold_close(c, SECOND);
        if (!whole && patience < 16) /* a disk that syncs slowly has nothing to show yet */
            patience *= 2;
    }
    assert_true(whole > 0);
}

/* ---- Looking after ------------------------------------------------------------------------ */

static void count_line(void *arg, const char *text)
{
    (void)text;
    ++*(int *)arg;
}

static void test_admin(void **state)
{
    struct rig *r = *state;
    struct talk t[2];
    struct nth n;
    mtplx_error err;
    struct mx_cold_report report;
    struct mx_cold_item items[4];
    int bad = 0;
    two_talks(t);
    t[1].session = "second";
    assert_null(mx_cold_admin_open("/nonexistent/dir", 0, NULL, NULL, &err));
    struct mx_cold *c = open_rig(r);
    put_ok(c, &t[0]);
    put_ok(c, &t[1]);
    mx_cold_close(c, SECOND);
    c = mx_cold_admin_open(r->dir, 0, on_log, r, &err);
    assert_non_null(c);
    assert_int_equal(mx_cold_list(c, items, 4), 2);
    assert_string_equal(items[0].session, "second");
    assert_int_equal(items[0].tokens, t[1].n);
    assert_true(items[0].chain_bytes > 4 * 3000);
    assert_int_equal(mx_cold_check_all(c, count_line, &bad, NULL, &report, &err), MTPLX_OK);
    assert_int_equal(report.files, 8);
    assert_int_equal(report.bad + (uint64_t)bad, 0);
    const char *path = file_at(r->dir, 3, &n);
    flip(path, size_of(path) - 5);
    assert_int_equal(mx_cold_check_all(c, count_line, &bad, NULL, &report, &err), MTPLX_OK);
    assert_int_equal(bad, 1);
    assert_int_equal(report.bad, 1);
    assert_true(report.snapshots >= 1);
    assert_int_equal(each_file(r->dir, NULL, NULL), stats_of(c).blocks + stats_of(c).snapshots);
    atomic_bool cancel = true;
    if (stats_of(c).blocks)
        assert_int_equal(mx_cold_check_all(c, NULL, NULL, &cancel, &report, &err),
                         MTPLX_ERR_CANCELLED);
    assert_int_equal(mx_cold_gc(c, &report, &err), MTPLX_OK);
    assert_int_equal(report.bad, 0);
    assert_int_equal(mx_cold_clear(c, NULL, &report, &err), MTPLX_OK);
    assert_int_equal(each_file(r->dir, NULL, NULL), 0);
    mx_cold_close(c, 0);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_flipped_bits, setup, teardown),
        cmocka_unit_test_setup_teardown(test_truncated, setup, teardown),
        cmocka_unit_test_setup_teardown(test_swapped, setup, teardown),
        cmocka_unit_test_setup_teardown(test_removed, setup, teardown),
        cmocka_unit_test_setup_teardown(test_strays, setup, teardown),
        cmocka_unit_test_setup_teardown(test_manifest, setup, teardown),
        cmocka_unit_test_setup_teardown(test_rebuild, setup, teardown),
        cmocka_unit_test_setup_teardown(test_versions, setup, teardown),
        cmocka_unit_test_setup_teardown(test_permissions, setup, teardown),
        cmocka_unit_test_setup_teardown(test_not_ours, setup, teardown),
        cmocka_unit_test_setup_teardown(test_links, setup, teardown),
        cmocka_unit_test_setup_teardown(test_second_process, setup, teardown),
        cmocka_unit_test_setup_teardown(test_full_disk, setup, teardown),
        cmocka_unit_test_setup_teardown(test_readonly_disk, setup, teardown),
        cmocka_unit_test_setup_teardown(test_killed, setup, teardown),
        cmocka_unit_test_setup_teardown(test_admin, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
