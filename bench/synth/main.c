/* synth: writes a synthetic checkpoint (synth.h says what is in it and why).
 *
 *   synth [OPTIONS] OUT
 *
 * OUT is a file for the GGUF types and a directory for the MLX ones. Rows are made and written one
 * by one, so memory stays small whatever the size. */
#include "synth.h"

#include "base/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char usage[] =
    "synth [OPTIONS] OUT    write a random-weight Qwen3.5 checkpoint with a chosen acceptance\n"
    "\n"
    "  --preset NAME    0.8b (default), 2b, 4b, 9b, 27b, 1b (0.8b with its own head), nano\n"
    "  --type TYPE      GGUF: q4_0 q4_k_m (default) q5_k_m q6_k q8_0 f16; MLX: mlx4 mlx8 bf16\n"
    "  --group N        MLX group size: 64 (default) or 32\n"
    "  --accept A       drafts that are right: chain (all, default), none, or a share 0..1\n"
    "  --layers N --hidden N --ff N --heads N --kv-heads N --head-dim N\n"
    "  --key-heads N --value-heads N --state N --vocab N --context N\n"
    "                   change the preset's geometry\n"
    "  --tied, --untied whether the head is the embedding matrix\n"
    "  --no-mtp         leave the MTP head out\n"
    "  --seed N         other random weights\n";

/* ---- Files ------------------------------------------------------------------------------------
 */

static char *part_name(const char *path)
{
    size_t size = strlen(path) + sizeof ".part";
    char *name = malloc(size);
    if (name)
        snprintf(name, size, "%s.part", path);
    return name;
}

FILE *synth_open(const char *path, mtplx_error *err)
{
    char *name = part_name(path);
    FILE *f = name ? fopen(name, "wb") : NULL;
    if (!f)
        mx_error(err, MTPLX_ERR_IO, "%s.part: cannot create: %s", path, strerror(errno));
    free(name);
    return f;
}

mtplx_status synth_close(FILE *f, const char *path, mtplx_status status, mtplx_error *err)
{
    char *name = part_name(path);
    bool bad = ferror(f) != 0;
    bad |= fclose(f) != 0;
    if (status == MTPLX_OK && (bad || !name || rename(name, path) != 0))
        status = mx_error(err, MTPLX_ERR_IO, "%s: cannot write: %s", path, strerror(errno));
    if (status != MTPLX_OK && name)
        unlink(name);
    free(name);
    return status;
}

/* ---- Arguments --------------------------------------------------------------------------------
 */

struct arguments {
    struct synth_geometry g;
    bool gguf;
    enum synth_mix mix;
    struct synth_mlx mlx;
    double accept;
    uint64_t seed;
    const char *out;
};

static void die(const char *fmt, const char *what)
{
    fprintf(stderr, "synth: ");
    fprintf(stderr, fmt, what);
    fprintf(stderr, "\n");
    exit(2);
}

static long to_number(const char *flag, const char *text, long low, long high)
{
    char *end;
    errno = 0;
    long v = strtol(text, &end, 10);
    if (*text == '\0' || *end != '\0' || errno != 0 || v < low || v > high) {
        fprintf(stderr, "synth: %s wants a number from %ld to %ld, not '%s'\n", flag, low, high,
                text);
        exit(2);
    }
    return v;
}

static double to_accept(const char *text)
{
    if (strcmp(text, "chain") == 0)
        return 1;
    if (strcmp(text, "none") == 0)
        return 0;
    char *end;
    double v = strtod(text, &end);
    if (*text == '\0' || *end != '\0' || !(v >= 0 && v <= 1))
        die("--accept wants chain, none or a share from 0 to 1, not '%s'", text);
    return v;
}

static void set_type(struct arguments *a, const char *text)
{
    static const char *const mixes[] = {"q4_0", "q4_k_m", "q5_k_m", "q6_k", "q8_0", "f16"};
    static const struct {
        const char *name;
        int bits;
    } mlx[] = {{"mlx4", 4}, {"mlx8", 8}, {"bf16", 16}};
    for (size_t i = 0; i < sizeof mixes / sizeof *mixes; i++)
        if (strcmp(text, mixes[i]) == 0) {
            a->gguf = true;
            a->mix = (enum synth_mix)i;
            return;
        }
    for (size_t i = 0; i < sizeof mlx / sizeof *mlx; i++)
        if (strcmp(text, mlx[i].name) == 0) {
            a->gguf = false;
            a->mlx.bits = mlx[i].bits;
            return;
        }
    die("--type '%s' is unknown; see synth --help", text);
}

