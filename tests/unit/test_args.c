/* Command-line parsing: values and ranges, abbreviations, typos, environment, words, help width.
 * The program is not part of the library, so its sources are compiled into the test. */
#include "cli/args.c"
#include "cli/suggest.c"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum {
    F_DEPTH,
    F_TEMPERATURE,
    F_TOP_P,
    F_MODEL,
    F_MTP,
    F_SEED,
    F_DEVICE,
    F_QUIET,
    F_BITS,
    F_ORIGIN,
    F_COUNT
};

static const struct mx_cli_flag table[F_COUNT] = {
    [F_DEPTH] = {.name = "depth",
                 .kind = MX_CLI_INT,
                 .letter = 'd',
                 .min = 0,
                 .max = 8,
                 .env = "MTPLX_TEST_DEPTH",
                 .help = "Depth."},
    [F_TEMPERATURE] = {.name = "temperature", .kind = MX_CLI_REAL, .min = -1, .max = 2},
    [F_TOP_P] = {.name = "top-p", .kind = MX_CLI_REAL, .above_min = true, .max = 1},
    [F_MODEL] = {.name = "model", .kind = MX_CLI_TEXT, .letter = 'm'},
    [F_MTP] = {.name = "mtp", .kind = MX_CLI_SWITCH, .negatable = true, .env = "MTPLX_TEST_MTP"},
    [F_SEED] = {.name = "seed", .kind = MX_CLI_UINT64},
    [F_DEVICE] = {.name = "device", .kind = MX_CLI_CHOICE, .choices = "auto cpu ref"},
    [F_QUIET] = {.name = "quiet", .kind = MX_CLI_SWITCH},
    [F_BITS] = {.name = "bits", .kind = MX_CLI_CHOICE, .choices = "2 4 8"},
    [F_ORIGIN] = {.name = "origin", .kind = MX_CLI_TEXT, .repeats = true},
};

/* Parses "a|b|c" as three arguments. */
static bool parse(const char *line, struct mx_cli_args *out)
{
    static char buf[400], *argv[32];
    int argc = 0;
    snprintf(buf, sizeof buf, "%s", line);
    for (char *p = buf; *line && p && argc < 32;) {
        argv[argc++] = p;
        p = strchr(p, '|');
        if (p)
            *p++ = '\0';
    }
    return mx_cli_parse(table, F_COUNT, false, argc, argv, out);
}

static void expect_error(const char *line, const char *part)
{
    struct mx_cli_args a;
    if (parse(line, &a))
        fail_msg("'%s' was accepted", line);
    if (!strstr(a.error, part))
        fail_msg("'%s': the message '%s' lacks '%s'", line, a.error, part);
}

static void test_forms_of_a_value(void **state)
{
    (void)state;
    static const char *const lines[] = {"--depth|5", "--depth=5", "-d|5", "-d5", "-d=5", "--dep|5"};
    struct mx_cli_args a;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        assert_true(parse(lines[i], &a));
        assert_int_equal(a.values[F_DEPTH].integer, 5);
        assert_int_equal(a.values[F_DEPTH].source, MX_CLI_EXPLICIT);
        assert_int_equal(a.n_words, 0);
    }
    assert_true(parse("--depth|5|--depth|7", &a));
    assert_int_equal(a.values[F_DEPTH].integer, 7);
    assert_int_equal(a.values[F_SEED].source, MX_CLI_DEFAULT);
}

static void test_integers_are_range_checked(void **state)
{
    (void)state;
    static const char *const bad[] = {"9",
                                      "-1",
                                      "",
                                      "x",
                                      "3x",
                                      "3.0",
                                      " 3",
                                      "3 ",
                                      "0x3",
                                      "1e0",
                                      "--",
                                      "nan",
                                      "99999999999999999999"};
    char line[64];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(line, sizeof line, "--depth=%s", bad[i]);
        expect_error(line, "--depth takes an integer from 0 to 8");
    }
}

static void test_reals_are_range_checked(void **state)
{
    (void)state;
    static const char *const bad[] = {"2.1", "-1.5", "",   "x",  "1x",    "nan",     "inf",
                                      "1,5", "0x1",  "1 ", " 1", "1e999", "infinity"};
    char line[64];
    struct mx_cli_args a;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(line, sizeof line, "--temperature=%s", bad[i]);
        expect_error(line, "--temperature takes a number from -1 to 2");
    }
    expect_error("--top-p=0", "above 0 and up to 1");
    assert_true(parse("--temperature|-0.5|--top-p|1e-3", &a));
    assert_true(a.values[F_TEMPERATURE].real < -0.49 && a.values[F_TEMPERATURE].real > -0.51);
    assert_true(a.values[F_TOP_P].real > 0);
}

