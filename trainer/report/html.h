/* html.h: job.dump_folder/report.html: a run on one page that opens without network: what it came
 * to, its curves as SVG, its options. Made from metrics.jsonl, so that a resumed run shows whole.
 */
#ifndef TESSERA_TRAINER_REPORT_HTML_H
#define TESSERA_TRAINER_REPORT_HTML_H

#include "common/base/status.h"

/* summary: lines for the top, config: options as YAML; both plain text. */
WARN_UNUSED status html_report(const char *folder, const char *title, const char *summary,
                               const char *config);

#endif
