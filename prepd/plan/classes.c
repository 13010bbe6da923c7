/* classes.c: resolution classes. The images of a class have areas within one octave and are all
 * wide, all square or all tall, so they give the vision tower similar shapes. */
#include <inttypes.h>

#include "prepd/plan/report.h"

/* An image is square if no side is more than a quarter longer than the other;
 * a 4:3 picture is not. */
enum { SQUARE_NUM = 5, SQUARE_DEN = 4 };

typedef struct class_sum {
    int64_t images, patches;
} class_sum;

static int area_of(int64_t patches)
{
    int k = 0;
    for (; patches > 1 && k < CLASS_AREAS - 1; patches /= 2)
        k++;
    return k;
}

static int aspect_of(fit_grid grid)
{
    if (grid.columns * SQUARE_DEN > grid.rows * SQUARE_NUM)
        return 0;
    return grid.rows * SQUARE_DEN > grid.columns * SQUARE_NUM ? 2 : 1;
}

int plan_class_of(fit_grid grid)
{
    return area_of(fit_patches(grid)) * CLASS_ASPECTS + aspect_of(grid);
}

/* Prints how many rows are of a single class and how full they are, and the same of the others. */
static void report_rows(const plan *planned, FILE *to)
{
    int64_t rows[2] = {0}, tokens[2] = {0};
    for (int64_t k = 0; k < planned->n_rows; k++) {
        const bool mixed = planned->rows[k].class == MIXED_CLASSES;
        rows[mixed]++;
        tokens[mixed] += planned->rows[k].tokens;
    }
    for (int mixed = 0; mixed < 2; mixed++)
        if (rows[mixed])
            fprintf(to, "  rows of %s %10" PRId64 " (%.2f %%), fill: %.2f %%\n",
                    mixed ? "several classes:" : "one class:      ", rows[mixed],
                    100.0 * (double)rows[mixed] / (double)planned->n_rows,
                    100.0 * (double)tokens[mixed] / (double)(rows[mixed] * planned->token_budget));
}

status plan_report_classes(plan *planned, FILE *to)
{
    static const char *const names[] = {"wide", "square", "tall"};
    class_sum sums[CLASS_AREAS][CLASS_ASPECTS] = {0}, all = {0};
    for (int64_t unit = 0; unit < planned->n_units;
         unit++) { /* the documents of a unit share its images */
        planned_doc doc;
        bool is_cause;
        if (planned->units[unit].images == 0)
            continue;
        const arena_mark mark = arena_save(&planned->scratch);
        status st = plan_measure(planned, planned->docs[planned->units[unit].first].sample,
                                 &planned->scratch, &doc, &is_cause);
        for (int32_t k = 0; st == ST_OK && k < doc.n_images; k++) {
            const int64_t patches = fit_patches(doc.grids[k]);
            class_sum *sum = &sums[area_of(patches)][aspect_of(doc.grids[k])];
            sum->images++;
            sum->patches += patches;
            all.images++;
            all.patches += patches;
        }
        arena_release(&planned->scratch, mark);
        TRY(st);
    }
    if (all.images == 0)
        return ST_OK;
    fprintf(to, "resolution classes (area in patches, aspect):\n");
    for (int k = 0; k < CLASS_AREAS; k++)
        for (int j = 0; j < CLASS_ASPECTS; j++)
            if (sums[k][j].images)
                fprintf(to, "  %8lld to %8lld %-6s %10" PRId64 " images, %6.2f %% of the patches\n",
                        1LL << k, (2LL << k) - 1, names[j], sums[k][j].images,
                        100.0 * (double)sums[k][j].patches / (double)all.patches);
    report_rows(planned, to);
    return ST_OK;
}
