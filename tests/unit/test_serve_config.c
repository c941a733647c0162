/* From the flags of `mtplx serve` to options: sizes, lists, presets, whose key counts, settings.
 * The program is not part of the library, so its sources are compiled into the test. */
#include "cli/args.c"
#include "cli/model_arg.c"
#include "cli/serve_config.c"
#include "cli/serve_flags.c"
#include "cli/size.c"
#include "cli/suggest.c"

#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static struct mx_cli_args args;
static struct mx_serve_config config;
static mtplx_error err;

/* Configures from up to four arguments. */
static mtplx_status configure(const char *a, const char *b, const char *c, const char *d)
{
    const char *list[] = {a, b, c, d};
    static char text[4][200];
    char *argv[4];
    int argc = 0;
    for (int i = 0; i < 4; i++) {
        if (list[i]) {
            snprintf(text[argc], sizeof text[argc], "%s", list[i]);
            argv[argc] = text[argc];
            argc++;
        }
    }
    err = (mtplx_error){0};
    if (!mx_cli_parse(mx_serve_flags, SERVE_FLAGS, false, argc, argv, &args))
        fail_msg("%s", args.error);
    return mx_serve_configure(&args, &config, &err);
}

static void expect_ok(const char *a, const char *b, const char *c, const char *d)
{
    if (configure(a, b, c, d) != MTPLX_OK)
        fail_msg("%s: %s", a ? a : "nothing", err.message);
}

static void expect_refused(const char *a, const char *b, const char *part)
{
    if (configure(a, b, NULL, NULL) != MTPLX_ERR_ARGUMENT || !strstr(err.message, part))
        fail_msg("%s: '%s' lacks '%s'", a ? a : "", err.message, part);
    mx_serve_config_free(&config);
}

static void test_defaults(void **state)
{
    (void)state;
    expect_ok(NULL, NULL, NULL, NULL);
    assert_string_equal(config.server.host, "127.0.0.1");
    assert_int_equal(config.server.port, 8000);
    assert_int_equal(config.server.n_api_keys + config.server.n_origins + config.server.n_hosts, 0);
    assert_true(config.server.stall_ns == 300000000000u);
    assert_int_equal(config.engine.mode, MX_ENGINE_MTP_BATCH);
    assert_int_equal(config.engine.max_active, 8);
    assert_int_equal(config.tool_syntax, -1);
    assert_int_equal(config.reasoning_style, -1);
    mx_serve_config_free(&config);
}

static void test_bank(void **state)
{
    (void)state;
    expect_ok(NULL, NULL, NULL, NULL);
    assert_false(config.engine.no_bank);
    assert_true(config.turn_alignment);
    assert_true(config.engine.bank.budget == 0 && config.engine.bank.ttl_ns == 0);
    mx_serve_config_free(&config);
    expect_ok("--session-bank=off", "--turn-alignment=on", "--ssd-session-cache=on", NULL);
    assert_true(config.engine.no_bank && !config.turn_alignment);
    assert_int_equal(config.cold.mode, MX_COLD_OFF);
    mx_serve_config_free(&config);
    expect_ok("--session-bank-size=1G", "--session-cap=512M", "--session-ttl=0",
              "--session-pin=1.5");
    assert_true(config.engine.bank.budget == 1u << 30);
    assert_true(config.engine.bank.session_cap == 512u << 20);
    assert_true(config.engine.bank.ttl_ns == UINT64_MAX);
    assert_true(config.engine.bank.pin_ns == 1500000000u);
    mx_serve_config_free(&config);
    expect_ok("--session-bank-size=50%", "--snapshot-interval=128", "--snapshot-points=4",
              "--turn-alignment=off");
    assert_true(config.engine.bank.budget > 0 &&
                config.engine.bank.budget <= mx_memory_usable() / 2 + 1);
    assert_int_equal(config.engine.bank.spacing, 128);
    assert_int_equal(config.engine.bank.max_points, 4);
    assert_false(config.turn_alignment);
    mx_serve_config_free(&config);
    expect_refused("--session-bank-size=0%", NULL, "--session-bank-size");
    expect_refused("--session-bank-size=101%", NULL, "--session-bank-size");
    expect_refused("--session-bank-size=1%%", NULL, "--session-bank-size");
    expect_refused("--session-bank-size=x", NULL, "--session-bank-size");
    expect_refused("--session-cap=none", NULL, "--session-cap");
}

