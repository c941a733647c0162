/* Quantisation of activations for instruction sets without masked loads. The including file
 * defines, all inlined: largest(x, n)           the largest magnitude of n floats; NaN and
 * infinities beat all numbers codes16(x, inv, code)   16 codes, the nearest integers (even on a
 * tie) to x * inv; their sum */
static inline void quantise_group(const float *x, int n, int8_t *code, float *scale, float *sum,
                                  int32_t *neg8, int32_t *neg8q)
{
    float top = largest(x, n);
    bool finite = top <= FLT_MAX, live = finite && top >= MX_Q8_TINY;
    int32_t total = 0;
    for (int i = 0; i < n; i += 16) {
        static const float zeros[16];
        int32_t part = codes16(live ? x + i : zeros, live ? 127.0f / top : 0.0f, code + i);
        neg8q[i / 16] = -8 * part;
        total += part;
    }
    *scale = finite ? (live ? top / 127.0f : 0.0f) : NAN;
    *sum = *scale * (float)total;
    *neg8 = -8 * total;
}

static void q8_quantise(const float *x, int64_t in, int group, struct mx_q8_block *q)
{
    for (int64_t k = 0; k < in; k += MX_PANEL_BLOCK, q++) {
        float padded[MX_PANEL_BLOCK];
        const float *v = x + k;
        if (in - k < MX_PANEL_BLOCK) {
            for (int i = 0; i < MX_PANEL_BLOCK; i++)
                padded[i] = k + i < in ? v[i] : 0.0f;
            v = padded;
        }
        if (group == 64) {
            quantise_group(v, 64, q->code, q->scale, q->sum, q->neg8, q->neg8q);
            continue;
        }
        for (int g = 0; g < 2; g++)
            quantise_group(v + 32 * g, 32, q->code + 32 * g, q->scale + g, q->sum + g, q->neg8 + g,
                           q->neg8q + 2 * g);
    }
}