/* A flag that sets one number of the geometry. */
static bool set_dimension(struct synth_geometry *g, const char *flag, const char *text)
{
    const struct {
        const char *name;
        int *value;
        long most;
    } flags[] = {
        {"--layers", &g->layers, 1000},
        {"--hidden", &g->hidden, 32768},
        {"--ff", &g->ff, 262144},
        {"--heads", &g->heads, 512},
        {"--kv-heads", &g->kv_heads, 512},
        {"--head-dim", &g->head_dim, 512},
        {"--key-heads", &g->key_heads, 512},
        {"--value-heads", &g->value_heads, 512},
        {"--state", &g->state, 512},
        {"--vocab", &g->vocab, 1000000},
        {"--context", &g->context, 16777216},
    };
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (strcmp(flag, flags[i].name) == 0) {
            *flags[i].value = (int)to_number(flag, text, 1, flags[i].most);
            return true;
        }
    return false;
}

static bool set_switch(struct arguments *a, const char *flag)
{
    if (strcmp(flag, "--tied") == 0)
        a->g.tied = true;
    else if (strcmp(flag, "--untied") == 0)
        a->g.tied = false;
    else if (strcmp(flag, "--no-mtp") == 0)
        a->g.mtp = false;
    else
        return false;
    return true;
}

static void set_option(struct arguments *a, const char *flag, const char *text)
{
    if (strcmp(flag, "--preset") == 0) {
        if (!synth_preset(text, &a->g))
            die("--preset '%s' is unknown; see synth --help", text);
    } else if (strcmp(flag, "--type") == 0) {
        set_type(a, text);
    } else if (strcmp(flag, "--group") == 0) {
        a->mlx.group = (int)to_number(flag, text, 32, 64);
        if (a->mlx.group != 32 && a->mlx.group != 64)
            die("--group is 32 or 64, not '%s'", text);
    } else if (strcmp(flag, "--accept") == 0) {
        a->accept = to_accept(text);
    } else if (strcmp(flag, "--seed") == 0) {
        a->seed = (uint64_t)to_number(flag, text, 0, INT32_MAX);
    } else if (!set_dimension(&a->g, flag, text)) {
        die("unknown option '%s'; see synth --help", flag);
    }
}

static struct arguments parse(int argc, char **argv)
{
    struct arguments a = {.gguf = true, .mix = MIX_Q4_K_M, .mlx = {4, 64}, .accept = 1, .seed = 1};
    synth_preset("0.8b", &a.g);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0) {
            fputs(usage, stdout);
            exit(0);
        }
        if (strncmp(argv[i], "--", 2) != 0) {
            if (a.out)
                die("one output path, please, not also '%s'", argv[i]);
            a.out = argv[i];
        } else if (!set_switch(&a, argv[i])) {
            if (i + 1 == argc)
                die("%s wants a value (or is unknown); see synth --help", argv[i]);
            set_option(&a, argv[i], argv[i + 1]);
            i++;
        }
    }
    if (!a.out || !*a.out)
        die("%s", "an output path is missing; see synth --help");
    return a;
}

/* ---- Main -------------------------------------------------------------------------------------
 */

static mtplx_status write_checkpoint(const struct arguments *a, struct synth_plan *p,
                                     mtplx_error *err)
{
    struct synth_code code;
    mtplx_status status = synth_code_init(&code, a->g.hidden, a->g.vocab, a->accept, a->seed, err);
    if (status != MTPLX_OK)
        return status;
    int64_t widest = 1;
    for (size_t i = 0; i < p->count; i++)
        widest = p->tensors[i].cols > widest ? p->tensors[i].cols : widest;
    struct synth_encoder e = {
        .code = &code, .mlx = a->mlx, .random = a->seed, .ternary = malloc((size_t)widest)};
    if (!e.ternary)
        status = mx_error_nomem(err, "a row", (size_t)widest);
    else if (a->gguf)
        status = synth_write_gguf(a->out, &a->g, p, &e, a->mix, err);
    else
        status = synth_write_mlx(a->out, &a->g, p, &e, err);
    free(e.ternary);
    synth_code_free(&code);
    return status;
}

/* A file is written beside OUT and moved there, which would replace a link or a device. */
static mtplx_status check_target(const struct arguments *a, mtplx_error *err)
{
    struct stat st;
    if (a->gguf && lstat(a->out, &st) == 0 && !S_ISREG(st.st_mode))
        return mx_error(err, MTPLX_ERR_ARGUMENT, "%.200s is there and is not a regular file",
                        a->out);
    return MTPLX_OK;
}

int main(int argc, char **argv)
{
    struct arguments a = parse(argc, argv);
    struct synth_plan plan = {0};
    mtplx_error err = {0};
    uint64_t start = mx_now_ns();
    mtplx_status status = synth_geometry_check(&a.g, &err);
    if (status == MTPLX_OK)
        status = synth_plan_make(&plan, &a.g, &err);
    if (status == MTPLX_OK)
        status = check_target(&a, &err);
    if (status == MTPLX_OK)
        status = write_checkpoint(&a, &plan, &err);
    if (status == MTPLX_OK)
        printf("%s: %.3f B parameters in %.1f s\n", a.out,
               (double)synth_plan_parameters(&plan) / 1e9, (double)(mx_now_ns() - start) / 1e9);
    else
        fprintf(stderr, "synth: %s\n", err.message);
    synth_plan_free(&plan);
    return status == MTPLX_OK ? 0 : 1;
}