static void test_seed_takes_all_of_64_bits(void **state)
{
    (void)state;
    struct mx_cli_args a;
    assert_true(parse("--seed|18446744073709551615", &a));
    assert_true(a.values[F_SEED].natural == UINT64_MAX);
    expect_error("--seed=18446744073709551616", "--seed takes an integer");
    expect_error("--seed=-1", "--seed takes an integer");
    expect_error("--seed=+1", "--seed takes an integer");
}

static void test_choices(void **state)
{
    (void)state;
    struct mx_cli_args a;
    assert_true(parse("--device|cpu|--bits|4", &a));
    assert_string_equal(a.values[F_DEVICE].text, "cpu");
    assert_int_equal(a.values[F_BITS].integer, 4);
    expect_error("--device=gpu", "--device takes auto, cpu or ref, not 'gpu'");
    expect_error("--device=cp", "takes auto");
    expect_error("--device=", "takes auto");
    expect_error("--device=auto cpu", "takes auto");
    expect_error("--bits=7", "--bits takes 2, 4 or 8");
}

static void test_switches(void **state)
{
    (void)state;
    struct mx_cli_args a;
    assert_true(parse("--mtp", &a) && a.values[F_MTP].on);
    assert_true(parse("--no-mtp", &a) && !a.values[F_MTP].on);
    assert_int_equal(a.values[F_MTP].source, MX_CLI_EXPLICIT);
    assert_true(parse("--mtp=Off", &a) && !a.values[F_MTP].on);
    assert_true(parse("--no-color", &a) && a.no_color);
    assert_true(parse("-h", &a) && a.help);
    expect_error("--mtp=maybe", "--mtp takes on or off");
    expect_error("--no-mtp=yes", "--no-mtp takes no value");
    expect_error("--no-quiet", "unknown flag --no-quiet");
}

static void test_abbreviations(void **state)
{
    (void)state;
    struct mx_cli_args a;
    assert_true(parse("--temp|1|--q|--no-m", &a));
    assert_true(a.values[F_QUIET].on && a.values[F_MTP].source == MX_CLI_EXPLICIT);
    expect_error("--t|1", "--t could mean any of --temperature, --top-p");
    expect_error("--m|x", "--model, --mtp");
    expect_error("--no", "--no-mtp, --no-color");
}

static void test_repeated(void **state)
{
    (void)state;
    struct mx_cli_args a;
    assert_true(parse("--origin|x|--model|m|--origin=y,z|--model|n", &a));
    assert_int_equal(a.n_repeated, 2);
    assert_int_equal(a.repeated[0].flag, F_ORIGIN);
    assert_string_equal(a.repeated[0].text, "x");
    assert_string_equal(a.repeated[1].text, "y,z");
    assert_string_equal(a.values[F_ORIGIN].text, "y,z");
    assert_string_equal(a.values[F_MODEL].text, "n");
    expect_error("--origin=", "not empty");

    char *many[MX_CLI_MAX_REPEATED + 1];
    char flag[] = "--origin=x";
    for (int i = 0; i <= MX_CLI_MAX_REPEATED; i++)
        many[i] = flag;
    assert_true(mx_cli_parse(table, F_COUNT, false, MX_CLI_MAX_REPEATED, many, &a));
    assert_false(mx_cli_parse(table, F_COUNT, false, MX_CLI_MAX_REPEATED + 1, many, &a));
    assert_non_null(strstr(a.error, "too often"));
}

static void test_typos_get_a_suggestion(void **state)
{
    (void)state;
    expect_error("--temprature|1", "unknown flag --temprature; did you mean --temperature?");
    expect_error("--dpeth=1", "did you mean --depth?");
    expect_error("--no-mpt", "did you mean --no-mtp?");
    expect_error("--frobnicate", "unknown flag --frobnicate");
    expect_error("-x", "unknown flag -x");
}

static void test_words_and_dashes(void **state)
{
    (void)state;
    struct mx_cli_args a;
    assert_true(parse("one|--depth|2|two|--|--depth|-x", &a));
    assert_int_equal(a.n_words, 4);
    assert_string_equal(a.words[1], "two");
    assert_string_equal(a.words[2], "--depth");
    assert_string_equal(a.words[3], "-x");
    assert_true(parse("-5|-|-.5|- buy milk|--what is this", &a));
    assert_int_equal(a.n_words, 5);
    assert_true(parse("--model|-|--model=--odd|", &a));
    assert_string_equal(a.values[F_MODEL].text, "--odd");
    assert_int_equal(a.n_words, 1); /* an empty argument is a word, too */
}

