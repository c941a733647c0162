/* One instance of FORMAT(name, bits, scaling, subs, zero_shift) for every format of panels.h, and
 * format_entry(), which finds the one for given panels. The including file defines FORMAT, and
 * FORMAT_ENTRY as the type of what FORMAT leaves under its name. */
FORMAT(affine4_g64, 4, MX_PANEL_AFFINE, 1, 0)
FORMAT(affine4_g32, 4, MX_PANEL_AFFINE, 2, 0)
FORMAT(affine8_g64, 8, MX_PANEL_AFFINE, 1, 0)
FORMAT(affine8_g32, 8, MX_PANEL_AFFINE, 2, 0)
FORMAT(affine2_g64, 2, MX_PANEL_AFFINE, 1, 0)
FORMAT(affine2_g32, 2, MX_PANEL_AFFINE, 2, 0)
FORMAT(affine3_g64, 3, MX_PANEL_AFFINE, 1, 0)
FORMAT(affine3_g32, 3, MX_PANEL_AFFINE, 2, 0)
FORMAT(affine5_g64, 5, MX_PANEL_AFFINE, 1, 0)
FORMAT(affine5_g32, 5, MX_PANEL_AFFINE, 2, 0)
FORMAT(affine6_g64, 6, MX_PANEL_AFFINE, 1, 0)
FORMAT(affine6_g32, 6, MX_PANEL_AFFINE, 2, 0)
FORMAT(scaled4, 4, MX_PANEL_SCALED, 2, 0)
FORMAT(scaled5, 5, MX_PANEL_SCALED, 2, 1)
FORMAT(scaled8, 8, MX_PANEL_SCALED, 2, 4)
FORMAT(super4, 4, MX_PANEL_SUPER, 2, 0)
FORMAT(super5, 5, MX_PANEL_SUPER, 2, 0)
FORMAT(super6, 6, MX_PANEL_SUPER6, 4, 2)

static FORMAT_ENTRY affine_entry(int bits, int subs)
{
    switch (bits) {
    case 2: return subs == 1 ? affine2_g64 : affine2_g32;
    case 3: return subs == 1 ? affine3_g64 : affine3_g32;
    case 4: return subs == 1 ? affine4_g64 : affine4_g32;
    case 5: return subs == 1 ? affine5_g64 : affine5_g32;
    case 6: return subs == 1 ? affine6_g64 : affine6_g32;
    default: return subs == 1 ? affine8_g64 : affine8_g32;
    }
}

static FORMAT_ENTRY format_entry(const struct mx_panels *p)
{
    switch (p->scaling) {
    case MX_PANEL_AFFINE: return affine_entry(p->bits, p->subs);
    case MX_PANEL_SCALED: return p->bits == 4 ? scaled4 : p->bits == 5 ? scaled5 : scaled8;
    case MX_PANEL_SUPER: return p->bits == 4 ? super4 : super5;
    default: return super6;
    }
}
