/* reader_parts.h: private to the Python extension tessera._reader, which opens rows with proto's
 * own client (proto/client.h), so that Python gets them checked as the trainer does and at its
 * speed.
 *
 * Python code decides what to do with them: the extension knows neither numpy nor torch. It gives
 * memory by the buffer protocol, and a failure as the exception Failure(code, words). Only the
 * limited API of Python 3.11 is used, so one build serves that version and all later ones. */
#ifndef TESSERA_PROTO_PYTHON_EXTENSION_READER_PARTS_H
#define TESSERA_PROTO_PYTHON_EXTENSION_READER_PARTS_H

#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030b0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "proto/client.h"

/* --- row_memory.c --- */

/* Makes the types of this file. Returns 0, or -1 with an exception. */
int row_memory_types(void);
/* The memory of one row, which Python frees with the last array in it. Gives a new reference, or
 * NULL with an exception. Memory that was freed is used again: its pages are then already there. */
PyObject *row_memory_new(void);
arena *row_memory_arena(PyObject *memory);
/* Bytes in it as an object with the buffer protocol, which may be written and keeps the memory
 * alive. */
PyObject *row_memory_view(PyObject *memory, void *data, size_t bytes);

/* --- row_values.c --- */

/* A decoded row as (number, message_bytes, arrays, texts). arrays: {name: (bytes, dtype text of
 * safetensors, shape)}; texts: {"cursor", "quarantine", "references", "worker"}. message_bytes is
 * what the row had on the wire. */
PyObject *row_values(const row *packed, const frame *head, size_t message_bytes, PyObject *memory);

/* --- reader_failure.c --- */

/* Makes the exception and adds it to the module. Returns 0, or -1 with an exception. */
int reader_failure_add(PyObject *module);
/* Raises Failure with the code's name and this thread's note. Returns NULL. */
PyObject *reader_failure_raise(status code);

/* --- reader_type.c --- */

/* Makes the type Reader and adds it to the module. Returns 0, or -1 with an exception. */
int reader_type_add(PyObject *module);

#endif