static void test_missing_values(void **state)
{
    (void)state;
    expect_error("--model", "--model needs a value");
    expect_error("-m", "--model needs a value");
    expect_error("--model|--quiet", "--model needs a value before --quiet");
    expect_error("--model=", "--model needs a value that is not empty");
}

static void test_environment(void **state)
{
    (void)state;
    struct mx_cli_args a;
    setenv("MTPLX_TEST_DEPTH", "4", 1);
    assert_true(parse("", &a));
    assert_int_equal(a.values[F_DEPTH].integer, 4);
    assert_int_equal(a.values[F_DEPTH].source, MX_CLI_ENVIRONMENT);
    assert_true(parse("--depth|1", &a));
    assert_int_equal(a.values[F_DEPTH].integer, 1);

    setenv("MTPLX_TEST_DEPTH", "many", 1);
    expect_error("", "MTPLX_TEST_DEPTH takes an integer from 0 to 8, not 'many'");
    assert_true(parse("--depth|1", &a)); /* beaten, so not even read */
    assert_true(parse("--help", &a));
    setenv("MTPLX_TEST_DEPTH", "", 1);
    assert_true(parse("", &a));
    assert_int_equal(a.values[F_DEPTH].source, MX_CLI_DEFAULT);

    static const char *const yes[] = {"1", "true", "YES", "on", "enable", "enabled"};
    static const char *const no[] = {"0", "false", "no", "OFF", "disable", "disabled"};
    for (size_t i = 0; i < 6; i++) {
        setenv("MTPLX_TEST_MTP", yes[i], 1);
        assert_true(parse("", &a) && a.values[F_MTP].on);
        setenv("MTPLX_TEST_MTP", no[i], 1);
        assert_true(parse("", &a) && !a.values[F_MTP].on);
    }
    setenv("MTPLX_TEST_MTP", "2", 1);
    expect_error("", "MTPLX_TEST_MTP takes on or off");
    unsetenv("MTPLX_TEST_MTP");
    unsetenv("MTPLX_TEST_DEPTH");
}

static void test_stop_at_word(void **state)
{
    (void)state;
    char *argv[] = {(char *)"--quiet", (char *)"ask", (char *)"--depth", (char *)"x"};
    struct mx_cli_args a;
    assert_true(mx_cli_parse(table, F_COUNT, true, 4, argv, &a));
    assert_int_equal(a.n_words, 3);
    assert_string_equal(a.words[1], "--depth");
}

static void test_long_input_is_bounded(void **state)
{
    (void)state;
    char word[4000], *argv[] = {word};
    struct mx_cli_args a;
    memset(word, 'a', sizeof word - 1);
    word[sizeof word - 1] = '\0';
    memcpy(word, "--", 2);
    assert_false(mx_cli_parse(table, F_COUNT, false, 1, argv, &a));
    memcpy(word, "--depth=", 8);
    assert_false(mx_cli_parse(table, F_COUNT, false, 1, argv, &a));
    assert_true(strlen(a.error) < 200);
    assert_int_equal(mx_cli_distance(word, "depth"), SIZE_MAX);
}

static void test_distance(void **state)
{
    (void)state;
    assert_int_equal(mx_cli_distance("", ""), 0);
    assert_int_equal(mx_cli_distance("abc", ""), 3);
    assert_int_equal(mx_cli_distance("kitten", "sitting"), 3);
    assert_int_equal(mx_cli_distance("aks", "ask"), 1);
    assert_int_equal(mx_cli_distance("inspect", "inspect"), 0);
    const char *best = NULL;
    size_t distance = SIZE_MAX;
    mx_cli_suggest("zzz", "ask", &best, &distance);
    assert_null(best);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forms_of_a_value),
        cmocka_unit_test(test_integers_are_range_checked),
        cmocka_unit_test(test_reals_are_range_checked),
        cmocka_unit_test(test_seed_takes_all_of_64_bits),
        cmocka_unit_test(test_choices),
        cmocka_unit_test(test_switches),
        cmocka_unit_test(test_abbreviations),
        cmocka_unit_test(test_repeated),
        cmocka_unit_test(test_typos_get_a_suggestion),
        cmocka_unit_test(test_words_and_dashes),
        cmocka_unit_test(test_missing_values),
        cmocka_unit_test(test_environment),
        cmocka_unit_test(test_stop_at_word),
        cmocka_unit_test(test_long_input_is_bounded),
        cmocka_unit_test(test_distance),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
