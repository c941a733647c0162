/* int8 kernels for AVX-512 with AMX: prefill in tiles of 16 rows by 16 outputs.
 *
 * A block of a panel, unpacked to bytes, is a B tile as it stands (a row of the tile is a step:
 * four inputs of 16 outputs), and 16 rows of activation blocks are an A tile. The exact integer
 * sums that come out go through the same float operations as everywhere else (panels.h), so tiles
 * change no bit. Fewer than 16 rows go to the VNNI kernels. */
#include "device/cpu/q8_avx512.h"
#include "device/cpu/q8_shape.h"

enum {
    TILE_ROWS = 16,
    GROUP_TILES = 4, /* tiles of rows that share the unpacking of a block */
};

/* Layout of the configuration that the processor loads (Intel SDM, "TILECFG"). */
struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
};

/* Stores before this are done before what follows: the tile intrinsics of gcc 12 do not say which
 * memory they read. */
static inline void settle(void)
{
    __asm__ volatile("" ::: "memory");
}

/* Tiles 0-3: sums of the sub-blocks; 4: activations; 5: codes. */
static void configure(int subs)
{
    struct tile_config c;
    memset(&c, 0, sizeof c);
    c.palette = 1;
    for (int i = 0; i < 4; i++) {
        c.rows[i] = TILE_ROWS;
        c.bytes[i] = 4 * MX_PANEL_OUTS;
    }
    c.rows[4] = TILE_ROWS;
    c.bytes[4] = (uint16_t)(MX_PANEL_BLOCK / subs);
    c.rows[5] = (uint8_t)(STEPS / subs);
    c.bytes[5] = STEP_BYTES;
    settle(); /* the intrinsic does not tell the compiler that it reads all of c */
    _tile_loadconfig(&c);
}

/* Integer sums of the sub-blocks of a block for 16 rows: sums[sub][row][output]. */
ALWAYS void block_sums(int subs, const uint8_t *codes, const struct mx_q8_block *x, int64_t ldx,
                       int32_t *sums)
{
    size_t row = (size_t)ldx * sizeof *x;
    int per = MX_PANEL_BLOCK / subs;
#define SUB(s)                                                                                     \
    if ((s) < subs) {                                                                              \
        _tile_zero(s);                                                                             \
        _tile_loadd(4, x->code + (s)*per, row);                                                    \
        _tile_loadd(5, codes + (s)*per / 4 * STEP_BYTES, STEP_BYTES);                              \
        _tile_dpbsud(s, 4, 5);                                                                     \
        _tile_stored(s, sums + (s)*TILE_ROWS * MX_PANEL_OUTS, STEP_BYTES);                         \
    }
    SUB(0)
    SUB(1)
    SUB(2)
    SUB(3)
#undef SUB
}

/* The float part of a block for 16 rows; acc is [row][output]. */
ALWAYS void add_sums(struct q8_shape sh, const struct q8_scales *w, const int32_t *sums,
                     const struct mx_q8_block *x, int64_t ldx, float *acc)
{
    for (int r = 0; r < TILE_ROWS; r++, x += ldx, acc += MX_PANEL_OUTS) {
        struct qf a = {_mm512_loadu_ps(acc)};
        UNROLL
        for (int s = 0; s < sh.subs; s++) {
            int g = sh.subs == 4 ? s / 2 : s;
            __m512i sum = _mm512_loadu_si512(sums + (s * TILE_ROWS + r) * MX_PANEL_OUTS);
            sum = _mm512_add_epi32(sum, _mm512_set1_epi32(zero_term(sh, x, s)));
            a = f_fma(f_mul(w[s].scale, f_set1(x->scale[g])), i_float((struct qi){sum}), a);
            if (sh.scaling == MX_PANEL_AFFINE || sh.scaling == MX_PANEL_SUPER)
                a = f_fma(w[s].bias, f_set1(x->sum[g]), a);
        }
        f_store(acc, a);
    }
}

ALWAYS void unpack_block(int bits, const uint8_t *codes, uint8_t *bytes)
{
    UNROLL
    for (int i = 0; i < STEPS; i++)
        _mm512_store_si512(bytes + i * STEP_BYTES, step_codes(bits, codes, i).v);
}

