/* SPDX-License-Identifier: Apache-2.0 */
/* html.h: writes job.dump_folder/report.html, a page about one run that needs no network: facts,
 * curves as SVG, and the options. The curves are made from metrics.jsonl and eval.jsonl, so that a
 * run which was interrupted and resumed appears whole. */
#ifndef TESSERA_TRAINER_REPORT_HTML_H
#define TESSERA_TRAINER_REPORT_HTML_H

#include "common/base/status.h"
#include "trainer/eval/html_page.h"

/* facts [count]: the top of the page, to which how long the steps took and the curves of a single
 * point are added. config: the options as YAML. Everything is plain text, which is escaped here.
 * The page is written beside its place and renamed. */
WARN_UNUSED status html_report(const char *folder, html_mark mark, const char *title,
                               const html_fact *facts, int count, const char *config);

#endif