static void test_disk(void **state)
{
    (void)state;
    expect_ok("--ssd-session-cache=write-only", "--ssd-session-cache-dir=/tmp/x",
              "--ssd-session-cache-max-size=2G", "--ssd-session-cache-min-prefix-tokens=100");
    assert_int_equal(config.cold.mode, MX_COLD_WRITE_ONLY);
    assert_string_equal(config.cold.dir, "/tmp/x");
    assert_true(config.cold.max_bytes == 2ull << 30);
    assert_int_equal(config.cold.min_tokens, 100);
    mx_serve_config_free(&config);
    expect_ok("--ssd-write-budget-per-hour=off", "--ssd-low-disk-floor=1G",
              "--ssd-writer-backlog=64M", "--ssd-session-cache=on");
    assert_int_equal(config.cold.mode, MX_COLD_ON);
    assert_true(config.cold.hourly_bytes == UINT64_MAX);
    assert_true(config.cold.floor_bytes == 1u << 30);
    assert_true(config.cold.queue_bytes == 64u << 20);
    mx_serve_config_free(&config);
    expect_ok("--ssd-write-budget-per-hour=3G", NULL, NULL, NULL);
    assert_true(config.cold.hourly_bytes == 3ull << 30);
    mx_serve_config_free(&config);
    static const char *const no_floor[] = {"--ssd-low-disk-floor=0", "--ssd-low-disk-floor=off"};
    for (int i = 0; i < 2; i++) {
        expect_ok(no_floor[i], NULL, NULL, NULL);
        assert_true(config.cold.floor_bytes == 1); /* 0 would be the default */
        mx_serve_config_free(&config);
    }
    expect_refused("--ssd-low-disk-floor=on", NULL, ", or off");
    expect_refused("--ssd-write-budget-per-hour=on", NULL, "--ssd-write-budget-per-hour");
    expect_refused("--ssd-session-cache-max-size=big", NULL, "--ssd-session-cache-max-size");
    setenv("MTPLX_SSD_SESSION_CACHE", "off", 1);
    expect_ok(NULL, NULL, NULL, NULL);
    assert_int_equal(config.cold.mode, MX_COLD_OFF);
    mx_serve_config_free(&config);
    unsetenv("MTPLX_SSD_SESSION_CACHE");
}