/* `tiles` tiles of rows of one panel; acc is [tiles * 16][16]. */
ALWAYS void panel_tiles(struct q8_shape sh, const struct mx_panels *p, const uint8_t *at,
                        const struct mx_q8_block *x, int64_t ldx, int tiles, float *acc)
{
    _Alignas(64) uint8_t bytes[STEPS * STEP_BYTES];
    _Alignas(64) int32_t sums[4 * TILE_ROWS * MX_PANEL_OUTS];
    bool super = sh.scaling == MX_PANEL_SUPER || sh.scaling == MX_PANEL_SUPER6;
    struct qf d = f_zero(), dmin = f_zero();
    for (int i = 0; i < tiles * TILE_ROWS; i++)
        f_store(acc + i * MX_PANEL_OUTS, f_zero());
    for (int64_t b = 0; b < p->blocks; b++, x++, at += p->block_bytes) {
        struct q8_scales w[4];
        if (super && b % 4 == 0) {
            d = f_half(false, at);
            if (sh.scaling == MX_PANEL_SUPER)
                dmin = f_mul(f_set1(-1.0f), f_half(false, at + 2 * MX_PANEL_OUTS));
            at += p->header_bytes;
        }
        if (sh.bits != 8)
            unpack_block(sh.bits, at, bytes);
        settle();
        UNROLL
        for (int s = 0; s < sh.subs; s++)
            w[s] = load_scales(sh, p->bf16, at + code_bytes(sh.bits), s, 0, d, dmin);
        for (int t = 0; t < tiles; t++) {
            const struct mx_q8_block *xt = x + t * TILE_ROWS * ldx;
            block_sums(sh.subs, sh.bits == 8 ? at : bytes, xt, ldx, sums);
            add_sums(sh, w, sums, xt, ldx, acc + t * TILE_ROWS * MX_PANEL_OUTS);
        }
    }
}

static void put_rows(const float *acc, int rows, int outs, float *y, int64_t ldy)
{
    for (int r = 0; r < rows; r++, acc += MX_PANEL_OUTS, y += ldy) {
        if (outs == MX_PANEL_OUTS)
            f_store(y, (struct qf){_mm512_loadu_ps(acc)});
        else
            f_store_n(y, outs, (struct qf){_mm512_loadu_ps(acc)});
    }
}

typedef void tiles_fn(const struct mx_panels *p, const uint8_t *at, const struct mx_q8_block *x,
                      int64_t ldx, int tiles, float *acc);

#define FORMAT(name, b, sc, su, z)                                                                 \
    static void name(const struct mx_panels *p, const uint8_t *at, const struct mx_q8_block *x,    \
                     int64_t ldx, int tiles, float *acc)                                           \
    {                                                                                              \
        panel_tiles((struct q8_shape){b, sc, su, z, 0}, p, at, x, ldx, tiles, acc);                \
    }
#define FORMAT_ENTRY tiles_fn *
#include "device/cpu/q8_formats.h"

/* All whole tiles of rows, then the rest. A panel is read once per group of tiles; it comes from
 * the second-level cache from the second time on. */
static void amx_product(const struct mx_panels *p, int64_t first, int64_t n,
                        const struct mx_q8_block *q, int64_t ldq, int rows, float *y, int64_t ldy)
{
    _Alignas(64) float acc[GROUP_TILES * TILE_ROWS * MX_PANEL_OUTS];
    int whole = rows / TILE_ROWS * TILE_ROWS;
    if (whole < rows)
        mx_q8_vnni512.product(p, first, n, q + whole * ldq, ldq, rows - whole, y + whole * ldy,
                              ldy);
    if (whole == 0)
        return;
    tiles_fn *tiles = format_entry(p);
    configure(p->subs);
    for (int64_t i = first; i < first + n; i++) {
        int64_t o = i * MX_PANEL_OUTS, left = p->out - o;
        int outs = left < MX_PANEL_OUTS ? (int)left : MX_PANEL_OUTS;
        for (int r = 0; r < whole; r += GROUP_TILES * TILE_ROWS) {
            int part = whole - r < GROUP_TILES * TILE_ROWS ? whole - r : GROUP_TILES * TILE_ROWS;
            tiles(p, p->data + (size_t)i * p->panel_bytes, q + r * ldq, ldq, part / TILE_ROWS, acc);
            put_rows(acc, part, outs, y + r * ldy + o, ldy);
        }
    }
    _tile_release();
}

static void amx_quantise(const float *x, int64_t in, int group, struct mx_q8_block *q)
{
    mx_q8_vnni512.quantise(x, in, group, q);
}

const struct mx_q8_kernels mx_q8_amx = {
    .name = "amx-int8",
    .quantise = amx_quantise,
    .product = amx_product,
};
