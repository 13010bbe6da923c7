/* html.h: writes job.dump_folder/report.html, a page about one run that needs no network: a
 * summary, curves as SVG, and the options. It is made from metrics.jsonl and eval.jsonl, so that a
 * run which was interrupted and resumed appears whole. */
#ifndef TESSERA_TRAINER_REPORT_HTML_H
#define TESSERA_TRAINER_REPORT_HTML_H

#include "common/base/status.h"

/* summary: lines for the top of the page; config: the options as YAML. Both are plain text, which
 * is escaped here. The page is written beside its place and renamed. */
WARN_UNUSED status html_report(const char *folder, const char *title, const char *summary,
                               const char *config);

#endif