static void test_sizes(void **state)
{
    (void)state;
    static const struct {
        const char *flag;
        uint64_t bytes;
    } good[] = {{"--memory-budget=1048576", 1048576}, {"--memory-budget=512M", 512ull << 20},
                {"--memory-budget=8G", 8ull << 30},   {"--memory-budget=8GiB", 8ull << 30},
                {"--memory-budget=1.5g", 3ull << 29}, {"--memory-budget=2kB", 2048},
                {"--memory-budget=1T", 1ull << 40}};
    static const char *const bad[] = {
        "--memory-budget=8X",  "--memory-budget=-1",  "--memory-budget=0",   "--memory-budget=G",
        "--memory-budget=1GG", "--memory-budget=nan", "--memory-budget=1e30"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        expect_ok(good[i].flag, NULL, NULL, NULL);
        assert_true(config.engine.memory_limit == good[i].bytes);
        mx_serve_config_free(&config);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        expect_refused(bad[i], NULL, "--memory-budget takes a size");
}

static void test_lists(void **state)
{
    (void)state;
    expect_ok("--cors-origin=http://a, http://b ,", "--cors-origin", "http://c",
              "--allowed-host=box");
    assert_int_equal(config.server.n_origins, 3);
    assert_string_equal(config.server.origins[0], "http://a");
    assert_string_equal(config.server.origins[1], "http://b");
    assert_string_equal(config.server.origins[2], "http://c");
    assert_int_equal(config.server.n_hosts, 1);
    mx_serve_config_free(&config);
    setenv("MTPLX_CORS_ORIGINS", "http://x,http://y", 1);
    expect_ok(NULL, NULL, NULL, NULL);
    assert_int_equal(config.server.n_origins, 2);
    mx_serve_config_free(&config);
    expect_ok("--cors-origin=*", NULL, NULL, NULL); /* a flag beats the variable */
    assert_int_equal(config.server.n_origins, 1);
    assert_string_equal(config.server.origins[0], "*");
    mx_serve_config_free(&config);
    unsetenv("MTPLX_CORS_ORIGINS");
}

static void test_scheduling(void **state)
{
    (void)state;
    static const struct {
        const char *a, *b, *c;
        int active;
    } cases[] = {{"--batching-preset=solo", NULL, NULL, 1},
                 {"--batching-preset=latency", NULL, NULL, 2},
                 {"--batching-preset=agent", NULL, NULL, 4},
                 {"--batching-preset=agent", "--max-active-requests=6", NULL, 6},
                 {"--max-active-requests=6", "--decode-batch-max=3", NULL, 3},
                 {"--decode-batch-max=30", NULL, NULL, 8}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expect_ok(cases[i].a, cases[i].b, cases[i].c, NULL);
        assert_int_equal(config.engine.max_active, cases[i].active);
        mx_serve_config_free(&config);
    }
    expect_ok("--scheduler-mode=hyper", "--prefill-chunk-tokens=64", "--draft-vocab=full", NULL);
    assert_int_equal(config.engine.mode, MX_ENGINE_MTP_BATCH);
    assert_int_equal(config.engine.prefill_chunk, 64);
    assert_int_equal(config.load.max_rows, 64);
    assert_int_equal(config.load.draft_vocab, -1);
    mx_serve_config_free(&config);
    expect_ok("--scheduler-mode=serial", "--reasoning-parser=gemma4", "--tool-call-parser=hermes",
              NULL);
    assert_int_equal(config.engine.mode, MX_ENGINE_SERIAL);
    assert_int_equal(config.reasoning_style, MX_REASONING_GEMMA4);
    assert_int_equal(config.tool_syntax, MX_TOOLS_HERMES);
    mx_serve_config_free(&config);
    expect_refused("--draft-vocab=many", NULL, "--draft-vocab takes full");
}

static void test_keys(void **state)
{
    (void)state;
    char path[] = "/tmp/mtplx-key.XXXXXX", flag[60];
    close(mkstemp(path));
    unlink(path);
    snprintf(flag, sizeof flag, "--api-key-file=%s", path);
    setenv("MTPLX_API_KEY", "from-env", 1);
    expect_ok(NULL, NULL, NULL, NULL);
    assert_int_equal(config.server.n_api_keys, 1);
    assert_string_equal(config.server.api_keys[0], "from-env");
    mx_serve_config_free(&config);
    expect_ok("--api-key=typed", NULL, NULL, NULL);
    assert_int_equal(config.server.n_api_keys, 1);
    assert_string_equal(config.server.api_keys[0], "typed");
    mx_serve_config_free(&config);
    expect_ok(flag, NULL, NULL, NULL); /* the file beats the variable */
    assert_int_equal(config.server.n_api_keys, 1);
    assert_int_equal(strncmp(config.server.api_keys[0], "mtplx-", 6), 0);
    mx_serve_config_free(&config);
    expect_ok(flag, "--api-key=typed", NULL, NULL); /* both were asked for: both are good */
    assert_int_equal(config.server.n_api_keys, 2);
    mx_serve_config_free(&config);
    expect_ok("--no-auth", NULL, NULL, NULL);
    assert_int_equal(config.server.n_api_keys, 0);
    mx_serve_config_free(&config);
    expect_refused("--no-auth", flag, "exclude each other");
    expect_refused("--no-auth", "--host=0.0.0.0", "--api-key-file");
    unsetenv("MTPLX_API_KEY");
    expect_refused("--host=192.0.2.1", NULL, "listen on 127.0.0.1");
    expect_ok("--host=0.0.0.0", "--api-key=k", NULL, NULL);
    mx_serve_config_free(&config);
    expect_ok("--host=::1", NULL, NULL, NULL);
    mx_serve_config_free(&config);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults), cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_lists),    cmocka_unit_test(test_scheduling),
        cmocka_unit_test(test_keys),     cmocka_unit_test(test_bank),
        cmocka_unit_test(test_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
