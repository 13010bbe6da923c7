/* html_page.c: see html_page.h. */
#include "trainer/eval/html_page.h"

#include "common/base/html_text.h"

static const char common_style[] =
    ":root{color-scheme:light dark;--ink:#1c2733;--paper:#fff;--faint:#57636f;--line:#d9dfe6;"
    "--panel:#f3f5f8;--mark:#1f6feb;--good:#116329;--bad:#a0111f}\n"
    "@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--paper:#0f141a;--faint:#9aa7b4;"
    "--line:#2d3742;--panel:#18202a;--mark:#6cb0ff;--good:#6fdd8b;--bad:#ff9b9b}}\n"
    "body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:1140px;padding:0 1em;"
    "color:var(--ink);background:var(--paper)}h1{font-size:1.4em}h2{font-size:1.1em}\n"
    ".facts{display:grid;grid-template-columns:repeat(auto-fill,minmax(9em,1fr));gap:10px;"
    "margin:0 0 20px}.facts div{background:var(--panel);border-radius:6px;padding:8px 12px}"
    ".facts dt,.facts small{color:var(--faint);font-size:13px}"
    ".facts dd{margin:0;font-size:1.15em;font-weight:600;overflow-wrap:anywhere}"
    ".facts small{display:block;font-weight:400;line-height:1.35}\n";

void html_page_begin(FILE *to, const char *title, const char *style)
{
    fputs("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>",
          to);
    html_put_text(to, title);
    fprintf(to, "</title>\n<style>%s%s</style></head><body>\n<h1>", common_style, style);
    html_put_text(to, title);
    fputs("</h1>\n", to);
}

void html_page_facts(FILE *to, const html_fact *facts, int count)
{
    fputs("<dl class=\"facts\">\n", to);
    for (int i = 0; i < count; i++) {
        fputs("<div><dt>", to);
        html_put_text(to, facts[i].name);
        fputs("</dt><dd>", to);
        html_put_text(to, facts[i].value);
        if (facts[i].note[0]) {
            fputs("<small>", to);
            html_put_text(to, facts[i].note);
            fputs("</small>", to);
        }
        fputs("</dd></div>\n", to);
    }
    fputs("</dl>\n", to);
}

void html_page_end(FILE *to)
{
    fputs("</body></html>\n", to);
}
